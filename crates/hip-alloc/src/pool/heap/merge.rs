//! Merging free spans with their neighbours.

use super::Heap;
use super::span::{Owner, Span, SpanIndex};

impl Heap {
    /// Merges a free span that is in no index with its free neighbours of the same owner.
    /// If there are any, the result is one of them that has only grown: it is still in its index,
    /// with the size that is also returned.
    #[inline(always)]
    pub(super) fn merge_listed(
        &mut self,
        index: SpanIndex,
        arena: usize,
    ) -> (SpanIndex, Option<u64>) {
        let Span {
            before,
            after,
            owner,
            ..
        } = self.spans[index];
        let after = self.mergeable(after, owner, false);
        if let Some(before) = self.mergeable(before, owner, false) {
            let listed = self.spans[before].bytes;
            self.absorb_next(before);
            if let Some(after) = after {
                self.free[arena].remove(&mut self.spans, after);
                self.absorb_next(before);
            }
            return (before, Some(listed));
        }
        let Some(after) = after else {
            return (index, None);
        };
        let listed = self.spans[after].bytes;
        self.absorb_before(after);
        (after, Some(listed))
    }

    /// Merges a free span that is in no index with its free neighbours of the same owner,
    /// or of nobody: memory without work in flight becomes the owner's. More than one span on a side
    /// may merge: after nobody's memory there can be more of the owner's.
    pub(super) fn merge(&mut self, index: SpanIndex) -> SpanIndex {
        let owner = self.spans[index].owner;
        let mut whole = index;
        while let Some(before) = self.mergeable(self.spans[whole].before, owner, true) {
            self.unlist(before);
            self.absorb_next(before);
            self.spans[before].owner = owner;
            whole = before;
        }
        while let Some(after) = self.mergeable(self.spans[whole].after, owner, true) {
            self.unlist(after);
            self.absorb_next(whole);
        }
        whole
    }

    pub(super) fn mergeable(
        &self,
        neighbour: SpanIndex,
        owner: Owner,
        or_anyones: bool,
    ) -> Option<SpanIndex> {
        let index = neighbour.some()?;
        let span = &self.spans[index];
        let suits = span.owner == owner || (or_anyones && span.owner == Owner::ANYONE);
        (span.is_free() && suits).then_some(index)
    }

    pub(super) fn unlist(&mut self, index: SpanIndex) {
        let span = &self.spans[index];
        let arena = Self::arena(self.blocks[span.block].region, span.owner);
        self.free[arena].remove(&mut self.spans, index);
    }

    /// Merges a free span with the next one, which is retired.
    #[inline(always)]
    pub(super) fn absorb_next(&mut self, index: SpanIndex) {
        let next = self.spans[index].after;
        let absorbed = self.spans[next];
        let span = &mut self.spans[index];
        span.bytes += absorbed.bytes;
        span.after = absorbed.after;
        span.freed_with(&absorbed);
        if let Some(after) = absorbed.after.some() {
            self.spans[after].before = index;
        }
        self.spans.retire(next);
    }

    /// Merges a free span with the previous one, which is retired.
    #[inline(always)]
    pub(super) fn absorb_before(&mut self, index: SpanIndex) {
        let previous = self.spans[index].before;
        let absorbed = self.spans[previous];
        let span = &mut self.spans[index];
        span.address = absorbed.address;
        span.position = absorbed.position;
        span.bytes += absorbed.bytes;
        span.before = absorbed.before;
        span.freed_with(&absorbed);
        match absorbed.before.some() {
            Some(before) => self.spans[before].after = index,
            None => self.blocks[absorbed.block].first = index,
        }
        self.spans.retire(previous);
    }
}
