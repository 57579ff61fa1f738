//! Maps the address that a program holds to its span.
//!
//! Every `free` starts with this look-up, so it is a flat table with linear
//! probing rather than a general map: one multiplication, usually one cache
//! line. An entry is eight bytes: it is identified by half of the hash,
//! and the address itself is read from the span, which is needed next anyway. At most
//! a quarter of the table is full, so that the first slot is nearly always the right
//! one. A removal shifts the following entries back, so there are no tombstones and a
//! table that has seen a million frees is as fast as a new one.

use super::span::{SpanIndex, SpanTable};

const FIRST_CAPACITY_LOG2: u32 = 10;
/// At most one slot in this many may be full.
const SLOTS_PER_ENTRY: usize = 4;
/// 2^64 divided by the golden ratio: spreads multiples of the granule over the table.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

#[derive(Clone, Copy)]
struct Entry {
    /// The upper half of the product: its upper bits are the first slot to look at.
    hash: u32,
    /// None: the slot is empty.
    span: SpanIndex,
}

const EMPTY: Entry = Entry {
    hash: 0,
    span: SpanIndex::NONE,
};

/// A map from address to span. Holds each address at most once.
pub(super) struct AddressMap {
    entries: Box<[Entry]>,
    len: usize,
    /// 32 − log2(capacity).
    shift: u32,
}

impl AddressMap {
    pub(super) fn new() -> Self {
        Self::with_capacity(FIRST_CAPACITY_LOG2)
    }

    fn with_capacity(log2: u32) -> Self {
        AddressMap {
            entries: vec![EMPTY; 1 << log2].into_boxed_slice(),
            len: 0,
            shift: u32::BITS - log2,
        }
    }

    /// Adds a span that begins at an address which is not in the map.
    pub(super) fn insert(&mut self, address: u64, span: SpanIndex) {
        if (self.len + 1) * SLOTS_PER_ENTRY > self.entries.len() {
            self.enlarge();
        }
        self.put(Entry {
            hash: hash(address),
            span,
        });
    }

    fn put(&mut self, entry: Entry) {
        let mask = self.entries.len() - 1;
        let mut slot = self.first_slot(entry);
        while !self.entries[slot].span.is_none() {
            slot = (slot + 1) & mask;
        }
        self.entries[slot] = entry;
        self.len += 1;
    }

    /// The span that begins at an address. Every span in the map is one of these.
    pub(super) fn get(&self, spans: &SpanTable, address: u64) -> Option<SpanIndex> {
        let slot = self.slot_of(spans, address)?;
        Some(self.entries[slot].span)
    }

    /// Like [`get`](Self::get), and removes it.
    #[inline(always)]
    pub(super) fn remove(&mut self, spans: &SpanTable, address: u64) -> Option<SpanIndex> {
        let mut hole = self.slot_of(spans, address)?;
        let removed = self.entries[hole].span;
        let mask = self.entries.len() - 1;
        let mut slot = (hole + 1) & mask;
        while !self.entries[slot].span.is_none() {
            // An entry may move into the hole if that does not put it before its first slot.
            let first = self.first_slot(self.entries[slot]);
            if (slot.wrapping_sub(first) & mask) >= (slot.wrapping_sub(hole) & mask) {
                self.entries[hole] = self.entries[slot];
                hole = slot;
            }
            slot = (slot + 1) & mask;
        }
        self.entries[hole] = EMPTY;
        self.len -= 1;
        Some(removed)
    }

    fn slot_of(&self, spans: &SpanTable, address: u64) -> Option<usize> {
        let mask = self.entries.len() - 1;
        let span = SpanIndex::NONE;
        let hash = hash(address);
        let mut slot = self.first_slot(Entry { hash, span });
        loop {
            let entry = self.entries[slot];
            if entry.span.is_none() {
                return None;
            }
            if entry.hash == hash && spans[entry.span].address == address {
                return Some(slot);
            }
            slot = (slot + 1) & mask;
        }
    }

    fn first_slot(&self, entry: Entry) -> usize {
        (entry.hash >> self.shift) as usize
    }

    #[cold]
    fn enlarge(&mut self) {
        let larger = Self::with_capacity(self.entries.len().ilog2() + 1);
        let old = std::mem::replace(self, larger);
        for entry in old.entries.iter().filter(|entry| !entry.span.is_none()) {
            self.put(*entry);
        }
    }
}

fn hash(address: u64) -> u32 {
    (address.wrapping_mul(SPREAD) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::super::block::BlockIndex;
    use super::super::span::{Owner, Span};
    use super::*;
    use proptest::prelude::*;
    use std::collections::hash_map::{Entry, HashMap};

    fn span_at(spans: &mut SpanTable, address: u64) -> SpanIndex {
        spans.add(Span::whole(BlockIndex(0), address, 1, 0, Owner::ANYONE))
    }

    proptest! {
        /// Any sequence of insertions and removals gives the same contents as in a plain map.
        #[test]
        fn agrees_with_a_plain_map(steps in prop::collection::vec((any::<bool>(), 1u64..400), 1..3000)) {
            let mut spans = SpanTable::default();
            let mut ours = AddressMap::new();
            let mut model = HashMap::new();
            for (add, key) in steps {
                let address = key * 512;
                if add {
                    if let Entry::Vacant(vacant) = model.entry(address) {
                        let span = span_at(&mut spans, address);
                        ours.insert(address, span);
                        vacant.insert(span);
                    }
                } else {
                    let removed = ours.remove(&spans, address);
                    prop_assert_eq!(removed, model.remove(&address));
                    removed.into_iter().for_each(|span| spans.retire(span));
                }
                prop_assert_eq!(ours.len, model.len());
            }
            for (address, span) in &model {
                prop_assert_eq!(ours.get(&spans, *address), Some(*span));
            }
        }
    }

    #[test]
    fn addresses_with_the_same_hash_are_told_apart() {
        // One turn of the inverse of the factor is one in the lower half of the product.
        let inverse = (0..5).fold(1u64, |inverse, _| {
            inverse.wrapping_mul(2u64.wrapping_sub(SPREAD.wrapping_mul(inverse)))
        });
        let (first, second) = (inverse, inverse.wrapping_mul(2));
        assert_eq!(hash(first), hash(second));
        let mut spans = SpanTable::default();
        let mut ours = AddressMap::new();
        let known = [first, second].map(|address| {
            let span = span_at(&mut spans, address);
            ours.insert(address, span);
            span
        });
        assert_eq!(ours.get(&spans, inverse.wrapping_mul(3)), None);
        assert_eq!(ours.remove(&spans, first), Some(known[0]));
        assert_eq!(ours.remove(&spans, first), None);
        assert_eq!(ours.get(&spans, second), Some(known[1]));
    }

    #[test]
    fn grows_past_its_first_capacity() {
        let mut spans = SpanTable::default();
        let mut ours = AddressMap::new();
        let addresses = (1..=10_000).map(|number| number * 64);
        let known: Vec<_> = addresses
            .map(|address| (address, span_at(&mut spans, address)))
            .collect();
        for (address, span) in &known {
            ours.insert(*address, *span);
        }
        for (address, span) in &known {
            assert_eq!(ours.remove(&spans, *address), Some(*span));
        }
        assert_eq!(ours.get(&spans, 64), None);
    }
}
