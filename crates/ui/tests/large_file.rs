//! A long file of metrics: time, and the memory of a process that reads it. Alone in its process, whose memory is measured.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::Instant;

use surefoot_ui::runs::{Metrics, Range, Runs};

/// Bytes of the file; `SUREFOOT_LONG_FILE=1` makes it a gigabyte.
fn wanted() -> u64 {
    match std::env::var_os("SUREFOOT_LONG_FILE") {
        Some(_) => 1 << 30,
        None => 48 << 20,
    }
}

/// Rows of every kind, with some that are long: steps, samples, events.
fn write(path: &Path, wanted: u64) -> u64 {
    let mut file = BufWriter::new(File::create(path).unwrap());
    let text = "x".repeat(100_000);
    let (mut written, mut step) = (0, 0);
    while written < wanted {
        step += 1;
        let mut row = format!(
            "{{\"kind\":\"train\",\"step\":{step},\"loss\":{},\"learning_rate\":0.001,\"grad_norm\":0.5,\
             \"tokens_per_second\":18000.5,\"memory\":{{\"live\":1200000000,\"held\":1300000000,\
             \"live_peak\":1400000000,\"held_peak\":1500000000,\"resident\":2100000000}}}}\n",
            2.0 + 1.0 / step as f64
        );
        if step % 500 == 0 {
            row += &format!(
                "{{\"kind\":\"samples\",\"step\":{step},\"samples\":[{{\"prompt\":\"a\",\"text\":\"{text}\"}}]}}\n"
            );
            row += &format!("{{\"kind\":\"skipped\",\"step\":{step},\"batch\":\"{text}\"}}\n");
        }
        file.write_all(row.as_bytes()).unwrap();
        written += row.len() as u64;
    }
    file.into_inner().unwrap().sync_all().unwrap();
    step
}

/// The most memory that this process had, in bytes.
fn most_resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() << 10
}

#[test]
fn a_long_file_takes_no_more_memory_than_a_short_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("long");
    fs::create_dir(&run).unwrap();
    fs::write(run.join("config.yaml"), "name: long\n").unwrap();
    let steps = write(&run.join("metrics.jsonl"), wanted());
    let runs = Runs::new(folder.path());
    let name = "long".parse().unwrap();
    let before = most_resident();
    let began = Instant::now();
    let mut metrics = Metrics::new(Range::default());
    let mut file = runs.metrics_file(&name).unwrap().unwrap();
    metrics.update(&mut file).unwrap();
    let first = began.elapsed();
    assert_eq!(metrics.latest().step, steps);
    let samples = metrics.samples(&mut file, 4, 1 << 20).unwrap();
    assert_eq!(samples.last().unwrap().step, steps / 500 * 500);
    // The list reads the end alone.
    let began = Instant::now();
    assert_eq!(runs.list().unwrap()[0].latest.step, steps);
    let list = began.elapsed();
    let more = most_resident() - before;
    println!("read in {first:?}, listed in {list:?}, {more} bytes");
    assert!(more < 12 << 20, "{more} bytes more");
    assert!(list < first / 4, "{list:?} beside {first:?}");
}
