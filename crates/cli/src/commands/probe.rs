//! `surefoot probe`: tests whether this GPU computes correctly.
//!
//! Each check is a child process with a time limit, so that a crash or hang in the driver is a result rather than the
//! end of the probe. The checks are in Python (`probe/checks.py`, embedded in this binary) and run on the user's torch,
//! whose libraries the trainer uses as well.
//!
//! Results about settings that have to be tried are stored (`doctor::probe_cache`): `env` and `run`
//! then set them.

mod check;
mod link;

use super::delegate;
use super::doctor::write;
use anstyle::{AnsiColor, Style};
use anyhow::Context;
use check::{CHECKS, Check, Outcome as Answer, Result as CheckResult, Runner};
use doctor::needs::Need;
use doctor::probe_cache;
use doctor::wan;
use platform::Machine;
use platform::timings::{Timing, table};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;
use surefoot_cli::cache;
use surefoot_cli::live::{self, Python};
use surefoot_cli::output::{self, Failure, Outcome};

/// Test whether this GPU computes correctly, each check in its own process
///
/// Exit code 3 if a check failed, 1 if nothing could be tested.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Use the torch of this Python, or environment, instead of the active one
    #[arg(long, value_name = "PATH")]
    python: Option<String>,

    /// The device: `cpu` tests the checks themselves
    #[arg(long, value_enum, default_value_t = Device::Gpu)]
    device: Device,

    /// Run only checks whose name contains this (repeatable)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// Multiply the time limits, for slow disks and first runs
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = patience)]
    patience: f64,

    /// Write the result and the facts of this machine into a file to post
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// List the checks
    #[arg(long)]
    list: bool,

    /// Show how placement handles every fault with every strategy; needs no GPU
    #[arg(
        long,
        conflicts_with_all = ["python", "device", "only", "patience", "report", "list"]
    )]
    placement: bool,

    /// Measure the network to another machine that runs `surefoot probe --listen`
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with_all = GPU_OPTIONS)]
    link: Option<String>,

    /// Show what the link means for a step of this config, after trying one here
    #[arg(long, value_name = "FILE", requires = "link")]
    config: Option<PathBuf>,

    /// Answer `surefoot probe --link` of other machines until Ctrl-C
    #[arg(
        long,
        value_name = "[ADDRESS:]PORT",
        num_args = 0..=1,
        default_missing_value = "29600",
        conflicts_with = "link",
        conflicts_with_all = GPU_OPTIONS
    )]
    listen: Option<String>,
}

/// Options for testing a GPU.
const GPU_OPTIONS: [&str; 7] = [
    "python",
    "device",
    "only",
    "patience",
    "report",
    "list",
    "placement",
];

/// Where to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Device {
    /// The first GPU that torch sees
    Gpu,
    /// The CPU
    Cpu,
}

fn patience(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (0.01..=100.0).contains(&factor) => Ok(factor),
        _ => Err("expected a number from 0.01 to 100".to_owned()),
    }
}

/// The whole result, as `--json` and `--report` write it.
#[derive(Serialize)]
struct Report<'a> {
    surefoot: &'static str,
    program: String,
    device: &'static str,
    machine: &'a Machine,
    gpus: &'a [platform::machine::Gpu],
    checks: &'a [CheckResult],
    not_tested: Vec<&'static str>,
    /// What training a LoRA for Wan needs, and whether this machine has it.
    wan: Vec<Need>,
    verdict: String,
    /// With `--report`: how long what a step is made of takes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    timings: Vec<Timing>,
    /// Why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_timed: Option<String>,
}

/// How long timing may take: a first product on a GPU may wait for a library to load its kernels.
const LONGEST_TIMING: Duration = Duration::from_secs(120);

/// How long what a step is made of takes on the GPU, by the trainer for the environment that is active.
fn timings(patience: f64) -> Result<Vec<Timing>, String> {
    let start = super::trainer_libraries::choose().map_err(|failure| match failure {
        Failure::Usage(error) | Failure::Job(error) => error.to_string(),
    })?;
    let mut command = start.command();
    command.args(["timings", "gpu", "--json"]);
    show_progress("how long what a step is made of takes");
    let ended = check::within(command, LONGEST_TIMING.mul_f64(patience));
    clear_progress();
    let (status, stdout, stderr) = ended.map_err(|error| format!("the trainer: {error}"))?;
    match status {
        None => Err("no answer in time".to_owned()),
        Some(status) if status.success() => {
            serde_json::from_str(&stdout).map_err(|error| format!("the trainer's answer: {error}"))
        }
        Some(_) => Err(stderr
            .trim()
            .lines()
            .last()
            .unwrap_or("it failed")
            .to_owned()),
    }
}

/// Runs the checks.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    if let Some(place) = &args.listen {
        return link::listen(place);
    }
    if let Some(host) = &args.link {
        return link::run(host, args.config.as_deref(), json);
    }
    if args.placement {
        return delegate::start("fault-matrix", &[], json);
    }
    let chosen = choose(&args.only)?;
    if args.list {
        let mut text = String::new();
        for check in CHECKS {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{:<22} {}", check.name, check.title);
        }
        output::print(&text)?;
        return Ok(Outcome::Fine);
    }
    let mut machine = live::machine(&args.python.clone().map_or(Python::Active, Python::At));
    let program = interpreter(args.python.as_deref(), &machine)?;
    let device = if args.device == Device::Gpu {
        "cuda"
    } else {
        "cpu"
    };
    let results = run_all(&chosen, &program, device, args.patience)?;
    let not_tested = chosen
        .iter()
        .map(|check| check.name)
        .filter(|name| !results.iter().any(|result| result.name == *name))
        .collect();
    if args.device == Device::Gpu {
        machine
            .probed
            .extend(verdicts(&results).map(|(check, is_ok)| (check.to_owned(), is_ok)));
    }
    // Of a GPU that all checks have reached.
    let is_wanted = args.report.is_some() && args.device == Device::Gpu && args.only.is_empty();
    let (timings, not_timed) = match is_wanted && results.len() == chosen.len() {
        true => {
            timings(args.patience).map_or_else(|why| (Vec::new(), Some(why)), |rows| (rows, None))
        }
        false => (Vec::new(), None),
    };
    let report = Report {
        timings,
        not_timed,
        surefoot: env!("CARGO_PKG_VERSION"),
        program: program.display().to_string(),
        device,
        machine: &machine,
        gpus: &machine.gpus,
        wan: wan::needs(&machine),
        verdict: verdict(&results),
        checks: &results,
        not_tested,
    };
    if args.device == Device::Gpu {
        remember(&results, &machine);
    }
    let as_json = format!("{}\n", serde_json::to_string_pretty(&report)?);
    if let Some(path) = &args.report {
        write(path, &super::doctor::without_home(&as_json))?;
    }
    if json {
        output::print(&as_json)?;
    } else {
        output::print(&text(&report, output::wants_colour(&io::stdout())))?;
    }
    let tested = results
        .iter()
        .any(|result| result.name != "import" && result.outcome != Answer::Skipped);
    if !tested
        && results
            .iter()
            .any(|result| result.name == "import" && result.outcome != Answer::Ok)
    {
        return Err(Failure::Job(anyhow::anyhow!(
            "nothing could be tested: {}",
            results[0].detail
        )));
    }
    let failed = results.iter().any(|result| result.outcome.is_failure());
    Ok(if failed {
        Outcome::FoundErrors
    } else {
        Outcome::Fine
    })
}

/// Runs these checks on the GPU for the doctor, stores what they found, and returns whether each passed.
pub(crate) fn decide(
    checks: &[&str],
    python: Option<&str>,
    machine: &Machine,
) -> Result<Vec<(&'static str, bool)>, Failure> {
    let chosen: Vec<&Check> = CHECKS
        .iter()
        .filter(|check| check.name == "import" || checks.contains(&check.name))
        .collect();
    let results = run_all(&chosen, &interpreter(python, machine)?, "cuda", 1.0)?;
    if let [import] = &results[..]
        && import.outcome.is_failure()
    {
        return Err(Failure::Job(anyhow::anyhow!(
            "nothing could be measured: {}",
            import.detail
        )));
    }
    remember(&results, machine);
    Ok(verdicts(&results).collect())
}

/// Runs checks one after the other.
fn run_all(
    chosen: &[&Check],
    program: &Path,
    device: &str,
    patience: f64,
) -> Result<Vec<CheckResult>, Failure> {
    let script = tempfile::Builder::new()
        .prefix("surefoot-probe-")
        .suffix(".py")
        .tempfile()
        .context("cannot make a temporary file")?;
    std::fs::write(script.path(), check::SCRIPT).context("cannot write the checks")?;
    let runner = Runner {
        program: program.into(),
        script: script.path().into(),
    };
    let mut results: Vec<CheckResult> = Vec::new();
    for check in chosen {
        let limit = Duration::from_secs_f64(check.seconds as f64 * patience);
        progress(check, results.len(), chosen.len());
        let result = check::run(check, &runner, device, limit);
        clear_progress();
        let is_hopeless = check.name == "import" && result.outcome != Answer::Ok;
        results.push(result);
        if is_hopeless {
            // Without torch or a GPU, nothing else can be tested.
            break;
        }
    }
    Ok(results)
}

/// Stores results about settings that `env` and `run` set only if they work.
fn remember(results: &[CheckResult], machine: &Machine) {
    let Some(identity) = results.iter().find_map(|result| result.identity.as_ref()) else {
        return;
    };
    // If they cannot be stored, the settings are not used.
    let written = probe_cache::write(
        &cache::folder(),
        probe_cache::Tested {
            architecture: &identity.architecture,
            torch: &identity.torch,
            driver: &probe_cache::driver(machine),
        },
        verdicts(results),
    );
    if let Err(error) = written {
        tracing::warn!("cannot save the result: {error}");
    }
}

/// The checks that were run, and whether each passed.
fn verdicts(results: &[CheckResult]) -> impl Iterator<Item = (&'static str, bool)> + '_ {
    let tested = results
        .iter()
        .filter(|result| result.outcome != Answer::Skipped);
    tested.map(|result| (result.name, result.outcome == Answer::Ok))
}

fn choose(only: &[String]) -> Result<Vec<&'static Check>, Failure> {
    let wanted = |check: &&Check| {
        only.is_empty()
            || check.name == "import"
            || only.iter().any(|name| check.name.contains(name.as_str()))
    };
    let chosen: Vec<&Check> = CHECKS.iter().filter(wanted).collect();
    let unknown = only.iter().find(|name| {
        !CHECKS
            .iter()
            .any(|check| check.name.contains(name.as_str()))
    });
    match unknown {
        Some(name) => {
            let names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
            Err(Failure::usage(format_args!(
                "--only {name}: no such check; the checks are {}",
                names.join(", ")
            )))
        }
        None => Ok(chosen),
    }
}

/// The Python to test: the given one, or that of the active environment.
fn interpreter(python: Option<&str>, machine: &Machine) -> Result<PathBuf, Failure> {
    if let Some(path) = python.map(Path::new).filter(|path| path.is_file()) {
        return Ok(path.to_owned());
    }
    let prefix = python
        .map(str::to_owned)
        .or_else(|| machine.python.as_ref().map(|python| python.prefix.clone()));
    let prefix = prefix
        .ok_or_else(|| Failure::usage("there is no Python on PATH; name one with --python"))?;
    let names = [
        "bin/python",
        "bin/python3",
        "python.exe",
        "Scripts/python.exe",
    ];
    let found = names
        .iter()
        .map(|name| Path::new(&prefix).join(name))
        .find(|path| path.is_file());
    found.ok_or_else(|| Failure::usage(format_args!("there is no Python in {prefix}")))
}

fn verdict(results: &[CheckResult]) -> String {
    let failed: Vec<&str> = results
        .iter()
        .filter(|result| result.outcome.is_failure())
        .map(|result| result.name)
        .collect();
    let passed = results
        .iter()
        .filter(|result| result.outcome == Answer::Ok)
        .count();
    let count = |checks: usize| format!("{checks} check{}", if checks == 1 { "" } else { "s" });
    if failed.is_empty() {
        format!("{} passed", count(passed))
    } else {
        format!(
            "{} passed, {} failed: {}",
            count(passed),
            failed.len(),
            failed.join(", ")
        )
    }
}

/// The result as text: one line per check, with advice below those that failed.
fn text(report: &Report<'_>, coloured: bool) -> String {
    let mut text = String::new();
    for result in report.checks {
        let (word, colour) = match result.outcome {
            Answer::Ok => ("ok", AnsiColor::Green),
            Answer::Skipped => ("skip", AnsiColor::Cyan),
            Answer::Slow => ("slow", AnsiColor::Yellow),
            _ => ("FAIL", AnsiColor::Red),
        };
        let style = if coloured {
            colour.on_default()
        } else {
            Style::new()
        };
        let word = format!("{style}{word:>5}{style:#}");
        // Writing to a `String` cannot fail, here and below.
        let _ = writeln!(
            text,
            "{word} {:<22} {}{}",
            result.name,
            result.outcome.words(),
            detail(&result.detail)
        );
        for step in &result.advice {
            let _ = writeln!(text, "{:>6}{:<23}{step}", "", "");
        }
    }
    if !report.not_tested.is_empty() {
        let _ = writeln!(text, "\nnot tested: {}", report.not_tested.join(", "));
    }
    if !report.timings.is_empty() {
        let _ = write!(text, "\n{}", table(&report.timings));
    }
    if let Some(why) = &report.not_timed {
        let _ = writeln!(text, "\nnot timed: {why}");
    }
    let _ = writeln!(text, "\n{}", report.verdict);
    text + "\n" + &wan::text(report.machine)
}

fn detail(detail: &str) -> String {
    // The rest of a long message is in the report.
    match detail.lines().next() {
        Some(first) if first.chars().count() > 160 => {
            format!(": {}…", first.chars().take(160).collect::<String>())
        }
        Some(first) => format!(": {first}"),
        None => String::new(),
    }
}

/// Shows on a terminal which check is running, since a check takes seconds.
fn progress(check: &Check, done: usize, all: usize) {
    show_progress(&format!("[{}/{all}] {}", done + 1, check.title));
}

fn show_progress(what: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\u{1b}[K{what} …");
        let _ = io::stderr().flush();
    }
}

fn clear_progress() {
    if io::stderr().is_terminal() {
        eprint!("\r\u{1b}[K");
    }
}
