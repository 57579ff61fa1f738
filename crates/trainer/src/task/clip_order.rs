//! The order in which clips are trained on: batches of one shape, shuffled, pass after pass.
//!
//! It follows from the seed and the number of the pass, so that a position is all that a checkpoint
//! has to keep.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::epochs::Epochs;
use crate::data::SplitMix64;

/// Where a run is in its clips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// Passes over the clips that are complete.
    pub(super) epoch: u64,
    /// Clips of the current pass that were handed out.
    pub(super) clips: u64,
}

/// Hands out batches of clips by their numbers, without end.
#[derive(Clone)]
pub(super) struct ClipOrder {
    seed: u64,
    /// Numbers of the clips of each shape.
    groups: Vec<Vec<usize>>,
    rows: usize,
    position: Position,
    /// Of the current pass, those to come, the next one last.
    batches: Vec<Vec<usize>>,
}

impl ClipOrder {
    /// The order of clips of these shapes in batches of at most `rows`, each seen `repeats` times in
    /// a pass. There must be a clip.
    pub(super) fn new<S: Ord + Copy>(seed: u64, shapes: &[S], rows: usize, repeats: usize) -> Self {
        let mut groups: BTreeMap<S, Vec<usize>> = BTreeMap::new();
        for (number, shape) in shapes.iter().enumerate() {
            let group = groups.entry(*shape).or_default();
            group.extend(std::iter::repeat_n(number, repeats));
        }
        let mut order = Self {
            seed,
            groups: groups.into_values().collect(),
            rows: rows.max(1),
            position: Position { epoch: 0, clips: 0 },
            batches: Vec::new(),
        };
        order.shuffle();
        order
    }

    /// The next batch.
    pub(super) fn next(&mut self) -> Vec<usize> {
        if self.batches.is_empty() {
            self.position = Position {
                epoch: self.position.epoch + 1,
                clips: 0,
            };
            self.shuffle();
        }
        let batch = self.batches.pop().unwrap_or_default();
        self.position.clips += batch.len() as u64;
        batch
    }

    /// Where the order stands.
    pub(super) fn state(&self) -> Position {
        self.position
    }

    /// Goes on from there. With batches of another size, from the first that begins behind it.
    pub(super) fn restore(&mut self, position: Position) {
        self.position = Position {
            epoch: position.epoch,
            clips: 0,
        };
        self.shuffle();
        while self.position.clips < position.clips && !self.batches.is_empty() {
            self.next();
        }
    }

    /// The batches of the current pass.
    fn shuffle(&mut self) {
        let mut random = SplitMix64::new(&[self.seed, self.position.epoch, 0x7669_6465]);
        self.batches.clear();
        for group in &self.groups {
            let mut group = group.clone();
            shuffled(&mut group, &mut random);
            self.batches
                .extend(group.chunks(self.rows).map(<[usize]>::to_vec));
        }
        shuffled(&mut self.batches, &mut random);
    }
}

impl Epochs for ClipOrder {
    fn batches_in(&self, _: u64) -> u64 {
        let batches = self
            .groups
            .iter()
            .map(|group| group.len().div_ceil(self.rows));
        batches.sum::<usize>() as u64
    }

    fn position(&self) -> (u64, u64) {
        let epoch = self.position.epoch;
        match self.batches.len() as u64 {
            0 => (epoch + 1, 0),
            left => (epoch, self.batches_in(epoch) - left),
        }
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

    const SHAPES: [u8; 9] = [1, 2, 1, 1, 2, 1, 3, 1, 2];

    fn batches(order: &mut ClipOrder, count: usize) -> Vec<Vec<usize>> {
        (0..count).map(|_| order.next()).collect()
    }

    #[test]
    fn a_pass_has_every_clip_as_often_as_asked_in_batches_of_one_shape() {
        let mut order = ClipOrder::new(3, &SHAPES, 2, 2);
        let (mut seen, mut epochs) = ([0; 9], Vec::new());
        while order.state().epoch == 0 {
            let batch = order.next();
            if order.state().epoch > 0 {
                break;
            }
            assert!(batch.len() <= 2 && !batch.is_empty());
            assert!(batch.iter().all(|clip| SHAPES[*clip] == SHAPES[batch[0]]));
            for clip in &batch {
                seen[*clip] += 1;
            }
            epochs.push(batch);
            let counted = (0, epochs.len() as u64);
            let ended = (1, 0);
            let at_end = epochs.len() as u64 == order.batches_in(0);
            assert_eq!(order.position(), if at_end { ended } else { counted });
        }
        assert_eq!(epochs.len() as u64, order.batches_in(0));
        assert_eq!(seen, [2; 9]);
        let next = batches(&mut order, epochs.len());
        assert_ne!(next, epochs);
    }

    #[test]
    fn a_position_is_enough_to_go_on() {
        let mut order = ClipOrder::new(3, &SHAPES, 2, 1);
        for _ in 0..12 {
            let position = order.state();
            let mut other = ClipOrder::new(3, &SHAPES, 2, 1);
            other.restore(position);
            assert_eq!(batches(&mut other, 9), batches(&mut order.clone(), 9));
            order.next();
        }
    }
}
