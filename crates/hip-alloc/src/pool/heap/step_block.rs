//! The step block: one large block for everything that a step uses, filled from both ends.
//!
//! ```text
//!  | lasting | | lasting | |  middle            | brief | | brief |
//!             ↑           ↑ ↑ the boundary                ↑
//!             lower holes                                 upper holes
//! ```
//!
//! Requests that last for a part of the step are stacked up from the front, brief ones from the
//! back; so holes that brief requests leave are filled by brief requests, and at the end of every layer
//! the upper part is completely free. Separate blocks from the driver cannot do that: one that served
//! another size must be returned before the one that is needed is allocated.
//!
//! Invariants between calls:
//! - the block belongs to one stream, and so does each of its spans;
//! - the middle is the free span at the boundary, in no index; there is none
//!   if both parts meet;
//! - any other free span is in the index of the part that contains it.

use super::block::{Block, BlockIndex};
use super::free_index::FreeIndex;
use super::span::{Owner, Span, SpanIndex, SpanState};
use super::{Freed, Heap};

/// A brief request fills a hole of at most this many times its size: larger holes are kept for
/// larger requests, as long as there is a middle.
const MOST_DISPARITY: u64 = 4;

/// The free spans of the step block.
pub(super) struct StepBlock {
    block: BlockIndex,
    owner: Owner,
    lower: FreeIndex,
    upper: FreeIndex,
    /// The free span between the two parts, if there is one.
    middle: SpanIndex,
    /// The position from which free spans belong to the upper part: where the middle begins.
    boundary: u64,
}

impl Heap {
    /// Makes a block that is one free span, in no index and no list, the step block of an owner.
    pub(crate) fn begin_step_block(&mut self, block: BlockIndex, owner: Owner) {
        debug_assert!(self.step_block.is_none());
        self.blocks[block].serves_step = true;
        let first = self.blocks[block].first;
        self.spans[first].owner = owner;
        self.step_block = Some(StepBlock {
            block,
            owner,
            lower: FreeIndex::new(self.granule),
            upper: FreeIndex::new(self.granule),
            middle: first,
            boundary: self.spans[first].position,
        });
    }

    /// Makes the step block, which is one free span, an ordinary block.
    pub(super) fn end_step_block(&mut self) {
        if let Some(step) = self.step_block.take() {
            self.blocks[step.block].serves_step = false;
        }
    }

    /// Like [`end_step_block`](Heap::end_step_block), if some of it may be in use.
    pub(crate) fn retire_step_block(&mut self) {
        let Some(mut step) = self.step_block.take() else {
            return;
        };
        let block = &mut self.blocks[step.block];
        block.serves_step = false;
        if block.used == 0 {
            return;
        }
        let index = &mut self.free[Self::arena(block.region, step.owner)];
        for part in [&mut step.lower, &mut step.upper] {
            while let Some(hole) = part.first() {
                part.remove(&mut self.spans, hole);
                index.insert(&mut self.spans, hole);
            }
        }
        if let Some(middle) = step.middle.some() {
            index.insert(&mut self.spans, middle);
        }
    }

    /// The step block, if there is one.
    pub(crate) fn step_block(&self) -> Option<&Block> {
        let step = self.step_block.as_ref()?;
        Some(&self.blocks[step.block])
    }

    /// The owner of most of the memory in empty blocks.
    pub(crate) fn owner_of_most_empty(&self) -> Option<Owner> {
        let mut sums: Vec<(Owner, u64)> = Vec::new();
        for block in &self.empty {
            let (owner, bytes) = (self.owner_of_block(*block).0, self.blocks[*block].bytes);
            match sums.iter_mut().find(|(of, _)| *of == owner) {
                Some((_, sum)) => *sum += bytes,
                None => sums.push((owner, bytes)),
            }
        }
        sums.retain(|(owner, _)| *owner != Owner::ANYONE);
        let most = sums.into_iter().max_by_key(|(owner, sum)| (*sum, owner.0));
        most.map(|(owner, _)| owner)
    }

    /// Whether there is a step block for this owner.
    #[inline]
    pub(crate) fn has_step_block(&self, owner: Owner) -> bool {
        self.step_block
            .as_ref()
            .is_some_and(|step| step.owner == owner)
    }

    /// Takes `bytes` from the step block, if it belongs to this owner and has room for them.
    pub(crate) fn take_of_step(
        &mut self,
        owner: Owner,
        bytes: u64,
        brief: bool,
    ) -> Option<SpanIndex> {
        let step = self.step_block.as_ref()?;
        if step.owner != owner {
            return None;
        }
        let (block, middle) = (step.block, step.middle);
        let room = middle.some().map_or(0, |middle| self.spans[middle].bytes);
        let fits = |part: &FreeIndex| part.best_fit(&self.spans, bytes);
        let upper = fits(&step.upper);
        let hole = match brief {
            true => upper.filter(|hole| self.spans[*hole].bytes / MOST_DISPARITY <= bytes),
            false => fits(&step.lower),
        };
        let taken = match hole {
            Some(hole) => self.take_hole(hole, bytes),
            None if room >= bytes => {
                if self.blocks[block].used == 0 {
                    self.open_step_block(block, owner);
                }
                self.take_middle(middle, bytes, brief)
            }
            None => {
                let other = upper.or_else(|| fits(&step.lower))?;
                self.take_hole(other, bytes)
            }
        };
        self.charge(block, bytes);
        self.spans[taken].state = SpanState::USED;
        Some(taken)
    }

    /// Takes the step block out of the list of empty ones, to use it from now on.
    fn open_step_block(&mut self, block: BlockIndex, owner: Owner) {
        if let Some(at) = self.empty.iter().position(|empty| *empty == block) {
            self.empty.remove(at);
            self.empty_bytes -= self.blocks[block].bytes;
        }
        // It may have become anyone's meanwhile.
        let first = self.blocks[block].first;
        self.spans[first].owner = owner;
    }

    /// Takes the front of a hole, or all of it.
    fn take_hole(&mut self, hole: SpanIndex, bytes: u64) -> SpanIndex {
        let whole = self.spans[hole].bytes;
        if whole == bytes {
            self.unlist_hole(hole);
            return hole;
        }
        let taken = self.use_front(hole, bytes);
        if let Some(step) = &mut self.step_block {
            let part = match self.spans[hole].position < step.boundary {
                true => &mut step.lower,
                false => &mut step.upper,
            };
            part.resized(&mut self.spans, hole, whole);
        }
        taken
    }

    /// Takes the front of the middle, or its back for a brief request.
    fn take_middle(&mut self, middle: SpanIndex, bytes: u64, brief: bool) -> SpanIndex {
        let Span {
            position,
            bytes: room,
            ..
        } = self.spans[middle];
        let whole = room == bytes;
        let taken = match (whole, brief) {
            (true, _) => middle,
            (false, true) => self.split(middle, room - bytes),
            (false, false) => self.use_front(middle, bytes),
        };
        if let Some(step) = &mut self.step_block {
            if whole {
                step.middle = SpanIndex::NONE;
            }
            if !brief {
                step.boundary = position + bytes;
            }
        }
        taken
    }

    /// Splits a span that is in no index; returns the second piece, in the same state as the first.
    fn split(&mut self, index: SpanIndex, bytes: u64) -> SpanIndex {
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

    /// Merges a free span of the step block that is in no index with its neighbours.
    pub(super) fn free_in_step_block(&mut self, index: SpanIndex) -> Freed {
        let mut whole = index;
        let free = |heap: &Heap, neighbour: SpanIndex| {
            neighbour
                .some()
                .filter(|index| heap.spans[*index].is_free())
        };
        if let Some(before) = free(self, self.spans[whole].before) {
            self.unlist_hole(before);
            self.absorb_next(before);
            whole = before;
        }
        if let Some(after) = free(self, self.spans[whole].after) {
            self.unlist_hole(after);
            self.absorb_next(whole);
        }
        let span = self.spans[whole];
        let Some(step) = &mut self.step_block else {
            unreachable!("a span of the step block outlived it");
        };
        let end = span.position + span.bytes;
        if (span.position..=end).contains(&step.boundary) {
            step.middle = whole;
            step.boundary = span.position;
        } else if span.position < step.boundary {
            step.lower.insert(&mut self.spans, whole);
        } else {
            step.upper.insert(&mut self.spans, whole);
        }
        match span.before.is_none() && span.after.is_none() {
            true => Freed::Block(span.block),
            false => Freed::Part,
        }
    }

    /// Takes a free span of the step block out of its index.
    fn unlist_hole(&mut self, hole: SpanIndex) {
        let Some(step) = &mut self.step_block else {
            return;
        };
        if hole == step.middle {
            step.middle = SpanIndex::NONE;
        } else if self.spans[hole].position < step.boundary {
            step.lower.remove(&mut self.spans, hole);
        } else {
            step.upper.remove(&mut self.spans, hole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Region;
    use super::*;
    use proptest::prelude::*;

    const GRANULE: u64 = 512;
    const OWNER: Owner = Owner(1);

    /// A heap with a step block of this many granules, in the list of empty ones.
    fn heap(granules: u64) -> Heap {
        let mut heap = Heap::new(GRANULE);
        let block = heap.add_block(1 << 30, granules * GRANULE, Region::Persistent, OWNER);
        heap.begin_step_block(block, OWNER);
        heap.list_empty(block);
        heap
    }

    fn take(heap: &mut Heap, granules: u64, brief: bool) -> Option<SpanIndex> {
        let span = heap.take_of_step(OWNER, granules * GRANULE, brief)?;
        heap.hand_out(span, granules * GRANULE);
        Some(span)
    }

    fn free(heap: &mut Heap, span: SpanIndex) {
        heap.take_address(heap.address(span));
        if let Freed::Block(block) = heap.free(span, 1) {
            heap.list_empty(block);
        }
    }

    /// The start of a span, in granules.
    fn at(heap: &Heap, span: SpanIndex) -> u64 {
        (heap.address(span) - (1 << 30)) / GRANULE
    }

    #[test]
    fn what_lasts_is_stacked_from_the_front_and_what_is_brief_from_the_back() {
        let mut heap = heap(100);
        let placed = [(10, false), (20, true), (10, false), (5, true)]
            .map(|(granules, brief)| take(&mut heap, granules, brief).unwrap());
        assert_eq!(placed.map(|span| at(&heap, span)), [0, 80, 10, 75]);
        // Its hole is kept for lasting requests, although it is equally near for brief ones.
        free(&mut heap, placed[0]);
        let brief = take(&mut heap, 10, true).unwrap();
        assert_eq!(at(&heap, brief), 65);
        let lasting = take(&mut heap, 10, false).unwrap();
        assert_eq!(at(&heap, lasting), 0);
    }

    #[test]
    fn something_brief_leaves_large_holes_to_what_is_large() {
        let mut heap = heap(100);
        let [large, small] = [40, 1].map(|granules| take(&mut heap, granules, true).unwrap());
        free(&mut heap, large);
        let little = take(&mut heap, 2, true).unwrap();
        assert_eq!(at(&heap, little), at(&heap, small) - 2);
        let again = take(&mut heap, 40, true).unwrap();
        assert_eq!(at(&heap, again), 60);
    }

    #[test]
    fn other_streams_get_nothing_of_it() {
        let mut heap = heap(10);
        assert_eq!(heap.take_of_step(Owner(2), GRANULE, false), None);
        assert!(heap.take_of_step(OWNER, GRANULE, false).is_some());
    }

    #[test]
    fn once_it_is_retired_its_holes_serve_as_those_of_any_block() {
        let mut heap = heap(10);
        let kept = take(&mut heap, 3, false).unwrap();
        heap.retire_step_block();
        assert!(heap.step_block().is_none());
        let hole = heap.find(Region::Persistent, OWNER, 7 * GRANULE).unwrap();
        let span = heap.take(hole, OWNER, 7 * GRANULE);
        heap.hand_out(span, 7 * GRANULE);
        free(&mut heap, span);
        free(&mut heap, kept);
        assert_eq!(heap.empty_bytes(), 10 * GRANULE);
    }

    impl Heap {
        fn check_step_block(&self) {
            let Some(step) = &self.step_block else {
                return;
            };
            let (mut next, mut lower, mut upper, mut used) = (0, 0, 0, 0);
            let mut free_before = false;
            for span in self.spans_of(step.block) {
                let offset = span.address - self.blocks[step.block].address;
                assert_eq!(offset, next, "a gap or an overlap");
                next += span.bytes;
                assert!(!(free_before && span.is_free()), "not merged");
                free_before = span.is_free();
                let middle = step.middle.some();
                let is_middle = middle.is_some_and(|at| self.spans[at].address == span.address);
                match (span.is_free(), is_middle) {
                    (false, _) => used += span.bytes,
                    (true, true) => assert_eq!(span.position, step.boundary),
                    (true, false) if span.position < step.boundary => lower += span.bytes,
                    (true, false) => upper += span.bytes,
                }
            }
            let block = &self.blocks[step.block];
            assert_eq!((next, used), (block.bytes, block.used));
            assert_eq!((step.lower.bytes(), step.upper.bytes()), (lower, upper));
            let empty = if used == 0 { block.bytes } else { 0 };
            assert_eq!(self.empty_bytes, empty);
        }
    }

    proptest! {
        /// Whatever is taken and freed, spans cover the block without gaps, each hole is in the right
        /// index, and at the end it is one empty block again.
        #[test]
        fn spans_are_the_block_and_holes_are_found(
            acts in prop::collection::vec((1u64..40, any::<bool>(), any::<usize>(), 0u8..5), 1..300)
        ) {
            let mut heap = heap(200);
            let mut live = Vec::new();
            for (granules, brief, place, what) in acts {
                if what < 3 {
                    let free = 200 * GRANULE - heap.used();
                    let taken = take(&mut heap, granules, brief);
                    prop_assert!(taken.is_none() || granules * GRANULE <= free);
                    live.extend(taken);
                } else if !live.is_empty() {
                    let span = live.swap_remove(place % live.len());
                    free(&mut heap, span);
                }
                heap.check_step_block();
            }
            for span in live {
                free(&mut heap, span);
                heap.check_step_block();
            }
            prop_assert!(take(&mut heap, 200, false).is_some());
        }
    }
}
