//! The pool: which request goes where, and when memory goes back.
//!
//! Pure decisions over a [`Driver`]: no clocks, no files, no global state, so a
//! replay of the same requests gives the same placement.
//!
//! ```text
//!  block (from the driver)      | used | free |   used   |   free        |
//!                                 spans, in address order; free neighbours are one span
//!  region                       lasting: weights, optimizer state, everything small
//!                               passing: what a step allocates and frees
//! ```
//!
//! A request takes the best-fitting free span of its region, then an empty
//! block, then a new block. A block that becomes empty goes back to the driver at
//! once, unless what the pool holds beyond the live memory is within the warm-up
//! floor, or within what the rest of this step will need again (`rehearsal`), as the step
//! before has shown. Nothing else is kept.

mod addresses;
mod block;
mod cutting;
mod free_index;
mod growth;
mod handover;
mod holes;
mod layout;
mod lifetime;
mod rehearsal;
mod sizes;
mod span;
mod tide;

use crate::driver::{Driver, DriverError, Mapping};
use crate::units::{KIB, MIB, StreamId, round_up};
pub use layout::{BlockLayout, SpanLayout, SpanUse};

use addresses::AddressMap;
use block::{Block, BlockIndex, BlockTable, Region};
use free_index::FreeIndex;
use handover::Streams;
use lifetime::{Expectation, Guess, Lifetimes};
use sizes::LargeBlocks;
use span::{Owner, Span, SpanIndex, SpanState, SpanTable};

/// Smaller requests have a region of their own.
const SMALLEST_GUESSED: u64 = 256 * KIB;

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
        }
    }
}

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
    /// Requests served.
    pub allocations: u64,
    /// Requests freed.
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
    /// Highest `live_bytes + pending_bytes` since the last reset.
    pub active_peak_bytes: u64,
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

/// The allocator of one device.
pub struct Pool {
    config: PoolConfig,
    blocks: BlockTable,
    spans: SpanTable,
    addresses: AddressMap,
    /// One for each region of each owner; see [`Pool::arena`].
    free: Vec<FreeIndex>,
    /// Blocks without a live request. Their spans are in no free index.
    empty: Vec<BlockIndex>,
    streams: Streams,
    lifetimes: Lifetimes,
    /// How much was to be used again when blocks were last kept for it, in bytes.
    kept_for: u64,
    large_blocks: LargeBlocks,
    stats: PoolStats,
    /// Bytes of spans that are not free: the rounded live bytes.
    used: u64,
    /// The highest `used` ever: holding no more than that costs nothing at the peak.
    used_peak: u64,
    next_rank: u32,
    /// What the driver could give when the pool began.
    capacity: u64,
    /// How the driver maps blocks in handles, if it does.
    mapping: Option<Mapping>,
    /// Mapping has failed for another reason than lack of memory: no more of it.
    mapping_failed: bool,
    /// Driver errors that no caller could be told about.
    troubles: Vec<DriverError>,
}

impl Pool {
    /// An empty pool. [`warm_up`](Pool::warm_up) takes the floor.
    pub fn new(config: PoolConfig) -> Self {
        debug_assert!(config.granule.is_power_of_two());
        let mut pool = Pool {
            config,
            blocks: BlockTable::default(),
            spans: SpanTable::default(),
            addresses: AddressMap::new(),
            free: Vec::new(),
            empty: Vec::new(),
            streams: Streams::default(),
            lifetimes: Lifetimes::default(),
            kept_for: 0,
            large_blocks: LargeBlocks::default(),
            stats: PoolStats::default(),
            used: 0,
            used_peak: 0,
            next_rank: 0,
            capacity: u64::MAX,
            mapping: None,
            mapping_failed: false,
            troubles: Vec::new(),
        };
        pool.ensure_arenas();
        pool
    }

    /// What the pool did and holds.
    pub fn stats(&self) -> PoolStats {
        PoolStats {
            pending_bytes: self.streams.pending_bytes(),
            ..self.stats
        }
    }

    /// The sizes and limits it was made with.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Starts the peaks again from what is live and held now.
    pub fn reset_peaks(&mut self) {
        self.stats.live_peak_bytes = self.stats.live_bytes;
        self.stats.held_peak_bytes = self.stats.held_bytes;
        self.stats.live_allocations_peak = self.stats.live_allocations;
        self.stats.driver_blocks_peak = self.stats.driver_allocs - self.stats.driver_frees;
        self.stats.active_peak_bytes = self.stats.live_bytes + self.streams.pending_bytes();
    }

    /// Serves a request: the address of at least `requested` bytes, which may be
    /// used on `stream` at once. A request of zero bytes gets an address of its own.
    pub fn allocate(
        &mut self,
        driver: &mut dyn Driver,
        requested: u64,
        stream: StreamId,
    ) -> Result<u64, AllocateError> {
        if self.streams.waiting() {
            self.poll(driver);
        }
        let Ok(bytes) = self.rounded(requested) else {
            self.stats.out_of_memory += 1;
            return Err(AllocateError::OutOfMemory);
        };
        let owner = self.owner_of(stream);
        let (guess, birth) = self.lifetimes.requested(bytes);
        match self.serve(driver, guess, owner, bytes) {
            Ok(index) => {
                self.spans.set_birth(index, birth);
                let span = &mut self.spans[index];
                span.requested = requested;
                let (address, bytes) = (span.address, span.bytes);
                self.addresses.insert(address, index);
                self.used += bytes;
                self.used_peak = self.used_peak.max(self.used);
                self.lifetimes
                    .served(bytes, self.used, self.large_blocks.holes());
                self.count(requested);
                // Each request leaves less ahead; nothing at all is ahead where the program
                // is not known to repeat itself any more.
                if self.kept_for > 0 && self.lifetimes.ahead() == 0 {
                    self.shed(driver);
                }
                Ok(address)
            }
            Err(error) => {
                self.lifetimes.refused();
                self.stats.out_of_memory += u64::from(error == AllocateError::OutOfMemory);
                Err(error)
            }
        }
    }

    /// A span of `bytes` where it belongs by what is expected of it.
    fn serve(
        &mut self,
        driver: &mut dyn Driver,
        guess: Guess,
        owner: Owner,
        bytes: u64,
    ) -> Result<SpanIndex, AllocateError> {
        if bytes > self.config.max_split_bytes {
            return self.direct(driver, bytes, owner);
        }
        let region = if bytes < SMALLEST_GUESSED {
            Region::Small
        } else if guess.expectation == Expectation::Lasting {
            Region::Lasting
        } else {
            Region::Passing
        };
        let found = if guess.expectation == Expectation::Brief {
            self.find_anywhere(owner, bytes)
        } else {
            self.find(region, owner, bytes)
        };
        match found {
            Some(index) => Ok(self.take(index, owner, bytes)),
            None => self.refill(driver, region, guess, owner, bytes),
        }
    }

    fn count(&mut self, requested: u64) {
        let pending = self.streams.pending_bytes();
        let stats = &mut self.stats;
        stats.allocations += 1;
        stats.allocated_bytes += requested;
        stats.live_allocations += 1;
        stats.live_allocations_peak = stats.live_allocations_peak.max(stats.live_allocations);
        stats.live_bytes += requested;
        stats.live_peak_bytes = stats.live_peak_bytes.max(stats.live_bytes);
        stats.active_peak_bytes = stats.active_peak_bytes.max(stats.live_bytes + pending);
    }

    /// Takes back what [`allocate`](Pool::allocate) gave. Returns the bytes that were asked for.
    pub fn free(&mut self, driver: &mut dyn Driver, address: u64) -> Result<u64, FreeError> {
        let Some(index) = self.addresses.remove(&self.spans, address) else {
            let ours = self
                .blocks
                .iter()
                .any(|(_, block)| (block.address..block.address + block.bytes).contains(&address));
            return Err(if ours {
                FreeError::NotLive
            } else {
                FreeError::Unknown
            });
        };
        let birth = self.spans.birth(index);
        let Span {
            bytes,
            requested,
            shared_use,
            ..
        } = self.spans[index];
        self.stats.frees += 1;
        self.stats.live_allocations -= 1;
        self.stats.live_bytes -= requested;
        self.lifetimes
            .freed(birth, bytes, self.used - bytes, self.large_blocks.holes());
        if shared_use {
            self.defer(driver, index);
        } else {
            self.reclaim(driver, index);
        }
        if self.streams.waiting() {
            self.poll(driver);
        }
        if self.lifetimes.ahead() < self.kept_for {
            self.shed(driver);
        }
        Ok(requested)
    }

    /// Whether there were driver errors on paths that cannot fail (a free).
    pub fn has_troubles(&self) -> bool {
        !self.troubles.is_empty()
    }

    /// These errors, since the last call.
    pub fn take_troubles(&mut self) -> Vec<DriverError> {
        std::mem::take(&mut self.troubles)
    }

    fn rounded(&self, requested: u64) -> Result<u64, AllocateError> {
        requested
            .checked_add(self.config.tail_padding)
            .and_then(|bytes| round_up(bytes.max(1), self.config.granule))
            .filter(|bytes| *bytes <= i64::MAX as u64)
            .ok_or(AllocateError::OutOfMemory)
    }

    /// The best-fitting free span of the region that this owner may take.
    #[inline]
    fn find(&self, region: Region, owner: Owner, bytes: u64) -> Option<SpanIndex> {
        let own = self.free[Self::arena(region, owner)].best_fit(&self.spans, bytes);
        let anyones = &self.free[Self::arena(region, Owner::ANYONE)];
        if anyones.bytes() < bytes {
            return own;
        }
        self.better(own, anyones.best_fit(&self.spans, bytes))
    }

    /// The one that fits better; of equals, the first in position order.
    #[cold]
    fn better(&self, own: Option<SpanIndex>, other: Option<SpanIndex>) -> Option<SpanIndex> {
        let order = |index: &SpanIndex| (self.spans[*index].bytes, self.spans[*index].position);
        own.into_iter().chain(other).min_by_key(order)
    }

    fn trouble(&mut self, error: DriverError) {
        self.troubles.push(error);
    }

    fn arena(region: Region, owner: Owner) -> usize {
        usize::from(owner.0) * Region::COUNT + region as usize
    }

    fn owner_of(&mut self, stream: StreamId) -> Owner {
        let owner = self.streams.owner(stream);
        if usize::from(owner.0) * Region::COUNT >= self.free.len() {
            self.ensure_arenas();
        }
        owner
    }

    fn ensure_arenas(&mut self) {
        while self.free.len() < self.streams.owners() * Region::COUNT {
            self.free.push(FreeIndex::new(self.config.granule));
        }
    }

    fn block_of(&self, address: u64, bytes: u64, region: Region, direct: bool) -> Block {
        Block {
            address,
            bytes,
            region,
            direct,
            mapped: false,
            used: 0,
            absent: 0,
            first: SpanIndex::NONE,
            rank: self.next_rank,
        }
    }
}
