//! `cargo xtask bench alloc`: recorded training runs in our allocator and in PyTorch's.
//!
//! Ours is replayed by `surefoot replay` on the simulated driver; PyTorch's is the real one
//! of PyTorch 2.13, in five settings, on the simulated device (`bench/alloc/peers.py`). This
//! file starts both and puts the numbers side by side, as a table, JSON and pictures.

mod picture;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use xshell::{Shell, cmd};

use crate::{setup, workspace};

/// Recorded traces: those that the policy was made with, and those that it had not seen.
const TRACES: [&str; 3] = [
    "crates/alloc-lab/tests/traces",
    "crates/alloc-lab/tests/held_out",
    "crates/alloc-lab/tests/kinds",
];
const MIB: f64 = (1 << 20) as f64;

/// What allocators hold and how often they call the driver, on recorded training runs.
#[derive(clap::Args)]
pub(crate) struct AllocBench {
    /// Traces to replay [default: those of hip-alloc's tests]
    traces: Vec<PathBuf>,

    /// Leave out the real PyTorch: no download, and half a minute instead of several
    #[arg(long)]
    quick: bool,

    /// Where the numbers go, with a picture of them all beside them (`.svg`) [default:
    /// bench/alloc.json in the target folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Draw each trace too, into this folder
    #[arg(long, value_name = "FOLDER")]
    pictures: Option<PathBuf>,
}

/// Everything that was measured.
#[derive(Serialize)]
struct Report {
    /// Version of the PyTorch whose allocator was replayed.
    torch: Option<String>,
    nanoseconds_per_operation: HotPath,
    traces: Vec<TraceReport>,
    /// Step times of a real program, as `bench/alloc/steps.py` prints them; none without PyTorch.
    program: Option<serde_json::Value>,
    /// Step times of a real program with and without the memory history, as `bench/alloc/history.py` prints them.
    history: Option<serde_json::Value>,
    /// What each value of `keep` costs on drivers of different speeds, as printed by
    /// `crates/alloc-lab/examples/driver_costs.rs`.
    driver_costs: serde_json::Value,
}

/// Time of one request or free in our allocator.
#[derive(Serialize, Deserialize)]
struct HotPath {
    one_thread: f64,
    two_threads_one_device: f64,
    two_threads_two_devices: f64,
}

#[derive(Serialize)]
struct TraceReport {
    trace: String,
    peak_live_bytes: u64,
    /// hip-alloc's bound on driver calls per step for this trace.
    calls_allowed_per_step: f64,
    allocators: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    peak_ratio: f64,
    idle_excess_bytes: u64,
    driver_calls_per_step: f64,
    driver_bytes_per_step: f64,
    /// At 50 µs per call and 5 GB/s for clearing memory.
    driver_milliseconds_per_step: Option<f64>,
    share_of_calls: f64,
}

/// The part of the output of `surefoot replay --json` that is used here.
#[derive(Deserialize)]
struct Replayed {
    peak_live_bytes: u64,
    promises: Bounds,
    allocators: Vec<ReplayedRow>,
}

#[derive(Deserialize)]
struct Bounds {
    calls_allowed_per_step: f64,
}

#[derive(Deserialize)]
struct ReplayedRow {
    name: String,
    peak_ratio: f64,
    idle_excess_bytes: u64,
    driver_calls_per_step: f64,
    driver_bytes_per_step: f64,
    driver_milliseconds_per_step: Option<f64>,
}

/// The part of the output of `peers.py` for each setting that is used here.
#[derive(Deserialize)]
struct Baseline {
    torch: String,
    peak_ratio: f64,
    idle_excess: u64,
    calls_per_step: f64,
    driver_bytes_per_step: f64,
    allocated_bytes_per_step: f64,
}

impl Baseline {
    /// The time of these calls in the driver that ours is replayed on.
    fn driver_milliseconds_per_step(&self) -> f64 {
        self.calls_per_step * 0.05 + self.allocated_bytes_per_step / 5e6
    }
}

impl AllocBench {
    pub(crate) fn run(self) -> Result<()> {
        let shell = workspace::shell()?;
        let cargo = workspace::cargo();
        let python = match self.quick {
            true => None,
            false => Some(setup::reference_python()?),
        };
        eprintln!("building");
        let features = "--no-default-features";
        cmd!(
            shell,
            "{cargo} build --release --quiet --package surefoot {features} --bin surefoot"
        )
        .run()?;
        cmd!(
            shell,
            "{cargo} build --release --quiet --package device-sim --package hip-alloc"
        )
        .run()?;
        let target = workspace::target(&shell)?;
        let out = self.out.clone().unwrap_or(target.join("bench/alloc.json"));
        for folder in out.parent().into_iter().chain(self.pictures.as_deref()) {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make `{}`", folder.display()))?;
        }
        let traces = self.traces()?;
        let mut report = Report {
            torch: None,
            nanoseconds_per_operation: hot_path(&shell, &traces)?,
            traces: Vec::new(),
            program: None,
            history: None,
            driver_costs: serde_json::Value::Null,
        };
        for (number, trace) in traces.iter().enumerate() {
            let name = name(trace);
            eprintln!("{name} ({} of {})", number + 1, traces.len());
            let surefoot = target.join("release/surefoot");
            let picture = self.pictures.as_ref();
            let picture = picture.map(|folder| folder.join(format!("{name}.svg")));
            let one = replay(
                &shell,
                &surefoot,
                trace,
                picture.as_deref(),
                python.as_deref(),
            )
            .with_context(|| format!("in `{}`", trace.display()))?;
            report.torch = report.torch.or(one.1);
            report.traces.push(one.0);
        }
        report.print();
        if let Some(python) = &python {
            report.program = Some(program(&shell, python, &target, "steps.py")?);
            report.history = Some(program(&shell, python, &target, "history.py")?);
        }
        report.driver_costs = driver_costs(&shell, &traces)?;
        let text = serde_json::to_string_pretty(&report)? + "\n";
        let all = out.with_extension("svg");
        for (file, text) in [(&out, text), (&all, picture::draw(&report.traces)?)] {
            fs::write(file, text).with_context(|| format!("cannot write `{}`", file.display()))?;
        }
        eprintln!("numbers: `{}`; picture: `{}`", out.display(), all.display());
        Ok(())
    }

    fn traces(&self) -> Result<Vec<PathBuf>> {
        if !self.traces.is_empty() {
            return Ok(self.traces.clone());
        }
        let mut all = Vec::new();
        for folder in TRACES.map(|folder| workspace::root().join(folder)) {
            let entries = fs::read_dir(&folder)
                .with_context(|| format!("cannot read `{}`", folder.display()))?;
            let traces = entries.map(|entry| Ok(entry?.path()));
            let mut traces = traces.collect::<Result<Vec<_>>>()?;
            ensure!(!traces.is_empty(), "`{}` is empty", folder.display());
            traces.sort();
            all.append(&mut traces);
        }
        Ok(all)
    }
}

fn hot_path(shell: &Shell, traces: &[PathBuf]) -> Result<HotPath> {
    eprintln!("timing");
    let cargo = workspace::cargo();
    let text = cmd!(
        shell,
        "{cargo} run --release --quiet --package alloc-lab --example hot_path -- {traces...}"
    )
    .read()?;
    serde_json::from_str(&text).context("the timing printed unexpected output")
}

/// A real program in PyTorch's allocator and ours, by a script of `bench/alloc`: printed and as numbers.
fn program(shell: &Shell, python: &Path, target: &Path, script: &str) -> Result<serde_json::Value> {
    eprintln!("bench/alloc/{script}");
    let folder = shell.create_temp_dir()?;
    let file = folder.path().join("numbers.json");
    let built = target.join("release");
    cmd!(shell, "{python} bench/alloc/{script} --out {file}")
        .env("SUREFOOT_DEVICE_SIM", built.join("libdevice_sim.so"))
        .env("HIP_ALLOC_LIB", built.join("libhip_alloc.so"))
        .run()?;
    let text = shell.read_file(&file)?;
    serde_json::from_str(&text).with_context(|| format!("`{script}` wrote unexpected output"))
}

/// The table of `keep` over clearing rates and latencies, printed and as numbers.
fn driver_costs(shell: &Shell, traces: &[PathBuf]) -> Result<serde_json::Value> {
    let cargo = workspace::cargo();
    let folder = shell.create_temp_dir()?;
    let file = folder.path().join("driver-costs.json");
    cmd!(
        shell,
        "{cargo} run --release --quiet --package alloc-lab --example driver_costs -- --json {file} {traces...}"
    )
    .run()?;
    let text = shell.read_file(&file)?;
    serde_json::from_str(&text).context("the table of driver costs is not JSON")
}

/// Replays one trace in every allocator; also returns PyTorch's version if PyTorch was run.
fn replay(
    shell: &Shell,
    surefoot: &Path,
    trace: &Path,
    picture: Option<&Path>,
    python: Option<&Path>,
) -> Result<(TraceReport, Option<String>)> {
    let ours = |policy: &str, picture: Option<&Path>| -> Result<Replayed> {
        let draw = picture.map(|file| ["--svg".into(), file.as_os_str().to_owned()]);
        let draw = draw.into_iter().flatten();
        let text = cmd!(
            shell,
            "{surefoot} replay {trace} --json --policy {policy} {draw...}"
        )
        .quiet()
        .ignore_stderr()
        .read()?;
        serde_json::from_str(&text).context("`surefoot replay` printed unexpected output")
    };
    let plain = ours("keep:auto", picture)?;
    let others = ["keep:auto,guard:on", "keep:off"];
    let mut rows = Vec::new();
    let mut add = |name: &str, row: &ReplayedRow| {
        rows.push(Row {
            name: name.to_owned(),
            peak_ratio: row.peak_ratio,
            idle_excess_bytes: row.idle_excess_bytes,
            driver_calls_per_step: row.driver_calls_per_step,
            driver_bytes_per_step: row.driver_bytes_per_step,
            driver_milliseconds_per_step: row.driver_milliseconds_per_step,
            share_of_calls: f64::NAN,
        });
    };
    add("hip-alloc", &plain.allocators[0]);
    for policy in others {
        add(
            &format!("hip-alloc, {policy}"),
            &ours(policy, None)?.allocators[0],
        );
    }
    let mut torch = None;
    match python {
        // Without PyTorch, use the model of its allocator, which a test compares with the real one.
        None => plain.allocators[1..].iter().for_each(|row| {
            add(&format!("{} (model)", row.name), row);
        }),
        Some(python) => {
            let text = cmd!(shell, "{python} bench/alloc/peers.py {trace}")
                .quiet()
                .read()?;
            let peers: BTreeMap<String, Baseline> =
                serde_json::from_str(&text).context("`peers.py` printed unexpected output")?;
            for (name, peer) in peers {
                let row = ReplayedRow {
                    name: format!("PyTorch, {name}"),
                    peak_ratio: peer.peak_ratio,
                    idle_excess_bytes: peer.idle_excess,
                    driver_calls_per_step: peer.calls_per_step,
                    driver_bytes_per_step: peer.driver_bytes_per_step,
                    driver_milliseconds_per_step: Some(peer.driver_milliseconds_per_step()),
                };
                add(&row.name.clone(), &row);
                torch = Some(peer.torch);
            }
        }
    }
    let none = rows.iter().find(|row| row.name.contains("no caching"));
    let no_caching = none.map_or(f64::NAN, |row| row.driver_calls_per_step);
    for row in &mut rows {
        row.share_of_calls = row.driver_calls_per_step / no_caching;
    }
    let report = TraceReport {
        trace: name(trace),
        peak_live_bytes: plain.peak_live_bytes,
        calls_allowed_per_step: plain.promises.calls_allowed_per_step,
        allocators: rows,
    };
    Ok((report, torch))
}

/// The name of the trace without folder and extension, such as "gpt2".
fn name(trace: &Path) -> String {
    let name = trace.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

impl Report {
    fn print(&self) {
        for trace in &self.traces {
            println!(
                "{}: {:.0} MiB live at most; our bound on driver calls is {:.0} a step",
                trace.trace,
                trace.peak_live_bytes as f64 / MIB,
                trace.calls_allowed_per_step
            );
            println!(
                "  {:32}{:>12}{:>18}{:>18}{:>16}{:>16}{:>12}",
                "",
                "peak/live",
                "between steps",
                "driver calls/step",
                "of no caching",
                "MiB/step",
                "ms/step"
            );
            for row in &trace.allocators {
                println!(
                    "  {:32}{:>12.3}{:>14} MiB{:>18.1}{:>15.2}%{:>16.0}{:>12}",
                    row.name,
                    row.peak_ratio,
                    format!("+{:.0}", row.idle_excess_bytes as f64 / MIB),
                    row.driver_calls_per_step,
                    row.share_of_calls * 100.0,
                    row.driver_bytes_per_step / MIB,
                    row.driver_milliseconds_per_step
                        .map_or("-".to_owned(), |time| format!("{time:.0}")),
                );
            }
        }
        let time = &self.nanoseconds_per_operation;
        println!(
            "one request or free in hip-alloc: {:.0} ns; with two threads {:.0} ns on one device, {:.0} ns on two",
            time.one_thread, time.two_threads_one_device, time.two_threads_two_devices
        );
    }
}
