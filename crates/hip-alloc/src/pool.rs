//! The pool: where requests are placed, and when memory is returned to the driver.
//!
//! Pure decisions over a [`Driver`](crate::driver::Driver): no clocks, no files, no global state, so a
//! replay of the same requests gives the same placement.
//!
//! ```text
//!  Pool ──▶ policy         where a request goes, how large a block is, what may stay empty
//!    └────▶ memory         moves memory between the driver, the heap and the streams
//!             ├─▶ heap            blocks and their spans: split, merge, find
//!             ├─▶ stream_fences   when another stream, or the driver, may have memory
//!             ├─▶ reclaimer       which empty blocks are returned
//!             └─▶ device_memory   memory from the driver, with statistics
//! ```
//!
//! A request is served from the best-fitting free span of its region, then from an empty
//! block, then from a new block. `reclaimer` decides whether a block that becomes empty is returned to the
//! driver: with `keep:off` at once, unless what the pool holds beyond the memory in
//! use is within the warm-up floor, or within what the policy expects the rest of this step to
//! use again; with `keep:auto`, memory that a step used before stays, too.

mod device_memory;
mod driver_time;
mod heap;
mod layout;
mod memory;
mod policy;
mod reclaimer;
mod restraint;
mod stats;
mod stream_fences;

pub(crate) use device_memory::Moved;
pub use device_memory::{Device, DeviceMemory};

use crate::driver::DriverError;
use crate::units::{MIB, StreamId, round_up};
use heap::{Block, Owner, SpanIndex};
pub use layout::{BlockLayout, SpanLayout, SpanUse};
use memory::Memory;
pub(crate) use policy::Policy;
use policy::{DIRECT_STEP, Placement, Region, SMALL_BLOCK, StepPolicy};
pub use reclaimer::Keep;
pub use stats::PoolStats;
use stream_fences::{FenceCheck, too_many_streams};

/// The floor is at most this fraction of the highest usage.
const FLOOR_PART_OF_USED: u64 = 4;
/// At most this fraction of the capacity is allocated at the start.
const FLOOR_PART: u64 = 4;
/// The size of a block of the floor,
const WARMUP_BLOCK: u64 = 256 * MIB;
/// and at most this fraction of the capacity.
const BLOCK_PART: u64 = 32;
/// An empty block does not serve a request that is smaller by more than this factor,
/// since one that stays would pin all of it.
const MOST_DISPARITY: u64 = 24;
/// Requests below this count as this large for that.
const LEAST_FOR_DISPARITY: u64 = 4 * MIB;
/// Persistent requests open no larger empty block than this, unless they fill half of it: at
/// the end of the step all of the rest would be held for them.
const LARGEST_FOR_PERSISTENT: u64 = 128 * MIB;
/// A block that was allocated for one large request serves requests down to two thirds of its size:
/// those to which this fraction of themselves may be added.
const DIRECT_DISPARITY_PART: u64 = 2;

/// If more than this fraction of the highest usage stays free in transient blocks from step to step, persistent requests
/// are placed there, too.
const PINNED_PART: u64 = 32;

/// If blocks are kept, multiples of a request leave at most this fraction of a block unused.
const REMAINDER_PART: u64 = 8;

/// Sizes and limits of a pool, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// Every span is a multiple of this, and so is every address: a power of two.
    pub granule: u64,
    /// How much may be held beyond live memory: allocated at the start, and kept.
    pub warmup_bytes: u64,
    /// Larger requests are allocated directly from the driver, and returned directly.
    pub max_split_bytes: u64,
    /// Allocated behind every block and never used: some kernels read past the end of their operand.
    pub guard: u64,
    /// How much memory stays in empty blocks.
    pub keep: Keep,
    /// If this is not 0, at most this fraction of the highest usage is held
    /// beyond live memory for `warmup_bytes`, and nothing is allocated at the start.
    pub floor_part: u64,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            granule: 512,
            warmup_bytes: 1024 * MIB,
            max_split_bytes: 256 * MIB,
            guard: 0,
            keep: Keep::Off,
            floor_part: FLOOR_PART_OF_USED,
        }
    }
}

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// Not enough memory, after everything that can be returned was returned.
    #[error("out of memory")]
    OutOfMemory,
    /// The driver failed for another reason.
    #[error(transparent)]
    Driver(DriverError),
}

impl From<DriverError> for AllocateError {
    fn from(error: DriverError) -> Self {
        match error {
            DriverError::OutOfMemory => AllocateError::OutOfMemory,
            error => AllocateError::Driver(error),
        }
    }
}

/// Why a free was refused. Nothing changes then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreeError {
    /// The address lies in memory of the pool, but no live request begins there.
    #[error("freed twice, or not the start of an allocation")]
    NotLive,
    /// The address is not in memory of the pool.
    #[error("not allocated here")]
    Unknown,
}

/// One of a device's allocators, with its policy.
pub struct Pool {
    config: PoolConfig,
    memory: Memory,
    /// All statistics but those of the driver, which are counted by `memory`.
    stats: PoolStats,
}

impl Pool {
    /// A pool on a device; it allocates the floor.
    pub fn new(config: PoolConfig, device: Device) -> Self {
        Pool::with_policy(config, device, Policy::Steps(StepPolicy::default()))
    }

    /// Like [`new`](Pool::new), with another policy.
    pub(crate) fn with_policy(config: PoolConfig, device: Device, policy: Policy) -> Self {
        debug_assert!(config.granule.is_power_of_two());
        let mut pool = Pool {
            memory: Memory::new(&config, device, policy),
            config,
            stats: PoolStats::default(),
        };
        if pool.config.floor_part == 0 {
            pool.warm_up();
        }
        pool
    }

    /// Allocates the warm-up floor from the driver. Stops without an error if there is less memory.
    fn warm_up(&mut self) {
        let memory = &mut self.memory;
        // On a small device the floor must not use up memory that the program needs later.
        let capacity = memory.capacity;
        let floor = self.config.warmup_bytes.min(capacity / FLOOR_PART);
        let block = WARMUP_BLOCK.min(capacity / BLOCK_PART);
        let block = (block & !(DIRECT_STEP - 1)).max(DIRECT_STEP);
        while memory.heap.held() + block <= floor {
            match memory.take_block(block, Region::Persistent, Owner::ANYONE) {
                Ok(block) => memory.heap.list_empty(block),
                Err(_) => break,
            }
        }
    }

    /// Statistics of the pool, and of its device.
    pub fn stats(&self) -> PoolStats {
        self.own_stats().plus(*self.memory.device.lock().stats())
    }

    /// Statistics of the pool, without those of the driver.
    pub(crate) fn own_stats(&self) -> PoolStats {
        PoolStats {
            pending_bytes: self.memory.fences.pending_bytes(),
            ..self.stats
        }
    }

    /// The pool's configuration.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Resets the peaks to what is live now.
    pub fn reset_peaks(&mut self) {
        self.stats = self.own_stats().at_this_moment();
    }

    /// Serves a request: returns the address of at least `requested` bytes, which may be
    /// used on `stream` at once. A request of zero bytes gets a unique address.
    ///
    /// # Errors
    /// If there is not enough memory after everything that can be returned was returned, or the driver failed.
    pub fn allocate(&mut self, requested: u64, stream: StreamId) -> Result<u64, AllocateError> {
        self.memory.fences.set_present(Some(stream));
        let served = self.allocate_on(requested, stream);
        self.memory.fences.set_present(None);
        served
    }

    #[inline(always)]
    fn allocate_on(&mut self, requested: u64, stream: StreamId) -> Result<u64, AllocateError> {
        if self.memory.fences.waiting() {
            self.memory.poll();
        }
        let Ok(bytes) = self.rounded(requested) else {
            self.stats.out_of_memory += 1;
            return Err(AllocateError::OutOfMemory);
        };
        let Some(owner) = self.memory.owner(stream) else {
            return Err(AllocateError::Driver(too_many_streams()));
        };
        self.memory.heap.ensure_owner(owner);
        let placement = self.memory.policy.place(bytes);
        match self.serve(placement, owner, bytes) {
            Ok(span) => {
                let heap = &mut self.memory.heap;
                let address = heap.hand_out(span, requested);
                let (used, holes) = (heap.used(), heap.large_holes());
                self.memory.policy.served(span.slot(), bytes, used, holes);
                self.count(requested);
                let memory = &mut self.memory;
                if memory
                    .reclaimer
                    .is_due_after_request(|| memory.policy.growth())
                {
                    memory.trim_to_slack();
                }
                Ok(address)
            }
            Err(error) => {
                self.memory.policy.refused();
                self.stats.out_of_memory += u64::from(error == AllocateError::OutOfMemory);
                Err(error)
            }
        }
    }

    fn rounded(&self, requested: u64) -> Result<u64, AllocateError> {
        round_up(requested.max(1), self.config.granule)
            .filter(|bytes| *bytes <= i64::MAX as u64)
            .ok_or(AllocateError::OutOfMemory)
    }

    fn count(&mut self, requested: u64) {
        let pending = self.memory.fences.pending_bytes();
        let stats = &mut self.stats;
        stats.allocations += 1;
        stats.allocated_bytes += requested;
        stats.live_allocations += 1;
        stats.live_allocations_peak = stats.live_allocations_peak.max(stats.live_allocations);
        stats.live_bytes += requested;
        stats.live_peak_bytes = stats.live_peak_bytes.max(stats.live_bytes);
        stats.active_peak_bytes = stats.active_peak_bytes.max(stats.live_bytes + pending);
    }

    /// A span of `bytes` where the policy places it.
    fn serve(
        &mut self,
        placement: Placement,
        owner: Owner,
        bytes: u64,
    ) -> Result<SpanIndex, AllocateError> {
        if placement.region == Region::Transient && self.memory.heap.has_step_block(owner) {
            let heap = &mut self.memory.heap;
            if let Some(index) = heap.find_anywhere(owner, bytes) {
                return Ok(heap.take(index, owner, bytes));
            }
            if let Some(span) = heap.take_of_step(owner, bytes, placement.anywhere) {
                return Ok(span);
            }
        }
        if bytes > self.config.max_split_bytes {
            return self.serve_direct(owner, bytes);
        }
        let heap = &mut self.memory.heap;
        let found = match placement.anywhere {
            true => heap.find_anywhere(owner, bytes),
            false => heap.find(placement.region, owner, bytes),
        };
        match found {
            Some(index) => Ok(heap.take(index, owner, bytes)),
            None => self.serve_elsewhere(placement, owner, bytes),
        }
    }

    /// Serves a request that is too large for shared blocks: with its own block.
    fn serve_direct(&mut self, owner: Owner, bytes: u64) -> Result<SpanIndex, AllocateError> {
        const REGION: Region = Region::Transient;
        if let Some(span) = self.take_anywhere(owner, bytes) {
            return Ok(span);
        }
        let size = round_up(bytes, DIRECT_STEP).ok_or(AllocateError::OutOfMemory)?;
        if let Some(span) = self.open_empty(REGION, owner, bytes) {
            return Ok(span);
        }
        let memory = &mut self.memory;
        memory.make_room(size);
        let block = memory.take_block_or_reclaim(size, REGION, owner)?;
        memory.heap.set_direct(block, true);
        Ok(memory.heap.open(block, owner, REGION, bytes))
    }

    /// No free span of the region fits: a hole elsewhere, an empty block, memory of
    /// other streams, or a new block.
    fn serve_elsewhere(
        &mut self,
        placement: Placement,
        owner: Owner,
        bytes: u64,
    ) -> Result<SpanIndex, AllocateError> {
        let region = placement.region;
        // Transient requests do no harm in holes between persistent ones.
        if region == Region::Transient
            && let Some(span) = self.take_anywhere(owner, bytes)
        {
            return Ok(span);
        }
        if let Some(span) = self.open_empty(region, owner, bytes) {
            return Ok(span);
        }
        let memory = &mut self.memory;
        if memory.hand_over(owner, FenceCheck::Query) {
            if let Some(index) = memory.heap.find(region, owner, bytes) {
                return Ok(memory.heap.take(index, owner, bytes));
            }
            if let Some(span) = self.open_empty(region, owner, bytes) {
                return Ok(span);
            }
        }
        let memory = &mut self.memory;
        let held = memory.state();
        let size = memory.policy.block_bytes(bytes, placement, &held);
        let usage = memory.usage();
        // What was left of loading does not leave: then persistent requests do no further harm there.
        let pinned = region == Region::Persistent
            && memory.reclaimer.keeps()
            && memory.policy.pinned_holes() > usage.used_peak / PINNED_PART;
        if (pinned || memory.heap.held() + size > usage.ceiling(bytes))
            && region != Region::Small
            && let Some(span) = self.take_anywhere(owner, bytes)
        {
            return Ok(span);
        }
        let memory = &mut self.memory;
        memory.make_room(size);
        match memory.take_block_or_reclaim(size, region, owner) {
            Err(DriverError::OutOfMemory) => self.serve_last(region, owner, bytes),
            block => Ok(memory.heap.open(block?, owner, region, bytes)),
        }
    }

    /// The driver cannot provide a block of the preferred size: use any hole, then a block of exactly this size.
    fn serve_last(
        &mut self,
        region: Region,
        owner: Owner,
        bytes: u64,
    ) -> Result<SpanIndex, AllocateError> {
        if let Some(span) = self.take_anywhere(owner, bytes) {
            return Ok(span);
        }
        // If blocks are not returned, those that others emptied belong to nobody by now.
        if let Some(span) = self.open_empty(region, owner, bytes) {
            return Ok(span);
        }
        let size = round_up(bytes, DIRECT_STEP).ok_or(AllocateError::OutOfMemory)?;
        let block = self.memory.take_block(size, region, owner)?;
        Ok(self.memory.heap.open(block, owner, region, bytes))
    }

    fn take_anywhere(&mut self, owner: Owner, bytes: u64) -> Option<SpanIndex> {
        let heap = &mut self.memory.heap;
        match heap.find_anywhere(owner, bytes) {
            Some(found) => Some(heap.take(found, owner, bytes)),
            None => heap.take_of_step(owner, bytes, false),
        }
    }

    /// The front of the smallest empty block that fits. Small requests only get blocks that are as small
    /// as those they would allocate.
    fn open_empty(&mut self, region: Region, owner: Owner, bytes: u64) -> Option<SpanIndex> {
        // At the start the blocks serve whatever comes first.
        let fresh =
            self.memory.heap.held() <= self.config.warmup_bytes && bytes >= LEAST_FOR_DISPARITY;
        let spread = bytes
            .max(LEAST_FOR_DISPARITY)
            .saturating_mul(MOST_DISPARITY);
        let headroom = match region {
            Region::Transient => self.memory.headroom(),
            Region::Persistent | Region::Small => 0,
        };
        // Blocks that are kept from step to step would fill up with remainders.
        let whole = self.memory.reclaimer.keeps() && region == Region::Transient;
        let suits = |block: &Block| {
            // A block of a single large request is reserved for such: if another request opened it and stayed longer than
            // predicted, the next large request would have no place.
            if !block.direct && block.bytes <= headroom {
                return true;
            }
            let remainder = block.bytes % bytes;
            if whole && !block.direct && remainder > block.bytes / REMAINDER_PART {
                return false;
            }
            let largest = match region {
                Region::Small => SMALL_BLOCK.1,
                _ if block.direct => bytes + bytes / DIRECT_DISPARITY_PART,
                Region::Persistent => spread.min(LARGEST_FOR_PERSISTENT.max(2 * bytes)),
                Region::Transient => spread,
            };
            fresh && !block.direct || block.bytes <= largest
        };
        let heap = &mut self.memory.heap;
        let block = heap.take_empty(owner, bytes, suits)?;
        Some(heap.open(block, owner, region, bytes))
    }

    /// Frees memory from [`allocate`](Pool::allocate). Returns the requested bytes.
    ///
    /// # Errors
    /// If no live request begins at the address; then nothing changes.
    pub fn free(&mut self, address: u64) -> Result<u64, FreeError> {
        let Pool { memory, stats, .. } = self;
        let Some(span) = memory.heap.take_address(address) else {
            return Err(match memory.heap.contains(address) {
                true => FreeError::NotLive,
                false => FreeError::Unknown,
            });
        };
        let bytes = memory.heap.bytes(span);
        let request @ (requested, _) = memory.heap.request(span);
        stats.frees += 1;
        stats.live_allocations -= 1;
        stats.live_bytes -= requested;
        let (used, holes) = (memory.heap.used() - bytes, memory.heap.large_holes());
        memory.policy.freed(span.slot(), bytes, used, holes);
        memory.free(span, request);
        if memory.fences.waiting() {
            memory.poll();
        }
        if memory
            .reclaimer
            .is_due_after_free(|| memory.policy.growth())
        {
            memory.trim_to_slack();
        }
        Ok(requested)
    }

    /// Records that work on `stream` uses the allocation at `address`, in addition to the
    /// stream it was allocated on. It is not reused before that work is done.
    ///
    /// # Errors
    /// If no live request begins at the address.
    pub fn record_stream(&mut self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        let Memory { heap, fences, .. } = &mut self.memory;
        let span = heap.span_at(address).ok_or(FreeError::Unknown)?;
        if fences.id(heap.owner(span)) != stream {
            heap.set_shared(span);
            fences.record_use(span, stream);
        }
        Ok(())
    }

    /// Returns empty blocks until at most `keep` bytes are held beyond live memory.
    /// Waits for work that still uses them, so that they have been returned when this returns.
    pub fn trim(&mut self, keep: u64) {
        self.memory.trim(keep);
    }

    /// Whether more than the floor is kept in empty blocks, so that background reclaim
    /// is needed.
    #[inline]
    pub fn is_keeping(&self) -> bool {
        self.memory.reclaimer.is_keeping()
    }

    /// How many bytes are held beyond the floor and those in use.
    pub fn kept(&self) -> u64 {
        let memory = &self.memory;
        let floor = memory.reclaimer.floor(memory.usage());
        memory.staying().saturating_sub(memory.heap.used() + floor)
    }

    /// How many bytes are missing to the highest usage so far.
    pub fn growth(&self) -> u64 {
        let memory = &self.memory;
        memory.usage().used_peak.saturating_sub(memory.heap.held())
    }

    /// Sets whether empty blocks are kept at all, according to [`PoolConfig::keep`]; not while memory
    /// is short.
    pub fn set_keeping(&mut self, keeping: bool) {
        self.memory.reclaimer.set_under_pressure(!keeping);
    }

    /// Returns what is kept beyond the floor and not used by work in flight. Waits for the device only if the
    /// streams cannot be asked that freed the rest.
    pub fn trim_to_floor(&mut self) {
        let before = self.memory.heap.held();
        let floor = self.memory.reclaimer.floor(self.memory.usage());
        self.memory.trim_unused(floor);
        self.stats.give_backs += u64::from(self.memory.heap.held() < before);
    }

    /// Whether work in flight is known to use freed memory.
    pub fn works(&mut self) -> bool {
        self.memory.works()
    }

    /// The last request was refused, and will be repeated.
    pub fn ask_again(&mut self) {
        self.stats.out_of_memory = self.stats.out_of_memory.saturating_sub(1);
    }

    /// Whether there were driver errors on paths that cannot fail (a free).
    pub fn has_deferred_errors(&self) -> bool {
        !self.memory.fences.errors.is_empty()
    }

    /// These errors, since the last call.
    pub fn take_deferred_errors(&mut self) -> Vec<DriverError> {
        std::mem::take(&mut self.memory.fences.errors)
    }

    /// The live allocations, as address and requested bytes, in no particular order.
    pub fn live(&self) -> impl Iterator<Item = (u64, u64)> {
        self.memory.heap.live()
    }

    /// Addresses that the program freed while another stream may still use them.
    pub fn pending(&self) -> impl Iterator<Item = u64> {
        let Memory { heap, fences, .. } = &self.memory;
        fences.pending().map(|span| heap.address(span))
    }

    /// The pool's memory, in address order.
    pub fn layout(&self) -> Vec<BlockLayout> {
        let Memory { heap, fences, .. } = &self.memory;
        heap.layout(|owner| fences.id(owner))
    }
}
