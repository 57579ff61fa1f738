//! Transfers free memory from one stream to all of them.

use super::span::Span;
use super::{BlockIndex, Heap, Owner, Region, Released, SpanIndex};

impl Heap {
    /// Whether the owner has free memory.
    pub(crate) fn has_free(&self, owner: Owner) -> bool {
        Region::ALL
            .into_iter()
            .any(|region| self.free[Self::arena(region, owner)].bytes() > 0)
            || self
                .empty
                .iter()
                .any(|block| self.owner_of_block(*block).0 == owner)
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

    /// The owners of the spans of an unused block.
    pub(crate) fn owners_of_pieces(&self, block: BlockIndex) -> Vec<Owner> {
        let mut owners: Vec<Owner> = self.spans_of(block).map(|span| span.owner).collect();
        owners.sort_unstable_by_key(|owner| owner.0);
        owners.dedup();
        owners
    }

    /// Merges the spans of an unused block into one that everyone may use, in no
    /// index and no list.
    pub(crate) fn unite(&mut self, block: BlockIndex) {
        let first = self.blocks[block].first;
        let mut next = first.some();
        while let Some(index) = next {
            self.unlist(index);
            self.spans[index].give_to_anyone();
            next = self.spans[index].after.some();
        }
        while !self.spans[first].after.is_none() {
            self.absorb_next(first);
        }
    }
}
