//! The memory that a pool has from the driver, with statistics.
//!
//! Behind every block is the *guard*, if there is one: memory that is allocated with the block, belongs to no
//! span, and goes back with it. Whatever a kernel reads behind an operand is therefore mapped, whichever other
//! blocks come and go.

use super::PoolStats;
use super::driver_time::DriverTime;
use crate::driver::{Driver, DriverError};
use std::time::Duration;

/// Memory that was allocated from the driver, or returned to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) address: u64,
    /// Without the guard.
    pub(crate) bytes: u64,
    /// To the pool, and not back.
    pub(crate) taken: bool,
}

/// Allocates memory from the driver and returns it, and counts both.
pub(crate) struct DeviceMemory {
    /// The driver's capacity at the start.
    pub(crate) capacity: u64,
    /// The driver's total at the start.
    pub(crate) total: u64,
    /// The limit on held memory, whatever the driver has.
    pub(crate) limit: u64,
    /// Bytes behind every block.
    guard: u64,
    /// The cost of the driver.
    pub(crate) time: DriverTime,
    /// What was moved since it was last read, if the history is recorded.
    moved: Option<Vec<Moved>>,
    /// Statistics; only the fields about the driver are used.
    stats: PoolStats,
}

impl DeviceMemory {
    pub(crate) fn new(guard: u64) -> Self {
        DeviceMemory {
            capacity: u64::MAX,
            total: 0,
            limit: u64::MAX,
            guard,
            time: DriverTime::default(),
            moved: None,
            stats: PoolStats::default(),
        }
    }

    /// Queries the driver's memory.
    pub(crate) fn refresh(&mut self, driver: &mut dyn Driver) {
        let held = self.stats.held_bytes;
        if let Ok(info) = driver.memory_info(held) {
            self.capacity = info.free.saturating_add(held);
            self.total = info.total;
        }
    }

    /// Bytes of the blocks, which requests can use: what is held without the guards, so that decisions are those
    /// without them.
    pub(crate) fn held(&self) -> u64 {
        let blocks = self.stats.driver_allocs - self.stats.driver_frees;
        self.stats.held_bytes - blocks * self.guard
    }

    /// The statistics, with the other fields at zero.
    pub(crate) fn stats(&self) -> &PoolStats {
        &self.stats
    }

    /// Counts a refused driver allocation that will be repeated.
    pub(crate) fn count_retry(&mut self) {
        self.stats.alloc_retries += 1;
    }

    /// Counts a synchronisation of all streams.
    pub(crate) fn count_sync(&mut self) {
        self.stats.stream_syncs += 1;
    }

    /// Resets the peaks to what is held now.
    pub(crate) fn reset_peaks(&mut self) {
        self.stats.held_peak_bytes = self.stats.held_bytes;
        self.stats.driver_blocks_peak = self.stats.driver_allocs - self.stats.driver_frees;
    }

    /// Sets whether [`take_moved`](Self::take_moved) is called.
    pub(crate) fn record(&mut self, on: bool) {
        if on != self.moved.is_some() {
            self.moved = on.then(Vec::new);
        }
    }

    /// What was moved since the last call.
    pub(crate) fn take_moved(&mut self) -> Vec<Moved> {
        self.moved.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Allocates memory for a block, within the limit.
    pub(crate) fn take(&mut self, driver: &mut dyn Driver, bytes: u64) -> Result<u64, DriverError> {
        let held = bytes.checked_add(self.guard);
        let room = self.limit.saturating_sub(self.stats.held_bytes);
        let held = held.filter(|held| *held <= room);
        let held = held.ok_or(DriverError::OutOfMemory)?;
        let (address, time) = self.timed(driver, |driver| driver.allocate(held));
        let address = address?;
        self.time.took(held, time);
        let stats = &mut self.stats;
        stats.driver_allocs += 1;
        stats.driver_alloc_bytes += held;
        let blocks = stats.driver_allocs - stats.driver_frees;
        stats.driver_blocks_peak = stats.driver_blocks_peak.max(blocks);
        stats.held_bytes += held;
        stats.held_peak_bytes = stats.held_peak_bytes.max(stats.held_bytes);
        self.note(address, bytes, true);
        Ok(address)
    }

    /// Releases the memory of a block.
    pub(crate) fn release(
        &mut self,
        driver: &mut dyn Driver,
        address: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let held = bytes + self.guard;
        let (result, time) = self.timed(driver, |driver| driver.release(address, held));
        result?;
        self.stats.held_bytes -= held;
        self.stats.driver_frees += 1;
        self.stats.driver_free_bytes += held;
        self.time.released(held, time);
        self.note(address, bytes, false);
        Ok(())
    }

    fn note(&mut self, address: u64, bytes: u64, taken: bool) {
        if let Some(moved) = &mut self.moved {
            moved.push(Moved {
                address,
                bytes,
                taken,
            });
        }
    }

    /// Measures the time of a call, and counts it.
    fn timed<T>(
        &mut self,
        driver: &mut dyn Driver,
        call: impl FnOnce(&mut dyn Driver) -> T,
    ) -> (T, Duration) {
        let began = driver.now();
        let result = call(driver);
        let time = driver.now().saturating_sub(began);
        self.stats.driver_nanoseconds += time.as_nanos() as u64;
        (result, time)
    }
}
