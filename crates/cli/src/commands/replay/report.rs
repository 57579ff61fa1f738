//! The numbers of a replay, as a table and as JSON.

use hip_alloc::pool::PoolConfig;
use hip_alloc::trace::format::Trace;
use hip_alloc::trace::peers::{Peer, PeerOutcome};
use hip_alloc::trace::replay::Outcome;
use serde::Serialize;
use std::fmt;

const MIB: u64 = 1 << 20;
/// What the allocator promises: [`Promises`].
const PEAK: f64 = 1.05;
const IDLE_BEYOND_FLOOR: u64 = 256 * MIB;
const SHARE_OF_CALLS: f64 = 0.02;
const SWING: u64 = 256 * MIB;

/// What a replay measured.
#[derive(Serialize)]
pub(super) struct Report {
    trace: String,
    requests: u32,
    steps: u64,
    peak_live_bytes: u64,
    nanoseconds_per_operation: f64,
    refused: u64,
    promises: Promises,
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
struct Promises {
    /// 1.05 × the live peak, or the warm-up floor where that is more.
    peak_allowed_bytes: u64,
    peak: bool,
    /// The warm-up floor and 256 MiB.
    idle_allowed_bytes: u64,
    idle: bool,
    /// 2 % of no caching's, or three for each 256 MiB that a step swings, where that is more.
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
        let swing = ours.peak_live.saturating_sub(ours.idle_live());
        let peak = ((ours.peak_live as f64 * PEAK) as u64).max(config.warmup_bytes);
        let idle = config.warmup_bytes + IDLE_BEYOND_FLOOR;
        let calls = (SHARE_OF_CALLS * no_caching).max(3.0 * swing as f64 / SWING as f64);
        Self {
            trace: name.to_owned(),
            requests: trace.requests,
            steps: ours.steps,
            peak_live_bytes: ours.peak_live,
            nanoseconds_per_operation,
            refused: ours.out_of_memory,
            promises: Promises {
                peak_allowed_bytes: peak,
                peak: ours.peak_held <= peak,
                idle_allowed_bytes: idle,
                idle: ours.idle_excess() <= idle,
                calls_allowed_per_step: calls,
                calls: ours.calls_per_step() <= calls,
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
