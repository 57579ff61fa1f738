//! Taking blocks from the driver, and giving them back.
//!
//! Two rules keep the peak close to the live memory without knowing it: below the
//! highest live memory so far, blocks are as large as pays, since holding that much
//! costs nothing at the peak; and empty blocks go back before the pool grows past
//! that mark, where a new block is only as large as it must be.

use super::lifetime::Guess;
use super::sizes::{DIRECT_STEP, SMALL_BLOCK};
use super::*;

/// Memory is tight when less than one part in this many was left at the peak.
const TIGHT: u64 = 4;
/// Mapped blocks are rounded up by no more than one part in this many.
const ROUNDING_PART: u64 = 64;
/// Near the peak, holes of up to one part in this many of it stay.
const HOLE_PART: u64 = 64;
/// The floor is at most one part in this many of the capacity.
const FLOOR_PART: u64 = 4;
/// A block of the floor is at most one part in this many of the capacity.
const BLOCK_PART: u64 = 32;
/// An empty block does not serve a request that is smaller by more than this factor,
/// since one that stays would pin all of it.
const MOST_DISPARITY: u64 = 24;
/// Requests below this count as this large for that.
const LEAST_FOR_DISPARITY: u64 = 4 * MIB;
/// What lasts opens no empty block larger than this, unless it fills half of it: at the
/// end of the step all the rest would be held for it.
const LARGEST_FOR_LASTING: u64 = 128 * MIB;
/// A block that was taken for one large request serves requests down to two thirds of it:
/// those to which this part of themselves may be added.
const DIRECT_DISPARITY_PART: u64 = 2;
/// So many times what the step will use again may be held: requests of many sizes need
/// more than one set of blocks between them.
const AHEAD_HELD: u64 = 2;
/// `position` orders by block first: more than any block has bytes.
const POSITIONS_PER_BLOCK_LOG2: u32 = 40;

impl Pool {
    /// Takes the warm-up floor from the driver. Stops quietly when there is less.
    pub fn warm_up(&mut self, driver: &mut dyn Driver) {
        if let Ok(info) = driver.memory_info(self.stats.held_bytes) {
            self.capacity = info.free.saturating_add(self.stats.held_bytes);
        }
        self.mapping = driver.mapping();
        // On a small device the floor must not be what the program lacks later.
        let floor = self.config.warmup_bytes.min(self.capacity / FLOOR_PART);
        let block = self.config.block_bytes.min(self.capacity / BLOCK_PART);
        let block = (block & !(DIRECT_STEP - 1)).max(DIRECT_STEP);
        while self.stats.held_bytes + block <= floor {
            match self.new_block(driver, block, Region::Lasting, Owner::ANYONE) {
                Ok(block) => self.empty.push(block),
                Err(_) => break,
            }
        }
    }

    /// Gives empty blocks back until at most `keep` bytes are held beyond what is live.
    /// Waits for the work that still uses them, so that they are gone when this returns.
    pub fn trim(&mut self, driver: &mut dyn Driver, keep: u64) {
        self.settle(driver);
        self.hand_over(driver, Owner::ANYONE, true);
        while self.exceeds(keep) && self.give_back_one(driver) {}
        while self.exceeds(keep) && self.give_back_hole(driver) {}
        if self.streams.waiting() {
            // A block that belongs to a stream leaves behind an event.
            self.settle(driver);
        }
    }

    /// A request that is larger than any block serves: a block of its own.
    pub(super) fn direct(
        &mut self,
        driver: &mut dyn Driver,
        bytes: u64,
        owner: Owner,
    ) -> Result<SpanIndex, AllocateError> {
        if let Some(index) = self.find_anywhere(owner, bytes) {
            return Ok(self.take(index, owner, bytes));
        }
        let size = round_up(bytes, DIRECT_STEP).ok_or(AllocateError::OutOfMemory)?;
        if let Some(block) = self.empty_block(Region::Passing, owner, bytes) {
            return Ok(self.open(block, owner, Region::Passing, bytes));
        }
        self.make_room(driver, size);
        let block = self.new_block_or_reclaim(driver, size, Region::Passing, owner)?;
        self.blocks[block].direct = true;
        Ok(self.open(block, owner, Region::Passing, bytes))
    }

    /// No free span of the region fits: a hole elsewhere, an empty block, memory of
    /// other streams, or a new block.
    pub(super) fn refill(
        &mut self,
        driver: &mut dyn Driver,
        region: Region,
        guess: Guess,
        owner: Owner,
        bytes: u64,
    ) -> Result<SpanIndex, AllocateError> {
        // What passes does no harm in the holes between what lasts.
        if region == Region::Passing
            && let Some(index) = self.find_anywhere(owner, bytes)
        {
            return Ok(self.take(index, owner, bytes));
        }
        if let Some(block) = self.empty_block(region, owner, bytes) {
            return Ok(self.open(block, owner, region, bytes));
        }
        if self.hand_over(driver, owner, false) {
            if let Some(index) = self.find(region, owner, bytes) {
                return Ok(self.take(index, owner, bytes));
            }
            if let Some(block) = self.empty_block(region, owner, bytes) {
                return Ok(self.open(block, owner, region, bytes));
            }
        }
        let size = self.growth(bytes, region, guess);
        if self.stats.held_bytes + size > self.ceiling(bytes)
            && region != Region::Small
            && let Some(index) = self.find_anywhere(owner, bytes)
        {
            return Ok(self.take(index, owner, bytes));
        }
        self.make_room(driver, size);
        match self.new_block_or_reclaim(driver, size, region, owner) {
            Ok(block) => Ok(self.open(block, owner, region, bytes)),
            Err(AllocateError::OutOfMemory) => self.last_resort(driver, region, owner, bytes),
            Err(error) => Err(error),
        }
    }

    /// A block became empty.
    pub(super) fn emptied(&mut self, driver: &mut dyn Driver, block: BlockIndex) {
        self.empty.push(block);
        if self.blocks[block].absent > 0 {
            self.give_back_at(driver, self.empty.len() - 1);
        }
        self.shed(driver);
    }

    /// How much may be held while one more request of `bytes` is served.
    pub(super) fn ceiling(&self, bytes: u64) -> u64 {
        self.used_peak.max(self.used + bytes)
    }

    /// The program has come so close to what there is that no byte may be wasted: no
    /// floor, and as many driver calls as that takes.
    pub(super) fn is_tight(&self, bytes: u64) -> bool {
        self.ceiling(bytes) > self.capacity - self.capacity / TIGHT
    }

    pub(super) fn empty_bytes(&self) -> u64 {
        self.empty
            .iter()
            .map(|block| self.blocks[*block].held())
            .sum()
    }

    /// Gives empty blocks back so that `size` more stays under the ceiling.
    fn make_room(&mut self, driver: &mut dyn Driver, size: u64) {
        let ceiling = self.ceiling(size);
        while self.stats.held_bytes + size > ceiling && self.give_back_one(driver) {}
        // Handles are only given back for what is more than a remainder.
        let ceiling = ceiling.saturating_add(ceiling / HOLE_PART);
        while self.stats.held_bytes - self.streams.departing_bytes() + size > ceiling
            && self.give_back_hole(driver)
        {}
    }

    /// Gives empty blocks back until no more than the floor is held beyond what is live, or
    /// twice what the rest of the step will use beyond that: which block serves which
    /// request is never quite the same.
    pub(super) fn shed(&mut self, driver: &mut dyn Driver) {
        let ahead = self.lifetimes.ahead();
        let floor = self.config.warmup_bytes;
        let keep = match self.is_tight(0) {
            true => 0,
            false => floor.max(ahead.saturating_mul(AHEAD_HELD)),
        };
        while self.exceeds(keep) && self.give_back_one(driver) {}
        while self.exceeds(keep) && self.give_back_hole(driver) {}
        self.kept_for = if self.exceeds(floor) { ahead } else { 0 };
    }

    /// Whether more than `keep` is held beyond what is live.
    fn exceeds(&self, keep: u64) -> bool {
        let held = self.stats.held_bytes - self.streams.departing_bytes();
        held > self.used.saturating_add(keep)
    }

    /// Of the empty blocks that may go, the one that goes first: large ones that serve
    /// little else, then those that were not used for the longest time.
    fn first_to_go(&self) -> Option<usize> {
        let spare = |block: &BlockIndex| {
            let block = &self.blocks[*block];
            block.absent > 0 || block.direct
        };
        let oldest = (!self.empty.is_empty()).then_some(0);
        self.empty.iter().position(spare).or(oldest)
    }

    /// `false` if there is nothing to give back, or the driver refused.
    fn give_back_one(&mut self, driver: &mut dyn Driver) -> bool {
        self.first_to_go()
            .is_some_and(|at| self.give_back_at(driver, at))
    }

    fn give_back_at(&mut self, driver: &mut dyn Driver, at: usize) -> bool {
        let block = self.empty.remove(at);
        if let Err(error) = self.depart(driver, block) {
            self.trouble(error);
            self.keep_empty(block);
            return false;
        }
        true
    }

    /// The driver did not take a block back: it serves as an ordinary one.
    pub(super) fn keep_empty(&mut self, block: BlockIndex) {
        self.blocks[block].direct = false;
        self.empty.push(block);
    }

    /// The smallest empty block that fits, out of the list of empty blocks. Small requests
    /// only get blocks as small as they would ask for.
    fn empty_block(&mut self, region: Region, owner: Owner, bytes: u64) -> Option<BlockIndex> {
        let small = region == Region::Small;
        // At the start the blocks are for whatever comes first.
        let fresh = self.stats.held_bytes <= self.config.warmup_bytes && !small;
        let at = (0..self.empty.len())
            .filter(|at| {
                let block = &self.blocks[self.empty[*at]];
                let of = self.spans[block.first].owner;
                let largest = if small {
                    SMALL_BLOCK.1
                } else if block.direct {
                    bytes + bytes / DIRECT_DISPARITY_PART
                } else {
                    let largest = bytes
                        .max(LEAST_FOR_DISPARITY)
                        .saturating_mul(MOST_DISPARITY);
                    match region {
                        Region::Lasting => largest.min(LARGEST_FOR_LASTING.max(2 * bytes)),
                        _ => largest,
                    }
                };
                block.bytes >= bytes
                    && block.absent == 0
                    && (of == owner || of == Owner::ANYONE)
                    && (fresh && !block.direct || block.bytes <= largest)
            })
            .min_by_key(|at| {
                let block = &self.blocks[self.empty[*at]];
                (block.bytes, block.rank)
            })?;
        Some(self.empty.remove(at))
    }

    /// The best fit in any region.
    pub(super) fn find_anywhere(&self, owner: Owner, bytes: u64) -> Option<SpanIndex> {
        let lasting = self.find(Region::Lasting, owner, bytes);
        let passing = self.find(Region::Passing, owner, bytes);
        match (lasting, passing) {
            (Some(lasting), Some(passing)) => {
                let closer = self.spans[passing].bytes < self.spans[lasting].bytes;
                Some(if closer { passing } else { lasting })
            }
            _ => lasting.or(passing),
        }
    }

    /// The first `bytes` of an empty block, which begins to serve `region`.
    fn open(&mut self, block: BlockIndex, owner: Owner, region: Region, bytes: u64) -> SpanIndex {
        self.blocks[block].region = region;
        let first = self.blocks[block].first;
        self.carve(first, owner, bytes)
    }

    /// A new block; before giving up, everything that can go back goes back.
    fn new_block_or_reclaim(
        &mut self,
        driver: &mut dyn Driver,
        size: u64,
        region: Region,
        owner: Owner,
    ) -> Result<BlockIndex, AllocateError> {
        match self.new_block(driver, size, region, owner) {
            Err(DriverError::OutOfMemory) => {}
            Err(error) => return Err(AllocateError::Driver(error)),
            Ok(block) => return Ok(block),
        }
        self.settle(driver);
        self.hand_over(driver, Owner::ANYONE, true);
        while self.give_back_one(driver) {}
        while self.give_back_hole(driver) {}
        self.settle(driver);
        self.new_block(driver, size, region, owner)
            .map_err(|error| match error {
                DriverError::OutOfMemory => AllocateError::OutOfMemory,
                error => AllocateError::Driver(error),
            })
    }

    /// The driver has no block of the size we wanted: any hole, then a block of just this size.
    fn last_resort(
        &mut self,
        driver: &mut dyn Driver,
        region: Region,
        owner: Owner,
        bytes: u64,
    ) -> Result<SpanIndex, AllocateError> {
        if let Some(index) = self.find_anywhere(owner, bytes) {
            return Ok(self.take(index, owner, bytes));
        }
        let size = round_up(bytes, DIRECT_STEP).ok_or(AllocateError::OutOfMemory)?;
        match self.new_block(driver, size, region, owner) {
            Ok(block) => Ok(self.open(block, owner, region, bytes)),
            Err(DriverError::OutOfMemory) => Err(AllocateError::OutOfMemory),
            Err(error) => Err(AllocateError::Driver(error)),
        }
    }

    fn new_block(
        &mut self,
        driver: &mut dyn Driver,
        size: u64,
        region: Region,
        owner: Owner,
    ) -> Result<BlockIndex, DriverError> {
        let (address, size, mapped) = self.take_from(driver, size)?;
        self.stats.driver_allocs += if mapped { self.handles(size) } else { 1 };
        self.stats.driver_alloc_bytes += size;
        self.stats.driver_blocks_peak = self
            .stats
            .driver_blocks_peak
            .max(self.stats.driver_allocs - self.stats.driver_frees);
        self.stats.held_bytes += size;
        self.stats.held_peak_bytes = self.stats.held_peak_bytes.max(self.stats.held_bytes);
        let rank = self.next_rank;
        let mut block = self.block_of(address, size, region, false);
        block.mapped = mapped;
        self.next_rank += 1;
        let block = self.blocks.add(block);
        let position = u64::from(rank) << POSITIONS_PER_BLOCK_LOG2;
        let first = self
            .spans
            .add(Span::whole(block, address, size, position, owner));
        self.blocks[block].first = first;
        Ok(block)
    }

    /// Memory for a block, in handles if it is large enough for that to be of use; its
    /// address, its size and whether it is. Where every byte counts there are no handles:
    /// they are rounded up.
    fn take_from(
        &mut self,
        driver: &mut dyn Driver,
        size: u64,
    ) -> Result<(u64, u64, bool), DriverError> {
        if let Some(mapping) = self.mapping
            && !self.mapping_failed
            && size > mapping.handle
            && let rounded = size.next_multiple_of(mapping.granule)
            && rounded - size <= size / ROUNDING_PART
            && !self.is_tight(0)
            && size <= self.config.max_split_bytes.max(self.config.block_bytes)
        {
            match driver.allocate_mapped(rounded) {
                Ok(address) => return Ok((address, rounded, true)),
                Err(DriverError::OutOfMemory) => return Err(DriverError::OutOfMemory),
                // Out of file descriptors, for one: ordinary memory still serves.
                Err(error) => {
                    self.mapping_failed = true;
                    self.trouble(error);
                }
            }
        }
        driver.allocate(size).map(|address| (address, size, false))
    }

    /// Gives an empty block back now.
    pub(super) fn give_back(
        &mut self,
        driver: &mut dyn Driver,
        index: BlockIndex,
    ) -> Result<(), DriverError> {
        let block = &self.blocks[index];
        driver.release(block.address, block.bytes)?;
        self.stats.held_bytes -= block.held();
        self.stats.driver_frees += if block.mapped {
            self.handles(block.held())
        } else {
            1
        };
        self.spans.retire(block.first);
        self.blocks.remove(index);
        Ok(())
    }
}
