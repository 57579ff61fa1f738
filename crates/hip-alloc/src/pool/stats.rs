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
