//! Moves memory between the driver, the heap and the streams.
//!
//! ```text
//!  driver ──▶ block ──▶ span in use ──▶ waits for streams ──▶ free ──▶ empty block ──▶ driver
//!             take_block                free_span                     release_block
//! ```
//!
//! Two rules keep the peak close to live memory without knowing it in advance: below the
//! highest live memory so far, blocks are as large as useful, since holding that much
//! costs nothing at the peak; and empty blocks are returned before the pool grows past
//! that mark ([`Memory::make_room`]).

use super::PoolConfig;
use super::device_memory::Device;
use super::heap::{Block, BlockIndex, Freed, Heap, Owner, SpanIndex};
use super::policy::{Held, Policy, Region, Usage};
use super::reclaimer::{Reclaimer, Spare};
use super::restraint::Restraint;
use super::stream_fences::{FenceCheck, StreamFences};
use crate::driver::DriverError;
use crate::units::{MIB, StreamId};

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

/// This fraction of the highest usage is left for requests that open no empty block.
const SPARE_PART: u64 = 64;

/// The heap, pending frees, the device, and the policy for all of it.
pub(crate) struct Memory {
    pub(crate) policy: Policy,
    pub(crate) heap: Heap,
    pub(crate) fences: StreamFences,
    pub(crate) device: Device,
    /// The driver's capacity at the start.
    pub(crate) capacity: u64,
    /// Bytes behind every block.
    guard: u64,
    pub(crate) reclaimer: Reclaimer,
    /// What must not be done at the moment.
    pub(super) restraint: Restraint,
    /// Bytes that were returned only to make room for others, since the step block was last created.
    displaced: u64,
    /// The largest block that a transient request needed.
    largest_transient: u64,
    /// The highest usage when counting these began.
    displaced_at: u64,
}

impl Memory {
    pub(crate) fn new(config: &PoolConfig, device: Device, policy: Policy) -> Self {
        let info = device.lock().info();
        let mut heap = Heap::new(config.granule);
        heap.ensure_owner(Owner::ANYONE);
        Memory {
            policy,
            heap,
            fences: StreamFences::new(device.clone()),
            device,
            capacity: info.map_or(u64::MAX, |info| info.free),
            guard: config.guard,
            reclaimer: Reclaimer::new(config.keep, config.warmup_bytes, config.floor_part),
            restraint: Restraint::default(),
            displaced: 0,
            displaced_at: 0,
            largest_transient: 0,
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            used: self.heap.used(),
            used_peak: self.heap.used_peak(),
            capacity: self.capacity,
        }
    }

    pub(crate) fn state(&self) -> Held {
        Held {
            usage: self.usage(),
            in_use: self.heap.held().saturating_sub(self.heap.empty_bytes()),
            small: self.heap.small_bytes(),
        }
    }

    /// The owner for the stream of a request.
    #[inline]
    pub(crate) fn owner(&mut self, stream: StreamId) -> Option<Owner> {
        self.fences.owner(stream, self.restraint.captured)
    }

    /// Memory that is held and not being returned.
    pub(crate) fn staying(&self) -> u64 {
        self.heap.held() - self.fences.departing_bytes()
    }

    /// How large an empty block may be for a transient request of any size to open it.
    /// Even if the rest of the block served nobody, blocks in use and the known further growth of
    /// usage until its next minimum, when the block is empty again, stay within the
    /// highest usage. Without this, blocks of one part of a step would displace those of another.
    pub(crate) fn headroom(&self) -> u64 {
        let usage = self.usage();
        match self.policy.growth() {
            Some(growth) if self.reclaimer.keeps() && !usage.is_tight(0) => {
                let needed = self.state().in_use.saturating_add(growth);
                let most = usage.used_peak - usage.used_peak / SPARE_PART;
                most.saturating_sub(needed)
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
        bytes: u64,
        region: Region,
        owner: Owner,
    ) -> Result<BlockIndex, DriverError> {
        let address = self.device.lock().take(bytes, self.guard)?;
        Ok(self.heap.add_block(address, bytes, region, owner))
    }

    /// Like [`take_block`](Memory::take_block); before giving up, everything possible
    /// is returned.
    pub(crate) fn take_block_or_reclaim(
        &mut self,
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
        match self.take_block(bytes, region, owner) {
            Err(DriverError::OutOfMemory) if !self.restraint.captured => {}
            result => return result,
        }
        self.device.lock().count_retry();
        self.device.lock().count_sync();
        self.settle();
        self.hand_over(Owner::ANYONE, FenceCheck::Wait);
        while self.release_one(Spare::Any) {}
        self.settle();
        self.take_block(bytes, region, owner)
    }

    /// The program freed a span: it becomes free, or waits for the streams that use it.
    #[inline]
    pub(crate) fn free(&mut self, span: SpanIndex, (requested, shared): (u64, bool)) {
        if shared && self.defer(span, requested) {
            self.heap.set_pending(span);
        } else {
            self.free_span(span);
        }
        if self.displaced >= LEAST_STEP_BLOCK
            && let Some(bytes) = self.wanted_step_block()
        {
            self.make_step_block(bytes);
        }
    }

    /// Whether a freed span has to wait for the streams that were recorded on it.
    fn defer(&mut self, span: SpanIndex, requested: u64) -> bool {
        let captured = self.restraint.captured;
        self.fences.defer(span, requested, captured)
    }

    /// Makes a span free that nothing uses any more.
    #[inline]
    fn free_span(&mut self, span: SpanIndex) {
        let freed_at = self.fences.next_free(self.heap.owner(span));
        match self.heap.free(span, freed_at) {
            Freed::Part => {}
            Freed::Pieces(block) => self.unite(block),
            Freed::Block(block) => self.emptied(block),
        }
    }

    /// Handles a block that became empty.
    fn emptied(&mut self, block: BlockIndex) {
        self.heap.list_empty(block);
        self.trim_to_slack();
    }

    /// The size of the step block that should replace all empty blocks, if any.
    /// It costs one exchange of the memory that a step swings: worthwhile once that much was returned and
    /// reallocated for nothing, and only if the driver takes more than its share of the time.
    fn wanted_step_block(&self) -> Option<u64> {
        if self.displaced < LEAST_STEP_BLOCK
            || !self.reclaimer.keeps()
            || !self.policy.is_between_steps()
            || !self.restraint.may_release()
            || self.device.lock().time.has_credit()
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
    fn make_step_block(&mut self, bytes: u64) {
        self.displaced = 0;
        let Some(owner) = self.heap.owner_of_most_empty() else {
            return;
        };
        self.heap.retire_step_block();
        while self.release_one(Spare::Any) {}
        if self.fences.departing_bytes() > 0 {
            self.device.lock().count_sync();
            self.settle();
        }
        // A problem with the driver will show at the next request that needs it.
        if let Ok(block) = self.take_block(bytes, Region::Persistent, owner) {
            self.heap.begin_step_block(block, owner);
            self.heap.list_empty(block);
        }
    }

    /// Makes a block one empty block if nothing in it is used but its pieces belong to several streams,
    /// provided that their work is done. Otherwise that happens at the
    /// next hand-over.
    fn unite(&mut self, block: BlockIndex) {
        if self.restraint.captured {
            return;
        }
        for owner in self.heap.owners_of_pieces(block) {
            match self.fences.is_idle(owner) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.fences.errors.push(error),
            }
        }
        self.heap.unite(block);
        self.emptied(block);
    }

    /// Checks, without waiting, which freed spans and empty blocks are safe by now.
    pub(crate) fn poll(&mut self) {
        if !self.restraint.captured {
            self.finish(FenceCheck::Query);
        }
    }

    /// Waits until every freed span and departing block is safe. If there is no event
    /// to wait for, waits for the whole device.
    fn settle(&mut self) {
        if self.restraint.captured {
            return;
        }
        self.finish(FenceCheck::Wait);
        if self.fences.synchronize() {
            self.finish(FenceCheck::Wait);
        }
    }

    fn finish(&mut self, check: FenceCheck) {
        for span in self.fences.take_completed(check) {
            self.free_span(span);
        }
        for block in self.fences.take_departed(check) {
            self.heap.give_block_to_anyone(block);
            if let Err(error) = self.release_block(block) {
                self.keep_empty(block, error);
            }
        }
    }

    /// Makes memory that other streams freed available to everyone, if their work on it
    /// is done. Returns whether anything became available.
    pub(crate) fn hand_over(&mut self, to: Owner, check: FenceCheck) -> bool {
        let mut any = false;
        if self.restraint.captured {
            return any;
        }
        for owner in self.fences.owners() {
            if owner == to || !self.heap.has_free(owner) {
                continue;
            }
            let until = match self.fences.safe_until(owner, check) {
                Ok(0) => continue,
                Ok(until) => until,
                Err(error) => {
                    self.fences.errors.push(error);
                    continue;
                }
            };
            let released = self.heap.release_to_anyone(owner, until);
            any |= released.any;
            for block in released.whole {
                self.emptied(block);
            }
        }
        any
    }

    /// Returns empty blocks until at most `slack` bytes are held beyond what is in use.
    /// Waits for work that still uses them, so that they have been returned when this returns.
    pub(crate) fn trim(&mut self, slack: u64) {
        if self.restraint.captured {
            return;
        }
        self.device.lock().count_sync();
        self.settle();
        self.hand_over(Owner::ANYONE, FenceCheck::Wait);
        self.trim_to(slack, Spare::Any);
        if self.fences.waiting() {
            // A block that belongs to a stream leaves an event behind.
            self.settle();
        }
    }

    /// Returns empty blocks until no more is held beyond what is in use than
    /// [`Reclaimer::slack`] allows.
    pub(crate) fn trim_to_slack(&mut self) {
        let usage = self.usage();
        let growth = self.policy.growth();
        let affordable = || self.device.lock().affordable();
        let slack = self.reclaimer.slack(growth, usage, affordable);
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
        self.trim_to(slack, spare);
        let (staying, usage) = (self.staying(), self.usage());
        self.reclaimer.trimmed(growth, staying, usage);
    }

    /// Like [`trim`](Memory::trim), but memory that work in flight uses stays for now, unless it is unknown
    /// whether it does.
    pub(crate) fn trim_unused(&mut self, slack: u64) {
        if self.restraint.captured {
            return;
        }
        self.poll();
        self.hand_over(Owner::ANYONE, FenceCheck::Query);
        self.trim_to(slack, Spare::Any);
        if self.heap.held() > self.heap.used().saturating_add(slack) && self.fences.is_any_unknown()
        {
            self.wait_for_unknown();
            self.hand_over(Owner::ANYONE, FenceCheck::Query);
            self.trim_to(slack, Spare::Any);
        }
    }

    /// Waits for the device, since streams cannot be asked, and returns the blocks that waited for them.
    fn wait_for_unknown(&mut self) {
        self.device.lock().count_sync();
        match self.fences.wait_for_all() {
            Ok(()) => self.poll(),
            Err(error) => self.fences.errors.push(error),
        }
    }

    /// Whether work in flight is known to use freed memory.
    pub(crate) fn works(&mut self) -> bool {
        let mut owners = self.fences.owners();
        self.restraint.captured || owners.any(|owner| self.fences.is_busy(owner))
    }

    fn trim_to(&mut self, slack: u64, spare: Spare) {
        while self.exceeds(slack) && self.release_one(spare) {}
    }

    /// Returns empty blocks so that `bytes` more stay under the ceiling.
    pub(crate) fn make_room(&mut self, bytes: u64) {
        let ceiling = self.usage().ceiling(bytes);
        // The step block stays if the request is small in comparison.
        let spare = match self.heap.step_block() {
            Some(step) if bytes < step.bytes / WORTH_STEP_PART => Spare::NotStep,
            _ => Spare::Any,
        };
        let empty = self.heap.empty_bytes();
        while self.heap.held() + bytes > ceiling && self.release_one(spare) {}
        // Memory that a growing program displaces does not predict the steps to come.
        let peak = self.heap.used_peak();
        if peak > self.displaced_at + self.displaced_at / GROWTH_PART {
            self.displaced_at = peak;
            self.displaced = 0;
        }
        self.displaced += empty - self.heap.empty_bytes();
        // What streams freed that made no request since must not raise the peak.
        if self.heap.held() + bytes > ceiling
            && !self.restraint.captured
            && self.fences.departs_unknown()
        {
            self.wait_for_unknown();
        }
    }

    /// Returns the block that can be spared first; `false` if there is none, or the driver refused.
    fn release_one(&mut self, spare: Spare) -> bool {
        if !self.restraint.may_release() {
            return false;
        }
        let Some(at) = Reclaimer::first_to_go(&self.heap, spare) else {
            return false;
        };
        let block = self.heap.unlist_empty(at);
        let released = self.release_when_unused(block);
        let released = released.map_err(|error| self.keep_empty(block, error));
        released.is_ok()
    }

    /// Returns an empty block, as soon as its stream is done with it.
    fn release_when_unused(&mut self, block: BlockIndex) -> Result<(), DriverError> {
        let (owner, freed_at) = self.heap.owner_of_block(block);
        if owner != Owner::ANYONE && freed_at > self.fences.safe_until(owner, FenceCheck::Query)? {
            let bytes = self.heap.block(block).bytes;
            self.fences.depart(block, bytes, owner, freed_at);
            return Ok(());
        }
        self.heap.give_block_to_anyone(block);
        self.release_block(block)
    }

    fn release_block(&mut self, block: BlockIndex) -> Result<(), DriverError> {
        let Block { address, bytes, .. } = *self.heap.block(block);
        self.device.lock().release(address, bytes, self.guard)?;
        self.heap.remove_block(block);
        Ok(())
    }

    /// The driver did not accept a block: it is used as an ordinary one.
    fn keep_empty(&mut self, block: BlockIndex, error: DriverError) {
        self.fences.errors.push(error);
        self.heap.set_direct(block, false);
        self.heap.list_empty(block);
    }
}
