//! The cost of driver calls, and the clock to measure it.

use crate::system::processor_time;
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

/// Measures a small and a large block by this clock; `take` allocates one, touches it and releases it. Of several calls the fastest counts: a busy machine makes some of them
/// slower, and with a slow small block a large one would seem to cost nothing.
pub(super) fn measured(
    mut now: impl FnMut() -> Duration,
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

/// A clock that runs while this process does. On a busy machine a step takes longer, and by the wall clock more
/// of it could be spent on a driver whose calls take longer, too.
#[derive(Default)]
pub(super) struct WorkingTime {
    wall: Duration,
    processor: Duration,
    worked: Duration,
}

impl WorkingTime {
    pub(super) fn now(&mut self) -> Duration {
        let wall = monotonic();
        // Windows counts processor time in ticks of 16 ms, in which a driver makes several calls.
        let processor = if cfg!(windows) {
            wall
        } else {
            processor_time()
        };
        self.at(wall, processor)
    }

    /// The time, by the wall clock and the processor time of the process. Several threads do not make it faster.
    fn at(&mut self, wall: Duration, processor: Duration) -> Duration {
        let used = processor.saturating_sub(std::mem::replace(&mut self.processor, processor));
        let passed = wall.saturating_sub(std::mem::replace(&mut self.wall, wall));
        self.worked += used.min(passed);
        self.worked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn interruptions_of_some_calls_do_not_make_a_driver_seem_cheap() {
        let (clock, calls) = (Cell::new(0.0), Cell::new(0));
        let cost = measured(
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

    /// Beside two others on one processor, and with two threads on two.
    #[test]
    fn time_in_which_others_work_is_not_the_programs() {
        let seconds = Duration::from_secs;
        let mut time = WorkingTime::default();
        let began = time.at(seconds(100), seconds(50));
        assert_eq!(time.at(seconds(109), seconds(53)) - began, seconds(3));
        assert_eq!(time.at(seconds(110), seconds(55)) - began, seconds(4));
        // A forked child begins at zero.
        assert_eq!(time.at(seconds(111), seconds(0)) - began, seconds(4));
        assert_eq!(time.at(seconds(112), seconds(1)) - began, seconds(5));
    }
}
