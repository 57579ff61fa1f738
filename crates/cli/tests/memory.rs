//! `surefoot-trainer train` where memory is short: under a real limit of the operating system.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A narrow model with a wide feed-forward layer: 43 MB a sample, and next to no work.
const CONFIG: &str = "\
device: cpu
threads: 1
output_dir: runs
model: {hidden_size: 16, intermediate_size: 4096, num_hidden_layers: 1, num_attention_heads: 2}
data: {path: text.txt, block_size: 512}
sample: {max_new_tokens: 0}
train:
  bf16: false
  max_steps: 4
  per_device_train_batch_size: 8
  per_device_eval_batch_size: 1
  logging_steps: 1
  save_steps: 0
";

/// A run of the trainer in `folder`, that may have so many bytes of address space.
fn start(folder: &Path, name: &str, batch: impl Display, limit: Option<u64>) -> Child {
    let limit = limit.map_or("unlimited".into(), |bytes| (bytes / 1024).to_string());
    Command::new("sh")
        .args(["-c", "ulimit -v \"$1\" && shift && exec \"$@\"", "sh"])
        .arg(limit)
        .arg(env!("CARGO_BIN_EXE_surefoot-trainer"))
        .args(["train", "config.yaml", "--set"])
        .arg(format!("name={name}"))
        .arg("--set")
        .arg(format!("train.per_device_train_batch_size={batch}"))
        .current_dir(folder)
        .env("HIP_ALLOC", "0")
        .env_remove("RUST_LOG")
        .env("SUREFOOT_CACHE", folder.join("cache"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The most address space that a run has while it lasts.
fn peak(mut child: Child) -> u64 {
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmPeak:"));
        let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        peak = peak.max(kibibytes.unwrap_or(0) * 1024);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(child.wait().unwrap().success());
    peak
}

fn read(folder: &Path, name: &str, file: &str) -> Value {
    let path = folder.join("runs").join(name).join(file);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn losses(folder: &Path, name: &str) -> Vec<f64> {
    let text = fs::read_to_string(folder.join("runs").join(name).join("metrics.jsonl")).unwrap();
    let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let loss = |record: Value| match record["kind"] == "train" {
        true => record["loss"].as_f64(),
        false => None,
    };
    records.filter_map(loss).collect()
}

#[test]
fn an_automatic_batch_says_how_it_is_divided() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    fs::write(folder.join("text.txt"), crate::common::bottles(2000)).unwrap();
    let config = CONFIG.replace(
        "max_steps: 4",
        "max_steps: 1\n  gradient_accumulation_steps: 2",
    );
    fs::write(folder.join("config.yaml"), config).unwrap();
    let output = start(folder, "auto", "auto", None)
        .wait_with_output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let chosen = "all 2 samples of a step in one pass";
    assert!(said.contains(&format!("batch      {chosen}")), "{said}");
    let summary = read(folder, "auto", "summary.json");
    assert_eq!(
        (&summary["environment"]["batch"], &summary["micro_batch"]),
        (&chosen.into(), &2.into())
    );
}

#[test]
fn a_batch_that_does_not_fit_is_learned_in_pieces_and_to_the_same_effect() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let text = crate::common::bottles(2000);
    fs::write(folder.join("text.txt"), text).unwrap();
    fs::write(folder.join("config.yaml"), CONFIG).unwrap();

    let whole = peak(start(folder, "whole", 8, None));
    let half = peak(start(folder, "half", 4, None));
    assert!(half < whole);
    let limit = half + (whole - half) / 2;
    let output = start(folder, "short", 8, Some(limit))
        .wait_with_output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");

    let summary = read(folder, "short", "summary.json");
    assert_eq!(summary["micro_batch"], 4, "{said}");
    assert!(said.contains("with 4 samples at a time"), "{said}");
    // The step after next is not tried whole again: that did not fit twice.
    assert_eq!(summary["repeated_steps"], 3, "{said}");
    assert!(said.contains("offloaded what is idle"), "{said}");
    assert_eq!(read(folder, "whole", "summary.json")["repeated_steps"], 0);

    let (whole, short) = (losses(folder, "whole"), losses(folder, "short"));
    assert_eq!(whole.len(), 4);
    assert_eq!(short.len(), 4);
    for (whole, short) in whole.iter().zip(&short) {
        assert!((whole - short).abs() < 1e-5 * whole, "{whole} and {short}");
    }
    let state = |name| read(folder, name, "checkpoints/step-000004/state.json");
    assert_eq!(state("whole")["data"], state("short")["data"]);
    // So that a run that is resumed goes on in the same pieces.
    assert_eq!(state("short")["micro_batch"], 4);
}
