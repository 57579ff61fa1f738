//! C++ programs that load `libhip_alloc.so`, for the tests that look at it from outside.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that cargo built for this test.
pub(crate) fn library() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let deps = executable.parent().unwrap();
    let path = deps.join("libhip_alloc.so");
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// Compiles a program of `tests/cpp` into `folder`.
pub(crate) fn compile(source: &str, folder: &Path) -> PathBuf {
    // What a program exports, the library finds: a runtime may be in the program.
    compile_as(&["-rdynamic"], source, folder)
}

/// Compiles a library of `tests/cpp` into `folder`.
#[allow(dead_code, reason = "not every test file has one")]
pub(crate) fn compile_library(source: &str, folder: &Path) -> PathBuf {
    compile_as(&["-shared", "-fPIC"], source, folder)
}

fn compile_as(kind: &[&str], source: &str, folder: &Path) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join(source.trim_end_matches(".cpp"));
    let status = Command::new("c++")
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(sources.join("include"))
        .arg(sources.join("tests/cpp").join(source))
        .args(kind)
        .args(["-ldl", "-pthread", "-o"])
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success());
    program
}
