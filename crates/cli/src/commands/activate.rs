//! `surefoot activate`: puts hip-alloc into a Python environment, so that `HIP_ALLOC=1`
//! works there without `surefoot run`.
//!
//! The work is done by the Python part itself (`python -m surefoot_activate`), which knows
//! where its environment keeps packages; this unpacks it and brings the library.

use super::activation;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use surefoot_cli::output::{Failure, Outcome};

/// Install hip-alloc into a Python environment: `HIP_ALLOC=1 python train.py` then uses it
///
/// Without HIP_ALLOC=1 the environment is as it was.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The interpreter, or the folder of the environment [default: the active one]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    /// Take it out again
    #[arg(long)]
    remove: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Outcome, Failure> {
    let python = interpreter(args.python.as_deref());
    let mut command = Command::new(&python);
    command
        // Neither the program's own modules nor another activation come first.
        .args(["-m", "surefoot_activate"])
        .env("PYTHONPATH", activation::unpack()?)
        .env_remove("HIP_ALLOC")
        .stdin(Stdio::null());
    if args.remove {
        command.arg("remove");
    } else {
        command.arg("install").arg("--library");
        command.arg(activation::library()?);
    }
    let status = command.status().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::usage(format_args!(
            "there is no Python at `{}`: name one with --python",
            python.display()
        )),
        _ => Failure::Job(
            anyhow::Error::new(error).context(format!("cannot run `{}`", python.display())),
        ),
    })?;
    let code = status.code().context("the Python process was stopped")?;
    Ok(Outcome::Child(u8::try_from(code).unwrap_or(1)))
}

/// What `wanted` means; else the active environment's Python, else the one on the path.
fn interpreter(wanted: Option<&Path>) -> PathBuf {
    let environment = || {
        ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .find_map(std::env::var_os)
            .filter(|prefix| !prefix.is_empty())
            .map(PathBuf::from)
    };
    match wanted.map(Path::to_path_buf).or_else(environment) {
        Some(folder) if folder.is_dir() => folder.join("bin/python"),
        Some(program) => program,
        None => PathBuf::from("python3"),
    }
}
