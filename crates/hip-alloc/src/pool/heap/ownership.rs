//! Transfers free memory: from one stream to all of them, and from the heap to the
//! driver in whole handles.
//!
//! ```text
//!  block   | used |  free            | used |      handles of one size
//!          | handle | handle | handle | handle |
//!                   | leaves |                     returned to the driver: absent
//! ```
//!
//! A free span that covers whole handles can lose them; the rest at either end stays
//! free. The addresses stay reserved and are not used again until the whole block
//! is returned: address space costs nothing. A block that has lost handles uses what is
//! left of it, and is returned as soon as nothing in it is used.

use super::span::{Span, SpanState};
use super::{BlockIndex, Freed, Heap, Hole, Owner, Region, Released, SpanIndex};

impl Heap {
    /// Whether the owner has free memory.
    pub(crate) fn has_free(&self, owner: Owner) -> bool {
        Region::ALL
            .into_iter()
            .any(|region| self.free[Self::arena(region, owner)].bytes() > 0)
            || self
                .empty
                .iter()
                .any(|block| self.owner_of_block(*block) == owner)
    }

    /// Makes the free spans of `owner` up to its `frees`-th free available to everyone.
    pub(crate) fn release_to_anyone(&mut self, owner: Owner, frees: u64) -> Released {
        let mut released = Released::default();
        for block in &self.empty {
            let span = &mut self.spans[self.blocks[*block].first];
            if span.owner == owner && span.freed_at() <= frees {
                span.give_to_anyone();
                released.any = true;
            }
        }
        for region in Region::ALL {
            let arena = Self::arena(region, owner);
            let mut later = Vec::new();
            while let Some(index) = self.free[arena].first() {
                self.free[arena].remove(&mut self.spans, index);
                if self.spans[index].freed_at() > frees {
                    later.push(index);
                    continue;
                }
                released.any = true;
                let whole = self.merge_anyones(index);
                let span = &self.spans[whole];
                let block = span.block;
                if span.before.is_none() && span.after.is_none() {
                    released.whole.push(block);
                } else {
                    self.free[Self::arena(region, Owner::ANYONE)].insert(&mut self.spans, whole);
                    if self.blocks[block].used == 0 && self.blocks[block].absent > 0 {
                        released.pieces.push(block);
                    }
                }
            }
            for index in later {
                self.free[arena].insert(&mut self.spans, index);
            }
        }
        released
    }

    /// Makes a free span that is in no index available to everyone, and merges it with adjacent memory that
    /// already is. (Not with an owner's: that would make it the owner's again.)
    fn merge_anyones(&mut self, index: SpanIndex) -> SpanIndex {
        self.spans[index].give_to_anyone();
        let Span { before, after, .. } = self.spans[index];
        let mut whole = index;
        if let Some(before) = self.mergeable(before, Owner::ANYONE, false) {
            self.unlist(before);
            self.absorb_next(before);
            whole = before;
        }
        if let Some(after) = self.mergeable(after, Owner::ANYONE, false) {
            self.unlist(after);
            self.absorb_next(whole);
        }
        whole
    }

    /// The owners of the spans of an unused block; `None` while a part of it is
    /// being returned.
    pub(crate) fn owners_of_pieces(&self, block: BlockIndex) -> Option<Vec<Owner>> {
        let leaves = |span: &Span| matches!(span.state, SpanState::Leaving { .. });
        if self.spans_of(block).any(leaves) {
            return None;
        }
        let mut owners: Vec<Owner> = self.spans_of(block).map(|span| span.owner).collect();
        owners.sort_unstable_by_key(|owner| owner.0);
        owners.dedup();
        Some(owners)
    }

    /// Merges the spans of an unused block into one that everyone may use, in no
    /// index and no list.
    pub(crate) fn unite(&mut self, block: BlockIndex) {
        let first = self.blocks[block].first;
        let mut next = first.some();
        while let Some(index) = next {
            if self.spans[index].is_free() {
                self.unlist(index);
            }
            self.spans[index].give_to_anyone();
            next = self.spans[index].after.some();
        }
        while !self.spans[first].after.is_none() {
            self.absorb_next(first);
        }
    }

    /// The most whole handles within one free span of a mapped block.
    pub(crate) fn largest_hole(&self, handle: u64) -> Option<Hole> {
        let holes = self.free.iter().filter_map(|arena| {
            arena.largest(&self.spans, handle, |index| {
                self.whole_handles(index, handle)
            })
        });
        holes.max_by_key(|hole| (hole.end - hole.start, self.spans[hole.span].address))
    }

    /// The handles that are completely within a free span.
    fn whole_handles(&self, index: SpanIndex, handle: u64) -> Option<Hole> {
        let span = &self.spans[index];
        let block = &self.blocks[span.block];
        let from = (span.address - block.address).next_multiple_of(handle);
        let to = span.address + span.bytes - block.address;
        // The last handle of a block may be smaller.
        let to = if to == block.bytes {
            to
        } else {
            to - to % handle
        };
        (block.mapped && from < to).then_some(Hole {
            span: index,
            start: block.address + from,
            end: block.address + to,
        })
    }

    /// Makes a hole a separate span, in no index; the memory around it stays free.
    pub(crate) fn isolate(&mut self, hole: Hole) -> SpanIndex {
        self.unlist(hole.span);
        let span = self.spans[hole.span];
        let arena = Self::arena(self.blocks[span.block].region, span.owner);
        let mut part = hole.span;
        if hole.start > span.address {
            part = self.split(part, hole.start - span.address);
            self.free[arena].insert(&mut self.spans, hole.span);
        }
        if hole.end < span.address + span.bytes {
            let rest = self.split(part, hole.end - hole.start);
            self.free[arena].insert(&mut self.spans, rest);
        }
        let freed_at = span.freed_at();
        self.spans[part].state = SpanState::Leaving { freed_at };
        part
    }

    /// Splits a span that is in no index; returns the second piece, in the same state as the first.
    pub(super) fn split(&mut self, index: SpanIndex, bytes: u64) -> SpanIndex {
        let span = self.spans[index];
        let second = self.spans.add(Span {
            address: span.address + bytes,
            bytes: span.bytes - bytes,
            position: span.position + bytes,
            before: index,
            ..span
        });
        if let Some(after) = span.after.some() {
            self.spans[after].before = second;
        }
        self.spans[index].bytes = bytes;
        self.spans[index].after = second;
        second
    }

    /// An isolated part was returned to the driver. Returns its block if nothing in it is used.
    pub(crate) fn part_left(&mut self, part: SpanIndex) -> Option<BlockIndex> {
        let Span { bytes, block, .. } = self.spans[part];
        self.spans[part].state = SpanState::Absent;
        self.spans[part].owner = Owner::ANYONE;
        let entry = &mut self.blocks[block];
        entry.absent += bytes;
        if entry.used == 0 {
            return Some(block);
        }
        self.large_holes -= u64::from(entry.is_large_and_transient()) * bytes;
        None
    }

    /// An isolated part could not be returned: it becomes free again.
    pub(crate) fn part_stays(&mut self, part: SpanIndex) -> Freed {
        let freed_at = self.spans[part].freed_at();
        self.spans[part].state = SpanState::Free { freed_at };
        let whole = self.merge(part);
        let span = &self.spans[whole];
        let (block, owner, bytes) = (span.block, span.owner, span.bytes);
        if span.before.is_none() && span.after.is_none() {
            return Freed::Block(block);
        }
        let arena = Self::arena(self.blocks[block].region, owner);
        self.free[arena].insert(&mut self.spans, whole);
        let mapped = self.blocks[block].mapped;
        Freed::Part { bytes, mapped }
    }
}
