//! `cargo xtask tidy`: the repository checks itself.
//!
//! Runs what cargo provides (format, lints, documentation), then the rules of this repository,
//! which are tests, `tests/repository.rs`: its modules read the files, the modules of each crate, and what cargo
//! builds.

use anyhow::Result;
use xshell::cmd;

use crate::setup;
use crate::ui;
use crate::windows;
use crate::workspace;

/// Check the repository itself: format, lints, documentation, layers, modules.
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
        windows::check_if_possible(&shell)?;
        let rustdoc = shell.push_env("RUSTDOCFLAGS", "-Dwarnings");
        cmd!(shell, "{cargo} doc --workspace --no-deps").run()?;
        drop(rustdoc);
        cmd!(shell, "{cargo} test --workspace --test repository").run()?;
        ui::check_where_node_is(&shell)
    }
}
