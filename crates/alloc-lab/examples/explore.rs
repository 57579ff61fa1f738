//! The table of `POLICIES.md`: replays every trace, and compares the results with the bounds.
//!
//! ```text
//! cargo run --release -p alloc-lab --example explore             recorded and synthetic traces
//! cargo run --release -p alloc-lab --example explore -- a.trace  these traces
//! cargo run --release -p alloc-lab --example explore -- --wide   these and 150 more, in total
//! HIP_ALLOC_CONF=keep:auto,guard:on cargo run …                  with other settings
//! ```
//!
//! Replays run with `keep:off` unless the settings say otherwise: with any other `keep`, the pool
//! itself decides what stays in empty blocks.

#![allow(clippy::unwrap_used, reason = "an example")]

use alloc_lab::replay::{Bounds, Outcome, replay};
use alloc_lab::synthetic::Shape;
use alloc_lab::trace::{Event, Trace};
use hip_alloc::config::Config;
use hip_alloc::driver::sim::SimConfig;
use hip_alloc::pool::PoolConfig;
use hip_alloc::units::MIB;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn main() {
    let settings = std::env::var("HIP_ALLOC_CONF").unwrap_or_default();
    // Of two values of a key the later one counts.
    let settings = format!("keep:off,{settings}");
    let settings = settings.trim_end_matches(',');
    let config = Config::parse(settings).unwrap().pool(512, false);
    println!("settings: {settings}");
    let named: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if (named.first()).is_some_and(|name| name == Path::new("--wide")) {
        return count_misses(&config);
    }
    println!(
        "{:32} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>4} {:>8} {:>8} {:>8}",
        "trace",
        "live",
        "peak",
        "excess",
        "calls",
        "allowed",
        "no-cach",
        "oom",
        "tight",
        "MiB",
        "ms"
    );
    let files = if named.is_empty() {
        recorded()
    } else {
        named.clone()
    };
    for file in files {
        let name = file.file_name().unwrap().display().to_string();
        print(&name, &Trace::read(&file).unwrap(), &config);
    }
    if named.is_empty() {
        for (name, shape) in Shape::examples() {
            print(name, &shape.trace(), &config);
        }
    }
}

/// Marks a bound that is missed.
fn flag(met: bool) -> char {
    if met { ' ' } else { '*' }
}

fn recorded() -> Vec<PathBuf> {
    ["traces", "held_out", "kinds"].map(files_of).concat()
}

fn files_of(folder: &str) -> Vec<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let entries = std::fs::read_dir(tests.join(folder)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn print(name: &str, trace: &Trace, config: &PoolConfig) {
    let sim = SimConfig {
        call_latency: Duration::from_micros(50),
        clearing_rate: 5_000_000_000,
        ..SimConfig::default()
    };
    let roomy = replay(trace, config.clone(), sim.clone());
    let capacity = roomy.peak_live / 100 * 103;
    let sim = SimConfig { capacity, ..sim };
    let pressed = replay(trace, config.clone(), sim);
    let bounds = Bounds::of(&roomy, config);
    println!(
        "{name:32} {:>8} {:>6.4}{} {:>6}{} {:>6.0}{} {:>7.0} {:>7.0} {:>3}{} {:>8.0} {:>8.0} {:>8.1}",
        roomy.peak_live / MIB,
        roomy.peak_ratio(),
        flag(bounds.peak(&roomy)),
        roomy.idle_excess() / MIB,
        flag(bounds.idle(&roomy)),
        roomy.calls_per_step(),
        flag(bounds.calls(&roomy)),
        bounds.calls_allowed_per_step,
        roomy.uncached_calls_per_step(),
        pressed.out_of_memory,
        flag(pressed.out_of_memory == 0),
        pressed.calls_per_step(),
        roomy.bytes_per_step() / MIB as f64,
        roomy.driver_time_per_step().as_secs_f64() * 1e3,
    );
}

/// How many runs miss each bound: the recorded ones, those with all sizes multiplied, and synthetic
/// ones of random shapes. This distinguishes a better rule from one that is overfitted.
fn count_misses(config: &PoolConfig) {
    println!(
        "{:22} {:>4} {:>5} {:>6} {:>6} {:>8}",
        "traces", "of", "peak", "excess", "calls", "refused"
    );
    let read = |folder| {
        files_of(folder)
            .into_iter()
            .map(|file| Trace::read(&file).unwrap())
    };
    let (tuned, held_out): (Vec<_>, Vec<_>) =
        (read("traces").collect(), read("held_out").collect());
    let scaled = |traces: &[Trace], by: &[f64]| -> Vec<Trace> {
        let pairs = traces
            .iter()
            .flat_map(|trace| by.iter().map(move |by| (trace, *by)));
        pairs.map(|(trace, by)| multiplied(trace, by)).collect()
    };
    let groups = [
        ("recorded", tuned.clone()),
        ("held out", held_out.clone()),
        (
            "recorded, other sizes",
            scaled(&tuned, &[0.2, 0.37, 0.61, 1.9]),
        ),
        ("held out, other sizes", scaled(&held_out, &[0.37, 1.9])),
        (
            "random shapes",
            (0..112).map(|seed| random(seed).trace()).collect(),
        ),
    ];
    for (name, traces) in groups {
        let mut missed = [0; 4];
        for trace in &traces {
            let (roomy, pressed) = both(trace, config);
            let bounds = Bounds::of(&roomy, config);
            let met = [
                bounds.peak(&roomy),
                bounds.idle(&roomy),
                bounds.calls(&roomy),
                pressed.out_of_memory == 0,
            ];
            for (missed, met) in missed.iter_mut().zip(met) {
                *missed += u32::from(!met);
            }
        }
        let [peak, excess, calls, refused] = missed;
        println!(
            "{name:22} {:>4} {peak:>5} {excess:>6} {calls:>6} {refused:>8}",
            traces.len()
        );
    }
}

/// The trace with room, and with 3 % more than its live peak.
fn both(trace: &Trace, config: &PoolConfig) -> (Outcome, Outcome) {
    let roomy = replay(trace, config.clone(), SimConfig::default());
    let sim = SimConfig {
        capacity: roomy.peak_live / 100 * 103,
        ..SimConfig::default()
    };
    let pressed = replay(trace, config.clone(), sim);
    (roomy, pressed)
}

/// The same run with larger or smaller tensors.
fn multiplied(trace: &Trace, by: f64) -> Trace {
    let mut trace = trace.clone();
    for event in &mut trace.events {
        if let Event::Allocate { bytes, .. } = event
            && *bytes > 4096
        {
            *bytes = (*bytes as f64 * by) as u64 / 256 * 256;
        }
    }
    trace
}

/// A model and a way to train it, drawn at random: 1 to 150 GiB at the peak.
fn random(seed: u64) -> Shape {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678_9ABC_DEF0;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
    };
    for _ in 0..8 {
        draw(2);
    }
    let hidden = [512, 768, 1024, 1536, 2048, 3072, 4096][draw(7) as usize];
    let shortest = [64, 256, 512, 1024][draw(4) as usize];
    let adapter_rank = [0, 0, 16, 64][draw(4) as usize];
    Shape {
        layers: 6 + draw(35),
        hidden,
        vocabulary: [0, 32_000, 50_257, 151_936][draw(4) as usize],
        element: [2, 2, 4][draw(3) as usize],
        batch: 1 + draw(8),
        sequence: (shortest, shortest * (1 + draw(4))),
        steps: 6 + draw(7),
        adapter_rank,
        checkpointing: draw(2) == 0,
        foreach: draw(2) == 0,
        evaluate_every: [0, 0, 2, 4][draw(4) as usize],
        prefetch: draw(3) == 0,
        keep_gradients: draw(2) == 0,
        seed: draw(1 << 30),
    }
}
