//! The numbers of a replay, as a table and as JSON.

use alloc_lab::baselines::{Baseline, BaselineOutcome};
use alloc_lab::replay::{Bounds, Outcome};
use alloc_lab::trace::Trace;
use hip_alloc::pool::PoolConfig;
use serde::Serialize;
use std::fmt;

const MIB: u64 = 1 << 20;

/// What a replay measured.
#[derive(Serialize)]
pub(super) struct Report {
    trace: String,
    requests: u32,
    steps: u64,
    peak_live_bytes: u64,
    nanoseconds_per_operation: f64,
    refused: u64,
    promises: Kept,
    allocators: Vec<Row>,
}

/// One allocator. What is counted by the step is `None` for a trace without steps, such as
/// PyTorch's snapshots give.
#[derive(Serialize)]
struct Row {
    name: String,
    peak_held_bytes: u64,
    /// Peak held over peak live.
    peak_ratio: f64,
    /// The most held beyond live where a step begins.
    idle_excess_bytes: Option<u64>,
    /// From the first step on; of the whole run where there are none.
    driver_calls: u64,
    driver_calls_per_step: Option<f64>,
    /// To and from the driver, as the calls are counted.
    driver_bytes: u64,
    driver_bytes_per_step: Option<f64>,
    /// Simulated, for ours alone: a call takes 50 µs, and 5 GB are cleared in a second.
    driver_milliseconds_per_step: Option<f64>,
    /// Of the calls that no caching makes.
    share_of_calls: f64,
}

/// Whether this allocator kept its own bounds.
#[derive(Serialize)]
struct Kept {
    peak_allowed_bytes: u64,
    peak: bool,
    #[serde(flatten)]
    steps: Option<KeptBySteps>,
}

/// The bounds that need steps.
#[derive(Serialize)]
struct KeptBySteps {
    idle_allowed_bytes: u64,
    idle: bool,
    calls_allowed_per_step: f64,
    calls: bool,
}

impl Report {
    pub(super) fn new(
        name: &str,
        trace: &Trace,
        config: &PoolConfig,
        ours: &Outcome,
        peers: &[(Baseline, BaselineOutcome)],
        nanoseconds_per_operation: f64,
    ) -> Self {
        let stepped = ours.steps > 0;
        let mut allocators = vec![Row {
            name: "hip-alloc".into(),
            peak_held_bytes: ours.peak_held,
            peak_ratio: ours.peak_ratio(),
            idle_excess_bytes: stepped.then(|| ours.idle_excess()),
            driver_calls: ours.driver_calls_in_steps,
            driver_calls_per_step: stepped.then(|| ours.calls_per_step()),
            driver_bytes: ours.driver_bytes_in_steps,
            driver_bytes_per_step: stepped.then(|| ours.bytes_per_step()),
            driver_milliseconds_per_step: stepped
                .then(|| ours.driver_time_per_step().as_secs_f64() * 1e3),
            share_of_calls: 0.0,
        }];
        allocators.extend(peers.iter().map(|(peer, outcome)| Row {
            name: peer.name(),
            peak_held_bytes: outcome.peak_held,
            peak_ratio: outcome.peak_ratio(),
            idle_excess_bytes: stepped.then(|| outcome.idle_excess()),
            driver_calls: outcome.driver_calls_in_steps,
            driver_calls_per_step: stepped.then(|| outcome.calls_per_step()),
            driver_bytes: outcome.driver_bytes_in_steps,
            driver_bytes_per_step:
                stepped.then(|| outcome.driver_bytes_in_steps as f64 / ours.steps as f64),
            driver_milliseconds_per_step: None,
            share_of_calls: 0.0,
        }));
        let none = Baseline::NoCaching.name();
        let none = allocators.iter().find(|row| row.name == none);
        let no_caching = none.map_or(1.0, Row::calls).max(1.0);
        for row in &mut allocators {
            row.share_of_calls = row.calls() / no_caching;
        }
        let bounds = Bounds::of(ours, config);
        Self {
            trace: name.to_owned(),
            requests: trace.requests,
            steps: ours.steps,
            peak_live_bytes: ours.peak_live,
            nanoseconds_per_operation,
            refused: ours.out_of_memory,
            promises: Kept {
                peak_allowed_bytes: bounds.peak_allowed_bytes,
                peak: bounds.peak(ours),
                steps: stepped.then(|| KeptBySteps {
                    idle_allowed_bytes: bounds.idle_allowed_bytes,
                    idle: bounds.idle(ours),
                    calls_allowed_per_step: bounds.calls_allowed_per_step,
                    calls: bounds.calls(ours),
                }),
            },
            allocators,
        }
    }
}

impl Row {
    /// Bytes to and from the driver, per step as the calls are.
    fn bytes(&self) -> f64 {
        self.driver_bytes_per_step
            .unwrap_or(self.driver_bytes as f64)
    }

    /// Driver calls per step, or all of them where there are no steps.
    fn calls(&self) -> f64 {
        self.driver_calls_per_step
            .unwrap_or(self.driver_calls as f64)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, requests) = (&self.trace, self.requests);
        let live = self.peak_live_bytes / MIB;
        let calls = match self.steps {
            0 => {
                writeln!(
                    out,
                    "{name}: {requests} requests, no steps, {live} MiB live at most\n"
                )?;
                "driver calls"
            }
            steps => {
                writeln!(
                    out,
                    "{name}: {requests} requests in {steps} steps, {live} MiB live at most\n"
                )?;
                "driver calls/step"
            }
        };
        writeln!(
            out,
            "{:24}{:>12}{:>9}{:>16}{:>20}{:>16}{:>16}",
            "", "peak held", "× live", "between steps", calls, "of no caching", "moved"
        )?;
        for row in &self.allocators {
            let idle = match row.idle_excess_bytes {
                Some(bytes) => format!("+{} MiB", bytes / MIB),
                None => "-".to_owned(),
            };
            writeln!(
                out,
                "{:24} {:>7} MiB {:>8.3} {idle:>15} {:>19.1} {:>14.2}% {:>11.0} MiB",
                row.name,
                row.peak_held_bytes / MIB,
                row.peak_ratio,
                row.calls(),
                100.0 * row.share_of_calls,
                row.bytes() / MIB as f64,
            )?;
        }
        writeln!(out, "\n{}", self.promises)?;
        writeln!(
            out,
            "{:.0} ns per request or free, the simulated driver included",
            self.nanoseconds_per_operation
        )
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = |kept: bool| if kept { "kept" } else { "NOT kept" };
        write!(
            out,
            "hip-alloc's bounds: peak at most {} MiB: {}; ",
            self.peak_allowed_bytes / MIB,
            kept(self.peak),
        )?;
        match &self.steps {
            Some(steps) => write!(
                out,
                "between steps at most +{} MiB: {}; at most {:.1} driver calls a step: {}",
                steps.idle_allowed_bytes / MIB,
                kept(steps.idle),
                steps.calls_allowed_per_step,
                kept(steps.calls),
            ),
            None => out.write_str("the others need steps, and none are marked in this trace"),
        }
    }
}
