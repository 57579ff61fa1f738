//! The heap: blocks from the driver, the spans that they are split into, and which of these are
//! free. Pure bookkeeping, without drivers or events.
//!
//! ```text
//!  free                        a request takes the front; the rest stays where it is
//!  | used | free |             in its free index, and only moves to another bin
//!
//!  | free | used | free |      a freed span merges with its neighbours, of which the first
//!  | free                |     stays in the index; without any it goes into the index itself
//! ```
//!
//! Invariants between calls:
//! - the spans of a block cover it, in address order;
//! - a free span is in the index of its region and owner, unless it covers a whole block:
//!   then the block is in the list of empty ones, or was taken out of it;
//! - no two neighbours are free and have the same owner;
//! - the free spans of the step block are in separate indexes ([`step_block`]);
//! - every span in use is in the address map, and `used` is the sum of them and of those
//!   that wait for a stream.

mod address_map;
mod block;
mod free_index;
mod merge;
mod ownership;
mod span;
mod step_block;
mod view;

pub(crate) use block::{Block, BlockIndex};
pub(crate) use span::{Owner, SpanIndex};

use super::policy::Region;
use address_map::AddressMap;
use block::BlockTable;
use free_index::FreeIndex;
use span::{Span, SpanState, SpanTable};
use step_block::StepBlock;

/// `position` orders by block first: more than any block has bytes.
const POSITIONS_PER_BLOCK_LOG2: u32 = 40;

/// The state of the block after a span in it was freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Freed {
    /// Other spans of the block are in use.
    Part,
    /// Nothing in the block is used, but its spans belong to several streams.
    Pieces(BlockIndex),
    /// The block is one free span, in no index and no list.
    Block(BlockIndex),
}

/// What was released to everyone.
#[derive(Default)]
pub(crate) struct Released {
    pub(crate) any: bool,
    /// Blocks that are one free span now, in no index and no list.
    pub(crate) whole: Vec<BlockIndex>,
}

/// Blocks, spans, and their indexes.
pub(crate) struct Heap {
    granule: u64,
    blocks: BlockTable,
    spans: SpanTable,
    addresses: AddressMap,
    /// One for each region of each owner: see [`Heap::arena`].
    free: Vec<FreeIndex>,
    /// Blocks without a span in use, in the order in which they became empty.
    empty: Vec<BlockIndex>,
    used: u64,
    used_peak: u64,
    /// Bytes of all blocks.
    held: u64,
    /// Bytes of the blocks in `empty`.
    empty_bytes: u64,
    /// Bytes of the blocks that serve small requests.
    small_bytes: u64,
    /// Free memory in large transient blocks that are not empty.
    large_holes: u64,
    next_rank: u32,
    /// The block whose spans are placed by their lifetime, if there is one.
    step_block: Option<StepBlock>,
}

impl Heap {
    /// `granule`: the unit of sizes and addresses, a power of two.
    pub(crate) fn new(granule: u64) -> Self {
        Heap {
            granule,
            blocks: BlockTable::default(),
            spans: SpanTable::default(),
            addresses: AddressMap::new(),
            free: Vec::new(),
            empty: Vec::new(),
            used: 0,
            used_peak: 0,
            held: 0,
            empty_bytes: 0,
            small_bytes: 0,
            large_holes: 0,
            next_rank: 0,
            step_block: None,
        }
    }

    /// Bytes of spans that are not free.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// The highest [`used`](Heap::used) so far.
    pub(crate) fn used_peak(&self) -> u64 {
        self.used_peak
    }

    /// Bytes of all blocks, which requests can use: what is held without the guards.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Free memory in large transient blocks that cannot be returned.
    pub(crate) fn large_holes(&self) -> u64 {
        self.large_holes
    }

    /// Bytes that could be returned to the driver at once.
    pub(crate) fn empty_bytes(&self) -> u64 {
        self.empty_bytes
    }

    /// Bytes of the blocks for small requests.
    pub(crate) fn small_bytes(&self) -> u64 {
        self.small_bytes
    }

    /// Creates indexes for the free spans of an owner.
    #[inline]
    pub(crate) fn ensure_owner(&mut self, owner: Owner) {
        while self.free.len() <= Self::arena(Region::Small, owner) {
            self.free.push(FreeIndex::new(self.granule));
        }
    }

    /// Adds a block from the driver: one free span, in no index and no list.
    pub(crate) fn add_block(
        &mut self,
        address: u64,
        bytes: u64,
        region: Region,
        owner: Owner,
    ) -> BlockIndex {
        self.ensure_owner(owner);
        let rank = self.next_rank;
        self.next_rank += 1;
        self.small_bytes += small(region, bytes);
        self.held += bytes;
        let block = self.blocks.add(Block {
            address,
            bytes,
            region,
            direct: false,
            serves_step: false,
            used: 0,
            first: SpanIndex::NONE,
            rank,
        });
        let position = u64::from(rank) << POSITIONS_PER_BLOCK_LOG2;
        let span = Span::whole(block, address, bytes, position, owner);
        self.blocks[block].first = self.spans.add(span);
        block
    }

    /// Removes a block that is one free span in no index and no list.
    pub(crate) fn remove_block(&mut self, block: BlockIndex) {
        let Block {
            region,
            bytes,
            first,
            ..
        } = self.blocks[block];
        self.small_bytes -= small(region, bytes);
        self.held -= bytes;
        self.spans.retire(first);
        self.blocks.remove(block);
    }

    pub(crate) fn block(&self, block: BlockIndex) -> &Block {
        &self.blocks[block]
    }

    /// Sets whether the block holds one large request and serves only such.
    pub(crate) fn set_direct(&mut self, block: BlockIndex, direct: bool) {
        self.blocks[block].direct = direct;
    }

    /// The empty blocks, in the order in which they became empty.
    pub(crate) fn empty(&self) -> &[BlockIndex] {
        &self.empty
    }

    /// Adds a block that is one free span in no index to the list of empty ones.
    pub(crate) fn list_empty(&mut self, block: BlockIndex) {
        self.empty_bytes += self.blocks[block].bytes;
        self.empty.push(block);
    }

    /// Takes a block out of the list of empty ones, by its index there.
    pub(crate) fn unlist_empty(&mut self, at: usize) -> BlockIndex {
        let block = self.empty.remove(at);
        self.empty_bytes -= self.blocks[block].bytes;
        if self.blocks[block].serves_step {
            self.end_step_block();
        }
        block
    }

    /// The owner of a block that is one free span, and the number of the last free in it on the owner's
    /// stream.
    pub(crate) fn owner_of_block(&self, block: BlockIndex) -> (Owner, u64) {
        let span = &self.spans[self.blocks[block].first];
        (span.owner, span.freed_at())
    }

    /// Makes a block that is one free span available to everyone.
    pub(crate) fn give_block_to_anyone(&mut self, block: BlockIndex) {
        self.spans[self.blocks[block].first].give_to_anyone();
    }

    /// Whether an address lies in any block.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.blocks
            .iter()
            .any(|(_, block)| (block.address..block.address + block.bytes).contains(&address))
    }

    /// The best-fitting free span of the region that this owner may take.
    #[inline]
    pub(crate) fn find(&self, region: Region, owner: Owner, bytes: u64) -> Option<SpanIndex> {
        let own = self.free[Self::arena(region, owner)].best_fit(&self.spans, bytes);
        let anyones = &self.free[Self::arena(region, Owner::ANYONE)];
        if anyones.bytes() < bytes {
            return own;
        }
        self.better(own, anyones.best_fit(&self.spans, bytes))
    }

    /// The one that fits better; if equal, the first in position order.
    #[cold]
    fn better(&self, own: Option<SpanIndex>, other: Option<SpanIndex>) -> Option<SpanIndex> {
        let order = |index: &SpanIndex| (self.spans[*index].bytes, self.spans[*index].position);
        own.into_iter().chain(other).min_by_key(order)
    }

    /// The best fit in the persistent or the transient region.
    pub(crate) fn find_anywhere(&self, owner: Owner, bytes: u64) -> Option<SpanIndex> {
        let persistent = self.find(Region::Persistent, owner, bytes);
        let transient = self.find(Region::Transient, owner, bytes);
        match (persistent, transient) {
            (Some(persistent), Some(transient)) => {
                let closer = self.spans[transient].bytes < self.spans[persistent].bytes;
                Some(if closer { transient } else { persistent })
            }
            _ => persistent.or(transient),
        }
    }

    /// Takes the smallest empty block that fits and `suits` out of the list of empty ones.
    pub(crate) fn take_empty(
        &mut self,
        owner: Owner,
        bytes: u64,
        suits: impl Fn(&Block) -> bool,
    ) -> Option<BlockIndex> {
        let mut best: Option<(usize, (u64, u32))> = None;
        for (at, index) in self.empty.iter().enumerate() {
            let block = &self.blocks[*index];
            let order = (block.bytes, block.rank);
            // What is dearest comes last: whether it suits takes a division.
            let is_better = best.is_none_or(|(_, least)| order < least);
            if is_better && block.bytes >= bytes && !block.serves_step {
                let of = self.spans[block.first].owner;
                if (of == owner || of == Owner::ANYONE) && suits(block) {
                    best = Some((at, order));
                }
            }
        }
        let (at, _) = best?;
        Some(self.unlist_empty(at))
    }

    /// Takes `bytes` from the front of a span in a free index; the rest stays free.
    /// The whole span passes to `owner`, so that it can be merged again later.
    pub(crate) fn take(&mut self, index: SpanIndex, owner: Owner, bytes: u64) -> SpanIndex {
        let span = &self.spans[index];
        let (block, of, whole) = (span.block, span.owner, span.bytes);
        let arena = Self::arena(self.blocks[block].region, of);
        if of != owner || whole == bytes {
            self.free[arena].remove(&mut self.spans, index);
            return self.carve(index, owner, bytes);
        }
        self.charge(block, bytes);
        let taken = self.use_front(index, bytes);
        self.free[arena].resized(&mut self.spans, index, whole);
        taken
    }

    /// Uses the first `bytes` of a block that is one free span in no index and no list; the block
    /// serves `region` from now on.
    pub(crate) fn open(
        &mut self,
        block: BlockIndex,
        owner: Owner,
        region: Region,
        bytes: u64,
    ) -> SpanIndex {
        let block = &mut self.blocks[block];
        self.small_bytes -= small(block.region, block.bytes);
        self.small_bytes += small(region, block.bytes);
        block.region = region;
        let first = block.first;
        self.carve(first, owner, bytes)
    }

    /// Like [`take`](Heap::take), for a free span that is in no index.
    fn carve(&mut self, index: SpanIndex, owner: Owner, bytes: u64) -> SpanIndex {
        let span = self.spans[index];
        debug_assert!(span.bytes >= bytes && span.is_free());
        self.charge(span.block, bytes);
        self.spans[index].owner = owner;
        if span.bytes == bytes {
            self.spans[index].state = SpanState::USED;
            return index;
        }
        let taken = self.use_front(index, bytes);
        let mut rest = index;
        if span.owner != owner {
            // No work in flight used anyone's memory, whatever this stream has freed since.
            self.spans[rest].state = SpanState::Free { freed_at: 0 };
            // It has just become the owner's, possibly next to other free memory of the owner.
            rest = self.merge(rest);
        }
        let region = self.blocks[span.block].region;
        self.free[Self::arena(region, owner)].insert(&mut self.spans, rest);
        taken
    }

    /// Splits the first `bytes` off a free span, as a new span in use.
    #[inline(always)]
    fn use_front(&mut self, index: SpanIndex, bytes: u64) -> SpanIndex {
        let span = &mut self.spans[index];
        let before = span.before;
        let first = Span {
            bytes,
            after: index,
            state: SpanState::USED,
            ..*span
        };
        span.address += bytes;
        span.position += bytes;
        span.bytes -= bytes;
        let block = span.block;
        let front = self.spans.add(first);
        self.spans[index].before = front;
        match before.some() {
            Some(before) => self.spans[before].after = front,
            None => self.blocks[block].first = front,
        }
        front
    }

    /// Adds `bytes` to the used bytes of a block. Whether it is large is unpredictable, so that is
    /// a multiplication instead of a branch.
    fn charge(&mut self, block: BlockIndex, bytes: u64) {
        let block = &mut self.blocks[block];
        let large = u64::from(block.is_large_and_transient());
        let whole = if block.used == 0 { block.bytes } else { 0 };
        self.large_holes += large * whole;
        self.large_holes -= large * bytes;
        block.used += bytes;
    }

    /// Records the requested size of a span; returns its address.
    #[inline]
    pub(crate) fn hand_out(&mut self, index: SpanIndex, requested: u64) -> u64 {
        let span = &mut self.spans[index];
        span.state = SpanState::Used {
            requested,
            shared: false,
        };
        let (address, bytes) = (span.address, span.bytes);
        self.addresses.insert(address, index);
        self.used += bytes;
        self.used_peak = self.used_peak.max(self.used);
        address
    }

    /// The span in use at an address.
    pub(crate) fn span_at(&self, address: u64) -> Option<SpanIndex> {
        self.addresses.get(&self.spans, address)
    }

    /// Like [`span_at`](Heap::span_at), and removes the address: the program has freed it.
    #[inline]
    pub(crate) fn take_address(&mut self, address: u64) -> Option<SpanIndex> {
        self.addresses.remove(&self.spans, address)
    }

    pub(crate) fn address(&self, index: SpanIndex) -> u64 {
        self.spans[index].address
    }

    pub(crate) fn bytes(&self, index: SpanIndex) -> u64 {
        self.spans[index].bytes
    }

    pub(crate) fn owner(&self, index: SpanIndex) -> Owner {
        self.spans[index].owner
    }

    /// The requested size of a span that is not free, and whether other streams
    /// were recorded on it.
    #[inline]
    pub(crate) fn request(&self, index: SpanIndex) -> (u64, bool) {
        match self.spans[index].state {
            SpanState::Used { requested, shared } => (requested, shared),
            SpanState::Pending { requested } => (requested, true),
            SpanState::Free { .. } => (0, false),
        }
    }

    /// Records that another stream uses it too.
    pub(crate) fn set_shared(&mut self, index: SpanIndex) {
        if let SpanState::Used { shared, .. } = &mut self.spans[index].state {
            *shared = true;
        }
    }

    /// The program freed it, but other streams may still use it.
    pub(crate) fn set_pending(&mut self, index: SpanIndex) {
        let (requested, _) = self.request(index);
        self.spans[index].state = SpanState::Pending { requested };
    }

    /// Makes an unused span free, with the number of the free on its stream, and merges it
    /// with its free neighbours.
    #[inline(always)]
    pub(crate) fn free(&mut self, index: SpanIndex, freed_at: u64) -> Freed {
        let span = &mut self.spans[index];
        span.state = SpanState::Free { freed_at };
        let (bytes, block, owner) = (span.bytes, span.block, span.owner);
        self.used -= bytes;
        let entry = &mut self.blocks[block];
        entry.used -= bytes;
        let large = u64::from(entry.is_large_and_transient());
        let whole = if entry.used == 0 { entry.bytes } else { 0 };
        self.large_holes += large * bytes;
        self.large_holes -= large * whole;
        if entry.serves_step {
            return self.free_in_step_block(index);
        }
        let (region, used) = (entry.region, entry.used);
        let arena = Self::arena(region, owner);
        // If something is anyone's, more than the direct neighbours may have to be merged.
        let plain = self.free[Self::arena(region, Owner::ANYONE)].bytes() == 0;
        let (index, listed) = if plain {
            self.merge_listed(index, arena)
        } else {
            (self.merge(index), None)
        };
        let span = &self.spans[index];
        let whole = span.before.is_none() && span.after.is_none();
        match listed {
            Some(before) => self.free[arena].resized(&mut self.spans, index, before),
            None if whole => {}
            None => self.free[arena].insert(&mut self.spans, index),
        }
        if whole {
            if listed.is_some() {
                self.free[arena].remove(&mut self.spans, index);
            }
            Freed::Block(block)
        } else if used == 0 {
            Freed::Pieces(block)
        } else {
            Freed::Part
        }
    }

    fn spans_of(&self, block: BlockIndex) -> impl Iterator<Item = &Span> {
        let first = self.blocks[block].first.some();
        std::iter::successors(first, |index| self.spans[*index].after.some())
            .map(|index| &self.spans[index])
    }

    fn arena(region: Region, owner: Owner) -> usize {
        usize::from(owner.0) * Region::ALL.len() + region as usize
    }
}

fn small(region: Region, bytes: u64) -> u64 {
    match region {
        Region::Small => bytes,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
