//! `surefoot activate`: what the Python that it calls is given.

use crate::common::{show, surefoot};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// An interpreter that tells how it was called, after the program and the folder that it is given, and ends with code 7.
fn interpreter(folder: &Path) -> std::path::PathBuf {
    let python = folder.join("bin/python");
    std::fs::create_dir_all(folder.join("bin")).expect("a folder");
    std::fs::write(
        &python,
        "#!/bin/sh\n[ \"$1\" = -c ] || exit 9\nfolder=$3\nshift 3\necho \"$@\"\necho \"alloc=$HIP_ALLOC\"\nls \"$folder/surefoot_activate\"\nexit 7\n",
    )
    .expect("a file");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&python, mode).expect("a mode");
    python
}

#[test]
fn the_environment_gets_the_python_part_and_the_library() {
    let folder = tempfile::tempdir().expect("a folder");
    interpreter(folder.path());
    let library = folder.path().join("libhip_alloc.so");
    std::fs::write(&library, b"").expect("a file");
    let output = surefoot()
        .args(["activate", "--python"])
        .arg(folder.path())
        .env("HIP_ALLOC", "1")
        .env("HIP_ALLOC_LIB", &library)
        .env("SUREFOOT_CACHE", folder.path().join("cache"))
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let asked = format!("--json install --library {}", library.display());
    assert!(
        text.starts_with(&format!("{asked}\nalloc=\n")),
        "{}",
        show(&output)
    );
    assert!(text.contains("__main__.py"), "{text}");
    assert_eq!(output.status.code(), Some(7), "its exit code is passed on");
}

#[test]
fn the_active_environment_is_meant_and_left_again() {
    let folder = tempfile::tempdir().expect("a folder");
    interpreter(folder.path());
    let output = surefoot()
        .args(["activate", "--remove"])
        .env("VIRTUAL_ENV", folder.path())
        .env("SUREFOOT_CACHE", folder.path().join("cache"))
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("--json remove\n"), "{}", show(&output));
}

#[test]
fn a_program_that_is_no_python_is_bad_usage() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = surefoot()
        .args(["activate", "--remove", "--python", "/bin/true"])
        .env("SUREFOOT_CACHE", folder.path())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", show(&output));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("`/bin/true` is not a Python"), "{text}");
}

/// With the Python of this machine, in a folder that has no `bin/python`.
#[test]
fn a_folder_with_a_python3_is_found_and_the_report_is_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    let environment = folder.path().join("environment");
    let made = std::process::Command::new("python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(&environment)
        .status();
    assert!(made.expect("python3").success());
    let [python, python3] = ["bin/python", "bin/python3"].map(|name| environment.join(name));
    let real = python.canonicalize().expect("a program");
    for link in [&python, &python3] {
        std::fs::remove_file(link).expect("it was there");
    }
    std::os::unix::fs::symlink(real, python3).expect("a link");
    let output = surefoot()
        .args(["--json", "activate", "--remove", "--python"])
        .arg(&environment)
        .env("SUREFOOT_CACHE", cache)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", show(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["command"], "remove");
    assert_eq!(report["changed"], false);
    let site_packages = report["site_packages"].as_str().expect("a path");
    assert!(
        Path::new(site_packages).starts_with(&environment),
        "{site_packages}"
    );
}

#[test]
fn a_python_that_is_not_there_is_bad_usage() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = surefoot()
        .args(["activate", "--remove", "--python", "/nowhere/python"])
        .env("SUREFOOT_CACHE", folder.path())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", show(&output));
}
