//! `surefoot tune`: finds the settings with which the steps of a config are fastest on this machine.
//!
//! Each setting is tried for some steps of this very config, in a process of its own, since libraries read most of them
//! while they are loaded. One is kept if it gains more than two equal runs differ by, and leaves the losses as they
//! are. So nothing is decided by the name of a GPU, and a setting that crashes, hangs or computes something else is a
//! line of the table. `surefoot train` looks up what was found (`tune/kept.rs`).

pub(crate) mod kept;
pub(crate) mod trial;

use std::path::PathBuf;

use anyhow::Context;
use platform::timings::{Timing, table as table_of_timings};
use serde::Serialize;
use surefoot_cli::live::{self, Python};
use surefoot_cli::output::{self, Failure, Outcome};
use trainer::Config;

use self::kept::{Kept, Setting};
use self::trial::{Measured, Trials};
use super::config_report;

/// Find the settings with which the steps of a config are fastest on this machine
///
/// Runs some steps of the config with each setting. `surefoot train` then uses what was found, for this config and this
/// machine.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The config: a YAML file
    config: PathBuf,

    /// Override a key of the config, such as `model.quantization=nf4`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Timed steps for each setting, after two that are not
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..=1000))]
    steps: u32,
}

/// The least gain, however quiet the machine is.
const LEAST_GAIN: f64 = 0.02;

/// The largest relative difference of a loss. Other kernels round otherwise; wrong ones miss by more.
const LARGEST_DIFFERENCE: f64 = 0.02;

/// What was measured with a setting.
#[derive(Debug, Clone, Serialize)]
struct Row {
    #[serde(flatten)]
    setting: Setting,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_second: Option<f64>,
    /// As a multiple of what was best before.
    #[serde(skip_serializing_if = "Option::is_none")]
    speed: Option<f64>,
    chosen: bool,
    /// Why it was not chosen, if that is not the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    machine: &'a str,
    /// Of the config as it is.
    tokens_per_second: f64,
    /// By how much a second run of it differed, relatively.
    noise: f64,
    rows: &'a [Row],
    /// With all that was chosen.
    best_tokens_per_second: f64,
    /// How long what a step is made of takes, on a GPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    timings: Vec<Timing>,
    file: PathBuf,
}

pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let config = Config::load(&args.config, &args.set)
        .map_err(|error| Failure::Usage(config_report::render(&error)))?;
    let machine = live::machine(&Python::Skip);
    let identity = kept::identity(&machine);
    let mut settings = kept::candidates(&config, &machine)?;
    let trials = Trials::new(args, &config)?;
    let first = trials
        .run("the config as it is", &[])?
        .map_err(|reason| anyhow::anyhow!("the config as it is does not train: {reason}"))?;
    let again = trials
        .run("the same again", &[])?
        .map_err(|reason| anyhow::anyhow!("the config does not train a second time: {reason}"))?;
    let noise = (first.speed / again.speed - 1.0).abs();
    let mut chosen: Vec<Setting> = Vec::new();
    let mut best = Measured {
        speed: first.speed.max(again.speed),
        losses: first.losses,
    };
    let unchanged = best.speed;
    let mut rows = Vec::new();
    for setting in &mut settings {
        if let Some(row) = tried(&trials, setting, &chosen, &mut best, noise)? {
            if row.chosen {
                chosen.push(setting.clone());
            }
            rows.push(row);
        }
    }
    let kept = Kept::new(&config, &identity, chosen, best.speed / unchanged)?;
    let file = kept.write().context("cannot keep what was found")?;
    let report = Report {
        machine: &identity,
        tokens_per_second: unchanged,
        noise,
        rows: &rows,
        best_tokens_per_second: best.speed,
        timings: timings(&config.device),
        file,
    };
    output::print(&match json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => table(&report),
    })?;
    Ok(Outcome::Fine)
}

/// How long what a step is made of takes, on a GPU. The settings are found by now: a failure here is told and loses none.
fn timings(device: &str) -> Vec<Timing> {
    let chosen = trainer::device::choose(device);
    if !chosen.is_ok_and(|device| trainer::device::gpu_index(device).is_some()) {
        return Vec::new();
    }
    trainer::device::timings(device).unwrap_or_else(|error| {
        tracing::warn!("what a step is made of was not timed: {error}");
        Vec::new()
    })
}

/// Tries a setting beside those that are chosen already; `None` if it excludes itself with one of them.
fn tried(
    trials: &Trials<'_>,
    setting: &mut Setting,
    chosen: &[Setting],
    best: &mut Measured,
    noise: f64,
) -> Result<Option<Row>, Failure> {
    if chosen.iter().any(|other| other.concerns(setting)) {
        return Ok(None);
    }
    let mut row = Row {
        setting: setting.clone(),
        tokens_per_second: None,
        speed: None,
        chosen: false,
        reason: None,
    };
    if let Err(reason) = trials.prepare(setting, chosen)? {
        row.reason = Some(reason);
        return Ok(Some(row));
    }
    row.setting = setting.clone();
    let all: Vec<Setting> = chosen.iter().chain([&*setting]).cloned().collect();
    match trials.run(&setting.name, &all)? {
        Err(reason) => row.reason = Some(reason),
        Ok(measured) => {
            row.tokens_per_second = Some(measured.speed);
            row.speed = Some(measured.speed / best.speed);
            row.reason = measured.differs_from(best);
            row.chosen = row.reason.is_none() && is_worth(measured.speed, best.speed, noise);
            if row.chosen {
                best.speed = measured.speed;
            }
        }
    }
    Ok(Some(row))
}

/// Whether this `speed` is better than the `best`, with runs that differ by `noise`.
fn is_worth(speed: f64, best: f64, noise: f64) -> bool {
    speed > best * (1.0 + LEAST_GAIN.max(2.0 * noise))
}

fn table(report: &Report<'_>) -> String {
    let mut lines = vec![
        format!("machine   {}", report.machine),
        format!(
            "as it is  {:.0} tokens/s; two runs differ by {:.1} %",
            report.tokens_per_second,
            100.0 * report.noise
        ),
        String::new(),
    ];
    let width = |row: &Row| row.setting.name.chars().count();
    let widest = report.rows.iter().map(width).max().unwrap_or(0);
    for row in report.rows {
        let measured = match (row.tokens_per_second, row.speed) {
            (Some(tokens), Some(speed)) => format!("{tokens:8.0} tokens/s {speed:5.2} ×"),
            _ => format!("{:>8}          {:>5}  ", "–", "–"),
        };
        let verdict = match (&row.reason, row.chosen) {
            (Some(reason), _) => reason,
            (None, true) => "chosen",
            (None, false) => "no gain",
        };
        lines.push(format!(
            "{:widest$} {measured}  {verdict}",
            row.setting.name
        ));
    }
    if report.rows.is_empty() {
        lines.push("there is nothing to choose for this config on this machine".into());
    }
    lines.push(String::new());
    if !report.timings.is_empty() {
        lines.push(table_of_timings(&report.timings));
    }
    lines.push(format!(
        "{:.0} tokens/s with what was chosen, {:.2} × as fast; `surefoot train` uses it for this config from now on",
        report.best_tokens_per_second,
        report.best_tokens_per_second / report.tokens_per_second
    ));
    lines.push(format!("kept in {}", report.file.display()));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_has_to_be_larger_than_the_noise() {
        assert!(is_worth(1.03, 1.0, 0.0));
        assert!(!is_worth(1.01, 1.0, 0.0));
        assert!(!is_worth(1.05, 1.0, 0.04));
        assert!(is_worth(1.10, 1.0, 0.04));
        assert!(!is_worth(f64::NAN, 1.0, 0.0));
    }
}
