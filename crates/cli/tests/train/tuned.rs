//! `surefoot tune`, and runs that use what it found.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Place, assert_fine, stderr};

/// What `tune` found is used by runs of that config and no other, unless they are told not to.
#[test]
fn what_was_tuned_is_used() {
    let place = Place::new();
    let tune = Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"))
        .args(["tune", "config.yaml", "--steps", "3", "--json"])
        .current_dir(place.folder.path())
        .env("HIP_ALLOC", "0")
        .env("SUREFOOT_CACHE", place.path("cache"))
        .output()
        .unwrap();
    assert_fine(&tune);
    let report: serde_json::Value = serde_json::from_slice(&tune.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let tried: Vec<&str> = rows.iter().flat_map(|row| row["name"].as_str()).collect();
    assert!(tried.contains(&"huge pages"), "{report}");
    for row in rows {
        let tokens = row["tokens_per_second"].as_f64();
        assert!(tokens.is_some_and(|tokens| tokens > 0.0), "{row}");
    }
    // Nothing of the trials is left.
    assert_eq!(fs::read_dir(place.path("runs")).unwrap().count(), 0);

    // A choice whose effect is plain to see, in the place of what was measured.
    let file = report["file"].as_str().unwrap();
    let mut kept: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    kept["chosen"] = serde_json::json!([
        {"name": "products by nobody", "variables": {"SUREFOOT_PRODUCTS": "nobody"}}
    ]);
    fs::write(file, kept.to_string()).unwrap();
    let refused = place.train(&[]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    let shown = stderr(&refused);
    assert_eq!(
        shown.matches("tuned: products by nobody").count(),
        1,
        "{shown}"
    );
    assert!(
        shown.contains("SUREFOOT_PRODUCTS=nobody: expected `onednn` or `mkl`"),
        "{shown}"
    );
    assert_fine(&place.train(&["--set", "data.block_size=8"]));
    let mut without = place.command(&["config.yaml"]);
    assert_fine(&without.env("SUREFOOT_TUNED", "off").output().unwrap());
}

/// Whether it ends or is killed, nothing goes on to train, and the next one removes what is left.
#[test]
fn nothing_is_left_when_tune_is_stopped() {
    let place = Place::new();
    let runs = place.path("runs");
    let left = || {
        let entries = fs::read_dir(&runs).into_iter().flatten();
        entries
            .flatten()
            .map(|entry| entry.path())
            .collect::<Vec<_>>()
    };
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(120), "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // The first run trains until it is stopped.
    let begin = || -> Child {
        Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"))
            .args(["tune", "config.yaml", "--steps", "1000"])
            .current_dir(place.folder.path())
            .env("HIP_ALLOC", "0")
            .env("SUREFOOT_CACHE", place.path("cache"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let metrics = || {
        let mut folders = left().into_iter();
        folders.find(|folder| folder.join("trial/metrics.jsonl").is_file())
    };
    let signal = |child: &mut Child, name: &str| {
        let sent = Command::new("kill")
            .args([name, &child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        assert!(!child.wait().unwrap().success());
    };
    let is_still = || {
        let length = |path: &std::path::Path| {
            fs::metadata(path.join("trial/metrics.jsonl")).map_or(0, |file| file.len())
        };
        let before: Vec<u64> = left().iter().map(|path| length(path)).collect();
        std::thread::sleep(Duration::from_secs(1));
        before == left().iter().map(|path| length(path)).collect::<Vec<_>>()
    };
    let mut killed = begin();
    until("no steps", &|| metrics().is_some());
    signal(&mut killed, "-KILL");
    until("it trains on", &is_still);
    assert_eq!(left().len(), 1);
    let old = left().remove(0);
    let mut stopped = begin();
    until("no steps of the second", &|| {
        metrics().is_some_and(|folder| folder != old)
    });
    assert!(!old.exists());
    signal(&mut stopped, "-TERM");
    assert_eq!(left(), Vec::<std::path::PathBuf>::new());
}
