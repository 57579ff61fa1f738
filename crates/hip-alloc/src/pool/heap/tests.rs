//! The heap held to its invariants, whatever is asked of it.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const KIB: u64 = 1 << 10;

/// One thing that a pool does to its heap.
#[derive(Clone, Debug)]
enum Act {
    /// Takes a span of so many granules; the owner is one of three streams.
    Take(u64, u16),
    /// Frees the span in use at this place, counted round.
    Free(usize),
    Release(u16),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1u64..64, 1u16..4).prop_map(|(granules, owner)| Act::Take(granules, owner)),
        4 => any::<usize>().prop_map(Act::Free),
        1 => (1u16..4).prop_map(Act::Release),
    ]
}

impl Heap {
    fn check(&self, in_use: &[SpanIndex]) {
        let empty: HashSet<_> = self.empty.iter().collect();
        let mut listed = vec![0; self.free.len()];
        let (mut used, mut holes) = (0, 0);
        for (index, block) in self.blocks.iter() {
            let spans: Vec<_> = self.spans_of(index).collect();
            let mut at = block.address;
            for (number, span) in spans.iter().enumerate() {
                assert_eq!(span.address, at, "a gap or an overlap");
                at += span.bytes;
                if span.is_free() && spans.len() != 1 {
                    listed[Self::arena(block.region, span.owner)] += span.bytes;
                    let next = spans.get(number + 1);
                    assert!(next.is_none_or(|next| !next.is_free() || next.owner != span.owner));
                }
            }
            assert_eq!(at, block.address + block.bytes);
            let live = spans
                .iter()
                .filter(|span| matches!(span.state, SpanState::Used { .. }));
            let live: u64 = live.map(|span| span.bytes).sum();
            assert_eq!(live, block.used);
            assert_eq!(empty.contains(&index), spans.len() == 1 && live == 0);
            used += live;
            if live > 0 && block.is_large_and_transient() {
                holes += block.bytes - live;
            }
        }
        assert_eq!((used, holes), (self.used, self.large_holes));
        let empty_bytes = self.empty.iter().map(|block| self.blocks[*block].bytes);
        assert_eq!(self.empty_bytes, empty_bytes.sum::<u64>());
        let indexed: Vec<_> = self.free.iter().map(FreeIndex::bytes).collect();
        assert_eq!(indexed, listed);
        for span in in_use {
            assert_eq!(self.span_at(self.address(*span)), Some(*span));
        }
    }

    /// As the pool does it: a fit, an empty block, or a new one.
    fn serve(&mut self, bytes: u64, owner: Owner) -> SpanIndex {
        self.ensure_owner(owner);
        let region = Region::Transient;
        let span = if let Some(index) = self.find(region, owner, bytes) {
            self.take(index, owner, bytes)
        } else {
            let block = self.take_empty(owner, bytes, |_| true).unwrap_or_else(|| {
                let address = u64::from(self.next_rank + 1) << 30;
                // Every third counts as large.
                let large = u64::from(self.next_rank.is_multiple_of(3)) * (64 << 20);
                self.add_block(address, 64 * KIB + large, region, owner)
            });
            self.open(block, owner, region, bytes)
        };
        self.hand_out(span, bytes - 1);
        span
    }

    fn freed(&mut self, freed: Freed) {
        match freed {
            Freed::Part => {}
            Freed::Block(block) => self.list_empty(block),
            Freed::Pieces(block) => {
                self.unite(block);
                self.freed(Freed::Block(block));
            }
        }
    }
}

proptest! {
    #[test]
    fn the_invariants_hold(acts in prop::collection::vec(act(), 1..300)) {
        let mut heap = Heap::new(512);
        let mut in_use: Vec<SpanIndex> = Vec::new();
        let mut frees = 0;
        for act in acts {
            match act {
                Act::Take(granules, owner) => in_use.push(heap.serve(granules * 512, Owner(owner))),
                Act::Free(place) if !in_use.is_empty() => {
                    let span = in_use.swap_remove(place % in_use.len());
                    let address = heap.address(span);
                    prop_assert_eq!(heap.request(span), (heap.bytes(span) - 1, false));
                    prop_assert_eq!(heap.take_address(address), Some(span));
                    prop_assert_eq!(heap.take_address(address), None);
                    frees += 1;
                    let freed = heap.free(span, frees);
                    heap.freed(freed);
                }
                Act::Free(_) => {}
                Act::Release(owner) => {
                    heap.ensure_owner(Owner(owner));
                    let released = heap.release_to_anyone(Owner(owner), frees);
                    for block in released.whole {
                        heap.freed(Freed::Block(block));
                    }
                    prop_assert!(!heap.has_free(Owner(owner)));
                }
            }
            heap.check(&in_use);
        }
    }
}

#[test]
fn a_free_span_remembers_the_last_free_of_its_stream() {
    let mut heap = Heap::new(512);
    let owner = Owner(1);
    heap.ensure_owner(owner);
    let block = heap.add_block(1 << 30, 3 * 4096, Region::Transient, owner);
    heap.list_empty(block);
    let spans = [(); 3].map(|()| heap.serve(4096, owner));
    heap.free(spans[0], 1);
    heap.free(spans[1], 2);
    // The second free merged with the first, so neither is everyone's before it.
    assert!(!heap.release_to_anyone(owner, 1).any);
    assert!(heap.release_to_anyone(owner, 2).any);
}
