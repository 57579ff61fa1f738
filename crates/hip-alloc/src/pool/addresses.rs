//! From the address that a program holds to the span behind it.
//!
//! Every `free` starts with this look-up, so it is a flat table with linear
//! probing rather than a general map: one multiplication, usually one cache
//! line. Addresses are never zero, so zero marks an empty slot; a removal shifts
//! the following entries back, so there are no tombstones and a table that has
//! seen a million frees is as fast as a new one.

use super::span::SpanIndex;

const FIRST_CAPACITY: usize = 1024;
/// 2^64 divided by the golden ratio: spreads multiples of the granule over the table.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

#[derive(Clone, Copy)]
struct Entry {
    address: u64,
    span: SpanIndex,
}

const EMPTY: Entry = Entry {
    address: 0,
    span: SpanIndex::NONE,
};

/// A map from address to span. Holds each address at most once.
pub(super) struct AddressMap {
    entries: Box<[Entry]>,
    len: usize,
    /// 64 − log2(capacity): the hash is the top bits of the product.
    shift: u32,
}

impl AddressMap {
    pub(super) fn new() -> Self {
        Self::with_capacity(FIRST_CAPACITY)
    }

    fn with_capacity(capacity: usize) -> Self {
        debug_assert!(capacity.is_power_of_two());
        AddressMap {
            entries: vec![EMPTY; capacity].into_boxed_slice(),
            len: 0,
            shift: 64 - capacity.trailing_zeros(),
        }
    }

    pub(super) fn insert(&mut self, address: u64, span: SpanIndex) {
        debug_assert!(address != 0, "zero marks an empty slot");
        if (self.len + 1) * 2 > self.entries.len() {
            self.enlarge();
        }
        let mask = self.entries.len() - 1;
        let mut slot = self.home(address);
        while self.entries[slot].address != 0 {
            debug_assert!(self.entries[slot].address != address, "address given twice");
            slot = (slot + 1) & mask;
        }
        self.entries[slot] = Entry { address, span };
        self.len += 1;
    }

    pub(super) fn get(&self, address: u64) -> Option<SpanIndex> {
        self.slot_of(address).map(|slot| self.entries[slot].span)
    }

    pub(super) fn remove(&mut self, address: u64) -> Option<SpanIndex> {
        let mut hole = self.slot_of(address)?;
        let removed = self.entries[hole].span;
        let mask = self.entries.len() - 1;
        let mut slot = (hole + 1) & mask;
        while self.entries[slot].address != 0 {
            // An entry may move into the hole if that does not put it before its home.
            let home = self.home(self.entries[slot].address);
            if (slot.wrapping_sub(home) & mask) >= (slot.wrapping_sub(hole) & mask) {
                self.entries[hole] = self.entries[slot];
                hole = slot;
            }
            slot = (slot + 1) & mask;
        }
        self.entries[hole] = EMPTY;
        self.len -= 1;
        Some(removed)
    }

    fn slot_of(&self, address: u64) -> Option<usize> {
        if address == 0 {
            return None;
        }
        let mask = self.entries.len() - 1;
        let mut slot = self.home(address);
        loop {
            let entry = self.entries[slot];
            if entry.address == address {
                return Some(slot);
            }
            if entry.address == 0 {
                return None;
            }
            slot = (slot + 1) & mask;
        }
    }

    fn home(&self, address: u64) -> usize {
        (address.wrapping_mul(SPREAD) >> self.shift) as usize
    }

    fn enlarge(&mut self) {
        let larger = Self::with_capacity(self.entries.len() * 2);
        let old = std::mem::replace(self, larger);
        for entry in old.entries.iter().filter(|entry| entry.address != 0) {
            self.insert(entry.address, entry.span);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::hash_map::{Entry, HashMap};

    proptest! {
        /// Any sequence of insertions and removals leaves what a plain map would hold.
        #[test]
        fn agrees_with_a_plain_map(steps in prop::collection::vec((any::<bool>(), 1u64..400), 1..3000)) {
            let mut ours = AddressMap::new();
            let mut model = HashMap::new();
            for (number, (add, key)) in steps.into_iter().enumerate() {
                let address = key * 512;
                if add {
                    if let Entry::Vacant(vacant) = model.entry(address) {
                        let span = SpanIndex::new(number);
                        ours.insert(address, span);
                        vacant.insert(span);
                    }
                } else {
                    prop_assert_eq!(ours.remove(address), model.remove(&address));
                }
                prop_assert_eq!(ours.len, model.len());
            }
            for (address, span) in &model {
                prop_assert_eq!(ours.get(*address), Some(*span));
            }
        }
    }

    #[test]
    fn grows_past_its_first_capacity() {
        let mut ours = AddressMap::new();
        for number in 1..=10_000 {
            ours.insert(number as u64 * 64, SpanIndex::new(number));
        }
        for number in 1..=10_000 {
            assert_eq!(
                ours.remove(number as u64 * 64),
                Some(SpanIndex::new(number))
            );
        }
        assert_eq!(ours.get(64), None);
    }
}
