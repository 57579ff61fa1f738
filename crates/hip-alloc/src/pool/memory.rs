//! Moves memory between the driver, the heap and the streams.
//!
//! ```text
//!  driver ──▶ block ──▶ span in use ──▶ waits for streams ──▶ free ──▶ empty block ──▶ driver
//!             take_block                release                        give_back
//! ```
//!
//! Two rules keep the peak close to live memory without knowing it in advance: below the
//! highest live memory so far, blocks are as large as useful, since holding that much
//! costs nothing at the peak; and empty blocks are returned before the pool grows past
//! that mark ([`Memory::make_room`]).

use super::PoolConfig;
use super::device_memory::DeviceMemory;
use super::heap::{BlockIndex, Freed, Heap, Owner, SpanIndex};
use super::policy::{Held, Policy, Region, Usage};
use super::reclaimer::{Reclaimer, Spare};
use super::restraint::Restraint;
use super::stream_fences::{Departing, Errors, FenceCheck, StreamFences};
use crate::driver::{Driver, DriverError};
use crate::units::MIB;

/// The step block, with what else is in use between steps, is larger than the highest usage by
/// this fraction: spans never fill it without gaps.
const GAPS_PART: u64 = 64;
/// The step block is this many quarters of the rest, which leaves memory for requests that do not fit in.
const SHARE_QUARTERS: u64 = 3;
/// A request that does not fit in causes that much more to be held: if the largest one is more than
/// this fraction of the highest usage, there is no step block.
const MISFIT_PART: u64 = 13;
/// A smaller step block is not worthwhile.
const LEAST_STEP_BLOCK: u64 = 256 * MIB;
/// Nor is a replacement that is larger only by this fraction.
const LARGER_PART: u64 = 64;
/// A step block that is partly in use stays, unless it is a smaller fraction than this of the next.
const PINNED_PART: u64 = 2;
/// The highest usage has grown if it is higher by this fraction.
const GROWTH_PART: u64 = 64;
/// Its size is a multiple of this.
const STEP_BLOCK_UNIT: u64 = 2 * MIB;
/// It is returned to make room for a request of at least this fraction of it.
const WORTH_STEP_PART: u64 = 4;

/// Near the peak, holes of up to this fraction of it stay.
const HOLE_PART: u64 = 64;

/// The heap, pending frees, and the memory from the driver.
pub(crate) struct Memory {
    pub(crate) heap: Heap,
    pub(crate) fences: StreamFences,
    pub(crate) device: DeviceMemory,
    pub(crate) reclaimer: Reclaimer,
    /// No larger block is mapped.
    pub(super) most_mapped: u64,
    /// What must not be done at the moment.
    pub(super) restraint: Restraint,
    /// Bytes that were returned only to make room for others, since the step block was last created.
    displaced: u64,
    /// The largest block that a transient request needed.
    largest_transient: u64,
    /// The highest usage when counting these began.
    displaced_at: u64,
    /// Driver errors that could not be returned to a caller.
    pub(crate) errors: Errors,
}

impl Memory {
    pub(crate) fn new(config: &PoolConfig) -> Self {
        let mut heap = Heap::new(config.granule);
        heap.ensure_owner(Owner::ANYONE);
        Memory {
            heap,
            fences: StreamFences::default(),
            device: DeviceMemory::new(),
            reclaimer: Reclaimer::new(config.keep, config.warmup_bytes, config.floor_part),
            most_mapped: config.max_split_bytes.max(config.block_bytes),
            restraint: Restraint::default(),
            displaced: 0,
            displaced_at: 0,
            largest_transient: 0,
            errors: Errors::new(),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            used: self.heap.used(),
            used_peak: self.heap.used_peak(),
            capacity: self.device.capacity,
        }
    }

    pub(crate) fn state(&self) -> Held {
        Held {
            usage: self.usage(),
            in_use: self.device.held().saturating_sub(self.heap.empty_bytes()),
            small: self.heap.small_bytes(),
        }
    }

    /// Memory that is held and not being returned.
    pub(crate) fn staying(&self) -> u64 {
        self.device.held() - self.fences.departing_bytes()
    }

    /// How large an empty block may be for a transient request of any size to open it.
    /// Even if the rest of the block served nobody, blocks in use and the known further growth of
    /// usage until its next minimum, when the block is empty again, stay within the
    /// highest usage. Without this, blocks of one part of a step would displace those of another.
    pub(crate) fn headroom(&self, policy: &impl Policy) -> u64 {
        let usage = self.usage();
        match policy.known_growth() {
            Some(growth) if self.reclaimer.keeps() && !usage.is_tight(0) => {
                let needed = self.state().in_use.saturating_add(growth);
                usage.used_peak.saturating_sub(needed)
            }
            _ => 0,
        }
    }

    /// Whether more than `slack` is held beyond what is in use.
    fn exceeds(&self, slack: u64) -> bool {
        self.staying() > self.heap.used().saturating_add(slack)
    }

    /// Allocates a new block: one free span, in no list.
    pub(crate) fn take_block(
        &mut self,
        driver: &mut dyn Driver,
        bytes: u64,
        region: Region,
        owner: Owner,
    ) -> Result<BlockIndex, DriverError> {
        // When memory is tight, there are no handles, since they are rounded up.
        let may_map = bytes <= self.most_mapped && !self.usage().is_tight(0);
        let taken = self.device.take(driver, bytes, may_map, &mut self.errors)?;
        Ok(self
            .heap
            .add_block(taken.address, taken.bytes, region, owner, taken.mapped))
    }

    /// Like [`take_block`](Memory::take_block); before giving up, everything possible
    /// is returned.
    pub(crate) fn take_block_or_reclaim(
        &mut self,
        driver: &mut dyn Driver,
        policy: &impl Policy,
        bytes: u64,
        region: Region,
        owner: Owner,
    ) -> Result<BlockIndex, DriverError> {
        if region == Region::Transient {
            self.largest_transient = self.largest_transient.max(bytes);
            if self.has_misfits() {
                self.heap.retire_step_block();
            }
        }
        match self.take_block(driver, bytes, region, owner) {
            Err(DriverError::OutOfMemory) if !self.restraint.captured => {}
            result => return result,
        }
        self.device.count_retry();
        self.device.count_sync();
        self.settle(driver, policy);
        self.hand_over(driver, policy, Owner::ANYONE, FenceCheck::Wait);
        while self.give_back_one(driver, Spare::Any) {}
        while self.give_back_hole(driver, policy) {}
        self.settle(driver, policy);
        self.take_block(driver, bytes, region, owner)
    }

    /// The program freed a span: it becomes free, or waits for the streams that use it.
    #[inline]
    pub(crate) fn free(
        &mut self,
        driver: &mut dyn Driver,
        policy: &impl Policy,
        span: SpanIndex,
        (requested, shared): (u64, bool),
    ) {
        if shared && self.defer(driver, span, requested) {
            self.heap.set_pending(span);
        } else {
            self.release(driver, policy, span);
        }
        if self.displaced >= LEAST_STEP_BLOCK
            && let Some(bytes) = self.wanted_step_block(policy)
        {
            self.make_step_block(driver, policy, bytes);
        }
    }

    /// Whether a freed span has to wait for the streams that were recorded on it.
    fn defer(&mut self, driver: &mut dyn Driver, span: SpanIndex, requested: u64) -> bool {
        let driver = (!self.restraint.captured).then_some(driver);
        (self.fences).defer(driver, span, requested, &mut self.errors)
    }

    /// Makes a span free that nothing uses any more.
    #[inline]
    fn release(&mut self, driver: &mut dyn Driver, policy: &impl Policy, span: SpanIndex) {
        let freed_at = self.fences.next_free(self.heap.owner(span));
        match self.heap.free(span, freed_at) {
            Freed::Part { mapped: false, .. } => {}
            Freed::Part { bytes, .. } => {
                if self.device.handle().is_some_and(|handle| bytes >= handle) {
                    self.trim_to_slack(driver, policy);
                }
            }
            Freed::Pieces(block) => self.unite(driver, policy, block),
            Freed::Block(block) => self.emptied(driver, policy, block),
        }
    }

    /// Handles a block that became empty.
    fn emptied(&mut self, driver: &mut dyn Driver, policy: &impl Policy, block: BlockIndex) {
        self.heap.list_empty(block);
        if self.heap.block(block).absent > 0 && self.restraint.may_give_back() {
            self.give_back_at(driver, self.heap.empty().len() - 1);
        }
        self.trim_to_slack(driver, policy);
    }

    /// The size of the step block that should replace all empty blocks, if any.
    /// It costs one exchange of the memory that a step swings: worthwhile once that much was returned and
    /// reallocated for nothing, and only if the driver takes more than its share of the time.
    fn wanted_step_block(&self, policy: &impl Policy) -> Option<u64> {
        if self.displaced < LEAST_STEP_BLOCK
            || !self.reclaimer.keeps_between_steps()
            || !policy.is_between_steps()
            || !self.restraint.may_give_back()
            || self.device.time.has_credit()
        {
            return None;
        }
        let usage = self.usage();
        if self.has_misfits() {
            return None;
        }
        let most = usage.used_peak + usage.used_peak / GAPS_PART;
        let room = most.saturating_sub(self.state().in_use) / 4 * SHARE_QUARTERS;
        let bytes = room - room % STEP_BLOCK_UNIT;
        let now = self.heap.step_block().map_or(0, |block| match block.used {
            0 => block.bytes,
            _ => block.bytes.saturating_mul(PINNED_PART),
        });
        let is_larger = bytes > now.saturating_add(now / LARGER_PART);
        let pays = self.displaced >= bytes && bytes >= LEAST_STEP_BLOCK;
        (is_larger && pays && !usage.is_tight(0)).then_some(bytes)
    }

    /// Whether a request that does not fit into the step block would cause too much to be held.
    fn has_misfits(&self) -> bool {
        self.largest_transient > self.heap.used_peak() / MISFIT_PART
    }

    /// Replaces all empty blocks by the step block, which serves the stream that most of them
    /// served. If there is not enough contiguous memory for it, the next steps have none.
    fn make_step_block(&mut self, driver: &mut dyn Driver, policy: &impl Policy, bytes: u64) {
        self.displaced = 0;
        let Some(owner) = self.heap.owner_of_most_empty() else {
            return;
        };
        self.heap.retire_step_block();
        while self.give_back_one(driver, Spare::Any) {}
        if self.fences.departing_bytes() > 0 {
            self.device.count_sync();
            self.settle(driver, policy);
        }
        let taken = self
            .device
            .take(driver, bytes, false, &mut self.errors)
            .map(|taken| {
                let (address, bytes) = (taken.address, taken.bytes);
                let region = Region::Persistent;
                (self.heap).add_block(address, bytes, region, owner, false)
            });
        // A problem with the driver will show at the next request that needs it.
        if let Ok(block) = taken {
            self.heap.begin_step_block(block, owner);
            self.heap.list_empty(block);
        }
    }

    /// Makes a block one empty block if nothing in it is used but its pieces belong to several streams,
    /// provided that their work is done. Otherwise that happens at the
    /// next hand-over.
    fn unite(&mut self, driver: &mut dyn Driver, policy: &impl Policy, block: BlockIndex) {
        if self.restraint.captured {
            return;
        }
        let Some(owners) = self.heap.owners_of_pieces(block) else {
            return;
        };
        for owner in owners {
            match self.fences.is_idle(driver, owner) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.errors.push(error),
            }
        }
        self.heap.unite(block);
        self.emptied(driver, policy, block);
    }

    /// Checks, without waiting, which freed spans and empty blocks are safe by now.
    pub(crate) fn poll(&mut self, driver: &mut dyn Driver, policy: &impl Policy) {
        if !self.restraint.captured {
            self.finish(driver, policy, FenceCheck::Query);
        }
    }

    /// Waits until every freed span and departing block is safe. If there is no event
    /// to wait for, waits for the whole device.
    fn settle(&mut self, driver: &mut dyn Driver, policy: &impl Policy) {
        if self.restraint.captured {
            return;
        }
        self.finish(driver, policy, FenceCheck::Wait);
        if self.fences.synchronize(driver, &mut self.errors) {
            self.finish(driver, policy, FenceCheck::Wait);
        }
    }

    fn finish(&mut self, driver: &mut dyn Driver, policy: &impl Policy, check: FenceCheck) {
        let errors = &mut self.errors;
        for span in self.fences.take_completed(driver, check, errors) {
            self.release(driver, policy, span);
        }
        let errors = &mut self.errors;
        for (what, bytes) in self.fences.take_departed(driver, check, errors) {
            self.fences.left(bytes);
            match what {
                Departing::Block(block) => {
                    self.heap.give_block_to_anyone(block);
                    if let Err(error) = self.give_back(driver, block) {
                        self.keep_empty(block, error);
                    }
                }
                Departing::Part(part) => {
                    self.give_back_part(driver, policy, part);
                }
            }
        }
    }

    /// Makes memory that other streams freed available to everyone, if their work on it
    /// is done. Returns whether anything became available.
    pub(crate) fn hand_over(
        &mut self,
        driver: &mut dyn Driver,
        policy: &impl Policy,
        to: Owner,
        check: FenceCheck,
    ) -> bool {
        let mut any = false;
        if self.restraint.captured {
            return any;
        }
        for owner in self.fences.owners() {
            if owner == to || !self.heap.has_free(owner) {
                continue;
            }
            let until = match self.fences.safe_until(driver, owner, check) {
                Ok(0) => continue,
                Ok(until) => until,
                Err(error) => {
                    self.errors.push(error);
                    continue;
                }
            };
            let released = self.heap.release_to_anyone(owner, until);
            any |= released.any;
            for block in released.whole {
                self.emptied(driver, policy, block);
            }
            for block in released.pieces {
                if self.heap.is_in_pieces(block) {
                    self.unite(driver, policy, block);
                }
            }
        }
        any
    }

    /// Returns empty blocks until at most `slack` bytes are held beyond what is in use.
    /// Waits for work that still uses them, so that they have been returned when this returns.
    pub(crate) fn trim(&mut self, driver: &mut dyn Driver, policy: &impl Policy, slack: u64) {
        if self.restraint.captured {
            return;
        }
        self.device.count_sync();
        self.settle(driver, policy);
        self.hand_over(driver, policy, Owner::ANYONE, FenceCheck::Wait);
        self.trim_to(driver, policy, slack, Spare::Any);
        if self.fences.waiting() {
            // A block that belongs to a stream leaves an event behind.
            self.settle(driver, policy);
        }
    }

    /// Returns empty blocks until no more is held beyond what is in use than
    /// [`Reclaimer::slack`] allows.
    pub(crate) fn trim_to_slack(&mut self, driver: &mut dyn Driver, policy: &impl Policy) {
        let usage = self.usage();
        let time = &mut self.device.time;
        let affordable = || time.affordable(driver.now());
        let slack = self.reclaimer.slack(policy, usage, affordable);
        // The step block is returned only if all of it is too much.
        let spare = match self.heap.step_block() {
            Some(step)
                if self.reclaimer.keeps()
                    && !usage.is_tight(0)
                    && !self.exceeds(slack.saturating_add(step.bytes)) =>
            {
                Spare::NotStep
            }
            _ => Spare::Any,
        };
        self.trim_to(driver, policy, slack, spare);
        let (staying, usage) = (self.staying(), self.usage());
        self.reclaimer.trimmed(policy, staying, usage);
    }

    /// Like [`trim`](Memory::trim), but memory that work in flight uses stays for now.
    pub(crate) fn trim_ready(&mut self, driver: &mut dyn Driver, policy: &impl Policy, slack: u64) {
        self.poll(driver, policy);
        self.hand_over(driver, policy, Owner::ANYONE, FenceCheck::Query);
        self.trim_to(driver, policy, slack, Spare::Any);
    }

    /// Whether work in flight uses freed memory.
    pub(crate) fn works(&mut self, driver: &mut dyn Driver) -> bool {
        let mut owners = self.fences.owners();
        self.restraint.captured
            || owners.any(|owner| !matches!(self.fences.is_idle(driver, owner), Ok(true)))
    }

    fn trim_to(&mut self, driver: &mut dyn Driver, policy: &impl Policy, slack: u64, spare: Spare) {
        while self.exceeds(slack) && self.give_back_one(driver, spare) {}
        while self.exceeds(slack) && self.give_back_hole(driver, policy) {}
    }

    /// Returns empty blocks so that `bytes` more stay under the ceiling.
    pub(crate) fn make_room(&mut self, driver: &mut dyn Driver, policy: &impl Policy, bytes: u64) {
        let ceiling = self.usage().ceiling(bytes);
        // The step block stays if the request is small in comparison.
        let spare = match self.heap.step_block() {
            Some(step) if bytes < step.bytes / WORTH_STEP_PART => Spare::NotStep,
            _ => Spare::Any,
        };
        let empty = self.heap.empty_bytes();
        while self.device.held() + bytes > ceiling && self.give_back_one(driver, spare) {}
        // Memory that a growing program displaces does not predict the steps to come.
        let peak = self.heap.used_peak();
        if peak > self.displaced_at + self.displaced_at / GROWTH_PART {
            self.displaced_at = peak;
            self.displaced = 0;
        }
        self.displaced += empty - self.heap.empty_bytes();
        // Handles are only returned for more than a small remainder.
        let ceiling = ceiling.saturating_add(ceiling / HOLE_PART);
        while self.staying() + bytes > ceiling && self.give_back_hole(driver, policy) {}
    }

    /// `false` if there is nothing to return, or the driver refused.
    fn give_back_one(&mut self, driver: &mut dyn Driver, spare: Spare) -> bool {
        self.restraint.may_give_back()
            && Reclaimer::first_to_go(&self.heap, spare)
                .is_some_and(|at| self.give_back_at(driver, at))
    }

    fn give_back_at(&mut self, driver: &mut dyn Driver, at: usize) -> bool {
        let block = self.heap.unlist_empty(at);
        let sent = self.send_back(driver, block);
        sent.map_err(|error| self.keep_empty(block, error)).is_ok()
    }

    /// Returns an empty block, as soon as its stream is done with it.
    fn send_back(&mut self, driver: &mut dyn Driver, block: BlockIndex) -> Result<(), DriverError> {
        let owner = self.heap.owner_of_block(block);
        if owner != Owner::ANYONE
            && let Some(event) = driver.record(self.fences.id(owner))?
        {
            let bytes = self.heap.block(block).held();
            self.fences.depart(Departing::Block(block), bytes, event);
            return Ok(());
        }
        self.heap.give_block_to_anyone(block);
        self.give_back(driver, block)
    }

    fn give_back(&mut self, driver: &mut dyn Driver, block: BlockIndex) -> Result<(), DriverError> {
        self.device.release(driver, self.heap.block(block))?;
        self.heap.remove_block(block);
        Ok(())
    }

    /// The driver did not accept a block: it is used as an ordinary one.
    fn keep_empty(&mut self, block: BlockIndex, error: DriverError) {
        self.errors.push(error);
        self.heap.set_direct(block, false);
        self.heap.list_empty(block);
    }

    /// Returns whole handles of the largest free span that has any; `false` if there is
    /// none, or the driver refused.
    fn give_back_hole(&mut self, driver: &mut dyn Driver, policy: &impl Policy) -> bool {
        let hole = self.device.handle();
        let hole = hole.filter(|_| self.restraint.may_give_back());
        let Some(hole) = hole.and_then(|handle| self.heap.largest_hole(handle)) else {
            return false;
        };
        let owner = self.heap.owner(hole.span);
        let event = match owner {
            Owner::ANYONE => Ok(None),
            _ => driver.record(self.fences.id(owner)),
        };
        match event {
            Ok(None) => {
                let part = self.heap.isolate(hole);
                self.give_back_part(driver, policy, part)
            }
            Ok(Some(event)) => {
                let part = Departing::Part(self.heap.isolate(hole));
                self.fences.depart(part, hole.end - hole.start, event);
                true
            }
            Err(error) => {
                self.errors.push(error);
                false
            }
        }
    }

    /// Returns a part that no work in flight uses any more, unless the driver refuses.
    fn give_back_part(
        &mut self,
        driver: &mut dyn Driver,
        policy: &impl Policy,
        part: SpanIndex,
    ) -> bool {
        let (address, bytes) = (self.heap.address(part), self.heap.bytes(part));
        if let Err(error) = self.device.release_part(driver, address, bytes) {
            self.errors.push(error);
            if let Freed::Block(block) = self.heap.part_stays(part) {
                self.emptied(driver, policy, block);
            }
            return false;
        }
        if let Some(block) = self.heap.part_left(part) {
            self.unite(driver, policy, block);
        }
        true
    }
}
