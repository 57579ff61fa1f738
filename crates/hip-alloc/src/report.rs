//! Messages for the person running the program: one line each, on standard error.

use std::io::Write;

/// Writes one line. The process may be low on memory or about to stop, so this
/// neither waits nor fails.
pub(crate) fn warn(message: &str) {
    let line = format!("hip-alloc: {message}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
