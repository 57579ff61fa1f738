//! `surefoot import` as a command: what it writes, and what it leaves alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const LORA: &str =
    "base_model: m\nadapter: lora\nlora_r: 8\ndatasets: [{path: a.jsonl}]\nevals_per_epoch: 4\n";

fn import(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"));
    command.arg("import").args(arguments).current_dir(folder);
    command.output().unwrap()
}

#[test]
fn a_file_that_is_there_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("lora.yaml"), LORA).unwrap();
    let write = |name: &str, more: &[&str]| {
        import(folder.path(), &[&["lora.yaml", "-o", name], more].concat())
    };
    assert!(write("new.yaml", &[]).status.success());
    let written = fs::read_to_string(path("new.yaml")).unwrap();
    assert!(written.contains("r: 8"), "{written}");
    fs::write(path("mine.yaml"), "mine").unwrap();
    // A link to nothing is a file that is there, too.
    std::os::unix::fs::symlink(path("elsewhere"), path("link.yaml")).unwrap();
    for name in ["mine.yaml", "link.yaml"] {
        let refused = write(name, &[]);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains(name) && told.contains("--force"), "{told}");
    }
    assert!(!path("elsewhere").exists());
    assert_eq!(fs::read_to_string(path("mine.yaml")).unwrap(), "mine");
    assert!(write("mine.yaml", &["--force"]).status.success());
    assert_eq!(fs::read_to_string(path("mine.yaml")).unwrap(), written);
}

#[test]
fn a_table_shows_what_is_left_to_change() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("lora.yaml"), LORA).unwrap();
    fs::write(folder.path().join("broken.toml"), "= 1").unwrap();
    let shown = import(folder.path(), &["lora.yaml", "broken.toml", "--table"]);
    let table = String::from_utf8(shown.stdout).unwrap();
    let lines: Vec<&str> = table.lines().skip(2).collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert_eq!(lines[0], "| lora.yaml | axolotl | 3 | 1 | 1 |");
    assert!(lines[1].contains("not read: broken.toml"), "{table}");
    let several = import(folder.path(), &["lora.yaml", "broken.toml"]);
    assert_eq!(several.status.code(), Some(2));
}
