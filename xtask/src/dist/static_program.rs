//! The statically linked program, for Linux systems with glibc older than 2.28 or with another libc.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use xshell::cmd;

use super::require_linux_on_x86_64;
use super::wheel::{PROFILE, tools_shell};
use crate::setup;
use crate::workspace;

const TARGET: &str = "x86_64-unknown-linux-musl";

/// Builds and checks the program.
pub(super) fn build() -> Result<PathBuf> {
    require_linux_on_x86_64()?;
    let shell = tools_shell(&setup::dist_python()?)?;
    cmd!(shell, "rustup target add {TARGET}")
        .quiet()
        .ignore_stderr()
        .run()?;
    let options = ["--locked", "--profile", PROFILE, "--target", TARGET];
    cmd!(
        shell,
        "cargo-zigbuild build --package surefoot --bin surefoot --no-default-features {options...}"
    )
    .run()?;
    let program = workspace::target(&shell)?
        .join(TARGET)
        .join(PROFILE)
        .join("surefoot");
    check(&program)?;
    Ok(program)
}

/// Checks the ELF headers of the program, and runs it in an empty root file system.
fn check(program: &Path) -> Result<()> {
    let shell = workspace::shell()?;
    let headers = cmd!(shell, "readelf --program-headers --dynamic {program}")
        .quiet()
        .read()?;
    ensure!(
        !headers.contains("INTERP") && !headers.contains("(NEEDED)"),
        "`{}` is not statically linked",
        program.display()
    );
    let root = tempfile::tempdir().context("cannot create a temporary folder")?;
    let root = root.path();
    cmd!(shell, "cp {program} {root}/surefoot").run()?;
    let said = cmd!(
        shell,
        "unshare --map-root-user --root {root} /surefoot --version"
    )
    .read()?;
    ensure!(
        said.starts_with("surefoot "),
        "`surefoot --version` printed {said:?}"
    );
    Ok(())
}
