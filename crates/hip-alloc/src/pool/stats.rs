//! Statistics of a pool.

/// Statistics of a pool, in bytes and counts: `struct hip_alloc_stats` of the C interface.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Requested and not freed.
    pub live_bytes: u64,
    /// Highest `live_bytes` since the last reset.
    pub live_peak_bytes: u64,
    /// Allocated from the driver and not returned.
    pub held_bytes: u64,
    /// Highest `held_bytes` since the last reset.
    pub held_peak_bytes: u64,
    /// Number of live requests.
    pub live_allocations: u64,
    /// Number of requests that were served.
    pub allocations: u64,
    /// Number of frees.
    pub frees: u64,
    /// Successful driver allocations.
    pub driver_allocs: u64,
    /// Driver releases.
    pub driver_frees: u64,
    /// Requests that could not be served.
    pub out_of_memory: u64,
    /// Freed by the program, but another stream may still be working on it.
    pub pending_bytes: u64,
    /// The most that the process could hold, when the driver was last asked; 0 in the statistics of a single pool.
    pub capacity_bytes: u64,
    /// Total bytes served.
    pub allocated_bytes: u64,
    /// Total bytes allocated from the driver.
    pub driver_alloc_bytes: u64,
    /// Highest `live_allocations` since the last reset.
    pub live_allocations_peak: u64,
    /// Highest `driver_allocs - driver_frees` since the last reset.
    pub driver_blocks_peak: u64,
    /// Highest `live_bytes + pending_bytes` since the last reset.
    pub active_peak_bytes: u64,
    /// How often a refused driver allocation was repeated, after returning everything possible.
    pub alloc_retries: u64,
    /// How often all streams were synchronised to be able to return memory.
    pub stream_syncs: u64,
    /// Total bytes returned to the driver.
    pub driver_free_bytes: u64,
    /// Time in driver allocations and releases.
    pub driver_nanoseconds: u64,
    /// How often kept memory was returned because other programs might need it.
    pub give_backs: u64,
}

impl PoolStats {
    /// The sum of two pools' statistics. Peaks are added too: the real peaks are at most that.
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
            capacity_bytes: self.capacity_bytes + other.capacity_bytes,
            allocated_bytes: self.allocated_bytes + other.allocated_bytes,
            driver_alloc_bytes: self.driver_alloc_bytes + other.driver_alloc_bytes,
            live_allocations_peak: self.live_allocations_peak + other.live_allocations_peak,
            driver_blocks_peak: self.driver_blocks_peak + other.driver_blocks_peak,
            active_peak_bytes: self.active_peak_bytes + other.active_peak_bytes,
            alloc_retries: self.alloc_retries + other.alloc_retries,
            stream_syncs: self.stream_syncs + other.stream_syncs,
            driver_free_bytes: self.driver_free_bytes + other.driver_free_bytes,
            driver_nanoseconds: self.driver_nanoseconds + other.driver_nanoseconds,
            give_backs: self.give_backs + other.give_backs,
        }
    }

    /// The same with the peaks reset to the current values.
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
