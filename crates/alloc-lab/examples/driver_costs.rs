//! Which setting of `keep` is best: recorded traces on drivers with several rates of clearing memory and
//! several latencies, as a table.
//!
//! ```text
//! cargo run --release -p alloc-lab --example driver_costs -- [--json FILE] a.trace…
//! ```
//!
//! Time is simulated: a program reads and writes the memory it requests at 50 GB/s, and the driver needs its
//! latency for each call and clears the memory that it returns. A cache that never calls the driver takes no longer
//! than the program; so `step` is the time of a step relative to that, the median of the traces, and `worst`
//! the largest. `between` is the memory held beyond live memory between steps, as a fraction of the live
//! peak. The best setting is the one that holds least among those within 5 %, or otherwise the fastest.

#![allow(clippy::unwrap_used, reason = "an example")]

use alloc_lab::replay::{Outcome, replay};
use alloc_lab::trace::Trace;
use hip_alloc::driver::sim::SimConfig;
use hip_alloc::pool::{Keep, PoolConfig};
use std::path::{Path, PathBuf};
use std::time::Duration;

const GIGABYTES_PER_SECOND: [f64; 4] = [0.6, 5.0, 20.0, 100.0];
const MICROSECONDS: [u64; 3] = [5, 50, 500];
const CHOICES: [(&str, Keep); 2] = [("off", Keep::Off), ("auto", Keep::Auto)];
/// As much longer than a cache's may a step be.
const NEAR: f64 = 1.05;

/// One choice on one driver.
#[derive(serde::Serialize)]
struct Cell {
    keep: &'static str,
    step: f64,
    worst: f64,
    between: f64,
    peak: f64,
}

/// All choices on one driver.
#[derive(serde::Serialize)]
struct Row {
    gigabytes_per_second: f64,
    call_microseconds: u64,
    cells: Vec<Cell>,
    wins: &'static str,
}

fn main() {
    let mut files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let asked = files
        .first()
        .is_some_and(|first| first == Path::new("--json"));
    let json = asked.then(|| files.drain(..2).next_back().unwrap());
    assert!(!files.is_empty(), "no trace is named");
    let traces: Vec<Trace> = files
        .iter()
        .map(|file| Trace::read(file).unwrap())
        .collect();
    let mut rows = Vec::new();
    for rate in GIGABYTES_PER_SECOND {
        for latency in MICROSECONDS {
            eprintln!("{rate} GB/s, {latency} µs");
            rows.push(row(&traces, rate, latency));
        }
    }
    print(&rows);
    if let Some(file) = json {
        std::fs::write(file, serde_json::to_string_pretty(&rows).unwrap()).unwrap();
    }
}

fn row(traces: &[Trace], rate: f64, latency: u64) -> Row {
    let sim = SimConfig {
        call_latency: Duration::from_micros(latency),
        clearing_rate: (rate * 1e9) as u64,
        ..SimConfig::default()
    };
    let cells: Vec<Cell> = CHOICES
        .iter()
        .map(|&(name, keep)| {
            let config = PoolConfig {
                keep,
                ..PoolConfig::default()
            };
            let outcomes: Vec<Outcome> = traces
                .iter()
                .map(|trace| replay(trace, config.clone(), sim.clone()))
                .collect();
            cell(name, &outcomes)
        })
        .collect();
    let near = cells.iter().filter(|cell| cell.step <= NEAR);
    let wins = near
        .min_by(|one, other| one.between.total_cmp(&other.between))
        .or_else(|| {
            cells
                .iter()
                .min_by(|one, other| one.step.total_cmp(&other.step))
        });
    Row {
        gigabytes_per_second: rate,
        call_microseconds: latency,
        wins: wins.unwrap().keep,
        cells,
    }
}

fn cell(keep: &'static str, outcomes: &[Outcome]) -> Cell {
    let of = |value: fn(&Outcome) -> f64| {
        let mut values: Vec<f64> = outcomes.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let steps = of(|outcome| {
        let program = outcome.program_time_per_step().as_secs_f64();
        1.0 + outcome.driver_time_per_step().as_secs_f64() / program.max(f64::MIN_POSITIVE)
    });
    let between = of(|outcome| outcome.idle_excess() as f64 / outcome.peak_live.max(1) as f64);
    let peaks = of(Outcome::peak_ratio);
    Cell {
        keep,
        step: steps[steps.len() / 2],
        worst: steps[steps.len() - 1],
        between: between[between.len() / 2],
        peak: peaks[peaks.len() - 1],
    }
}

fn print(rows: &[Row]) {
    let head =
        |(name, _): &(&str, Keep)| format!("{:>29}", format!("{name}: step, worst, between"));
    let heads: Vec<String> = CHOICES.iter().map(head).collect();
    println!("{:>8} {:>8} {}  wins", "GB/s", "µs", heads.join(" "));
    for row in rows {
        let cells: Vec<String> = row
            .cells
            .iter()
            .map(|cell| {
                let between = 100.0 * cell.between;
                format!("{:>10.2} {:>9.2} {:>7.1} %", cell.step, cell.worst, between)
            })
            .collect();
        println!(
            "{:>8} {:>8} {}  {}",
            row.gigabytes_per_second,
            row.call_microseconds,
            cells.join(" "),
            row.wins
        );
    }
    let peaks: Vec<String> = (0..CHOICES.len())
        .map(|choice| {
            let peak = rows.iter().map(|row| row.cells[choice].peak);
            format!("{} {:.4}", CHOICES[choice].0, peak.fold(0.0, f64::max))
        })
        .collect();
    println!("highest peak over the live peak: {}", peaks.join(", "));
}
