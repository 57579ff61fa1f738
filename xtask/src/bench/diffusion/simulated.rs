//! Models of real size on the simulated device: a run allocates everything and computes nothing.
//!
//! `surefoot train` runs on the libtorch of the reference environment's CUDA wheel and, below that, on
//! `device-sim` with `DEVICE_SIM_DATA=none`: kernels do nothing and large copies move nothing, so that device
//! memory consists of addresses without pages. Attention takes the path that libtorch would choose on a GPU
//! with its flash kernels, as with AOTriton. Weight files are sparse. On a machine with unified memory the
//! capacity comes from `/proc/meminfo`, which is replaced for such a run in a namespace of its own
//! (`unshare`). Measured is what hip-alloc counted in tensors during the steps.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::super::simulator::Simulator;
use super::super::{measured, process};
use super::Model;
use crate::workspace;

const GIB: u64 = 1 << 30;

/// Values for keys of the config.
pub(in super::super) type Settings = &'static [&'static str];

/// A run on a simulated machine.
pub(in super::super) struct Case {
    pub(in super::super) name: String,
    pub(in super::super) model: Model,
    /// Whether it has one memory.
    pub(in super::super) unified: bool,
    /// GiB of that, or of the card.
    pub(in super::super) gib: u64,
    pub(in super::super) settings: Settings,
}

/// Memory of a run: expected and measured.
#[derive(Serialize)]
pub(in super::super) struct Fit {
    pub(in super::super) name: String,
    frames: u32,
    capacity: u64,
    expected: u64,
    measured: u64,
    /// `expected / measured - 1`.
    pub(in super::super) error: f64,
    pub(in super::super) seconds_of_steps: Vec<f64>,
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

/// Runs the cases whose names contain `named`.
pub(in super::super) fn measure(python: &Path, cases: &[Case], named: &str) -> Result<Vec<Fit>> {
    let others = ["hip-alloc", "surefoot", "surefoot-trainer"].map(|name| ["--package", name]);
    let simulator = Simulator::build(&workspace::shell()?, python, others.as_flattened())?;
    let trainer = simulator.built.join("surefoot-trainer");
    let mut fits = Vec::new();
    // Cases with the same model follow each other.
    let mut made: Option<(Model, TempDir, PathBuf)> = None;
    for case in cases.iter().filter(|case| case.name.contains(named)) {
        let (folder, path) = match &made {
            Some((model, folder, path)) if *model == case.model => (folder, path.as_path()),
            _ => {
                let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
                let path = case.model.make(python, folder.path(), "gpu:0")?;
                // On the CPU: encoding on a device that computes nothing may give NaN.
                let mut cache = Command::new(&trainer);
                cache.arg("cache").arg(&path);
                cache.args(["--set", "device=cpu", "--set", "train.bf16=true"]);
                process::run(cache)?;
                let (_, folder, path) = made.insert((case.model.clone(), folder, path));
                (&*folder, path.as_path())
            }
        };
        fits.push(run(&simulator, &trainer, (folder.path(), path), case)?);
    }
    Ok(fits)
}

/// Runs one case with the config `path` in `folder` and returns the memory that it took.
fn run(
    simulator: &Simulator,
    trainer: &Path,
    (folder, path): (&Path, &Path),
    case: &Case,
) -> Result<Fit> {
    eprintln!("{}", case.name);
    let meminfo = folder.join("meminfo");
    fs::write(
        &meminfo,
        host(&fs::read_to_string("/proc/meminfo")?, case.gib),
    )?;
    // Set inside the shell, so that the loader of `sh` does not find the simulator.
    let mut command = Command::new("unshare");
    let script = "mount --bind \"$0\" /proc/meminfo && exec env LD_LIBRARY_PATH=\"$1\" LD_PRELOAD=\"$2\" \"$3\" train \"$4\" $5";
    let name = format!("name={}", case.name.replace([',', ' '], "-"));
    let mut settings = vec!["train.max_steps=4", "train.verify=off", &name];
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
        .arg(trainer)
        .arg(path)
        .arg(settings.join(" "))
        .env("HIP_ALLOC", "1")
        .env("HIP_ALLOC_LIB", simulator.built.join("libhip_alloc.so"))
        .env("DEVICE_SIM_DATA", "none")
        // 25 GB/s in each direction.
        .env("DEVICE_SIM_DEVICE_TIME", "copy:10us,mib:40us");
    let word = if case.unified { "UNIFIED" } else { "CAPACITY" };
    command.env(format!("DEVICE_SIM_{word}"), format!("{}G", case.gib));
    process::run(command)?;
    let run = folder.join("runs").join(&name["name=".len()..]);
    let text = fs::read_to_string(run.join("summary.json"))?;
    let summary: Summary = serde_json::from_str(&text).context("the summary of the run")?;
    let (_, speeds) = measured::metrics(&run)?;
    Ok(Fit {
        name: case.name.clone(),
        frames: case.model.frames.unwrap_or(1),
        capacity: case.gib * GIB,
        expected: summary.memory_estimate.peak,
        measured: summary.memory_estimate_error.measured,
        error: summary.memory_estimate_error.relative,
        seconds_of_steps: speeds
            .iter()
            .map(|speed| case.model.tokens() / speed)
            .collect(),
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

pub(in super::super) fn print(fits: &[Fit]) {
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
