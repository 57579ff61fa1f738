//! The cost of the driver: calls × latency + bytes ÷ clearing rate, and how much of that a
//! program can afford.
//!
//! A byte that is returned is requested again in the next step, and then a driver clears and maps
//! it. So each returned byte is charged for both directions, to a balance that grows by the fraction
//! [`SHARE`] of the elapsed time: as long as the balance covers it, returning memory makes
//! no step longer by more than that fraction.

use crate::driver::DriverCost;
use std::time::Duration;

/// The driver may use this fraction of a program's time.
const SHARE: u32 = 50;
/// The balance covers at most this much time of the program: the longest steps.
const LONGEST: Duration = Duration::from_secs(60);
/// Calls for at most this many bytes measure the latency of a call.
const SMALL: u64 = 4 << 20;
/// The weight of a new measurement is this fraction.
const INERTIA: f64 = 4.0;

/// The cost of the driver according to its calls, and the balance.
#[derive(Default)]
pub(crate) struct DriverTime {
    cost: DriverCost,
    /// Seconds per byte for a release, according to its calls.
    back_per_byte: f64,
    /// The initial measurement: calls may return before their memory is available.
    least: DriverCost,
    /// Seconds that the driver may still use.
    balance: f64,
    /// When the balance was last updated.
    at: Duration,
}

impl DriverTime {
    /// Sets the cost that was measured at the start; later calls refine it.
    pub(crate) fn begin(&mut self, cost: DriverCost) {
        self.least = cost;
        self.cost = cost;
    }

    /// The driver allocated `bytes` in a call of this duration.
    pub(crate) fn took(&mut self, bytes: u64, time: Duration) {
        let time = time.as_secs_f64();
        if bytes <= SMALL {
            refine(&mut self.cost.latency, time);
            return;
        }
        let per_byte = (time - self.cost.latency).max(0.0) / bytes as f64;
        refine(&mut self.cost.per_byte, per_byte.max(self.least.per_byte));
    }

    /// The driver released `bytes`: the balance is charged for that and for allocating them again.
    pub(crate) fn released(&mut self, bytes: u64, time: Duration) {
        if bytes > SMALL {
            refine(&mut self.back_per_byte, time.as_secs_f64() / bytes as f64);
        }
        let cost = self.of_both_ways(bytes);
        self.balance = (self.balance - cost).max(-Self::most());
    }

    /// How many bytes may be returned now without exceeding the driver's share.
    pub(crate) fn affordable(&mut self, now: Duration) -> u64 {
        let passed = now.saturating_sub(self.at);
        self.at = now;
        self.balance = (self.balance + passed.as_secs_f64() / f64::from(SHARE)).min(Self::most());
        // Of blocks of this size, with what each costs beside its bytes.
        const BLOCK: f64 = 64e6;
        let per_byte = self.of_both_ways(BLOCK as u64) / BLOCK;
        match self.balance > 0.0 && per_byte > 0.0 {
            true => (self.balance / per_byte) as u64,
            false => 0,
        }
    }

    /// Whether the driver takes less than its share of the time.
    pub(crate) fn has_credit(&self) -> bool {
        self.balance > 0.0
    }

    /// Seconds for a block to go back and to come again.
    fn of_both_ways(&self, bytes: u64) -> f64 {
        self.cost.of_both_ways(bytes) + bytes as f64 * self.back_per_byte
    }

    fn most() -> f64 {
        LONGEST.as_secs_f64() / f64::from(SHARE)
    }
}

fn refine(value: &mut f64, measured: f64) {
    match *value == 0.0 {
        true => *value = measured,
        false => *value += (measured - *value) / INERTIA,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const GB: u64 = 1_000_000_000;

    fn at(gigabytes_per_second: f64) -> DriverTime {
        let mut time = DriverTime::default();
        time.begin(DriverCost {
            latency: 0.0,
            per_byte: 1e-9 / gigabytes_per_second,
        });
        time
    }

    #[test]
    fn two_percent_of_the_time_may_go_to_the_driver() {
        let mut time = at(10.0);
        assert_eq!(time.affordable(Duration::ZERO), 0);
        let afforded = time.affordable(SECOND);
        assert!((GB / 5).abs_diff(afforded) < 10, "{afforded}");
        time.released(afforded, Duration::ZERO);
        assert!(time.affordable(SECOND) < 10);
        assert!((GB / 5).abs_diff(time.affordable(2 * SECOND)) < 10);
    }

    #[test]
    fn a_long_pause_does_not_pay_for_more_than_the_longest_step() {
        let mut time = at(1.0);
        let hour = time.affordable(3600 * SECOND);
        assert_eq!(hour, at(1.0).affordable(LONGEST));
        // Nor does a start that moved much forbid everything for ever.
        time.released(1000 * GB, Duration::ZERO);
        assert_eq!(time.affordable(3660 * SECOND), 0);
        assert!(time.affordable(3670 * SECOND) > 0);
    }

    #[test]
    fn the_calls_refine_what_was_measured_at_the_start() {
        let mut time = at(10.0);
        for _ in 0..100 {
            time.took(4096, Duration::from_micros(50));
            time.took(GB, SECOND);
        }
        let cost = time.cost;
        assert!((cost.latency - 50e-6).abs() < 1e-6, "{cost:?}");
        assert!((cost.per_byte - 1e-9).abs() < 1e-11, "{cost:?}");
        // Calls that return before the pages are there do not tell that bytes are free.
        let mut lazy = at(10.0);
        lazy.took(GB, Duration::ZERO);
        assert!((lazy.cost.per_byte - 1e-10).abs() < 1e-12);
    }

    #[test]
    fn a_driver_that_costs_nothing_known_is_not_called_for_more() {
        assert_eq!(DriverTime::default().affordable(SECOND), 0);
    }
}
