//! Chooses which blocks stay on the device: as many bytes as fit beside the ring for the rest.
//!
//! Blocks that do not stay are streamed through a ring of slots, each as large as the largest of them, so
//! keeping a large block resident also makes the ring smaller. For each possible size of the largest streamed
//! block, everything larger must stay, and among the others the subset is chosen whose sum comes closest to
//! the remaining space. This is a subset-sum problem, solved exactly up to the granularity of the table, with
//! one bit per unit.

use platform::Bytes;

/// Memory limit of the table, in bits.
const TABLE_BITS: usize = 1 << 26;

/// Which blocks stay, and the size of the ring for the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    /// For each block, whether it stays on the device.
    pub(crate) stays: Vec<bool>,
    /// Bytes of the blocks that stay.
    pub(crate) resident: Bytes,
    /// Bytes of the ring.
    pub(crate) ring: Bytes,
}

/// Chooses which blocks stay within `capacity`, which includes the ring, but at most `at_most` of them.
/// `None` if not even the ring for all of them fits.
pub(crate) fn pack(
    sizes: &[Bytes],
    capacity: Bytes,
    at_most: Bytes,
    slots: u32,
) -> Option<Packing> {
    let all: Bytes = sizes.iter().copied().sum();
    if all <= capacity && all <= at_most {
        let stays = vec![true; sizes.len()];
        return Some(Packing {
            stays,
            resident: all,
            ring: Bytes::ZERO,
        });
    }
    let mut candidates = sizes.to_vec();
    candidates.sort_unstable();
    candidates.dedup();
    let packings = candidates.into_iter().filter_map(|largest| {
        let must_stay: Bytes = sizes.iter().copied().filter(|size| *size > largest).sum();
        let ring = ring_bytes(largest, slots);
        let room = Bytes(capacity.0.checked_sub(ring.0)?).min(at_most);
        let room = Bytes(room.0.checked_sub(must_stay.0)?);
        let mut stays = choose(sizes, largest, room);
        // If all of this size stay, the ring is larger than necessary; a smaller candidate covers that case.
        spread(sizes, &mut stays);
        let resident = bytes_of(sizes, &stays);
        let ring = ring_of(sizes, &stays, slots);
        Some(Packing {
            stays,
            resident,
            ring,
        })
    });
    // On a tie, the smaller ring wins.
    packings.max_by_key(|packing| (packing.resident, std::cmp::Reverse(packing.ring)))
}

/// Streams exactly `count` blocks, evenly spaced, and keeps the others.
pub(crate) fn pack_all_but(sizes: &[Bytes], count: usize, slots: u32) -> Packing {
    let stays: Vec<bool> = (0..sizes.len())
        .map(|index| !leaves(index, count, sizes.len()))
        .collect();
    Packing {
        resident: bytes_of(sizes, &stays),
        ring: ring_of(sizes, &stays, slots),
        stays,
    }
}

/// Size of the ring for the blocks that do not stay.
fn ring_of(sizes: &[Bytes], stays: &[bool], slots: u32) -> Bytes {
    let leaving: Vec<Bytes> = sizes
        .iter()
        .zip(stays)
        .filter(|(_, stays)| !**stays)
        .map(|(size, _)| *size)
        .collect();
    let largest = leaving.iter().copied().max().unwrap_or_default();
    ring_bytes(largest, slots.min(leaving.len() as u32))
}

fn ring_bytes(largest: Bytes, slots: u32) -> Bytes {
    Bytes(largest.0.saturating_mul(u64::from(slots)))
}

fn bytes_of(sizes: &[Bytes], chosen: &[bool]) -> Bytes {
    sizes
        .iter()
        .zip(chosen)
        .filter(|(_, chosen)| **chosen)
        .map(|(size, _)| *size)
        .sum()
}

/// Everything larger than `largest`, and the subset of the others whose sum is closest to `room` from below.
fn choose(sizes: &[Bytes], largest: Bytes, room: Bytes) -> Vec<bool> {
    let mut stays: Vec<bool> = sizes.iter().map(|size| *size > largest).collect();
    let free: Vec<usize> = (0..sizes.len()).filter(|index| !stays[*index]).collect();
    if room == Bytes::ZERO || free.is_empty() {
        return stays;
    }
    // Sizes are rounded up to whole units, so a sum that fits the table fits the memory.
    let units = (TABLE_BITS / free.len()).clamp(256, 1 << 16) as u64;
    let unit = room.0.div_ceil(units).max(1);
    let room_units = (room.0 / unit) as usize;
    let mut table: Vec<Vec<u64>> = vec![vec![0; room_units / 64 + 1]];
    table[0][0] = 1;
    for index in &free {
        let size = sizes[*index].0.div_ceil(unit);
        let before = &table[table.len() - 1];
        let mut after = before.clone();
        or_shifted(&mut after, before, size);
        table.push(after);
    }
    let last = &table[free.len()];
    let mut sum = (0..=room_units)
        .rev()
        .find(|sum| has(last, *sum))
        .unwrap_or(0);
    for (step, index) in free.iter().enumerate().rev() {
        if has(&table[step], sum) {
            continue;
        }
        stays[*index] = true;
        sum -= sizes[*index].0.div_ceil(unit) as usize;
    }
    fill(sizes, &free, room, &mut stays);
    stays
}

/// Adds small blocks that fit into what rounding left over.
fn fill(sizes: &[Bytes], free: &[usize], room: Bytes, stays: &mut [bool]) {
    let used: Bytes = free
        .iter()
        .filter(|index| stays[**index])
        .map(|index| sizes[*index])
        .sum();
    let mut left = room - used;
    let mut by_size = free.to_vec();
    by_size.sort_by_key(|index| std::cmp::Reverse(sizes[*index]));
    for index in by_size {
        if !stays[index] && sizes[index] <= left {
            stays[index] = true;
            left = left - sizes[index];
        }
    }
}

fn has(bits: &[u64], at: usize) -> bool {
    bits.get(at / 64)
        .is_some_and(|word| word >> (at % 64) & 1 == 1)
}

fn or_shifted(target: &mut [u64], source: &[u64], by: u64) {
    let Ok(words) = usize::try_from(by / 64) else {
        return;
    };
    let bits = (by % 64) as u32;
    for at in words..target.len() {
        target[at] |= source[at - words] << bits;
        if bits > 0 && at > words {
            target[at] |= source[at - words - 1] >> (64 - bits);
        }
    }
}

/// Which blocks of the same size stay makes no difference to memory, but to speed: a streamed block is copied
/// while resident ones compute, so the streamed ones are spaced evenly.
fn spread(sizes: &[Bytes], stays: &mut [bool]) {
    let mut done = vec![false; sizes.len()];
    for first in 0..sizes.len() {
        if done[first] {
            continue;
        }
        let class: Vec<usize> = (first..sizes.len())
            .filter(|index| sizes[*index] == sizes[first])
            .collect();
        let leaving = class.iter().filter(|index| !stays[**index]).count();
        for (position, index) in class.iter().enumerate() {
            stays[*index] = !leaves(position, leaving, class.len());
            done[*index] = true;
        }
    }
}

/// Whether the block at `position` is one of `leaving` blocks spaced evenly over `count`.
pub(crate) fn leaves(position: usize, leaving: usize, count: usize) -> bool {
    (position + 1) * leaving / count > position * leaving / count
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mib(sizes: &[u64]) -> Vec<Bytes> {
        sizes.iter().map(|size| Bytes::mib(*size)).collect()
    }

    const ANY: Bytes = Bytes(u64::MAX);

    #[test]
    fn everything_stays_without_a_ring_when_it_fits() {
        let packing = pack(&mib(&[10, 20, 30]), Bytes::mib(60), ANY, 2).unwrap();
        assert_eq!(packing.stays, [true, true, true]);
        assert_eq!(packing.ring, Bytes::ZERO);
    }

    #[test]
    fn a_large_block_stays_because_streaming_it_would_need_a_large_ring() {
        let packing = pack(&mib(&[100, 10, 10, 10, 10]), Bytes::mib(130), ANY, 2).unwrap();
        assert!(packing.stays[0]);
        assert_eq!(packing.ring, Bytes::mib(20));
        assert_eq!(packing.resident, Bytes::mib(110));
    }

    #[test]
    fn streamed_blocks_lie_evenly_between_resident_ones() {
        let packing = pack(&mib(&[10; 8]), Bytes::mib(60), ANY, 2).unwrap();
        assert_eq!(
            packing.stays,
            [true, false, true, false, true, false, true, false]
        );
    }

    #[test]
    fn one_streamed_block_needs_one_slot() {
        let packing = pack_all_but(&mib(&[10; 4]), 1, 3);
        assert_eq!(
            (packing.resident, packing.ring),
            (Bytes::mib(30), Bytes::mib(10))
        );
    }

    #[test]
    fn nothing_fits_where_not_even_the_ring_does() {
        assert_eq!(pack(&mib(&[10, 10]), Bytes::mib(19), ANY, 2), None);
    }

    /// The best of all subsets, by brute force.
    fn best_by_trying(sizes: &[Bytes], capacity: Bytes, slots: u32) -> Option<Bytes> {
        (0..1_u32 << sizes.len())
            .filter_map(|mask| {
                let stays: Vec<bool> = (0..sizes.len()).map(|at| mask >> at & 1 == 1).collect();
                let resident = bytes_of(sizes, &stays);
                // Like `pack`, reserves the whole ring even if fewer blocks than slots are streamed.
                let leaving = sizes.iter().zip(&stays).filter(|(_, stays)| !**stays);
                let largest = leaving.map(|(size, _)| *size).max().unwrap_or_default();
                (resident + ring_bytes(largest, slots) <= capacity).then_some(resident)
            })
            .max()
    }

    proptest! {
        #[test]
        fn no_subset_is_better(
            sizes in prop::collection::vec((1..50_u64).prop_map(Bytes), 1..10),
            capacity in (0..400_u64).prop_map(Bytes),
            slots in 1..4_u32,
        ) {
            let packing = pack(&sizes, capacity, ANY, slots);
            prop_assert_eq!(
                packing.as_ref().map(|packing| packing.resident),
                best_by_trying(&sizes, capacity, slots)
            );
            if let Some(packing) = packing {
                prop_assert!(packing.resident + packing.ring <= capacity);
                prop_assert_eq!(bytes_of(&sizes, &packing.stays), packing.resident);
            }
        }

        #[test]
        fn real_sizes_fit_too(
            sizes in prop::collection::vec((1..4_000_000_000_u64).prop_map(Bytes), 1..60),
            capacity in (0..100_000_000_000_u64).prop_map(Bytes),
            at_most in (0..100_000_000_000_u64).prop_map(Bytes),
        ) {
            if let Some(packing) = pack(&sizes, capacity, at_most, 2) {
                prop_assert!(packing.resident + packing.ring <= capacity);
                prop_assert!(packing.resident <= at_most);
            }
        }
    }
}
