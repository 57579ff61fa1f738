//! Where this workspace is, and how its commands start other programs.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use xshell::{Shell, cmd};

/// The folder of the workspace's `Cargo.toml`.
///
/// Fixed when xtask is compiled: cargo runs xtask from wherever the user stands.
pub(crate) fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// A shell that stands in the workspace's root.
pub(crate) fn shell() -> Result<Shell> {
    let shell = Shell::new().context("cannot read the current folder")?;
    shell.change_dir(root());
    Ok(shell)
}

/// The cargo that started us, so that `cargo +toolchain xtask` stays on that toolchain.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The folder that cargo builds into: a variable or a config of the user's may move it.
pub(crate) fn target(shell: &Shell) -> Result<PathBuf> {
    let cargo = cargo();
    let metadata = cmd!(
        shell,
        "{cargo} metadata --format-version=1 --no-deps --offline"
    );
    let metadata: serde_json::Value = serde_json::from_str(&metadata.quiet().read()?)
        .context("cannot read what `cargo metadata` says")?;
    let folder = metadata["target_directory"].as_str();
    Ok(folder
        .context("`cargo metadata` names no target folder")?
        .into())
}
