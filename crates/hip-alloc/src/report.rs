//! Messages for the person running the program: one line each, on standard error.

/// Writes one line. The process may be low on memory or about to stop, so this does not fail.
pub(crate) fn warn(message: &str) {
    let line = format!("hip-alloc: {message}\n");
    crate::ffi::write_to_standard_error(line.as_bytes());
}
