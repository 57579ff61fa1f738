//! Training steps of both sides in turn, and encoding, on the CPU.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::super::measured::{Measured, metrics, steady};
use super::super::median;
use super::super::process::{self, PeakMemory};
use super::{WanBench, config, make_model};
use crate::workspace;

/// Steps at the start that are not counted.
const WARM_UP: usize = 2;
const SIZE: (u32, u32) = (256, 160);

/// Results of both sides, in pairs.
#[derive(Serialize)]
pub(super) struct Steps {
    layers: u32,
    width: u32,
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

/// Peak memory while encoding a clip.
#[derive(Serialize)]
pub(super) struct Encoding {
    frames: u32,
    memory: PeakMemory,
}

/// What `bench/wan/reference.py` writes.
#[derive(Deserialize)]
struct Theirs {
    versions: Vec<String>,
    losses: Vec<f64>,
    step_seconds: Vec<f64>,
}

/// Trains with both sides in turn.
pub(super) fn measure(bench: &WanBench, python: &Path, surefoot: &Path) -> Result<Steps> {
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let folder = scratch.path();
    let number = |name: &str, value: u32| [format!("--{name}"), value.to_string()];
    let sizes = [
        number("layers", bench.layers),
        number("heads", bench.heads),
        number("width", SIZE.0),
        number("height", SIZE.1),
        number("frames", bench.frames),
    ];
    make_model(python, folder, &sizes.concat())?;
    let path = config(folder, "cpu", SIZE, bench.frames)?;
    let tokens = f64::from((bench.frames - 1) / 4 + 1) * f64::from(SIZE.0 / 16 * (SIZE.1 / 16));
    let settings = [
        format!("train.max_steps={}", bench.steps),
        format!("train.bf16={}", bench.bf16),
    ];
    // Encode before anything is measured.
    let mut cache = Command::new(surefoot);
    cache.arg("cache").arg(&path).arg("--set").arg(&settings[1]);
    process::run(cache)?;
    let (mut ours, mut theirs, mut versions) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 1..=bench.pairs {
        eprintln!("pair {pair} of {}", bench.pairs);
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
            .arg(workspace::root().join("bench/wan/reference.py"))
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
        layers: bench.layers,
        width: 128 * bench.heads,
        tokens,
        bf16: bench.bf16,
        steps: bench.steps,
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
            "{} layers of width {}, {} tokens, {}, every block checkpointed",
            self.layers,
            self.width,
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

/// Encodes one clip of `frames` frames.
pub(super) fn encode(frames: u32, python: &Path, surefoot: &Path) -> Result<Encoding> {
    eprintln!("encoding {frames} frames");
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let folder = scratch.path();
    let number = |name: &str, value: u32| [format!("--{name}"), value.to_string()];
    let sizes = [
        number("layers", 1),
        number("heads", 1),
        number("encoder-channels", 32),
        number("width", SIZE.0),
        number("height", SIZE.1),
        number("frames", frames),
    ];
    make_model(python, folder, &sizes.concat())?;
    let path = config(folder, "cpu", SIZE, frames)?;
    let mut command = Command::new(surefoot);
    command.arg("cache").arg(&path);
    command.args(["--set", "train.bf16=false"]);
    let memory = process::run(command)?;
    Ok(Encoding { frames, memory })
}

pub(super) fn print_encoding(list: &[Encoding]) {
    for Encoding { frames, memory } in list {
        println!(
            "encoding a clip of {frames:>3} frames: peak {} MiB, {} MiB of it anonymous",
            memory.resident_bytes >> 20,
            memory.anonymous_bytes >> 20
        );
    }
}
