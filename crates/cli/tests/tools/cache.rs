//! `surefoot cache`: what is told of the cache, and what `--clear` takes and leaves.

use std::fs;

use crate::common::surefoot;

#[test]
fn the_cache_is_listed_and_cleared_of_what_training_makes_again() {
    let cache = tempfile::tempdir().unwrap();
    let write = |path: &str, bytes: usize| {
        let path = cache.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, vec![0; bytes]).unwrap();
    };
    write("tokens/ab/training.bin", 3000);
    write("tokens/7-0.tokens", 500);
    write("tokens/cd.tmp-1/training.bin", 70);
    write("models/some/model.safetensors", 4000);
    write("mine.txt", 5);
    // An entry that another run is writing.
    let writing = fs::File::open(cache.path().join("tokens/cd.tmp-1")).unwrap();
    writing.lock().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = surefoot();
        command.arg("cache").args(arguments);
        let output = command
            .env("SUREFOOT_CACHE", cache.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = run(&[]);
    for told in [
        "tokens of texts; `--clear` removes them",
        "3.91 KiB  models by name",
        "mine.txt",
    ] {
        assert!(shown.contains(told), "{shown}");
    }
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&run(arguments)).unwrap()
    };
    let bytes = |report: &serde_json::Value, name: &str| {
        let entries = report["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["name"] == name).unwrap();
        (entry["bytes"].as_u64(), entry["clearable"].as_bool())
    };
    let before = json(&["--json"]);
    assert_eq!(bytes(&before, "tokens"), (Some(3570), Some(true)));
    assert_eq!(before["freed_bytes"], 0);
    let after = json(&["--clear", "--json"]);
    assert_eq!(after["freed_bytes"], 3500);
    assert_eq!(bytes(&after, "tokens"), (Some(70), Some(true)));
    assert_eq!(bytes(&after, "models"), (Some(4000), Some(false)));
    assert_eq!(bytes(&after, "mine.txt"), (Some(5), Some(false)));
    drop(writing);
    assert!(run(&["--clear"]).ends_with("removed 70 bytes\n"));
}

#[test]
fn a_cache_that_is_not_there_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("none");
    let mut command = surefoot();
    let output = command
        .args(["cache", "--clear"])
        .env("SUREFOOT_CACHE", &nowhere)
        .output();
    let shown = String::from_utf8(output.unwrap().stdout).unwrap();
    assert_eq!(
        shown,
        format!("{}\n  nothing\nremoved 0 bytes\n", nowhere.display())
    );
    assert!(!nowhere.exists());
}
