//! `surefoot doctor`: what is wrong with this machine, and what to type to mend it.

use anyhow::Context;
use platform::report::{Report, diagnose, diagnose_text};
use platform::{detect, dump};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use surefoot_cli::live::{self, Python};
use surefoot_cli::output::{self, Failure, Outcome};

/// Look for what would stop training on this machine, or on the machine of a dump
///
/// Exit code 3 when errors were found.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Diagnose this text instead: a dump, or the output of rocminfo, hipInfo, rocm-smi or amd-smi (`-`: stdin)
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,

    /// Write everything that was read into one text file that can be posted (`-`: stdout)
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    dump: Option<PathBuf>,

    /// Write the commands that mend what was found, for review; runs nothing (`-`: stdout)
    #[arg(long, value_name = "FILE")]
    fix_script: Option<PathBuf>,

    /// Look at this Python, or environment, instead of the active one
    #[arg(long, value_name = "PATH", conflicts_with = "no_python")]
    python: Option<String>,

    /// Leave the Python environment out
    #[arg(long)]
    no_python: bool,
}

/// Runs the doctor.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let report = match &args.from {
        Some(path) => from_file(path)?,
        None => {
            let python = match (&args.python, args.no_python) {
                (_, true) => Python::Skip,
                (Some(path), _) => Python::At(path.clone()),
                (None, _) => Python::Active,
            };
            let snapshot = live::snapshot(&python);
            if let Some(path) = &args.dump {
                write(path, &without_home(&snapshot.to_text()))?;
                return Ok(Outcome::Fine);
            }
            diagnose(detect::machine(&snapshot))
        }
    };
    if let Some(path) = &args.fix_script {
        write(path, &report.fix_script())?;
        if path == Path::new("-") {
            return Ok(outcome(&report));
        }
    }
    if json {
        output::print(&format!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else {
        output::print(&report.to_text(output::wants_colour(&io::stdout())))?;
    }
    Ok(outcome(&report))
}

/// A dump is made to be posted: the name of the user stays out of its paths.
pub(crate) fn without_home(text: &str) -> String {
    match std::env::var("HOME") {
        Ok(home) if home.len() > 1 => text.replace(&home, "~"),
        _ => text.to_owned(),
    }
}

fn outcome(report: &Report) -> Outcome {
    if report.has_errors() {
        Outcome::FoundErrors
    } else {
        Outcome::Fine
    }
}

fn from_file(path: &Path) -> Result<Report, Failure> {
    let text = read(path)?;
    diagnose_text(&text).map_err(|error| Failure::usage(format_args!("{}: {error}", name(path))))
}

/// Reads a file, or stdin for `-`, in whatever encoding it is.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let result = if path == Path::new("-") {
        io::stdin().lock().read_to_end(&mut bytes).map(|_| ())
    } else {
        fs::read(path).map(|read| bytes = read)
    };
    result.map_err(|error| Failure::usage(format_args!("cannot read {}: {error}", name(path))))?;
    Ok(dump::decode(&bytes))
}

/// Writes a result to a file, or to stdout for `-`, and says so.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    if path == Path::new("-") {
        output::print(text)?;
        return Ok(());
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("surefoot: wrote {}", path.display());
    Ok(())
}

fn name(path: &Path) -> String {
    if path == Path::new("-") {
        "stdin".to_owned()
    } else {
        path.display().to_string()
    }
}
