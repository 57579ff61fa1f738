//! The memory that a pool has from the driver, with statistics.

use super::PoolStats;
use super::driver_time::DriverTime;
use super::heap::Block;
use super::stream_fences::Errors;
use crate::driver::{Driver, DriverError, Mapping};
use std::time::Duration;

/// Mapped blocks are rounded up by at most this fraction.
const ROUNDING_PART: u64 = 64;

/// Memory from the driver.
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// Mapped in handles, each of which can be released separately.
    pub(crate) mapped: bool,
}

/// Allocates memory from the driver and returns it, and counts both.
pub(crate) struct DeviceMemory {
    /// The driver's capacity at the start.
    pub(crate) capacity: u64,
    /// The limit on held memory, whatever the driver has.
    pub(crate) limit: u64,
    /// How the driver maps blocks in handles, if it does.
    mapping: Option<Mapping>,
    /// Whether mapping has failed for another reason than lack of memory, and is not used any more.
    mapping_failed: bool,
    /// The cost of the driver.
    pub(crate) time: DriverTime,
    /// Statistics; only the fields about the driver are used.
    stats: PoolStats,
}

impl DeviceMemory {
    pub(crate) fn new() -> Self {
        DeviceMemory {
            capacity: u64::MAX,
            limit: u64::MAX,
            mapping: None,
            mapping_failed: false,
            time: DriverTime::default(),
            stats: PoolStats::default(),
        }
    }

    /// Queries the driver's memory.
    pub(crate) fn refresh(&mut self, driver: &mut dyn Driver) {
        if let Ok(info) = driver.memory_info(self.held()) {
            self.capacity = info.free.saturating_add(self.held());
        }
        self.mapping = driver.mapping();
    }

    /// Bytes allocated and not returned.
    pub(crate) fn held(&self) -> u64 {
        self.stats.held_bytes
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

    /// Bytes of a handle, if memory is mapped.
    pub(crate) fn handle(&self) -> Option<u64> {
        self.mapping.map(|mapping| mapping.handle)
    }

    /// Bytes that may be allocated under the limit.
    fn room(&self) -> u64 {
        self.limit.saturating_sub(self.held())
    }

    /// The number of handles for this many mapped bytes: each is a call to the driver.
    fn handles(&self, bytes: u64) -> u64 {
        self.handle().map_or(1, |handle| bytes.div_ceil(handle))
    }

    /// Allocates memory for a block within the limit; if `may_map`, in handles if it is large enough for that to be
    /// useful. Then it may be slightly more than `bytes`.
    pub(crate) fn take(
        &mut self,
        driver: &mut dyn Driver,
        bytes: u64,
        may_map: bool,
        errors: &mut Errors,
    ) -> Result<Segment, DriverError> {
        if bytes > self.room() {
            return Err(DriverError::OutOfMemory);
        }
        let (segment, time) = self.timed(driver, |this, driver| {
            this.take_either(driver, bytes, may_map, errors)
        });
        let segment = segment?;
        self.time.took(segment.bytes, time);
        let calls = match segment.mapped {
            true => self.handles(segment.bytes),
            false => 1,
        };
        let stats = &mut self.stats;
        stats.driver_allocs += calls;
        stats.driver_alloc_bytes += segment.bytes;
        let blocks = stats.driver_allocs - stats.driver_frees;
        stats.driver_blocks_peak = stats.driver_blocks_peak.max(blocks);
        stats.held_bytes += segment.bytes;
        stats.held_peak_bytes = stats.held_peak_bytes.max(stats.held_bytes);
        Ok(segment)
    }

    fn take_either(
        &mut self,
        driver: &mut dyn Driver,
        bytes: u64,
        may_map: bool,
        errors: &mut Errors,
    ) -> Result<Segment, DriverError> {
        let mapped = match self.take_mapped(driver, bytes, may_map) {
            // For example out of file descriptors: ordinary memory still works.
            Err(error) if error != DriverError::OutOfMemory => {
                self.mapping_failed = true;
                errors.push(error);
                None
            }
            mapped => mapped?,
        };
        Ok(match mapped {
            Some(segment) => segment,
            None => Segment {
                address: driver.allocate(bytes)?,
                bytes,
                mapped: false,
            },
        })
    }

    fn take_mapped(
        &self,
        driver: &mut dyn Driver,
        bytes: u64,
        may_map: bool,
    ) -> Result<Option<Segment>, DriverError> {
        let Some(mapping) = self.mapping.filter(|_| may_map && !self.mapping_failed) else {
            return Ok(None);
        };
        let rounded = bytes.next_multiple_of(mapping.granule);
        let is_wasteful = rounded - bytes > bytes / ROUNDING_PART;
        if bytes <= mapping.handle || is_wasteful || rounded > self.room() {
            return Ok(None);
        }
        Ok(Some(Segment {
            address: driver.allocate_mapped(rounded)?,
            bytes: rounded,
            mapped: true,
        }))
    }

    /// Releases a block.
    pub(crate) fn release(
        &mut self,
        driver: &mut dyn Driver,
        block: &Block,
    ) -> Result<(), DriverError> {
        let (result, time) = self.timed(driver, |_, driver| {
            driver.release(block.address, block.bytes)
        });
        result?;
        self.gave_back(block.held(), time);
        self.stats.driver_frees += match block.mapped {
            true => self.handles(block.held()),
            false => 1,
        };
        Ok(())
    }

    /// Releases whole handles of a mapped block.
    pub(crate) fn release_part(
        &mut self,
        driver: &mut dyn Driver,
        address: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let (result, time) = self.timed(driver, |_, driver| driver.release_part(address, bytes));
        result?;
        self.gave_back(bytes, time);
        self.stats.driver_frees += self.handles(bytes);
        Ok(())
    }

    fn gave_back(&mut self, bytes: u64, time: Duration) {
        self.stats.held_bytes -= bytes;
        self.stats.driver_free_bytes += bytes;
        self.time.gave_back(bytes, time);
    }

    /// Measures the time of a call, and counts it.
    fn timed<T>(
        &mut self,
        driver: &mut dyn Driver,
        call: impl FnOnce(&mut Self, &mut dyn Driver) -> T,
    ) -> (T, Duration) {
        let began = driver.now();
        let result = call(self, driver);
        let time = driver.now().saturating_sub(began);
        self.stats.driver_nanoseconds += time.as_nanos() as u64;
        (result, time)
    }
}
