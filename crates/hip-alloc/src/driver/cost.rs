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
pub(super) fn measured(mut take: impl FnMut(u64) -> Option<()>) -> Option<DriverCost> {
    const SIZES: (u64, u64) = (64 * KIB, 16 * MIB);
    let mut time = |bytes| {
        let began = Instant::now();
        take(bytes)?;
        Some(began.elapsed().as_secs_f64())
    };
    // The first call initialises what later ones use.
    time(SIZES.0)?;
    let (small, large) = (time(SIZES.0)?, time(SIZES.1)?);
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
