//! Models of real size on the simulated device: a run allocates everything and computes nothing.
//!
//! `surefoot train` runs on the libtorch of the reference environment's CUDA wheel and, below that, on
//! `device-sim` with `DEVICE_SIM_DATA=none`: kernels do nothing and large copies move nothing, so that device
//! memory consists of addresses without pages. Attention takes the path that libtorch would choose on a GPU
//! with its flash kernels, as with AOTriton. Weight files are sparse. On a machine with unified memory the
//! capacity comes from `/proc/meminfo`, which is replaced for such a run in a namespace of its own
//! (`unshare`). Measured is what hip-alloc counted in tensors during the steps.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::super::simulator::Simulator;
use super::super::{measured, process};
use super::{config, make_model};
use crate::workspace;

const SIZE: (u32, u32) = (832, 480);
const GIB: u64 = 1 << 30;

/// A run on a simulated machine.
struct Case {
    name: &'static str,
    real: &'static str,
    frames: u32,
    /// GiB of unified memory, or of the card.
    unified: bool,
    gib: u64,
    settings: &'static [&'static str],
}

const SMALL: [Case; 3] = [
    Case {
        name: "1.3B, bf16, on a card of 16 GiB",
        real: "1.3b",
        frames: 81,
        unified: false,
        gib: 16,
        settings: &[],
    },
    Case {
        name: "two of 1.3B that change places in every step",
        real: "pair",
        frames: 1,
        unified: false,
        // Too little for both experts.
        gib: 5,
        settings: &["train.steps_per_expert=1"],
    },
    Case {
        name: "two of 1.3B, one after the other",
        real: "pair",
        frames: 1,
        unified: false,
        gib: 5,
        settings: &["train.steps_per_expert=4"],
    },
];

const REAL: [Case; 3] = [
    Case {
        name: "A14B, bf16, both experts, one memory of 128 GiB",
        real: "a14b",
        frames: 81,
        unified: true,
        gib: 128,
        settings: &["train.steps_per_expert=2"],
    },
    Case {
        name: "I2V-A14B, bf16, both experts, one memory of 128 GiB",
        real: "i2v-a14b",
        frames: 81,
        unified: true,
        gib: 128,
        settings: &["train.steps_per_expert=2"],
    },
    Case {
        name: "A14B, NF4, all blocks streamed, a card of 24 GiB",
        real: "a14b",
        frames: 81,
        unified: false,
        gib: 24,
        settings: &[
            "train.experts=high",
            "model.quantization=nf4",
            "model.offload=all",
            "train.activation_offload=true",
        ],
    },
];

/// Memory of a run: expected and measured.
#[derive(Serialize)]
pub(super) struct Fit {
    name: &'static str,
    frames: u32,
    capacity: u64,
    expected: u64,
    measured: u64,
    /// `expected / measured - 1`.
    error: f64,
    seconds_of_steps: Vec<f64>,
}

/// The fields of a run's `summary.json` that are used here.
#[derive(Deserialize)]
struct Summary {
    memory_estimate: Estimate,
    memory_estimate_error: EstimateError,
}

#[derive(Deserialize)]
struct Estimate {
    peak: u64,
}

#[derive(Deserialize)]
struct EstimateError {
    measured: u64,
    relative: f64,
}

/// Runs the small cases and, if `real`, those of real size whose names contain `named`.
pub(super) fn measure(python: &Path, real: bool, named: &str) -> Result<Vec<Fit>> {
    let others = ["hip-alloc", "surefoot", "surefoot-trainer"].map(|name| ["--package", name]);
    let simulator = Simulator::build(&workspace::shell()?, python, others.as_flattened())?;
    let list = if real { &REAL[..] } else { &[] };
    let cases = SMALL.iter().chain(list);
    let cases = cases.filter(|case| case.name.contains(named));
    cases.map(|case| run(&simulator, python, case)).collect()
}

/// Runs one case and returns the memory that it took.
fn run(simulator: &Simulator, python: &Path, case: &Case) -> Result<Fit> {
    eprintln!("{}", case.name);
    let trainer = simulator.built.join("surefoot-trainer");
    let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
    let folder = scratch.path();
    let sizes = [
        ("--real", case.real.to_owned()),
        ("--width", SIZE.0.to_string()),
        ("--height", SIZE.1.to_string()),
        ("--frames", case.frames.to_string()),
    ];
    let sizes: Vec<String> = sizes
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect();
    make_model(python, folder, &sizes)?;
    let path = config(folder, "gpu:0", SIZE, case.frames)?;
    // On the CPU: encoding on a device that computes nothing may give NaN.
    let mut cache = Command::new(&trainer);
    cache.arg("cache").arg(&path);
    cache.args(["--set", "device=cpu", "--set", "train.bf16=true"]);
    process::run(cache)?;
    let meminfo = folder.join("meminfo");
    fs::write(
        &meminfo,
        host(&fs::read_to_string("/proc/meminfo")?, case.gib),
    )?;
    // Set inside the shell, so that the loader of `sh` does not find the simulator.
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$0\" /proc/meminfo && exec env LD_LIBRARY_PATH=\"$1\" LD_PRELOAD=\"$2\" \"$3\" train \"$4\" $5";
    let mut settings = vec!["train.max_steps=4", "train.verify=\"off\""];
    settings.extend(case.settings);
    let settings: Vec<String> = settings
        .iter()
        .map(|setting| format!("--set {setting}"))
        .collect();
    command
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(&meminfo)
        .arg(&simulator.libraries)
        .arg(&simulator.preload)
        .arg(&trainer)
        .arg(&path)
        .arg(settings.join(" "))
        .env("HIP_ALLOC", "1")
        .env("HIP_ALLOC_LIB", simulator.built.join("libhip_alloc.so"))
        .env("DEVICE_SIM_DATA", "none")
        // 25 GB/s in each direction.
        .env("DEVICE_SIM_DEVICE_TIME", "copy:10us,mib:40us");
    let word = if case.unified { "UNIFIED" } else { "CAPACITY" };
    command.env(format!("DEVICE_SIM_{word}"), format!("{}G", case.gib));
    process::run(command)?;
    let run = folder.join("runs/bench");
    let text = fs::read_to_string(run.join("summary.json"))?;
    let summary: Summary = serde_json::from_str(&text).context("the summary of the run")?;
    let tokens = f64::from((case.frames - 1) / 4 + 1) * f64::from(SIZE.0 / 16 * (SIZE.1 / 16));
    let (_, speeds) = measured::metrics(&run)?;
    Ok(Fit {
        name: case.name,
        frames: case.frames,
        capacity: case.gib * GIB,
        expected: summary.memory_estimate.peak,
        measured: summary.memory_estimate_error.measured,
        error: summary.memory_estimate_error.relative,
        seconds_of_steps: speeds.iter().map(|speed| tokens / speed).collect(),
    })
}

/// `/proc/meminfo` of a machine with `gib` of memory, most of it free.
fn host(text: &str, gib: u64) -> String {
    let total = gib << 20;
    let lines = text.lines().map(|line| match line.split_once(':') {
        Some((name @ "MemTotal", _)) => format!("{name}: {total} kB"),
        Some((name @ ("MemFree" | "MemAvailable"), _)) => {
            format!("{name}: {} kB", total / 100 * 97)
        }
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

pub(super) fn print(fits: &[Fit]) {
    if fits.is_empty() {
        return;
    }
    println!(
        "\n{:<56} {:>6} {:>10} {:>10} {:>6}",
        "on the simulated device, without data", "frames", "expected", "measured", ""
    );
    let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / GIB as f64);
    for fit in fits {
        println!(
            "{:<56} {:>6} {:>10} {:>10} {:>+5.1} %",
            fit.name,
            fit.frames,
            gib(fit.expected),
            gib(fit.measured),
            100.0 * fit.error
        );
    }
    let steps = |name: &str| {
        let fit = fits.iter().find(|fit| fit.name.contains(name))?;
        Some(
            fit.seconds_of_steps
                .iter()
                .skip(1)
                .copied()
                .collect::<Vec<_>>(),
        )
    };
    if let (Some(each), Some(none)) = (steps("in every step"), steps("one after the other")) {
        let swap = super::super::median(&each) - super::super::median(&none);
        println!(
            "an expert of 2.6 GiB takes the other's place in {swap:.2} s at 25 GB/s (what a step adds to that is the \
             device's, which is not simulated)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn the_machine_has_what_is_said() {
        let text = host("MemTotal: 1 kB\nMemFree: 1 kB\nBuffers: 7 kB\n", 128);
        assert_eq!(
            text,
            "MemTotal: 134217728 kB\nMemFree: 130191169 kB\nBuffers: 7 kB\n"
        );
    }
}
