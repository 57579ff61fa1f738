//! The cost of driver calls, and the clock to measure it.

use crate::units::{KIB, MIB};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The cost of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DriverCost {
    /// Seconds per call.
    pub latency: f64,
    /// Seconds per newly allocated byte, until it can be used.
    pub per_byte: f64,
}

impl DriverCost {
    /// Seconds for releasing and reallocating a block.
    pub fn of_both_ways(&self, bytes: u64) -> f64 {
        2.0 * self.latency + bytes as f64 * self.per_byte
    }
}

/// Measures a small and a large block; `take` allocates one, touches it and releases it.
pub(super) fn measured(take: impl FnMut(u64) -> Option<()>) -> Option<DriverCost> {
    measured_by(monotonic, take)
}

/// As [`measured`], with another clock. Of several calls the fastest counts: a busy machine makes some of them
/// slower, and with a slow small block a large one would seem to cost nothing.
fn measured_by(
    now: impl Fn() -> Duration,
    mut take: impl FnMut(u64) -> Option<()>,
) -> Option<DriverCost> {
    const SIZES: (u64, u64) = (64 * KIB, 16 * MIB);
    const TIMES: usize = 3;
    let mut fastest = |bytes| {
        (0..TIMES).try_fold(f64::INFINITY, |fastest, _| {
            let began = now();
            take(bytes)?;
            Some((now() - began).as_secs_f64().min(fastest))
        })
    };
    // The first call initialises what later ones use; so it is not among the fastest.
    let (small, large) = (fastest(SIZES.0)?, fastest(SIZES.1)?);
    Some(DriverCost {
        latency: small / 2.0,
        per_byte: (large - small).max(0.0) / (SIZES.1 - SIZES.0) as f64,
    })
}

/// The machine's clock, for [`Driver::now`](super::Driver::now).
pub(super) fn monotonic() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn interruptions_of_some_calls_do_not_make_a_driver_seem_cheap() {
        let (clock, calls) = (Cell::new(0.0), Cell::new(0));
        let cost = measured_by(
            || Duration::from_secs_f64(clock.get()),
            |bytes| {
                let number = calls.replace(calls.get() + 1);
                // 5 GB/s, and two of three calls wait for the processor.
                let waits = if number % 3 == 1 { 0.0 } else { 0.01 };
                clock.set(clock.get() + 50e-6 + bytes as f64 / 5e9 + waits);
                Some(())
            },
        );
        let cost = cost.unwrap();
        assert!((cost.per_byte - 1.0 / 5e9).abs() < 1e-12, "{cost:?}");
        assert!(cost.latency < 50e-6, "{cost:?}");
    }
}
