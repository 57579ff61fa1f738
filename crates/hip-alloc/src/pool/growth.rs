//! Taking blocks from the driver, and giving them back.
//!
//! Two rules keep the peak close to the live memory without knowing it:
//! a new block never takes what is held above the highest live memory so far if
//! a smaller one will do, and empty blocks go back before the pool grows past
//! that mark. Below the mark, large blocks are free of cost, and few calls.

use super::*;

/// No block is smaller, unless the driver has no more.
const SMALLEST_BLOCK: u64 = 16 * MIB;
/// Blocks are multiples of this: the page of a GPU.
const PAGE: u64 = 2 * MIB;
/// `position` orders by block first: more than any block has bytes.
const POSITIONS_PER_BLOCK_LOG2: u32 = 40;

impl Pool {
    /// Takes the warm-up floor from the driver. Stops quietly when there is less.
    pub fn warm_up(&mut self, driver: &mut dyn Driver) {
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
        self.shed(driver, keep);
    }

    /// A request that is larger than any block serves: a block of its own.
    pub(super) fn direct(
        &mut self,
        driver: &mut dyn Driver,
        bytes: u64,
        owner: Owner,
    ) -> Result<SpanIndex, AllocateError> {
        let size = round_up(bytes, PAGE.min(4096)).ok_or(AllocateError::OutOfMemory)?;
        self.make_room(driver, size);
        let block = self.new_block_or_reclaim(driver, size, Region::Passing, owner)?;
        self.blocks[block].direct = true;
        Ok(self.open(block, owner, Region::Passing, bytes))
    }

    /// No free span of the region fits: an empty block, memory of other streams, or a new block.
    pub(super) fn refill(
        &mut self,
        driver: &mut dyn Driver,
        region: Region,
        owner: Owner,
        bytes: u64,
    ) -> Result<SpanIndex, AllocateError> {
        if let Some(block) = self.empty_block(owner, bytes) {
            return Ok(self.open(block, owner, region, bytes));
        }
        if self.hand_over(driver, owner, false) {
            if let Some(index) = self.find(region, owner, bytes) {
                return Ok(self.take(index, owner, bytes));
            }
            if let Some(block) = self.empty_block(owner, bytes) {
                return Ok(self.open(block, owner, region, bytes));
            }
        }
        let size = self.growth(bytes);
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
        self.shed(driver, self.config.warmup_bytes);
    }

    /// How much may be held while one more request of `bytes` is served.
    fn ceiling(&self, bytes: u64) -> u64 {
        self.used_peak.max(self.used + bytes)
    }

    /// The size of a new block for a request of `bytes`.
    fn growth(&self, bytes: u64) -> u64 {
        let least = bytes.next_multiple_of(PAGE).max(SMALLEST_BLOCK);
        let room = self
            .ceiling(bytes)
            .saturating_sub(self.stats.held_bytes.saturating_sub(self.empty_bytes()));
        let most = room.min(self.config.large_block_bytes) / PAGE * PAGE;
        least.max(most)
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

    /// Gives back the youngest empty block; `false` if the driver refused.
    fn give_back_one(&mut self, driver: &mut dyn Driver) -> bool {
        let youngest = (0..self.empty.len()).max_by_key(|at| self.blocks[self.empty[*at]].rank);
        let Some(at) = youngest else { return false };
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
        let at = (0..self.empty.len())
            .filter(|at| {
                let block = &self.blocks[self.empty[*at]];
                let of = self.spans[block.first].owner;
                block.bytes >= bytes && (of == owner || of == Owner::ANYONE)
            })
            .min_by_key(|at| {
                let block = &self.blocks[self.empty[*at]];
                (block.bytes, block.rank)
            })?;
        Some(self.empty.swap_remove(at))
    }

    /// The best fit in any region.
    fn find_anywhere(&self, owner: Owner, bytes: u64) -> Option<SpanIndex> {
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
        self.hand_over(driver, owner, true);
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
        let size = round_up(bytes, 4096).ok_or(AllocateError::OutOfMemory)?;
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
