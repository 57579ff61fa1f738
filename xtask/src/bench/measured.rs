//! A run of one side of a training benchmark, and how two runs are compared.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::median;
use super::process::{self, PeakMemory};
use super::train::largest;
use crate::workspace;

/// One run of one side.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    /// Median over the steps after the warm-up, without evaluations, samples and checkpoints.
    pub(super) tokens_per_second: f64,
    pub(super) memory: PeakMemory,
    pub(super) losses: Vec<f64>,
}

/// The fields of a line of `metrics.jsonl` that are used here.
#[derive(Deserialize)]
struct Metric {
    kind: String,
    loss: Option<f64>,
    tokens_per_second: Option<f64>,
}

/// Trains with `surefoot`, running and recording only steps, in the run folder `<folder>/bench`. `settings`
/// are passed with `--set`; the last of several values for a key counts. The first `warm_up` steps are not
/// timed.
pub(super) fn surefoot(
    surefoot: &Path,
    config: &Path,
    settings: &[String],
    folder: &Path,
    warm_up: usize,
) -> Result<Measured> {
    let mut command = Command::new(surefoot);
    steps_alone(&mut command, config, settings, folder);
    let memory = process::run(command)?;
    let (losses, speeds) = metrics(&folder.join("bench"))?;
    Ok(Measured {
        tokens_per_second: steady(&speeds, warm_up),
        memory,
        losses,
    })
}

/// The arguments of `surefoot` for a run that consists only of steps, as [`surefoot`] starts it.
pub(super) fn steps_alone(
    command: &mut Command,
    config: &Path,
    settings: &[String],
    folder: &Path,
) {
    command.arg("train").arg(config);
    let ours = [
        "name=bench".to_owned(),
        format!("output_dir={}", folder.display()),
        "train.logging_steps=1".to_owned(),
        // Switch off what the reference does not do.
        "train.eval_steps=0".to_owned(),
        "train.save_steps=0".to_owned(),
        "sample.max_new_tokens=0".to_owned(),
    ];
    for value in settings.iter().chain(&ours) {
        command.arg("--set").arg(value);
    }
    command.current_dir(workspace::root());
}

/// Writes the results of a benchmark; creates the folder.
pub(super) fn write(report: &impl Serialize, path: &Path) -> Result<()> {
    let context = || format!("cannot write `{}`", path.display());
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).with_context(context)?;
    fs::write(path, serde_json::to_string_pretty(report)? + "\n").with_context(context)
}

/// The losses and speeds of all steps of the run in the folder `run`.
pub(super) fn metrics(run: &Path) -> Result<(Vec<f64>, Vec<f64>)> {
    let path = run.join("metrics.jsonl");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let (mut losses, mut speeds) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let metric: Metric = serde_json::from_str(line)
            .with_context(|| format!("`{}` has a line that is no metric", path.display()))?;
        if metric.kind == "train" {
            losses.extend(metric.loss);
            speeds.extend(metric.tokens_per_second);
        }
    }
    Ok((losses, speeds))
}

/// The steady-state speed: the median over the steps after the warm-up.
pub(super) fn steady(speeds: &[f64], warm_up: usize) -> f64 {
    median(speeds.get(warm_up..).unwrap_or(&[]))
}

/// Largest relative difference among the first `compared` losses; NaN if some are missing.
pub(super) fn difference(ours: &[f64], theirs: &[f64], compared: usize) -> f64 {
    let (Some(ours), Some(theirs)) = (ours.get(..compared), theirs.get(..compared)) else {
        return f64::NAN;
    };
    let pairs = ours.iter().zip(theirs);
    pairs
        .map(|(ours, theirs)| (ours - theirs).abs() / theirs.abs())
        .fold(0.0, largest)
}
