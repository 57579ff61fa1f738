//! `surefoot activate`: what the Python that it calls is given.

use crate::common::{show, surefoot};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// An interpreter that tells how it was called, and ends with code 7.
fn interpreter(folder: &Path) -> std::path::PathBuf {
    let python = folder.join("bin/python");
    std::fs::create_dir_all(folder.join("bin")).expect("a folder");
    std::fs::write(
        &python,
        "#!/bin/sh\necho \"$@\"\necho \"alloc=$HIP_ALLOC\"\nls \"$PYTHONPATH/surefoot_activate\"\nexit 7\n",
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
    let asked = format!(
        "-m surefoot_activate install --library {}",
        library.display()
    );
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
    assert!(
        text.starts_with("-m surefoot_activate remove\n"),
        "{}",
        show(&output)
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
