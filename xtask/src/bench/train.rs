//! `cargo xtask bench train`: `surefoot train` against plain Python PyTorch.
//!
//! Both train the same model on the same batches with the same optimizer from the same
//! initial weights, in turn, pair after pair, so that a machine that slows down slows both.
//! The losses show that they did the same work. The reference, in `bench/train`, shares no
//! code with the trainer; it reads the config that the trainer wrote into its run folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::measured::{self, Measured, difference, steady};
use super::median;
use super::process;
use crate::{setup, train, workspace};

/// Steps at the start that are not counted: caches are cold, and memory is first touched.
const WARM_UP: usize = 5;

/// Number of losses that are compared.
const COMPARED: usize = 10;

/// Training speed and memory, against the same model in plain Python PyTorch.
#[derive(clap::Args)]
pub(crate) struct TrainBench {
    /// The training config (YAML); it must use the `bytes` tokenizer
    #[arg(default_value = "bench/train/bench.yaml")]
    config: PathBuf,

    /// How many times each side runs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,

    /// Optimizer steps of each run; the first five are not counted
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(10..))]
    steps: u32,

    /// Compute in bfloat16 on both sides; without it in fp32, whatever the config says
    #[arg(long)]
    bf16: bool,

    /// Set one value of the config for both, as in `--set data.block_size=128`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Fail if the losses of the first ten steps differ by more than 1e-4 of their value
    #[arg(long)]
    check: bool,

    /// Where the numbers go [default: bench/train.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Report {
    cpu: String,
    cores: usize,
    config: PathBuf,
    set: Vec<String>,
    bf16: bool,
    steps: u32,
    surefoot: Vec<Measured>,
    pytorch: Vec<Measured>,
    medians: Medians,
}

#[derive(Debug, Serialize)]
struct Medians {
    surefoot_tokens_per_second: f64,
    pytorch_tokens_per_second: f64,
    /// Median over the pairs of surefoot's speed divided by PyTorch's: above 1, surefoot is faster.
    speed_ratio: f64,
    surefoot_peak_resident_bytes: f64,
    pytorch_peak_resident_bytes: f64,
    surefoot_peak_anonymous_bytes: f64,
    pytorch_peak_anonymous_bytes: f64,
    /// Largest relative difference among the first ten losses.
    loss_difference: f64,
}

/// What `bench/train/reference.py` writes.
#[derive(Deserialize)]
struct ReferenceResult {
    tokens_per_step: f64,
    losses: Vec<f64>,
    step_seconds: Vec<f64>,
}

impl TrainBench {
    /// One pair, just long enough for the ten losses that must agree.
    pub(crate) fn parity_check(out: PathBuf) -> TrainBench {
        TrainBench {
            config: PathBuf::from("bench/train/bench.yaml"),
            pairs: 1,
            steps: 10,
            // Rounding to bf16 differs between implementations by more than that.
            bf16: false,
            set: Vec::new(),
            check: true,
            out: Some(out),
        }
    }

    pub(crate) fn run(self) -> Result<()> {
        let libtorch = setup::ensure()?;
        let python = setup::reference_python()?;
        let surefoot = train::build(&libtorch)?;
        let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for pair in 1..=self.pairs {
            eprintln!("pair {pair} of {}", self.pairs);
            let folder = scratch.path().join(format!("pair-{pair}"));
            ours.push(self.run_surefoot(&surefoot, &folder)?);
            theirs.push(self.run_reference(&python, &folder)?);
        }
        let report = self.report(ours, theirs);
        report.print();
        let target = workspace::target(&workspace::shell()?)?;
        let out = self.out.clone().unwrap_or(target.join("bench/train.json"));
        report.write(&out)?;
        let difference = report.medians.loss_difference;
        if self.check && difference.is_nan() | (difference > 1e-4) {
            bail!("the losses differ by {difference:.1e} of their value: not the same training");
        }
        Ok(())
    }

    fn run_surefoot(&self, surefoot: &Path, folder: &Path) -> Result<Measured> {
        let mut settings = self.set.clone();
        settings.push(format!("train.max_steps={}", self.steps));
        settings.push(format!("train.bf16={}", self.bf16));
        measured::surefoot(surefoot, &self.config, &settings, folder, WARM_UP)
    }

    fn run_reference(&self, python: &Path, folder: &Path) -> Result<Measured> {
        let out = folder.join("reference.json");
        let mut command = Command::new(python);
        command
            .arg(workspace::root().join("bench/train/reference.py"))
            .arg(folder.join("bench/config.yaml"))
            .arg("--out")
            .arg(&out);
        let memory = process::run(command)?;
        let text =
            fs::read_to_string(&out).with_context(|| format!("cannot read `{}`", out.display()))?;
        let result: ReferenceResult =
            serde_json::from_str(&text).context("cannot read what the reference wrote")?;
        let speed = |seconds: &f64| result.tokens_per_step / seconds;
        let speeds: Vec<f64> = result.step_seconds.iter().map(speed).collect();
        Ok(Measured {
            tokens_per_second: steady(&speeds, WARM_UP),
            memory,
            losses: result.losses,
        })
    }

    fn report(&self, surefoot: Vec<Measured>, pytorch: Vec<Measured>) -> Report {
        let medians = Medians::of(&surefoot, &pytorch);
        Report {
            cpu: cpu_name(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            config: self.config.clone(),
            set: self.set.clone(),
            bf16: self.bf16,
            steps: self.steps,
            surefoot,
            pytorch,
            medians,
        }
    }
}

impl Medians {
    fn of(surefoot: &[Measured], pytorch: &[Measured]) -> Medians {
        let speed = |run: &Measured| run.tokens_per_second;
        let resident = |run: &Measured| run.memory.resident_bytes as f64;
        let anonymous = |run: &Measured| run.memory.anonymous_bytes as f64;
        let over = |runs: &[Measured], value: &dyn Fn(&Measured) -> f64| {
            median(&runs.iter().map(value).collect::<Vec<_>>())
        };
        let pairs = || surefoot.iter().zip(pytorch);
        let ratios: Vec<f64> = pairs()
            .map(|(ours, theirs)| speed(ours) / speed(theirs))
            .collect();
        let differences =
            pairs().map(|(ours, theirs)| difference(&ours.losses, &theirs.losses, COMPARED));
        Medians {
            surefoot_tokens_per_second: over(surefoot, &speed),
            pytorch_tokens_per_second: over(pytorch, &speed),
            speed_ratio: median(&ratios),
            surefoot_peak_resident_bytes: over(surefoot, &resident),
            pytorch_peak_resident_bytes: over(pytorch, &resident),
            surefoot_peak_anonymous_bytes: over(surefoot, &anonymous),
            pytorch_peak_anonymous_bytes: over(pytorch, &anonymous),
            loss_difference: differences.fold(0.0, largest),
        }
    }
}

impl Report {
    fn print(&self) {
        let mib = |bytes: f64| format!("{:.0} MiB", bytes / f64::from(1 << 20));
        let row = |name: &str, speed: f64, resident: f64, anonymous: f64| {
            println!(
                "{name:<10} {speed:>10.0} {:>12} {:>14}",
                mib(resident),
                mib(anonymous)
            );
        };
        let medians = &self.medians;
        println!(
            "{:<10} {:>10} {:>12} {:>14}",
            "", "tokens/s", "peak RSS", "its anonymous"
        );
        row(
            "surefoot",
            medians.surefoot_tokens_per_second,
            medians.surefoot_peak_resident_bytes,
            medians.surefoot_peak_anonymous_bytes,
        );
        row(
            "PyTorch",
            medians.pytorch_tokens_per_second,
            medians.pytorch_peak_resident_bytes,
            medians.pytorch_peak_anonymous_bytes,
        );
        println!(
            "surefoot is at {:.3} of PyTorch's speed (median of {} pairs, {} steps each; {}, {} cores)",
            medians.speed_ratio,
            self.surefoot.len(),
            self.steps,
            self.cpu,
            self.cores
        );
        println!(
            "losses of the first ten steps differ by at most {:.1e} of their value",
            medians.loss_difference
        );
    }

    fn write(&self, path: &Path) -> Result<()> {
        measured::write(self, path)?;
        eprintln!("every run is in `{}`", path.display());
        Ok(())
    }
}

/// Unlike `f64::max`, propagates NaN.
pub(super) fn largest(one: f64, other: f64) -> f64 {
    match one.is_nan() || other.is_nan() {
        true => f64::NAN,
        false => one.max(other),
    }
}

pub(super) fn cpu_name() -> String {
    let table = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = table.lines().find(|line| line.starts_with("model name"));
    let name = name.and_then(|line| line.split_once(": "));
    name.map_or("an unnamed CPU", |(_, name)| name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_leaves_the_warm_up_out() {
        let speeds = [1.0, 1.0, 1.0, 1.0, 1.0, 10.0, 12.0, 11.0];
        assert_eq!(steady(&speeds, WARM_UP), 11.0);
    }

    #[test]
    fn the_difference_is_the_largest_relative_one() {
        let theirs = [2.0; 12];
        let mut ours = theirs;
        ours[9] = 2.002;
        ours[11] = 100.0;
        assert!((difference(&ours, &theirs, COMPARED) - 1e-3).abs() < 1e-12);
    }

    #[test]
    fn missing_losses_are_no_agreement() {
        assert!(difference(&[2.0; 9], &[2.0; 10], COMPARED).is_nan());
        let mut broken = [2.0; 10];
        broken[3] = f64::NAN;
        assert!(difference(&broken, &[2.0; 10], COMPARED).is_nan());
    }
}
