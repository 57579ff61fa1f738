//! Where this workspace is, and how its commands start other programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The folder of the workspace's `Cargo.toml`.
///
/// Fixed when xtask is compiled: cargo runs xtask from wherever the user stands.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// The cargo that started us, so that `cargo +toolchain xtask` stays on that toolchain;
/// in the workspace's root, wherever the user stands.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// The folder that cargo builds into: a variable or a config of the user's may move it.
pub(crate) fn target() -> Result<PathBuf> {
    let output = cargo()
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()
        .context("cannot start cargo")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cannot read what `cargo metadata` says")?;
    let folder = metadata["target_directory"].as_str();
    Ok(folder
        .context("`cargo metadata` names no target folder")?
        .into())
}
