//! `surefoot replay` as people and programs see it.

use crate::common::{show, surefoot};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Two steps of something that fits into the warm-up floor, and a tensor that does not.
const TRACE: &str = "s\na 1 209715200\na 2 1000000\nf 1\na 3 52428800\nf 3\nf 2\n\
                     s\na 1 2147483648\nf 1\n";

fn replay(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = surefoot();
    command.current_dir(folder).args(["replay", "run.trace"]);
    command.args(arguments).output().expect("it runs")
}

fn recorded() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("run.trace"), TRACE).expect("a trace");
    folder
}

/// Without the line that is never the same twice.
fn without_times(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains(" ns per "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_table_of_what_allocators_would_hold() {
    insta::assert_snapshot!(without_times(&show(&replay(recorded().path(), &[]))));
}

#[test]
fn json_has_every_allocator_and_whether_the_bounds_were_kept() {
    let output = replay(
        recorded().path(),
        &["--json", "--policy", "keep:off,warmup_mb:0"],
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["peak_live_bytes"], 2_147_483_648u64);
    assert_eq!(report["steps"], 2);
    assert_eq!(report["refused"], 0);
    let rows = report["allocators"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str()).collect();
    assert_eq!(names[0], Some("hip-alloc"));
    assert_eq!(names.len(), 6);
    // 2 GiB, and cached beside it: a block of 200 MiB and one for a million bytes.
    assert_eq!(rows[1]["peak_held_bytes"], 2250u64 << 20);
    assert_eq!(rows[0]["idle_excess_bytes"], 0, "nothing is cached");
    for bound in ["peak", "idle", "calls"] {
        assert!(report["promises"][bound].is_boolean());
    }
    assert!(
        report["nanoseconds_per_operation"]
            .as_f64()
            .expect("a time")
            > 0.0
    );
}

/// As PyTorch's snapshots are: nothing says where a step begins.
#[test]
fn without_steps_nothing_is_told_by_the_step() {
    let folder = recorded();
    let text = TRACE.replace("s\n", "");
    std::fs::write(folder.path().join("run.trace"), text).expect("a trace");
    insta::assert_snapshot!(without_times(&show(&replay(folder.path(), &[]))));
    let output = replay(folder.path(), &["--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ours = &report["allocators"][0];
    assert!(ours["idle_excess_bytes"].is_null() && ours["driver_calls_per_step"].is_null());
    assert!(ours["driver_calls"].as_u64() > Some(0));
    let promises = &report["promises"];
    assert!(promises["peak"].is_boolean() && promises.get("calls").is_none());
}

#[test]
fn the_picture_has_a_line_for_each_allocator() {
    let folder = recorded();
    let output = replay(folder.path(), &["--svg", "run.svg"]);
    assert!(output.status.success());
    let picture = std::fs::read_to_string(folder.path().join("run.svg")).expect("a picture");
    for name in [
        "live",
        "hip-alloc",
        "PyTorch default",
        "max_split_size_mb:512",
    ] {
        assert!(picture.contains(&format!("{name} (peak")), "{name}");
    }
}

#[test]
fn what_is_wrong_is_told_and_counts_as_bad_usage() {
    let folder = recorded();
    let write = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    write("broken.trace", "a 1 100\nf 2\n");
    write("empty.trace", "s\n");
    write("huge.trace", "a 0 18446744073709551615\nf 0\n");
    write(
        "sum.trace",
        &(0..3)
            .map(|id| format!("a {id} {}\n", i64::MAX))
            .collect::<String>(),
    );
    let mut all = String::new();
    for arguments in [
        &["broken.trace"][..],
        &["empty.trace"],
        &["huge.trace"],
        &["sum.trace"],
        &["nowhere.trace"],
        &["run.trace", "--policy", "warm:1"],
        &["run.trace", "--policy", "max_split_size_mb:0"],
    ] {
        let mut command = surefoot();
        let command = command
            .current_dir(folder.path())
            .arg("replay")
            .args(arguments);
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        all += &String::from_utf8_lossy(&output.stderr);
    }
    insta::assert_snapshot!(all);
    // A device that is too small is the job's failure, not the caller's.
    let output = replay(folder.path(), &["--capacity-mb", "1024"]);
    assert_eq!(output.status.code(), Some(1));
}
