//! `surefoot train|eval|generate`: becomes the `surefoot-trainer` process.

use super::trainer_libraries;
use anyhow::Context;
use std::ffi::OsString;
use std::process::Command;
use surefoot_cli::output::{Failure, Outcome};

/// Everything after the subcommand, for the trainer to understand.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Arguments of the trainer (`--help` lists them)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<OsString>,
}

/// Replaces this process by the trainer.
pub(crate) fn run(subcommand: &str, args: &Args, json: bool) -> Result<Outcome, Failure> {
    start(subcommand, &args.rest, json)
}

/// Replaces this process by the trainer, with arguments of our own.
pub(crate) fn start(subcommand: &str, rest: &[OsString], json: bool) -> Result<Outcome, Failure> {
    let start = trainer_libraries::choose()?;
    let program = start.program.clone();
    let mut command = start.command();
    command.arg(subcommand).args(rest);
    if json {
        command.arg("--json");
    }
    become_process(command)
        .with_context(|| format!("cannot start `{}`", program.display()))
        .map_err(Into::into)
}

/// Signals, terminal and exit code are then the trainer's own.
#[cfg(unix)]
fn become_process(mut command: Command) -> std::io::Result<Outcome> {
    use std::os::unix::process::CommandExt;
    Err(command.exec())
}

#[cfg(windows)]
fn become_process(mut command: Command) -> std::io::Result<Outcome> {
    let code = surefoot_cli::windows::stand_in(&mut command)?;
    match u8::try_from(code) {
        Ok(code) => Ok(Outcome::Child(code)),
        // Windows has 32-bit exit codes, such as that of an access violation.
        Err(_) => std::process::exit(code),
    }
}
