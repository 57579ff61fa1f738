//! `cargo xtask bench placement`: what copying and verification cost, and whose plans keep more on the
//! device.
//!
//! The measuring is `crates/harness/src/bin/bench-placement`; accelerate plans the same module sizes in
//! `bench/placement/accelerate_plan.py`; `simulated.rs` measures verification at a device's latencies. This file
//! starts them all and puts the numbers side by side, as a table, as JSON and (`picture.rs`) as a picture.

mod picture;
mod simulated;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use xshell::cmd;

use self::simulated::SimulatedCost;
use crate::{setup, workspace};

/// The cost of each copy route and of verification, and the quality of plans compared with accelerate's.
#[derive(clap::Args)]
pub(crate) struct PlacementBench {
    /// How often each copy is measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Where the numbers go, with a picture beside them (`.svg`) [default: bench/placement.json in the target
    /// folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The output of the program, with accelerate's numbers.
#[derive(Serialize, Deserialize)]
struct Report {
    /// The target: `cpu` or the first accelerator.
    device: String,
    routes: Vec<RouteCost>,
    /// Measured on the simulated device, regardless of `device`.
    #[serde(default)]
    simulated: Vec<SimulatedCost>,
    streaming: Vec<StreamCost>,
    plans: Vec<PlanQuality>,
}

/// The cost of moving a module whose tensors have one size.
#[derive(Serialize, Deserialize)]
struct RouteCost {
    bytes: u64,
    tensors: u64,
    rates: Vec<Rate>,
    /// What `always` adds to `off`: the median and the interquartile range.
    verify_overhead: f64,
    verify_overhead_between: (f64, f64),
}

#[derive(Serialize, Deserialize)]
struct Rate {
    way: String,
    bytes_per_second: f64,
}

/// A training step through streamed blocks.
#[derive(Serialize, Deserialize)]
struct StreamCost {
    tokens: u64,
    way: String,
    verify: String,
    device: u64,
    seconds: f64,
    overhead: f64,
}

#[derive(Serialize, Deserialize)]
struct PlanQuality {
    model: String,
    budget: u64,
    #[serde(skip_serializing)]
    #[allow(dead_code)] // Read by accelerate's side only.
    modules: serde_json::Value,
    resident_one_slot: Option<u64>,
    resident_two_slots: Option<u64>,
    #[serde(default)]
    resident_accelerate: u64,
}

impl PlacementBench {
    pub(crate) fn run(self) -> Result<()> {
        let libtorch = setup::ensure()?;
        let python = setup::reference_python()?;
        let shell = setup::shell(&libtorch)?;
        let (cargo, rounds) = (workspace::cargo(), self.rounds.to_string());
        eprintln!("measuring {rounds} rounds of each copy: some minutes");
        // Freed memory is not reused, so that tensors arrive in fresh memory, as weights do.
        let ours = cmd!(
            shell,
            "{cargo} run --release --quiet --package harness --bin bench-placement -- {rounds}"
        )
        .env("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=262144")
        .read()?;
        let mut report: Report =
            serde_json::from_str(&ours).context("the benchmark printed something else")?;
        eprintln!("planning the same models with accelerate");
        let theirs = cmd!(shell, "{python} bench/placement/accelerate_plan.py")
            .stdin(&ours)
            .read()?;
        let theirs: Vec<u64> =
            serde_json::from_str(&theirs).context("accelerate's side printed something else")?;
        ensure!(
            theirs.len() == report.plans.len(),
            "not one number for each plan"
        );
        for (plan, resident) in report.plans.iter_mut().zip(theirs) {
            plan.resident_accelerate = resident;
        }
        report.simulated = simulated::measure(&shell, &python)?;
        report.print();
        let default = workspace::target(&shell)?.join("bench/placement.json");
        report.write(&self.out.unwrap_or(default))
    }
}

impl Report {
    fn print(&self) {
        println!(
            "moving a module to the {}, GB/s, and what `always` adds to the time",
            self.device
        );
        if let Some(first) = self.routes.first() {
            print!("{:>6}", "MiB");
            for rate in &first.rates {
                print!(" {:>14}", rate.way);
            }
            println!("   adds (middle half)");
        }
        for cost in &self.routes {
            print!("{:>6}", cost.bytes >> 20);
            for rate in &cost.rates {
                print!(" {:>14.1}", rate.bytes_per_second / 1e9);
            }
            let (low, high) = cost.verify_overhead_between;
            println!(
                "   {:.1} % ({:.1} to {:.1})",
                cost.verify_overhead * 100.0,
                low * 100.0,
                high * 100.0
            );
        }
        simulated::print(&self.simulated);
        println!("\na training step through streamed blocks, against the same blocks resident");
        println!(
            "{:>7} {:<16} {:>7} {:>11} {:>9} {:>9}",
            "tokens", "streamed", "verify", "device MiB", "ms", "adds"
        );
        for cost in &self.streaming {
            println!(
                "{:>7} {:<16} {:>7} {:>11} {:>9.1} {:>8.1}%",
                cost.tokens,
                cost.way,
                cost.verify,
                cost.device >> 20,
                cost.seconds * 1e3,
                cost.overhead * 100.0
            );
        }
        println!("\nbytes that stay on the device, MiB");
        println!(
            "{:<24} {:>8} {:>11} {:>9} {:>10}",
            "model", "budget", "accelerate", "one slot", "two slots"
        );
        let mib = |bytes: Option<u64>| {
            bytes.map_or_else(|| "no plan".to_owned(), |bytes| (bytes >> 20).to_string())
        };
        for plan in &self.plans {
            println!(
                "{:<24} {:>8} {:>11} {:>9} {:>10}",
                plan.model,
                plan.budget >> 20,
                plan.resident_accelerate >> 20,
                mib(plan.resident_one_slot),
                mib(plan.resident_two_slots)
            );
        }
    }

    fn write(&self, file: &Path) -> Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make `{}`", folder.display()))?;
        }
        let picture = file.with_extension("svg");
        for (file, text) in [
            (file, serde_json::to_string_pretty(self)?),
            (&picture, picture::draw(&self.plans)?),
        ] {
            fs::write(file, text).with_context(|| format!("cannot write `{}`", file.display()))?;
            eprintln!("written to {}", file.display());
        }
        Ok(())
    }
}
