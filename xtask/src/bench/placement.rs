//! `cargo xtask bench placement`: what moving and verifying costs, and whose plans keep more on the device.
//!
//! The measuring is `crates/placement/examples/bench`; accelerate plans the same module sizes in
//! `bench/placement/accelerate_plan.py`. This file starts both and puts the numbers side by side.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use xshell::cmd;

use crate::{setup, workspace};

/// The cost of each copy route and of verification, and the quality of plans against accelerate's.
#[derive(clap::Args)]
pub(crate) struct PlacementBench {
    /// How often each copy is measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Where the numbers go [default: bench/placement.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// What the example prints, and the numbers of accelerate beside it.
#[derive(Serialize, Deserialize)]
struct Report {
    routes: Vec<RouteCost>,
    plans: Vec<PlanQuality>,
}

/// Bytes per second, except the last.
#[derive(Serialize, Deserialize)]
struct RouteCost {
    bytes: u64,
    memcpy: f64,
    memcpy_fresh: f64,
    direct: f64,
    chunked: f64,
    checksum: f64,
    ladder_off: f64,
    ladder_always: f64,
    verify_overhead: f64,
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
        eprintln!("measuring {rounds} rounds of each copy");
        let ours = cmd!(
            shell,
            "{cargo} run --release --quiet --package placement --example bench -- {rounds}"
        )
        .read()?;
        let mut report: Report =
            serde_json::from_str(&ours).context("the benchmark printed something else")?;
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
        report.print();
        let default = workspace::target(&shell)?.join("bench/placement.json");
        report.write(&self.out.unwrap_or(default))
    }
}

impl Report {
    fn print(&self) {
        println!("copies to the CPU, GB/s, and what `always` adds to the time of a move");
        println!(
            "{:>8} {:>7} {:>7} {:>7} {:>8} {:>9} {:>7} {:>7} {:>7}",
            "MiB", "memcpy", "fresh", "direct", "chunked", "checksum", "off", "always", "adds"
        );
        for cost in &self.routes {
            println!(
                "{:>8} {:>7.1} {:>7.1} {:>7.1} {:>8.1} {:>9.1} {:>7.1} {:>7.1} {:>6.0}%",
                cost.bytes >> 20,
                cost.memcpy / 1e9,
                cost.memcpy_fresh / 1e9,
                cost.direct / 1e9,
                cost.chunked / 1e9,
                cost.checksum / 1e9,
                cost.ladder_off / 1e9,
                cost.ladder_always / 1e9,
                cost.verify_overhead * 100.0
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

    fn write(&self, file: &PathBuf) -> Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make `{}`", folder.display()))?;
        }
        fs::write(file, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("cannot write `{}`", file.display()))?;
        eprintln!("written to {}", file.display());
        Ok(())
    }
}
