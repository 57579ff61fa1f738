//! `surefoot activate`: installs hip-alloc into a Python environment, so that `HIP_ALLOC=1` works there without
//! `surefoot run`.
//!
//! The Python part itself (`python -m surefoot_activate`) does this, since it knows where its environment keeps
//! packages; this module unpacks it and provides the library.

use super::activation;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use surefoot_cli::output::{self, Failure, Outcome};

/// Install hip-alloc into a Python environment: `HIP_ALLOC=1 python train.py` then uses it
///
/// Without HIP_ALLOC=1 the environment behaves as before.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The interpreter, or the folder of the environment [default: the active one]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,

    /// Remove it again
    #[arg(long)]
    remove: bool,
}

/// Runs the Python part from the folder in the first argument, before the program's own modules and other activations. An
/// embeddable Python of Windows does not read `PYTHONPATH`.
const START: &str = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); \
    runpy.run_module('surefoot_activate', run_name='__main__')";

/// The Python part's report.
#[derive(Deserialize, Serialize)]
struct Report {
    /// `install` or `remove`.
    command: String,
    /// Whether anything was changed: a removal may find nothing.
    changed: bool,
    site_packages: PathBuf,
    /// The entry point of the activation; unset after a removal.
    called_by: Option<String>,
    message: String,
}

/// Runs the command.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let python = interpreter(args.python.as_deref())?;
    let mut command = Command::new(&python);
    command
        .args(["-c", START])
        .arg(activation::unpack()?)
        .arg("--json")
        .env_remove("HIP_ALLOC")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    if args.remove {
        command.arg("remove");
    } else {
        command.arg("install").arg("--library");
        command.arg(activation::library()?);
    }
    let output = command.output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Failure::usage(format_args!(
            "there is no Python at `{}`: name one with --python",
            python.display()
        )),
        _ => Failure::Job(
            anyhow::Error::new(error).context(format!("cannot run `{}`", python.display())),
        ),
    })?;
    let code = output
        .status
        .code()
        .context("the Python process was stopped")?;
    if code != 0 {
        std::io::stdout().write_all(&output.stdout)?;
        return Ok(Outcome::Child(u8::try_from(code).unwrap_or(1)));
    }
    // Any program may succeed and ignore its arguments.
    let Ok(report) = serde_json::from_slice::<Report>(&output.stdout) else {
        return Err(Failure::usage(format_args!(
            "`{}` is not a Python: nothing was installed or removed",
            python.display()
        )));
    };
    match json {
        true => output::print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?,
        false => output::print(&format!("{}\n", report.message))?,
    }
    Ok(Outcome::Fine)
}

/// Where the interpreter of an environment is. Outside environments there is often only `python3`; on Windows an
/// environment keeps it with its scripts, and an installation beside its libraries.
const PYTHONS: [&str; 2] = match cfg!(windows) {
    true => ["Scripts/python.exe", "python.exe"],
    false => ["bin/python", "bin/python3"],
};

/// The Python that `wanted` means; by default that of the active environment, else the one on the path.
fn interpreter(wanted: Option<&Path>) -> Result<PathBuf, Failure> {
    let environment = || {
        ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .find_map(std::env::var_os)
            .filter(|prefix| !prefix.is_empty())
            .map(PathBuf::from)
    };
    match wanted.map(Path::to_path_buf).or_else(environment) {
        Some(folder) if folder.is_dir() => {
            let known = PYTHONS.map(|name| folder.join(name));
            known
                .into_iter()
                .find(|path| path.is_file())
                .ok_or_else(|| {
                    let [first, second] = PYTHONS;
                    Failure::usage(format_args!(
                        "there is neither {first} nor {second} in `{}`: name one with --python",
                        folder.display()
                    ))
                })
        }
        Some(program) => Ok(program),
        None => Ok(PathBuf::from(if cfg!(windows) {
            "python"
        } else {
            "python3"
        })),
    }
}
