//! A range of addresses, handed out and taken back.
//!
//! Best fit, with neighbours joined at once. It serves device addresses inside
//! the arena and offsets inside the file behind virtual-memory handles alike.

use std::collections::{BTreeMap, BTreeSet};

/// The free parts of a range, by where they start and by how large they are.
pub(crate) struct AddressSpace {
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl AddressSpace {
    /// All of `start..start + size` is free.
    pub(crate) fn new(start: u64, size: u64) -> Self {
        let mut space = Self {
            by_start: BTreeMap::new(),
            by_size: BTreeSet::new(),
        };
        space.insert(start, size);
        space
    }

    /// The start of `size` bytes at a multiple of `alignment` (a power of two).
    pub(crate) fn allocate(&mut self, size: u64, alignment: u64) -> Option<u64> {
        let fits = |&(free, start): &(u64, u64)| {
            let aligned = start.checked_next_multiple_of(alignment)?;
            (aligned - start)
                .checked_add(size)
                .filter(|needed| *needed <= free)
                .map(|_| (start, free, aligned))
        };
        let (start, free, aligned) = self.by_size.range((size, 0)..).find_map(fits)?;
        self.remove(start, free);
        if aligned > start {
            self.insert(start, aligned - start);
        }
        if aligned + size < start + free {
            self.insert(aligned + size, start + free - aligned - size);
        }
        Some(aligned)
    }

    /// Takes back what `allocate` gave.
    pub(crate) fn release(&mut self, start: u64, size: u64) {
        let (mut start, mut size) = (start, size);
        if let Some((&before, &length)) = self.by_start.range(..start).next_back()
            && before + length == start
        {
            self.remove(before, length);
            (start, size) = (before, length + size);
        }
        if let Some(&length) = self.by_start.get(&(start + size)) {
            self.remove(start + size, length);
            size += length;
        }
        self.insert(start, size);
    }

    fn insert(&mut self, start: u64, size: u64) {
        self.by_start.insert(start, size);
        self.by_size.insert((size, start));
    }

    fn remove(&mut self, start: u64, size: u64) {
        self.by_start.remove(&start);
        self.by_size.remove(&(size, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_never_overlap_and_come_together_again(
            steps in prop::collection::vec((any::<bool>(), 1_u64..5000, 0_u32..12, any::<prop::sample::Index>()), 1..300),
        ) {
            let (start, size) = (1 << 20, 1 << 22);
            let mut space = AddressSpace::new(start, size);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (allocate, bytes, alignment, index) in steps {
                if allocate || live.is_empty() {
                    let alignment = 1 << alignment;
                    if let Some(at) = space.allocate(bytes, alignment) {
                        prop_assert_eq!(at % alignment, 0);
                        prop_assert!(at >= start && at + bytes <= start + size);
                        prop_assert!(live.iter().all(|&(other, length)| at + bytes <= other || other + length <= at));
                        live.push((at, bytes));
                    }
                } else {
                    let (at, bytes) = live.swap_remove(index.index(live.len()));
                    space.release(at, bytes);
                }
            }
            for (at, bytes) in live {
                space.release(at, bytes);
            }
            prop_assert_eq!(space.by_start, BTreeMap::from([(start, size)]));
        }
    }

    #[test]
    fn a_full_space_says_no() {
        let mut space = AddressSpace::new(0, 8192);
        assert_eq!(space.allocate(8192, 4096), Some(0));
        assert_eq!(space.allocate(1, 1), None);
        space.release(0, 8192);
        assert_eq!(space.allocate(u64::MAX, 1), None);
    }
}
