//! What verification adds to a copy at the latencies of a device, measured on the simulated one.
//!
//! `crates/harness/src/bin/on-device times` runs on the libtorch of the reference environment's CUDA wheel
//! and, below that, on `device-sim`, whose link carries 25 GB/s and whose kernels take 5 µs. The simulator
//! has no DMA engine and no cores of its own, so it is measured twice: once moving the bytes with the CPU,
//! which should be free to sum them, and once moving none, so that a copy only takes time.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use xshell::{Shell, cmd};

use super::super::simulator::Simulator;

/// Simulated stream time: per kernel, per copy, and per MiB copied.
const DEVICE_TIME: &str = "kernel:5us,copy:10us,mib:40us";

/// Tensors of one size, copied in one batch and waited for.
#[derive(Serialize, Deserialize)]
pub(super) struct SimulatedCost {
    /// Whether the simulator moves the bytes.
    #[serde(default)]
    moves_bytes: bool,
    /// Size of one tensor, and the number of tensors in a batch.
    mib: u64,
    tensors: u64,
    pinned: bool,
    /// Medians, in seconds.
    copy: f64,
    verified: f64,
    /// What the second adds to the first: the median over the rounds, and between the fastest rounds.
    overhead: f64,
    overhead_of_fastest: f64,
}

pub(super) fn measure(shell: &Shell, python: &Path) -> Result<Vec<SimulatedCost>> {
    let others = ["--package", "harness", "--lib", "--bin", "on-device"];
    let simulator = Simulator::build(shell, python, &others)?;
    let mut costs = Vec::new();
    let program = simulator.built.join("on-device");
    for (moves_bytes, data) in [(true, "all"), (false, "none")] {
        eprintln!("verifying at a device's latencies, DEVICE_SIM_DATA={data}");
        let printed = cmd!(shell, "{program} times")
            .env("LD_LIBRARY_PATH", &simulator.libraries)
            .env("LD_PRELOAD", &simulator.preload)
            .env("DEVICE_SIM_DATA", data)
            .env("DEVICE_SIM_DEVICE_TIME", DEVICE_TIME)
            .read()?;
        let measured: Vec<SimulatedCost> = serde_json::from_str(&printed)
            .context("the simulated device printed something else")?;
        costs.extend(measured.into_iter().map(|cost| SimulatedCost {
            moves_bytes,
            ..cost
        }));
    }
    Ok(costs)
}

pub(super) fn print(costs: &[SimulatedCost]) {
    println!("\nverifying at a device's latencies ({DEVICE_TIME}), on the simulated device");
    println!(
        "{:>6} {:>8} {:>9} {:>11} {:>9} {:>9}   adds (of the fastest)",
        "MiB", "tensors", "memory", "simulator", "copy ms", "always ms"
    );
    for cost in costs {
        println!(
            "{:>6} {:>8} {:>9} {:>11} {:>9.2} {:>9.2}   {:.1} % ({:.1})",
            cost.mib,
            cost.tensors,
            if cost.pinned { "pinned" } else { "pageable" },
            if cost.moves_bytes {
                "moves bytes"
            } else {
                "waits only"
            },
            cost.copy * 1e3,
            cost.verified * 1e3,
            cost.overhead * 100.0,
            cost.overhead_of_fastest * 100.0
        );
    }
}
