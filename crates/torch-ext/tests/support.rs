//! Compiles small C and C++ libraries for the tests, with the user's compiler.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, of which each file uses a part"
)]

pub(crate) mod pluggable;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Builds `source` (a file of this folder) as a shared library and returns its path.
/// `flags` go to the compiler: definitions, mostly.
pub(crate) fn shared_library(source: &str, flags: &[&str]) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!(
        "{}-{}-{number}.so",
        source.replace('.', "-"),
        std::process::id()
    ));
    let compiler = if source.ends_with(".cpp") {
        "c++"
    } else {
        "cc"
    };
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/support")
        .join(source);
    let status = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror"])
        .args(flags)
        .arg(&source)
        .arg("-o")
        .arg(&library)
        .status()
        .expect("a C compiler");
    assert!(
        status.success(),
        "{compiler} failed on {}",
        source.display()
    );
    library
}
