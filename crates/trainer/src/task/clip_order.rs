//! The order in which clips are trained on: batches of one shape, shuffled, pass after pass.
//!
//! It follows from the seed and the number of the pass, so that a position is all that a checkpoint
//! has to keep.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::data::SplitMix64;

/// Where a run is in its clips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// Passes over the clips that are complete.
    pub(super) epoch: u64,
    /// Clips of the current pass that were handed out.
    pub(super) clips: u64,
}

/// How often each clip is seen in a pass, of which there is how often it asks for that, and whether it is for regularisation:
/// those are together seen as often as all others.
pub(super) fn repeats(clips: &[(u32, bool)]) -> Vec<u32> {
    let others = clips.iter().filter(|(_, is_regular)| !is_regular);
    let total: u32 = others.map(|(repeats, _)| repeats).sum();
    let count = clips.iter().filter(|(_, is_regular)| *is_regular).count() as u32;
    let mut number = 0;
    let of = |(repeats, is_regular): &(u32, bool)| match is_regular {
        false => *repeats,
        true => {
            number += 1;
            total / count + u32::from(number <= total % count)
        }
    };
    clips.iter().map(of).collect()
}

/// Which clips, by their numbers, are in which batch.
pub(super) struct ClipOrder {
    seed: u64,
    /// Numbers of the clips of each shape.
    groups: Vec<Vec<usize>>,
    rows: usize,
    /// The passes that were asked for last: at the end of one, the next is read ahead.
    passes: Mutex<Vec<(u64, Pass)>>,
}

/// Passes that are kept.
const KEPT: usize = 2;

/// The batches of a pass.
type Pass = Arc<Vec<Vec<usize>>>;

impl ClipOrder {
    /// The order of clips in batches of one shape and of at most `rows`. Of each clip, there is its shape and how
    /// often it is seen in a pass. There must be a clip.
    pub(super) fn new<S: Ord>(
        seed: u64,
        clips: impl IntoIterator<Item = (S, u32)>,
        rows: usize,
    ) -> Self {
        let mut groups: BTreeMap<S, Vec<usize>> = BTreeMap::new();
        for (number, (shape, repeats)) in clips.into_iter().enumerate() {
            let group = groups.entry(shape).or_default();
            group.extend(std::iter::repeat_n(number, repeats as usize));
        }
        Self {
            seed,
            groups: groups.into_values().collect(),
            rows: rows.max(1),
            passes: Mutex::new(Vec::new()),
        }
    }

    /// Where a run is that has taken as many batches.
    pub(super) fn position(&self, batches: u64) -> Position {
        let (epoch, taken) = self.place_of(batches);
        let pass = self.pass(epoch);
        let clips = pass.iter().take(taken as usize).map(Vec::len);
        Position {
            epoch,
            clips: clips.sum::<usize>() as u64,
        }
    }

    /// How many batches a run has taken that is there. With batches of another size, the next is the
    /// first that begins behind it.
    pub(super) fn batches_until(&self, position: Position) -> u64 {
        let (mut batches, mut clips) = (position.epoch * self.batches_per_epoch(), 0);
        for batch in self.pass(position.epoch).iter() {
            if clips >= position.clips {
                break;
            }
            clips += batch.len() as u64;
            batches += 1;
        }
        batches
    }

    fn pass(&self, epoch: u64) -> Pass {
        let mut known = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pass)) = known.iter().find(|(number, _)| *number == epoch) {
            return Arc::clone(pass);
        }
        let pass = Arc::new(self.shuffled_pass(epoch));
        known.truncate(KEPT - 1);
        known.insert(0, (epoch, Arc::clone(&pass)));
        pass
    }

    fn shuffled_pass(&self, epoch: u64) -> Vec<Vec<usize>> {
        let mut random = SplitMix64::new(&[self.seed, epoch, 0x7669_6465]);
        let mut batches = Vec::new();
        for group in &self.groups {
            let mut group = group.clone();
            shuffled(&mut group, &mut random);
            batches.extend(group.chunks(self.rows).map(<[usize]>::to_vec));
        }
        shuffled(&mut batches, &mut random);
        // The last first, as the first runs had it.
        batches.reverse();
        batches
    }

    /// Batches in a pass.
    pub(super) fn batches_per_epoch(&self) -> u64 {
        let batches = self
            .groups
            .iter()
            .map(|group| group.len().div_ceil(self.rows));
        batches.sum::<usize>() as u64
    }

    /// The clips of a batch, which is counted over all passes.
    pub(super) fn samples_of(&self, number: u64) -> Vec<usize> {
        let (epoch, number) = self.place_of(number);
        self.pass(epoch)[number as usize].clone()
    }

    /// The pass of a batch and its number within the pass.
    pub(super) fn place_of(&self, number: u64) -> (u64, u64) {
        let per_epoch = self.batches_per_epoch().max(1);
        (number / per_epoch, number % per_epoch)
    }
}

fn shuffled<T>(list: &mut [T], random: &mut SplitMix64) {
    for end in (1..list.len()).rev() {
        list.swap(end, random.below(end as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regularisation_weighs_as_much_as_what_is_learned() {
        let few = [(10, false), (10, false), (1, true), (1, true), (1, true)];
        assert_eq!(repeats(&few), [10, 10, 7, 7, 6]);
        let many = [
            (1, false),
            (2, false),
            (5, true),
            (1, true),
            (1, true),
            (1, true),
        ];
        assert_eq!(repeats(&many), [1, 2, 1, 1, 1, 0]);
        assert_eq!(repeats(&[(3, false)]), [3]);
    }

    const SHAPES: [u8; 9] = [1, 2, 1, 1, 2, 1, 3, 1, 2];

    /// Batches of `rows` clips, which are repeated as `repeats` says, over and over.
    fn repeating(rows: usize, repeats: &[u32]) -> ClipOrder {
        let repeats = repeats.iter().copied().cycle();
        ClipOrder::new(3, SHAPES.into_iter().zip(repeats), rows)
    }

    #[test]
    fn a_pass_has_every_clip_as_often_as_asked_in_batches_of_one_shape() {
        let order = repeating(2, &[1, 3]);
        let count = order.batches_per_epoch();
        let pass = |epoch: u64| -> Vec<Vec<usize>> {
            (epoch * count..(epoch + 1) * count)
                .map(|number| order.samples_of(number))
                .collect()
        };
        let mut seen = [0; 9];
        for batch in pass(0) {
            assert!(batch.len() <= 2 && !batch.is_empty());
            assert!(batch.iter().all(|clip| SHAPES[*clip] == SHAPES[batch[0]]));
            for clip in batch {
                seen[clip] += 1;
            }
        }
        assert_eq!(seen, [1, 3, 1, 3, 1, 3, 1, 3, 1]);
        assert_ne!(pass(0), pass(1));
        assert_eq!(pass(0), pass(0));
    }

    #[test]
    fn around_the_end_of_a_pass_neither_is_shuffled_again() {
        let order = repeating(2, &[1]);
        let (before, after) = (order.pass(4), order.pass(5));
        for _ in 0..3 {
            assert!(Arc::ptr_eq(&before, &order.pass(4)));
            assert!(Arc::ptr_eq(&after, &order.pass(5)));
        }
        assert_eq!(order.pass(6), order.pass(6));
        assert!(!Arc::ptr_eq(&before, &order.pass(4)));
    }

    #[test]
    fn a_position_is_enough_to_go_on() {
        let order = repeating(2, &[1]);
        for batches in 0..20 {
            let position = order.position(batches);
            assert_eq!(order.batches_until(position), batches, "{position:?}");
        }
        // As checkpoints of before say the end of a pass.
        let end = Position { epoch: 1, clips: 9 };
        assert_eq!(order.batches_until(end), 2 * order.batches_per_epoch());
        // Twice as large: behind the clips that were seen.
        let larger = repeating(4, &[1]);
        let position = order.position(2);
        let seen = larger.position(larger.batches_until(position));
        assert!(seen.clips >= position.clips, "{seen:?}");
    }

    #[test]
    fn the_order_is_fixed_for_good() {
        // A change here breaks the resuming of runs that were begun before it.
        let order = repeating(2, &[1]);
        let batches: Vec<_> = (0..7).map(|number| order.samples_of(number)).collect();
        let expected = [&[1][..], &[2, 5], &[6], &[7], &[0, 3], &[8, 4], &[8, 4]];
        assert_eq!(batches, expected);
    }
}
