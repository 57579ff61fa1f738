//! Training steps of both sides in turn, on the CPU.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::super::measured::{Measured, metrics, steady};
use super::super::median;
use super::super::process;
use super::Model;
use crate::workspace;

/// Steps at the start that are not counted.
const WARM_UP: usize = 2;

/// Results of both sides, in pairs.
#[derive(Serialize)]
pub(in super::super) struct Steps {
    kind: &'static str,
    sizes: String,
    tokens: f64,
    bf16: bool,
    steps: u32,
    versions: Vec<String>,
    surefoot: Vec<Measured>,
    diffusers: Vec<Measured>,
    /// Medians over the pairs: their step time divided by ours (above 1, ours is faster), and our peak
    /// divided by theirs.
    speed_ratio: f64,
    resident_ratio: f64,
    anonymous_ratio: f64,
}

/// What `bench/diffusion/reference.py` writes.
#[derive(Deserialize)]
struct Theirs {
    versions: Vec<String>,
    losses: Vec<f64>,
    step_seconds: Vec<f64>,
}

/// Trains with both sides in turn: so many pairs of so many steps, in bf16 or not.
pub(in super::super) fn measure(
    model: &Model,
    (pairs, steps, bf16): (u32, u32, bool),
    python: &Path,
    surefoot: &Path,
) -> Result<Steps> {
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let folder = scratch.path();
    let path = model.make(python, folder, "cpu")?;
    let tokens = model.tokens();
    let settings = [
        format!("train.max_steps={steps}"),
        format!("train.bf16={bf16}"),
    ];
    // Encode before anything is measured.
    let mut cache = Command::new(surefoot);
    cache.arg("cache").arg(&path).arg("--set").arg(&settings[1]);
    process::run(cache)?;
    let (mut ours, mut theirs, mut versions) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 1..=pairs {
        eprintln!("{}: pair {pair} of {pairs}", model.kind);
        let name = format!("pair-{pair}");
        let mut command = Command::new(surefoot);
        command.arg("train").arg(&path);
        for setting in settings.iter().chain([&format!("name={name}")]) {
            command.arg("--set").arg(setting);
        }
        let memory = process::run(command)?;
        let run = folder.join("runs").join(&name);
        let (losses, speeds) = metrics(&run)?;
        ours.push(Measured {
            tokens_per_second: steady(&speeds, WARM_UP),
            memory,
            losses,
        });
        let out = folder.join("theirs.json");
        let mut command = Command::new(python);
        command
            .arg(workspace::root().join("bench/diffusion/reference.py"))
            .arg(run.join("config.yaml"))
            .arg("--model")
            .arg(folder.join("model"))
            .arg("--cache")
            .arg(folder.join("cache"))
            .arg("--out")
            .arg(&out)
            .env("HF_HUB_OFFLINE", "1");
        let memory = process::run(command)?;
        let text = fs::read_to_string(&out).context("the reference wrote nothing")?;
        let reference: Theirs =
            serde_json::from_str(&text).context("cannot read what the reference wrote")?;
        let speeds: Vec<f64> = reference.step_seconds.iter().map(|s| tokens / s).collect();
        theirs.push(Measured {
            tokens_per_second: steady(&speeds, WARM_UP),
            memory,
            losses: reference.losses,
        });
        versions = reference.versions;
    }
    let ratio = |of: fn(&Measured) -> f64| {
        let pairs = ours.iter().zip(&theirs);
        median(
            &pairs
                .map(|(ours, theirs)| of(ours) / of(theirs))
                .collect::<Vec<_>>(),
        )
    };
    Ok(Steps {
        kind: model.kind,
        sizes: model
            .sizes
            .iter()
            .map(|(name, value)| format!("{value} {name}"))
            .collect::<Vec<_>>()
            .join(", "),
        tokens,
        bf16,
        steps,
        versions,
        speed_ratio: ratio(|run| run.tokens_per_second),
        resident_ratio: ratio(|run| run.memory.resident_bytes as f64),
        anonymous_ratio: ratio(|run| run.memory.anonymous_bytes as f64),
        surefoot: ours,
        diffusers: theirs,
    })
}

impl Steps {
    pub(super) fn print(&self) {
        println!(
            "\n{}: {}, {} tokens, {}, every block checkpointed",
            self.kind,
            self.sizes,
            self.tokens,
            if self.bf16 { "bf16" } else { "fp32" }
        );
        println!(
            "{:<18} {:>9} {:>10} {:>14}",
            "", "s a step", "peak RSS", "its anonymous"
        );
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        for (name, runs) in [
            ("surefoot", &self.surefoot),
            ("diffusers + PEFT", &self.diffusers),
        ] {
            for run in runs {
                println!(
                    "{name:<18} {:>9.3} {:>10} {:>14}",
                    self.tokens / run.tokens_per_second,
                    mib(run.memory.resident_bytes),
                    mib(run.memory.anonymous_bytes)
                );
            }
        }
        println!(
            "surefoot is {:.2} × as fast and has {:.2} × the peak memory, {:.2} × without pages of files (medians of \
             {} pairs; {})",
            self.speed_ratio,
            self.resident_ratio,
            self.anonymous_ratio,
            self.surefoot.len(),
            self.versions.join(", ")
        );
    }
}
