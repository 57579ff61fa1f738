//! `surefoot train|eval|generate`: becomes the `surefoot-trainer` process.

use super::trainer_libraries;
use anyhow::Context;
use std::ffi::OsString;
use std::path::PathBuf;
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
    let program = trainer_binary()?;
    let mut command = Command::new(&program);
    command.arg(subcommand).args(rest);
    command.envs(trainer_libraries::choose()?);
    if json {
        command.arg("--json");
    }
    become_process(command)
        .with_context(|| format!("cannot start `{}`", program.display()))
        .map_err(Into::into)
}

/// The trainer is installed beside this executable.
pub(crate) fn trainer_binary() -> Result<PathBuf, Failure> {
    let here = std::env::current_exe().context("cannot tell where this executable is")?;
    let name = format!("surefoot-trainer{}", std::env::consts::EXE_SUFFIX);
    let program = here.with_file_name(&name);
    if program.is_file() {
        return Ok(program);
    }
    if cfg!(windows) {
        return Err(Failure::usage(
            "there is no trainer for Windows: train under WSL 2 or Linux. On Windows Surefoot has doctor, env, explain, run, replay, runs and ui",
        ));
    }
    let remedy = match cfg!(feature = "torch") {
        true => "build both with `cargo build -p surefoot`",
        false => "`pip install surefoot-trainer` brings it",
    };
    Err(Failure::usage(format_args!(
        "`{name}` is not beside `{}`: there is no trainer here; {remedy}",
        here.display()
    )))
}

/// Signals, terminal and exit code are then the trainer's own.
#[cfg(unix)]
fn become_process(mut command: Command) -> std::io::Result<Outcome> {
    use std::os::unix::process::CommandExt;
    Err(command.exec())
}

#[cfg(not(unix))]
fn become_process(mut command: Command) -> std::io::Result<Outcome> {
    let status = command.status()?;
    Ok(Outcome::Child(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
    ))
}
