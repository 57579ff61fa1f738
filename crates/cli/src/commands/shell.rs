//! `surefoot completions` and `surefoot man-pages`.
//!
//! Both are generated from the definition of the command line, so that neither names an option that does not
//! exist.

use anyhow::Context;
use clap::Command;
use std::fs;
use std::path::PathBuf;
use surefoot_cli::output::{self, Failure, Outcome};

/// Print shell completions: `source <(surefoot completions bash)`
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

/// Write a manual page for each command into a folder
#[derive(clap::Args)]
#[command(hide = true)]
pub(crate) struct ManPages {
    /// The folder, which is created if it does not exist
    folder: PathBuf,
}

/// Prints the completion script.
pub(crate) fn completions(args: &Completions, mut cli: Command) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    let name = cli.get_name().to_owned();
    clap_complete::generate(args.shell, &mut cli, name, &mut script);
    let script = String::from_utf8(script).context("a script that is not UTF-8")?;
    output::print(&script)?;
    Ok(Outcome::Fine)
}

/// Writes `surefoot.1` and one page for each command that `--help` lists.
pub(crate) fn man_pages(args: &ManPages, cli: Command) -> Result<Outcome, Failure> {
    let folder = &args.folder;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    clap_mangen::generate_to(cli, folder)
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    Ok(Outcome::Fine)
}
