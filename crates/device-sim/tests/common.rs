//! C++ programs that load the simulator's library, for the tests that look at it from outside.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of `tests/cpp`, compiled once for all tests: each may be a process of its own.
pub(crate) fn compiled(source: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cpp");
    let file = sources.join(source);
    let mut hasher = DefaultHasher::new();
    for part in [&file, &sources.join("simulator.h")] {
        fs::read(part).unwrap().hash(&mut hasher);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join(format!("{source}-{:016x}", hasher.finish()));
    if !program.exists() {
        // Under a name of its own first: another process may be doing the same.
        let unfinished = program.with_extension(std::process::id().to_string());
        let status = Command::new("c++")
            .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"])
            .arg(file)
            .args(["-ldl", "-pthread", "-o"])
            .arg(&unfinished)
            .status()
            .unwrap();
        assert!(status.success());
        fs::rename(unfinished, &program).unwrap();
    }
    program
}
