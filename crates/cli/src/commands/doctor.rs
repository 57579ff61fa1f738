//! `surefoot doctor`: finds problems of this machine, and the commands to fix them.

use super::{probe, trainer_libraries};
use anyhow::Context;
use doctor::dump;
use doctor::findings::Finding;
use doctor::needs;
use doctor::probe_cache;
use doctor::ranks::{self, Network};
use doctor::redact::report_to_post;
use doctor::report::{Report, diagnose};
use doctor::wan;
use doctor::{answer, diagnose_text};
use platform::live::Live;
use platform::{Snapshot, detect};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use surefoot_cli::live::{self, Python};
use surefoot_cli::output::{self, Failure, Outcome};

/// Look for problems that would stop training on this machine, or on the machine of a dump
///
/// Exit code 3 when errors were found.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Diagnose this text instead: a dump, or the output of rocminfo, hipInfo, rocm-smi or amd-smi (`-`: stdin)
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,

    /// Write everything that was read into one text file to post (`-`: stdout)
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    dump: Option<PathBuf>,

    /// Write what a maintainer needs into one file: the diagnosis and everything it is based on,
    /// without names of users and hosts, addresses and serial numbers (`-`: stdout)
    #[arg(long, value_name = "FILE", conflicts_with = "dump")]
    report: Option<PathBuf>,

    /// Write one small file for somebody elsewhere: the facts, what `surefoot probe` found, and the end of the log
    /// that `--log` names, anonymous like `--report`; `--from` reads it (`-`: stdout)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "dump", "report"])]
    bundle: Option<PathBuf>,

    /// The log of a program that failed here, for `--bundle` and `--probe`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "dump", "report"])]
    log: Option<PathBuf>,

    /// Decide between the causes that are left by the checks of `surefoot probe` that tell them apart, and answer again
    #[arg(long, conflicts_with_all = ["from", "dump"])]
    probe: bool,

    /// Write the commands that fix the problems, for review; runs nothing (`-`: stdout)
    #[arg(long, value_name = "FILE")]
    fix_script: Option<PathBuf>,

    /// Examine this Python, or environment, instead of the active one
    #[arg(long, value_name = "PATH", conflicts_with = "no_python")]
    python: Option<String>,

    /// Skip the Python environment
    #[arg(long)]
    no_python: bool,

    /// Also show what training a LoRA for Wan needs, and whether this machine has it
    #[arg(long)]
    wan: bool,

    /// Also show what training on several machines needs, and whether this machine has it
    #[arg(long, conflicts_with = "from")]
    ranks: bool,
}

/// Runs the doctor.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let (report, made_from) = match &args.from {
        Some(path) => {
            let text = read(path)?;
            (from_text(&text, path)?, text)
        }
        None => {
            let python = match (&args.python, args.no_python) {
                (_, true) => Python::Skip,
                (Some(path), _) => Python::At(path.clone()),
                (None, _) => Python::Active,
            };
            let mut snapshot = live::snapshot(&python);
            if let Some(path) = &args.log {
                answer::add_log(&mut snapshot, &read(path)?);
            }
            if let Some(path) = &args.dump {
                write(path, &without_home(&snapshot.to_text()))?;
                return Ok(Outcome::Fine);
            }
            let report = of_this_machine(&snapshot, args)?;
            let report = match report.to_probe().filter(|_| args.probe) {
                Some(finding) => {
                    let python = args.python.as_deref();
                    let found = probe::decide(&finding.probe, python, &report.machine)?;
                    let known = snapshot.text(PROBED).unwrap_or_default();
                    let known = probe_cache::with(known, found.into_iter());
                    snapshot.insert_text(PROBED, known);
                    of_this_machine(&snapshot, args)?
                }
                None => {
                    if args.probe {
                        eprintln!(
                            "surefoot: no check of `surefoot probe` would decide anything here"
                        );
                    }
                    report
                }
            };
            (report, snapshot.to_text())
        }
    };
    if let Some(path) = args.report.as_ref().or(args.bundle.as_ref()) {
        let text = report_to_post(&report, &without_home(&made_from), &own_names());
        write(path, &text)?;
        return Ok(outcome(&report));
    }
    if let Some(path) = &args.fix_script {
        write(path, &report.fix_script())?;
        if path == Path::new("-") {
            return Ok(outcome(&report));
        }
    }
    // For this machine only: a dump does not contain its folders.
    let libraries = match args.from.is_none() && !args.no_python {
        true => trainer_libraries::list(args.python.as_deref()),
        false => None,
    };
    let ranks = args.ranks.then(|| {
        let folders = libraries.as_ref().map(|listed| listed.libraries.folders());
        let network = Network::read(&Live::default(), &folders.unwrap_or_default());
        (ranks::needs(&report.machine, &network), network)
    });
    if json {
        let mut value = serde_json::to_value(&report)?;
        if let Some(libraries) = &libraries {
            value["trainer_libraries"] = serde_json::to_value(libraries)?;
        }
        if args.wan {
            value["wan"] = serde_json::to_value(wan::needs(&report.machine))?;
        }
        if let Some((needs, network)) = &ranks {
            value["ranks"] = serde_json::to_value(needs)?;
            value["network"] = serde_json::to_value(network)?;
        }
        output::print(&format!("{}\n", serde_json::to_string_pretty(&value)?))?;
    } else {
        output::print(&report.to_text(output::wants_colour(&io::stdout())))?;
        if let Some(note) = libraries.and_then(|listed| listed.note) {
            output::print(&format!("\n`surefoot train`: {note}\n"))?;
        }
        if args.from.is_none() {
            let offer = report.to_probe().map(|finding| offer(finding, args));
            output::print(&offer.unwrap_or_default())?;
        }
        if args.wan {
            output::print(&format!("\n{}", wan::text(&report.machine)))?;
        }
        if let Some((needs, _)) = &ranks {
            let text = needs::text("Training on several machines", needs);
            output::print(&format!("\n{text}"))?;
        }
    }
    Ok(outcome(&report))
}

/// Where a dump keeps what `surefoot probe` found.
const PROBED: &str = "surefoot/probed";

/// Diagnoses this machine, and the log of what failed on it.
fn of_this_machine(snapshot: &Snapshot, args: &Args) -> Result<Report, Failure> {
    match &args.log {
        Some(path) => from_text(&snapshot.to_text(), path),
        None => Ok(diagnose(detect::machine(snapshot))),
    }
}

/// Names the checks that decide what is uncertain.
fn offer(finding: &Finding, args: &Args) -> String {
    let log = args.log.as_ref();
    let log = log.map_or(String::new(), |path| format!(" --log {}", path.display()));
    format!(
        "\nMeasuring here would decide it ({}, [{}]):\n    surefoot doctor{log} --probe\n",
        finding.probe.join(", "),
        finding.id
    )
}

/// A dump is meant to be posted, so the user's name is removed from its paths.
pub(crate) fn without_home(text: &str) -> String {
    let home = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
    match std::env::var(home) {
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

/// The names of this user and this host, which a posted text should not contain.
fn own_names() -> Vec<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let user = ["USER", "LOGNAME", "USERNAME", "COMPUTERNAME", "HOSTNAME"];
    let names = user.into_iter().filter_map(|name| std::env::var(name).ok());
    // These are common names that identify nobody.
    let tells = |name: &String| {
        !matches!(
            name.as_str(),
            "" | "root" | "user" | "host" | "localhost" | "ubuntu"
        )
    };
    names
        .chain([host.trim().to_owned()])
        .filter(tells)
        .collect()
}

fn from_text(text: &str, path: &Path) -> Result<Report, Failure> {
    diagnose_text(text).map_err(|error| Failure::usage(format_args!("{}: {error}", name(path))))
}

/// Reads a file, or stdin for `-`, in any encoding; of a long one only the relevant parts.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let result = if path == Path::new("-") {
        dump::read_text(io::stdin().lock())
    } else {
        fs::File::open(path).and_then(dump::read_text)
    };
    result.map_err(|error| Failure::usage(format_args!("cannot read {}: {error}", name(path))))
}

/// Writes a result to a file, or to stdout for `-`, and reports it.
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
