//! What a pool counts.

/// What a pool did and holds. Bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Asked for and not freed.
    pub live_bytes: u64,
    /// Highest `live_bytes` since the last reset.
    pub live_peak_bytes: u64,
    /// Taken from the driver and not given back.
    pub held_bytes: u64,
    /// Highest `held_bytes` since the last reset.
    pub held_peak_bytes: u64,
    /// Requests that are live.
    pub live_allocations: u64,
    /// Number of requests that were served.
    pub allocations: u64,
    /// Number of frees.
    pub frees: u64,
    /// Times the driver was asked for memory and gave it.
    pub driver_allocs: u64,
    /// Times memory was given back.
    pub driver_frees: u64,
    /// Requests that could not be served.
    pub out_of_memory: u64,
    /// Freed by the program, but another stream may still be working on it.
    pub pending_bytes: u64,
    /// All that was ever served.
    pub allocated_bytes: u64,
    /// All that was ever taken from the driver.
    pub driver_alloc_bytes: u64,
    /// Highest `live_allocations` since the last reset.
    pub live_allocations_peak: u64,
    /// Highest `driver_allocs - driver_frees` since the last reset.
    pub driver_blocks_peak: u64,
    /// Times the driver refused memory and was asked again, after all that could go back had.
    pub alloc_retries: u64,
    /// Times all streams were waited for, so that memory could go back.
    pub stream_syncs: u64,
    /// Highest `live_bytes + pending_bytes` since the last reset.
    pub active_peak_bytes: u64,
    /// All that was ever given back to the driver.
    pub driver_free_bytes: u64,
    /// Time in calls that take memory from the driver and give it back.
    pub driver_nanoseconds: u64,
    /// Times that memory which was kept went back because somebody might lack it.
    pub give_backs: u64,
}

impl PoolStats {
    /// What two pools hold and did together. Peaks are added too: the real ones are at most that.
    pub(crate) fn plus(self, other: PoolStats) -> PoolStats {
        PoolStats {
            live_bytes: self.live_bytes + other.live_bytes,
            live_peak_bytes: self.live_peak_bytes + other.live_peak_bytes,
            held_bytes: self.held_bytes + other.held_bytes,
            held_peak_bytes: self.held_peak_bytes + other.held_peak_bytes,
            live_allocations: self.live_allocations + other.live_allocations,
            allocations: self.allocations + other.allocations,
            frees: self.frees + other.frees,
            driver_allocs: self.driver_allocs + other.driver_allocs,
            driver_frees: self.driver_frees + other.driver_frees,
            out_of_memory: self.out_of_memory + other.out_of_memory,
            pending_bytes: self.pending_bytes + other.pending_bytes,
            allocated_bytes: self.allocated_bytes + other.allocated_bytes,
            driver_alloc_bytes: self.driver_alloc_bytes + other.driver_alloc_bytes,
            live_allocations_peak: self.live_allocations_peak + other.live_allocations_peak,
            driver_blocks_peak: self.driver_blocks_peak + other.driver_blocks_peak,
            alloc_retries: self.alloc_retries + other.alloc_retries,
            stream_syncs: self.stream_syncs + other.stream_syncs,
            active_peak_bytes: self.active_peak_bytes + other.active_peak_bytes,
            driver_free_bytes: self.driver_free_bytes + other.driver_free_bytes,
            driver_nanoseconds: self.driver_nanoseconds + other.driver_nanoseconds,
            give_backs: self.give_backs + other.give_backs,
        }
    }

    /// The same with the peaks of now.
    pub(crate) fn at_this_moment(self) -> PoolStats {
        PoolStats {
            live_peak_bytes: self.live_bytes,
            held_peak_bytes: self.held_bytes,
            live_allocations_peak: self.live_allocations,
            driver_blocks_peak: self.driver_allocs - self.driver_frees,
            active_peak_bytes: self.live_bytes + self.pending_bytes,
            ..self
        }
    }

    /// The same with each peak at least that of `other`.
    pub(crate) fn with_peaks_of(self, other: &PoolStats) -> PoolStats {
        PoolStats {
            live_peak_bytes: self.live_peak_bytes.max(other.live_peak_bytes),
            held_peak_bytes: self.held_peak_bytes.max(other.held_peak_bytes),
            live_allocations_peak: self.live_allocations_peak.max(other.live_allocations_peak),
            driver_blocks_peak: self.driver_blocks_peak.max(other.driver_blocks_peak),
            active_peak_bytes: self.active_peak_bytes.max(other.active_peak_bytes),
            ..self
        }
    }
}
