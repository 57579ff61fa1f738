//! The numbers of a replay, as a table and as JSON.

use hip_alloc::pool::PoolConfig;
use hip_alloc::trace::format::Trace;
use hip_alloc::trace::peers::{Peer, PeerOutcome};
use hip_alloc::trace::replay::{Outcome, Promises};
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

/// One allocator.
#[derive(Serialize)]
struct Row {
    name: String,
    peak_held_bytes: u64,
    /// Peak held over peak live.
    peak_ratio: f64,
    /// The most held beyond live where a step begins.
    idle_excess_bytes: u64,
    driver_calls_per_step: f64,
    /// Of the calls that no caching makes.
    share_of_calls: f64,
}

/// Whether this allocator kept its own bounds.
#[derive(Serialize)]
struct Kept {
    peak_allowed_bytes: u64,
    peak: bool,
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
        peers: &[(Peer, PeerOutcome)],
        nanoseconds_per_operation: f64,
    ) -> Self {
        let none = peers.iter().find(|(peer, _)| *peer == Peer::NoCaching);
        let no_caching = none.map_or(0.0, |(_, outcome)| outcome.calls_per_step());
        let row = |name: String, peak_held: u64, ratio: f64, idle: u64, calls: f64| Row {
            name,
            peak_held_bytes: peak_held,
            peak_ratio: ratio,
            idle_excess_bytes: idle,
            driver_calls_per_step: calls,
            share_of_calls: calls / no_caching.max(1.0),
        };
        let mut allocators = vec![row(
            "hip-alloc".into(),
            ours.peak_held,
            ours.peak_ratio(),
            ours.idle_excess(),
            ours.calls_per_step(),
        )];
        allocators.extend(peers.iter().map(|(peer, outcome)| {
            row(
                peer.name(),
                outcome.peak_held,
                outcome.peak_ratio(),
                outcome.idle_excess(),
                outcome.calls_per_step(),
            )
        }));
        let bounds = Promises::of(ours, config.warmup_bytes);
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
                idle_allowed_bytes: bounds.idle_allowed_bytes,
                idle: bounds.idle(ours),
                calls_allowed_per_step: bounds.calls_allowed_per_step,
                calls: bounds.calls(ours),
            },
            allocators,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "{}: {} requests in {} steps, {} MiB live at most\n",
            self.trace,
            self.requests,
            self.steps,
            self.peak_live_bytes / MIB
        )?;
        writeln!(
            out,
            "{:24}{:>12}{:>9}{:>16}{:>20}{:>16}",
            "", "peak held", "× live", "between steps", "driver calls/step", "of no caching"
        )?;
        for row in &self.allocators {
            writeln!(
                out,
                "{:24}{:>8} MiB{:>9.3}{:>12} MiB{:>20.1}{:>15.2}%",
                row.name,
                row.peak_held_bytes / MIB,
                row.peak_ratio,
                format!("+{}", row.idle_excess_bytes / MIB),
                row.driver_calls_per_step,
                100.0 * row.share_of_calls
            )?;
        }
        let kept = |kept: bool| if kept { "kept" } else { "NOT kept" };
        let promises = &self.promises;
        writeln!(
            out,
            "\nhip-alloc's bounds: peak at most {} MiB: {}; between steps at most +{} MiB: {}; \
             at most {:.1} driver calls a step: {}",
            promises.peak_allowed_bytes / MIB,
            kept(promises.peak),
            promises.idle_allowed_bytes / MIB,
            kept(promises.idle),
            promises.calls_allowed_per_step,
            kept(promises.calls),
        )?;
        writeln!(
            out,
            "{:.0} ns per request or free, the simulated driver included",
            self.nanoseconds_per_operation
        )
    }
}
