//! What the tests of the command share: running it, and showing how it went.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The `surefoot` binary, in an environment without anybody's settings.
pub(crate) fn surefoot() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot"));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("NO_COLOR", "1");
    command
}

/// A fixture of `doctor`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../doctor/tests/fixtures")
        .join(name)
}

/// A text of so many lines to train on.
#[cfg(feature = "torch")]
pub(crate) fn bottles(lines: usize) -> String {
    (0..lines)
        .map(|n| format!("{n} bottles of ale\n"))
        .collect()
}

/// Exit code, stdout and stderr as one text, for a snapshot.
pub(crate) fn show(output: &Output) -> String {
    format!(
        "exit code: {:?}\n----- stdout -----\n{}----- stderr -----\n{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
