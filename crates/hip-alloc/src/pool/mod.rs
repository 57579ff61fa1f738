//! The pool: which request goes where, and when memory goes back.
//!
//! Pure decisions over a [`Driver`]: no clocks, no files, no global state, so a
//! replay of the same requests gives the same placement.
//!
//! ```text
//!  Pool ──▶ policy         where a request goes, how large a block is, what may stay empty
//!    └────▶ memory         moves memory between the driver, the heap and the streams
//!             ├─▶ heap            blocks and their spans: split, merge, find
//!             ├─▶ stream_fences   when another stream, or the driver, may have it
//!             ├─▶ reclaimer       which empty blocks go back
//!             └─▶ device_memory   what the driver gave, counted
//! ```
//!
//! A request takes the best-fitting free span of its region, then an empty
//! block, then a new block. Whether a block that becomes empty goes back to the driver is
//! the rule of `reclaimer`: with `keep:none` at once, unless what the pool holds beyond the memory in
//! use is within the warm-up floor, or within what the policy expects the rest of this step to
//! use again; with any other `keep` also what a step used before stays.

mod device_memory;
mod driver_time;
mod heap;
mod layout;
mod memory;
pub mod policy;
mod reclaimer;
mod restraint;
mod stats;
mod stream_fences;

use crate::driver::{Driver, DriverCost, DriverError};
use crate::units::{MIB, StreamId, round_up};
use heap::{Block, Owner, SpanIndex};
pub use layout::{BlockLayout, SpanLayout, SpanUse};
use memory::Memory;
use policy::{DIRECT_STEP, Placement, Policy, Region, SMALL_BLOCK, StepPolicy};
pub use reclaimer::Keep;
pub use stats::PoolStats;
use stream_fences::{FenceCheck, too_many_streams};

/// The floor is at most one part in this many of the most that was used.
const FLOOR_PART_OF_USED: u64 = 4;
/// What is taken at the start is at most one part in this many of the capacity.
const FLOOR_PART: u64 = 4;
/// A block of the floor is at most one part in this many of the capacity.
const BLOCK_PART: u64 = 32;
/// An empty block does not serve a request that is smaller by more than this factor,
/// since one that stays would pin all of it.
const MOST_DISPARITY: u64 = 24;
/// Requests below this count as this large for that.
const LEAST_FOR_DISPARITY: u64 = 4 * MIB;
/// What is persistent opens no empty block larger than this, unless it fills half of it: at
/// the end of the step all the rest would be held for it.
const LARGEST_FOR_PERSISTENT: u64 = 128 * MIB;
/// A block that was taken for one large request serves requests down to two thirds of it:
/// those to which this part of themselves may be added.
const DIRECT_DISPARITY_PART: u64 = 2;

/// Where blocks are kept, multiples of a request leave at most one part in this many of a block.
const REMAINDER_PART: u64 = 8;

/// Sizes and limits of a pool, in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// Every span is a multiple of this, and so is every address: a power of two.
    pub granule: u64,
    /// What may be held beyond the live memory: taken at start, and kept.
    pub warmup_bytes: u64,
    /// Size of the warm-up blocks.
    pub block_bytes: u64,
    /// The largest block for several requests that growth asks the driver for.
    pub large_block_bytes: u64,
    /// Larger requests go straight to the driver, and straight back.
    pub max_split_bytes: u64,
    /// Added to every request: some kernels read past the end of their operand.
    pub tail_padding: u64,
    /// How much memory stays in empty blocks.
    pub keep: Keep,
    /// Where this is not 0, no more than one part in this many of the most that was used is held
    /// beyond the live memory for `warmup_bytes`, and nothing is taken at the start.
    pub floor_part: u64,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            granule: 512,
            warmup_bytes: 1024 * MIB,
            block_bytes: 256 * MIB,
            large_block_bytes: 256 * MIB,
            max_split_bytes: 256 * MIB,
            tail_padding: 0,
            keep: Keep::None,
            floor_part: FLOOR_PART_OF_USED,
        }
    }
}

/// Why a request was not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// Not enough memory, after everything that can go back went back.
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
    /// The address has nothing to do with the pool.
    #[error("not allocated here")]
    Unknown,
}

/// The allocator of one device, with the policy that decides for it.
pub struct Pool<P: Policy = StepPolicy> {
    config: PoolConfig,
    policy: P,
    memory: Memory,
    /// All but what the driver did, which is counted where it is done.
    stats: PoolStats,
}

impl Pool {
    /// An empty pool. [`warm_up`](Pool::warm_up) takes the floor.
    pub fn new(config: PoolConfig) -> Self {
        let policy = StepPolicy::new(&config);
        Pool::with_policy(config, policy)
    }
}

impl<P: Policy> Pool<P> {
    /// As [`new`](Pool::new), with another policy.
    pub fn with_policy(config: PoolConfig, policy: P) -> Self {
        debug_assert!(config.granule.is_power_of_two());
        Pool {
            memory: Memory::new(&config),
            config,
            policy,
            stats: PoolStats::default(),
        }
    }

    /// Takes the warm-up floor from the driver. Stops quietly when there is less.
    pub fn warm_up(&mut self, driver: &mut dyn Driver) {
        let memory = &mut self.memory;
        memory.device.refresh(driver);
        if self.config.floor_part > 0 {
            return;
        }
        // On a small device the floor must not be what the program lacks later.
        let capacity = memory.device.capacity;
        let floor = self.config.warmup_bytes.min(capacity / FLOOR_PART);
        let block = self.config.block_bytes.min(capacity / BLOCK_PART);
        let block = (block & !(DIRECT_STEP - 1)).max(DIRECT_STEP);
        while memory.device.held() + block <= floor {
            match memory.take_block(driver, block, Region::Persistent, Owner::ANYONE) {
                Ok(block) => memory.heap.list_empty(block),
                Err(_) => break,
            }
        }
    }

    /// What the pool did and holds.
    pub fn stats(&self) -> PoolStats {
        let device = self.memory.device.stats();
        PoolStats {
            held_bytes: device.held_bytes,
            held_peak_bytes: device.held_peak_bytes,
            driver_allocs: device.driver_allocs,
            driver_frees: device.driver_frees,
            driver_alloc_bytes: device.driver_alloc_bytes,
            driver_free_bytes: device.driver_free_bytes,
            driver_nanoseconds: device.driver_nanoseconds,
            driver_blocks_peak: device.driver_blocks_peak,
            alloc_retries: device.alloc_retries,
            stream_syncs: device.stream_syncs,
            pending_bytes: self.memory.fences.pending_bytes(),
            ..self.stats
        }
    }

    /// The sizes and limits it was made with.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The most bytes that are taken from the driver.
    pub fn limit(&self) -> u64 {
        self.memory.device.limit
    }

    /// Holds at most so many bytes from now on; `u64::MAX` lifts the limit. What is live
    /// stays, also above it, and empty blocks stay until they are
    /// [trimmed](Pool::trim).
    pub fn set_limit(&mut self, bytes: u64) {
        self.memory.device.limit = bytes;
    }

    /// Starts the peaks again from what is live and held now.
    pub fn reset_peaks(&mut self) {
        let pending = self.memory.fences.pending_bytes();
        let stats = &mut self.stats;
        stats.live_peak_bytes = stats.live_bytes;
        stats.live_allocations_peak = stats.live_allocations;
        stats.active_peak_bytes = stats.live_bytes + pending;
        self.memory.device.reset_peaks();
    }

    /// Serves a request: the address of at least `requested` bytes, which may be
    /// used on `stream` at once. A request of zero bytes gets an address of its own.
    ///
    /// # Errors
    /// There is not enough memory after all that can go back went back, or the driver failed.
    pub fn allocate(
        &mut self,
        driver: &mut dyn Driver,
        requested: u64,
        stream: StreamId,
    ) -> Result<u64, AllocateError> {
        if self.memory.fences.waiting() {
            self.memory.poll(driver, &self.policy);
        }
        let Ok(bytes) = self.rounded(requested) else {
            self.stats.out_of_memory += 1;
            return Err(AllocateError::OutOfMemory);
        };
        let Some(owner) = self.memory.fences.owner(stream) else {
            return Err(AllocateError::Driver(too_many_streams()));
        };
        self.memory.heap.ensure_owner(owner);
        let placement = self.policy.place(bytes);
        match self.serve(driver, placement, owner, bytes) {
            Ok(span) => {
                let heap = &mut self.memory.heap;
                let address = heap.hand_out(span, requested);
                let (used, holes) = (heap.used(), heap.large_holes());
                self.policy.served(span.slot(), bytes, used, holes);
                self.count(requested);
                if self.memory.reclaimer.is_due_after_request(&self.policy) {
                    self.memory.trim_to_slack(driver, &self.policy);
                }
                Ok(address)
            }
            Err(error) => {
                self.policy.refused();
                self.stats.out_of_memory += u64::from(error == AllocateError::OutOfMemory);
                Err(error)
            }
        }
    }

    fn rounded(&self, requested: u64) -> Result<u64, AllocateError> {
        requested
            .checked_add(self.config.tail_padding)
            .and_then(|bytes| round_up(bytes.max(1), self.config.granule))
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

    /// A span of `bytes` where the policy wants it.
    fn serve(
        &mut self,
        driver: &mut dyn Driver,
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
            return self.serve_direct(driver, owner, bytes);
        }
        let heap = &mut self.memory.heap;
        let found = match placement.anywhere {
            true => heap.find_anywhere(owner, bytes),
            false => heap.find(placement.region, owner, bytes),
        };
        match found {
            Some(index) => Ok(heap.take(index, owner, bytes)),
            None => self.serve_elsewhere(driver, placement, owner, bytes),
        }
    }

    /// A request that is larger than any block serves: a block of its own.
    fn serve_direct(
        &mut self,
        driver: &mut dyn Driver,
        owner: Owner,
        bytes: u64,
    ) -> Result<SpanIndex, AllocateError> {
        const REGION: Region = Region::Transient;
        if let Some(span) = self.take_anywhere(owner, bytes) {
            return Ok(span);
        }
        let size = round_up(bytes, DIRECT_STEP).ok_or(AllocateError::OutOfMemory)?;
        if let Some(span) = self.open_empty(REGION, owner, bytes) {
            return Ok(span);
        }
        let Pool { memory, policy, .. } = self;
        memory.make_room(driver, policy, size);
        let block = memory.take_block_or_reclaim(driver, policy, size, REGION, owner)?;
        memory.heap.set_direct(block, true);
        Ok(memory.heap.open(block, owner, REGION, bytes))
    }

    /// No free span of the region fits: a hole elsewhere, an empty block, memory of
    /// other streams, or a new block.
    fn serve_elsewhere(
        &mut self,
        driver: &mut dyn Driver,
        placement: Placement,
        owner: Owner,
        bytes: u64,
    ) -> Result<SpanIndex, AllocateError> {
        let region = placement.region;
        // What is transient does no harm in the holes between what is persistent.
        if region == Region::Transient
            && let Some(span) = self.take_anywhere(owner, bytes)
        {
            return Ok(span);
        }
        if let Some(span) = self.open_empty(region, owner, bytes) {
            return Ok(span);
        }
        let Pool { memory, policy, .. } = self;
        if memory.hand_over(driver, policy, owner, FenceCheck::Query) {
            if let Some(index) = memory.heap.find(region, owner, bytes) {
                return Ok(memory.heap.take(index, owner, bytes));
            }
            if let Some(span) = self.open_empty(region, owner, bytes) {
                return Ok(span);
            }
        }
        let Pool { memory, policy, .. } = self;
        let size = policy.block_bytes(bytes, placement, &memory.state());
        if memory.device.held() + size > memory.usage().ceiling(bytes)
            && region != Region::Small
            && let Some(span) = self.take_anywhere(owner, bytes)
        {
            return Ok(span);
        }
        let Pool { memory, policy, .. } = self;
        memory.make_room(driver, policy, size);
        match memory.take_block_or_reclaim(driver, policy, size, region, owner) {
            Err(DriverError::OutOfMemory) => self.serve_last(driver, region, owner, bytes),
            block => Ok(memory.heap.open(block?, owner, region, bytes)),
        }
    }

    /// The driver has no block of the size we wanted: any hole, then a block of just this size.
    fn serve_last(
        &mut self,
        driver: &mut dyn Driver,
        region: Region,
        owner: Owner,
        bytes: u64,
    ) -> Result<SpanIndex, AllocateError> {
        if let Some(span) = self.take_anywhere(owner, bytes) {
            return Ok(span);
        }
        // Where blocks do not go back, those that others emptied are everybody's by now.
        if let Some(span) = self.open_empty(region, owner, bytes) {
            return Ok(span);
        }
        let size = round_up(bytes, DIRECT_STEP).ok_or(AllocateError::OutOfMemory)?;
        let block = self.memory.take_block(driver, size, region, owner)?;
        Ok(self.memory.heap.open(block, owner, region, bytes))
    }

    fn take_anywhere(&mut self, owner: Owner, bytes: u64) -> Option<SpanIndex> {
        let heap = &mut self.memory.heap;
        match heap.find_anywhere(owner, bytes) {
            Some(found) => Some(heap.take(found, owner, bytes)),
            None => heap.take_of_step(owner, bytes, false),
        }
    }

    /// The front of the smallest empty block that fits. Small requests only get blocks as small
    /// as they would ask for.
    fn open_empty(&mut self, region: Region, owner: Owner, bytes: u64) -> Option<SpanIndex> {
        // At the start the blocks are for whatever comes first.
        let fresh =
            self.memory.device.held() <= self.config.warmup_bytes && bytes >= LEAST_FOR_DISPARITY;
        let spread = bytes
            .max(LEAST_FOR_DISPARITY)
            .saturating_mul(MOST_DISPARITY);
        let headroom = match region {
            Region::Transient => self.memory.headroom(&self.policy),
            Region::Persistent | Region::Small => 0,
        };
        // Blocks that are kept from step to step would fill up with remainders.
        let whole = self.memory.reclaimer.keeps() && region == Region::Transient;
        let suits = |block: &Block| {
            // One of a single large request is left to such: if what opens it stays longer than
            // was guessed, the next one has no place.
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

    /// Takes back what [`allocate`](Pool::allocate) gave. Returns the bytes that were asked for.
    ///
    /// # Errors
    /// No live request begins at the address; then nothing changes.
    pub fn free(&mut self, driver: &mut dyn Driver, address: u64) -> Result<u64, FreeError> {
        let Pool {
            memory,
            policy,
            stats,
            ..
        } = self;
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
        policy.freed(span.slot(), bytes, used, holes);
        memory.free(driver, policy, span, request);
        if memory.fences.waiting() {
            memory.poll(driver, policy);
        }
        if memory.reclaimer.is_due_after_free(policy) {
            memory.trim_to_slack(driver, policy);
        }
        Ok(requested)
    }

    /// Notes that work on `stream` uses the allocation at `address`, beyond the
    /// stream it was allocated on. It is not reused before that work is done.
    ///
    /// # Errors
    /// No live request begins at the address.
    pub fn record_stream(&mut self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        let Memory { heap, fences, .. } = &mut self.memory;
        let span = heap.span_at(address).ok_or(FreeError::Unknown)?;
        if fences.id(heap.owner(span)) != stream {
            heap.set_shared(span);
            fences.record_use(span, stream);
        }
        Ok(())
    }

    /// Gives empty blocks back until at most `keep` bytes are held beyond what is live.
    /// Waits for the work that still uses them, so that they are gone when this returns.
    pub fn trim(&mut self, driver: &mut dyn Driver, keep: u64) {
        self.memory.trim(driver, &self.policy, keep);
    }

    /// Whether more is kept in empty blocks than the floor, so that somebody must look
    /// whether it is needed elsewhere.
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

    /// How many bytes more would be held at the most that was ever used.
    pub fn growth(&self) -> u64 {
        let memory = &self.memory;
        memory
            .usage()
            .used_peak
            .saturating_sub(memory.device.held())
    }

    /// Whether empty blocks are kept at all, as [`PoolConfig::keep`] says; not while somebody
    /// lacks memory.
    pub fn set_keeping(&mut self, keeping: bool) {
        self.memory.reclaimer.set_under_pressure(!keeping);
    }

    /// Gives back what is kept beyond the floor and no work in flight uses, without waiting.
    pub fn give_back(&mut self, driver: &mut dyn Driver) {
        let before = self.memory.device.held();
        let Memory { reclaimer, .. } = &self.memory;
        let floor = reclaimer.floor(self.memory.usage());
        self.memory.trim_ready(driver, &self.policy, floor);
        self.stats.give_backs += u64::from(self.memory.device.held() < before);
    }

    /// Whether work in flight uses what was freed.
    pub fn works(&mut self, driver: &mut dyn Driver) -> bool {
        self.memory.works(driver)
    }

    /// The last request was refused, and is asked for again.
    pub fn ask_again(&mut self) {
        self.stats.out_of_memory = self.stats.out_of_memory.saturating_sub(1);
    }

    /// What the driver costs, as it was measured.
    pub fn set_driver_cost(&mut self, cost: DriverCost) {
        self.memory.device.time.begin(cost);
    }

    /// What the driver costs, as far as its calls have shown.
    pub fn driver_cost(&self) -> DriverCost {
        self.memory.device.time.cost()
    }

    /// Whether there were driver errors on paths that cannot fail (a free).
    pub fn has_deferred_errors(&self) -> bool {
        !self.memory.errors.is_empty()
    }

    /// These errors, since the last call.
    pub fn take_deferred_errors(&mut self) -> Vec<DriverError> {
        std::mem::take(&mut self.memory.errors)
    }

    /// The live allocations, as address and requested bytes, in no order.
    pub fn live(&self) -> impl Iterator<Item = (u64, u64)> {
        self.memory.heap.live()
    }

    /// Addresses that the program gave back while another stream may still use them.
    pub fn pending(&self) -> impl Iterator<Item = u64> {
        let Memory { heap, fences, .. } = &self.memory;
        fences.pending().map(|span| heap.address(span))
    }

    /// What the pool holds, in address order. A block that has given back handles is shown
    /// as several, one for each part that is still there.
    pub fn layout(&self) -> Vec<BlockLayout> {
        let Memory { heap, fences, .. } = &self.memory;
        heap.layout(|owner| fences.id(owner))
    }
}
