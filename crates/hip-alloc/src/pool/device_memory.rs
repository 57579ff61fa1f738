//! The memory of a device, of which all of its pools take: its driver, the limit, and statistics.
//!
//! Behind every block is the *guard*, if there is one: memory that is allocated with the block, belongs to no
//! span, and goes back with it. Whatever a kernel reads behind an operand is therefore mapped, whichever other
//! blocks come and go.

use super::PoolStats;
use super::driver_time::DriverTime;
use crate::driver::{Driver, DriverCost, DriverError, MemoryInfo};
use crate::lock::Lock;
use std::sync::Arc;
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

/// A device's memory, as its pools share it. The lock is held for one call of the driver, in a thread that has
/// the allocator's lock already, so nobody ever waits for it.
pub type Device<D = dyn Driver> = Arc<Lock<DeviceMemory<D>>>;

/// Allocates memory from the driver and returns it, and counts both.
pub struct DeviceMemory<D: ?Sized = dyn Driver> {
    /// The driver's total when a pool last asked.
    pub(crate) total: u64,
    /// The limit on held memory, whatever the driver has.
    pub(crate) limit: u64,
    /// The cost of the driver.
    pub(crate) time: DriverTime,
    /// What was moved since it was last read, if the history is recorded.
    moved: Option<Vec<Moved>>,
    /// Statistics; only the fields about the driver are used.
    stats: PoolStats,
    /// The driver.
    pub driver: D,
}

impl<D: Driver> DeviceMemory<D> {
    /// The memory that a driver has, for the pools of one device.
    pub fn of(driver: D) -> Device<D> {
        Arc::new(Lock::new(DeviceMemory {
            total: 0,
            limit: u64::MAX,
            time: DriverTime::default(),
            moved: None,
            stats: PoolStats::default(),
            driver,
        }))
    }
}

impl<D: Driver + ?Sized> DeviceMemory<D> {
    /// Queries the driver's memory.
    pub(crate) fn info(&mut self) -> Result<MemoryInfo, DriverError> {
        let info = self.driver.memory_info()?;
        self.total = info.total;
        Ok(info)
    }

    /// Sets the measured cost of the driver.
    pub fn set_cost(&mut self, cost: DriverCost) {
        self.time.begin(cost);
    }

    /// How many bytes the program can afford to allocate again now.
    pub(crate) fn affordable(&mut self) -> u64 {
        self.time.affordable(self.driver.now())
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
        self.stats = self.stats.at_this_moment();
    }

    /// Sets whether what moves is kept for [`take_moved`](Self::take_moved).
    pub(crate) fn record_moves(&mut self, on: bool) {
        if on != self.moved.is_some() {
            self.moved = on.then(Vec::new);
        }
    }

    /// What was moved since the last call.
    pub(crate) fn take_moved(&mut self) -> Vec<Moved> {
        self.moved.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Allocates memory for a block and its guard, within the limit.
    pub(crate) fn take(&mut self, bytes: u64, guard: u64) -> Result<u64, DriverError> {
        let room = self.limit.saturating_sub(self.stats.held_bytes);
        let held = bytes.checked_add(guard).filter(|held| *held <= room);
        let held = held.ok_or(DriverError::OutOfMemory)?;
        let (address, time) = self.timed(|driver| driver.allocate(held));
        let address = address?;
        self.time.took(held, time);
        let stats = &mut self.stats;
        stats.driver_allocs += 1;
        stats.driver_alloc_bytes += held;
        stats.held_bytes += held;
        let blocks = stats.driver_allocs - stats.driver_frees;
        stats.driver_blocks_peak = stats.driver_blocks_peak.max(blocks);
        stats.held_peak_bytes = stats.held_peak_bytes.max(stats.held_bytes);
        self.note(address, bytes, true);
        Ok(address)
    }

    /// Releases the memory of a block and its guard.
    pub(crate) fn release(
        &mut self,
        address: u64,
        bytes: u64,
        guard: u64,
    ) -> Result<(), DriverError> {
        let held = bytes + guard;
        let (result, time) = self.timed(|driver| driver.release(address, held));
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
    fn timed<T>(&mut self, call: impl FnOnce(&mut D) -> T) -> (T, Duration) {
        let began = self.driver.now();
        let result = call(&mut self.driver);
        let time = self.driver.now().saturating_sub(began);
        self.stats.driver_nanoseconds += time.as_nanos() as u64;
        (result, time)
    }
}
