//! Taking blocks from the driver, and giving them back.
//!
//! Two rules keep the peak close to the live memory without knowing it: below the
//! highest live memory so far, blocks are as large as pays, since holding that much
//! costs nothing at the peak; and empty blocks go back before the pool grows past
//! that mark, where a new block is only as large as it must be.
//!
//! A block is a multiple of the request that it is opened for. The requests of a
//! step are multiples of each other (of tokens × width), so they fill such a block
//! without a remainder, where one of a round size ends in a tail that nothing fits.

use super::lifetime::{Expectation, Guess};
use super::*;

/// A block for several requests is at least this large.
const SHARED_BLOCK: u64 = 32 * MIB;
/// Blocks are multiples of this.
const BLOCK_STEP: u64 = MIB / 2;
/// Blocks of the region for small requests.
const SMALL_BLOCK: u64 = 2 * MIB;
/// A request of which nothing is known gets a block of its own from this size on: if
/// the guess is wrong it pins nothing but itself.
const ALONE: u64 = 8 * MIB;
/// When memory is tight: from this size on.
const ALONE_WHEN_TIGHT: u64 = MIB;
/// Memory is tight when less than one part in this many was left at the peak.
const TIGHT: u64 = 4;
/// An empty block does not serve a request that is smaller by more than this factor,
/// since one that stays would pin all of it.
const MOST_DISPARITY: u64 = 24;
/// Requests below this count as this large for that.
const LEAST_FOR_DISPARITY: u64 = 4 * MIB;
/// Blocks for one request are multiples of this: the page of host and device.
const DIRECT_STEP: u64 = 4096;
/// `position` orders by block first: more than any block has bytes.
const POSITIONS_PER_BLOCK_LOG2: u32 = 40;

impl Pool {
    /// Takes the warm-up floor from the driver. Stops quietly when there is less.
    pub fn warm_up(&mut self, driver: &mut dyn Driver) {
        if let Ok(info) = driver.memory_info(self.stats.held_bytes) {
            self.capacity = info.free.saturating_add(self.stats.held_bytes);
        }
        while self.stats.held_bytes + self.config.block_bytes <= self.config.warmup_bytes {
            match self.new_block(
                driver,
                self.config.block_bytes,
                Region::Lasting,
                Owner::ANYONE,
            ) {
                Ok(block) => self.empty.push(block),
                Err(_) => break,
            }
        }
    }

    /// Gives empty blocks back until at most `keep` bytes are held beyond what is live.
    pub fn trim(&mut self, driver: &mut dyn Driver, keep: u64) {
        self.settle(driver);
        self.hand_over(driver, Owner::ANYONE, true);
        self.shed(driver, keep);
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
        if region != Region::Small
            && let Some(block) = self.empty_block(owner, bytes)
        {
            return Ok(self.open(block, owner, region, bytes));
        }
        if self.hand_over(driver, owner, false) {
            if let Some(index) = self.find(region, owner, bytes) {
                return Ok(self.take(index, owner, bytes));
            }
            if region != Region::Small
                && let Some(block) = self.empty_block(owner, bytes)
            {
                return Ok(self.open(block, owner, region, bytes));
            }
        }
        let size = self.growth(bytes, region, guess);
        if self.stats.held_bytes + size > self.ceiling(bytes)
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
        if self.blocks[block].direct {
            if let Err(error) = self.depart(driver, block) {
                self.trouble(error);
                self.keep_empty(block);
            }
            return;
        }
        self.empty.push(block);
        let floor = if self.is_tight(0) {
            0
        } else {
            self.config.warmup_bytes
        };
        self.shed(driver, floor);
    }

    /// How much may be held while one more request of `bytes` is served.
    fn ceiling(&self, bytes: u64) -> u64 {
        self.used_peak.max(self.used + bytes)
    }

    /// The size of a new block for a request of `bytes`.
    fn growth(&self, bytes: u64, region: Region, guess: Guess) -> u64 {
        if region == Region::Small {
            return SMALL_BLOCK;
        }
        if self.is_tight(bytes) && bytes >= ALONE_WHEN_TIGHT {
            return bytes.next_multiple_of(DIRECT_STEP);
        }
        if guess.blind && bytes >= ALONE {
            return bytes.next_multiple_of(BLOCK_STEP);
        }
        let fewest = SHARED_BLOCK.div_ceil(bytes);
        let least = best_multiple(bytes, fewest, 2 * fewest + 2);
        if guess.expectation == Expectation::Lasting {
            return least;
        }
        let held_by_live = self.stats.held_bytes.saturating_sub(self.empty_bytes());
        let room = self.ceiling(bytes).saturating_sub(held_by_live);
        let most = room.min(self.config.large_block_bytes) / bytes;
        if most <= fewest {
            return least;
        }
        least.max(best_multiple(
            bytes,
            most.saturating_sub(3).max(fewest),
            most,
        ))
    }

    /// The program has come so close to what there is that no byte may be wasted: no
    /// floor, and as many driver calls as that takes.
    fn is_tight(&self, bytes: u64) -> bool {
        self.ceiling(bytes) > self.capacity - self.capacity / TIGHT
    }

    fn empty_bytes(&self) -> u64 {
        self.empty
            .iter()
            .map(|block| self.blocks[*block].bytes)
            .sum()
    }

    /// Gives empty blocks back so that `size` more stays under the ceiling.
    fn make_room(&mut self, driver: &mut dyn Driver, size: u64) {
        let ceiling = self.ceiling(size);
        while self.stats.held_bytes + size > ceiling && !self.empty.is_empty() {
            if !self.give_back_one(driver) {
                break;
            }
        }
    }

    fn shed(&mut self, driver: &mut dyn Driver, keep: u64) {
        while !self.empty.is_empty()
            && self.stats.held_bytes - self.streams.departing_bytes() > self.used + keep
        {
            if !self.give_back_one(driver) {
                break;
            }
        }
    }

    /// Gives back the smallest empty block, which is the least use to a later request;
    /// `false` if the driver refused.
    fn give_back_one(&mut self, driver: &mut dyn Driver) -> bool {
        let smallest = (0..self.empty.len()).min_by_key(|at| {
            let block = &self.blocks[self.empty[*at]];
            (block.bytes, block.rank)
        });
        let Some(at) = smallest else { return false };
        let block = self.empty.swap_remove(at);
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

    /// The smallest empty block that fits, out of the list of empty blocks.
    fn empty_block(&mut self, owner: Owner, bytes: u64) -> Option<BlockIndex> {
        // At the start the blocks are for whatever comes first.
        let fresh = self.stats.held_bytes <= self.config.warmup_bytes;
        let at = (0..self.empty.len())
            .filter(|at| {
                let block = &self.blocks[self.empty[*at]];
                let of = self.spans[block.first].owner;
                let largest = bytes
                    .max(LEAST_FOR_DISPARITY)
                    .saturating_mul(MOST_DISPARITY);
                block.bytes >= bytes
                    && (of == owner || of == Owner::ANYONE)
                    && (fresh || block.bytes <= largest)
            })
            .min_by_key(|at| {
                let block = &self.blocks[self.empty[*at]];
                (block.bytes, block.rank)
            })?;
        Some(self.empty.swap_remove(at))
    }

    /// The best fit in any region.
    pub(super) fn find_anywhere(&self, owner: Owner, bytes: u64) -> Option<SpanIndex> {
        [Region::Lasting, Region::Passing]
            .into_iter()
            .filter_map(|region| self.find(region, owner, bytes))
            .min_by_key(|index| self.spans[*index].bytes)
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
        while !self.empty.is_empty() && self.give_back_one(driver) {}
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
        let address = driver.allocate(size)?;
        self.stats.driver_allocs += 1;
        self.stats.held_bytes += size;
        self.stats.held_peak_bytes = self.stats.held_peak_bytes.max(self.stats.held_bytes);
        let rank = self.next_rank;
        let block = self.block_of(address, size, region, false);
        self.next_rank += 1;
        let block = self.blocks.add(block);
        let first = self.spans.add(Span {
            address,
            bytes: size,
            requested: 0,
            position: u64::from(rank) << POSITIONS_PER_BLOCK_LOG2,
            before: SpanIndex::NONE,
            after: SpanIndex::NONE,
            bin_before: SpanIndex::NONE,
            bin_after: SpanIndex::NONE,
            block,
            owner,
            state: SpanState::Free,
            shared_use: false,
            birth: Default::default(),
        });
        self.blocks[block].first = first;
        Ok(block)
    }

    /// Gives an empty block back now.
    pub(super) fn give_back(
        &mut self,
        driver: &mut dyn Driver,
        index: BlockIndex,
    ) -> Result<(), DriverError> {
        let block = &self.blocks[index];
        driver.release(block.address, block.bytes)?;
        self.stats.driver_frees += 1;
        self.stats.held_bytes -= block.bytes;
        self.spans.retire(block.first);
        self.blocks.remove(index);
        Ok(())
    }
}

/// Of the multiples of `bytes` from `fewest` to `most` times, rounded up to the step of
/// blocks, the one that wastes the smallest share; of equals, the smallest.
fn best_multiple(bytes: u64, fewest: u64, most: u64) -> u64 {
    /// Shares of waste are told apart in 256ths.
    const PARTS: u64 = 256;
    let mut best = (PARTS, u64::MAX);
    for count in fewest.max(1)..=most.max(fewest).max(1) {
        let block = (count * bytes).next_multiple_of(BLOCK_STEP);
        let waste = (block - count * bytes) * PARTS / block;
        best = best.min((waste, block));
        if waste == 0 {
            break;
        }
    }
    best.1
}
