//! Cutting spans for requests, and joining them again when they are freed.
//!
//! ```text
//!  free                        a request takes the front; the rest stays where it is
//!  | used | free |             in the index of its arena, and only moves to another bin
//!
//!  | free | used | free |      a free joins its neighbours, of which the first stays in
//!  | free                |     the index; without any it goes into the index itself
//! ```

use super::*;

impl Pool {
    /// Takes `bytes` from the front of a span in a free index; the rest stays free.
    /// The whole span passes to `owner`, so that it can become one again.
    pub(super) fn take(&mut self, index: SpanIndex, owner: Owner, bytes: u64) -> SpanIndex {
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

    /// As [`take`](Pool::take), for a free span that is in no index.
    pub(super) fn carve(&mut self, index: SpanIndex, owner: Owner, bytes: u64) -> SpanIndex {
        let span = self.spans[index];
        debug_assert!(span.bytes >= bytes && span.state == SpanState::Free);
        self.charge(span.block, bytes);
        self.spans[index].owner = owner;
        if span.bytes == bytes {
            self.spans[index].state = SpanState::Used;
            return index;
        }
        let taken = self.use_front(index, bytes);
        let mut rest = index;
        if span.owner != owner {
            // What was anyone's has no work in flight, whatever this stream freed since.
            self.spans[rest].requested = 0;
            // It has become the owner's just now, maybe beside more that is.
            rest = self.coalesce(rest);
        }
        let region = self.blocks[span.block].region;
        self.free[Self::arena(region, owner)].insert(&mut self.spans, rest);
        taken
    }

    /// Cuts the first `bytes` off a free span: a new span, which is used.
    #[inline]
    fn use_front(&mut self, index: SpanIndex, bytes: u64) -> SpanIndex {
        let span = &mut self.spans[index];
        let before = span.before;
        let first = Span {
            bytes,
            after: index,
            state: SpanState::Used,
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

    /// A block has `bytes` more in use.
    fn charge(&mut self, block: BlockIndex, bytes: u64) {
        let block = &mut self.blocks[block];
        self.large_blocks.taken(block, bytes);
        block.used += bytes;
    }

    /// A span that nobody uses any more becomes free: joined with its free
    /// neighbours, and if its block is empty then, kept or given back.
    pub(super) fn reclaim(&mut self, driver: &mut dyn Driver, index: SpanIndex) {
        let span = &mut self.spans[index];
        span.state = SpanState::Free;
        span.shared_use = false;
        span.requested = self.streams.next_free(span.owner);
        let (bytes, block, owner) = (span.bytes, span.block, span.owner);
        self.used -= bytes;
        let entry = &mut self.blocks[block];
        entry.used -= bytes;
        self.large_blocks.freed(entry, bytes);
        let (region, mapped, used) = (entry.region, entry.mapped, entry.used);
        let arena = Self::arena(region, owner);
        // Where something is anyone's, more than the neighbours may have to be joined.
        let plain = self.free[Self::arena(region, Owner::ANYONE)].bytes() == 0;
        let (index, listed) = if plain {
            self.join_listed(index, arena)
        } else {
            (self.coalesce(index), None)
        };
        let span = &self.spans[index];
        let bytes = span.bytes;
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
            self.emptied(driver, block);
        } else if used == 0 {
            self.join_owners(driver, block);
        } else if mapped && self.mapping.is_some_and(|mapping| bytes >= mapping.handle) {
            self.shed(driver);
        }
    }

    /// Joins a free span that is in no index with its free neighbours of the same owner.
    /// If there are any, the result is one of them that has only grown: it is in its index
    /// still, with as many bytes as are returned beside it.
    fn join_listed(&mut self, index: SpanIndex, arena: usize) -> (SpanIndex, Option<u64>) {
        let Span {
            before,
            after,
            owner,
            ..
        } = self.spans[index];
        let after = self.joinable(after, owner, false);
        if let Some(before) = self.joinable(before, owner, false) {
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

    /// Joins a free span that is in no index with its free neighbours of the same owner,
    /// or of nobody: what nobody works on becomes the owner's. More than one on a side
    /// may join: beyond what was nobody's there can be more of the owner's.
    pub(super) fn coalesce(&mut self, index: SpanIndex) -> SpanIndex {
        let owner = self.spans[index].owner;
        let mut whole = index;
        while let Some(before) = self.joinable(self.spans[whole].before, owner, true) {
            self.unlist(before);
            self.absorb_next(before);
            self.spans[before].owner = owner;
            whole = before;
        }
        while let Some(after) = self.joinable(self.spans[whole].after, owner, true) {
            self.unlist(after);
            self.absorb_next(whole);
        }
        whole
    }

    pub(super) fn joinable(
        &self,
        neighbour: SpanIndex,
        owner: Owner,
        or_anyones: bool,
    ) -> Option<SpanIndex> {
        let index = neighbour.some()?;
        let span = &self.spans[index];
        let suits = span.owner == owner || (or_anyones && span.owner == Owner::ANYONE);
        (span.state == SpanState::Free && suits).then_some(index)
    }

    pub(super) fn unlist(&mut self, index: SpanIndex) {
        let span = &self.spans[index];
        let arena = Self::arena(self.blocks[span.block].region, span.owner);
        self.free[arena].remove(&mut self.spans, index);
    }

    /// Joins a span with the one after it, which retires.
    pub(super) fn absorb_next(&mut self, index: SpanIndex) {
        let next = self.spans[index].after;
        let absorbed = self.spans[next];
        let span = &mut self.spans[index];
        span.bytes += absorbed.bytes;
        span.after = absorbed.after;
        span.requested = span.requested.max(absorbed.requested);
        if let Some(after) = absorbed.after.some() {
            self.spans[after].before = index;
        }
        self.spans.retire(next);
    }

    /// Joins a span with the one before it, which retires.
    fn absorb_before(&mut self, index: SpanIndex) {
        let previous = self.spans[index].before;
        let absorbed = self.spans[previous];
        let span = &mut self.spans[index];
        span.address = absorbed.address;
        span.position = absorbed.position;
        span.bytes += absorbed.bytes;
        span.before = absorbed.before;
        span.requested = span.requested.max(absorbed.requested);
        match absorbed.before.some() {
            Some(before) => self.spans[before].after = index,
            None => self.blocks[absorbed.block].first = index,
        }
        self.spans.retire(previous);
    }
}
