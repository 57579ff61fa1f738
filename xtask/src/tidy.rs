//! `cargo xtask tidy`: the repository checks itself.
//!
//! What cargo's own tools check is called here. The rules of this house are tests,
//! each with a name: `tests/tidy.rs` reads the files, `tests/house.rs` what is built.

use anyhow::Result;
use xshell::cmd;

use crate::setup;
use crate::workspace;

/// Check the repository itself: format, lints, documentation, house rules.
#[derive(clap::Args)]
pub(crate) struct Tidy {}

impl Tidy {
    pub(crate) fn run(self) -> Result<()> {
        let libtorch = setup::ensure()?;
        let shell = setup::shell(&libtorch)?;
        let cargo = workspace::cargo();
        cmd!(shell, "{cargo} fmt --all --check").run()?;
        cmd!(
            shell,
            "{cargo} clippy --workspace --all-targets -- -D warnings"
        )
        .run()?;
        let rustdoc = shell.push_env("RUSTDOCFLAGS", "-Dwarnings");
        cmd!(shell, "{cargo} doc --workspace --no-deps").run()?;
        drop(rustdoc);
        cmd!(
            shell,
            "{cargo} test --package xtask --test tidy --test house"
        )
        .run()?;
        Ok(())
    }
}
