//! Which block is in which slot: the decisions of block swapping, without a device.
//!
//! Training traverses the blocks up and down again, evaluation up and then from the start. A ring of `slots`
//! holds the block in use and prefetches the next ones:
//!
//! ```text
//!   slots = 2      forward 0 1 2 3 │ backward 3 2 1 0
//!   in use         0    1    2    3 │  3    2    1    0
//!   prefetching    1    2    3    – │  –    1    0    –      (2 is still there)
//! ```
//!
//! A slot is only overwritten by a step that starts *after* its block was used: at that point all work on it
//! is queued, and the copy waits for that work.

/// The order in which blocks are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traversal {
    /// Up, then down again: the last block is used twice in a row.
    Training,
    /// Up, then from the start.
    Evaluation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// What to do before a block is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The slot of the block.
    pub(crate) slot: usize,
    /// Whether it has to be loaded there first, because it was not prefetched.
    pub(crate) load: bool,
    /// Blocks to prefetch as `(slot, block)`, in this order.
    pub(crate) prefetch: Vec<(usize, usize)>,
}

/// The slots and their contents.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    blocks: usize,
    slots: Vec<Option<usize>>,
    last: Option<usize>,
    direction: Direction,
}

impl Ring {
    /// An empty ring for `blocks` blocks; both numbers are at least one.
    pub(crate) fn new(blocks: usize, slots: usize) -> Self {
        Self {
            blocks,
            slots: vec![None; slots.min(blocks)],
            last: None,
            direction: Direction::Up,
        }
    }

    /// Number of useful slots: no more than blocks.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// `block` is about to be used, and the previous one is no longer in use.
    pub(crate) fn step(&mut self, block: usize, traversal: Traversal) -> Step {
        self.update_direction(block);
        let ahead = self.ahead(block, traversal);
        let (slot, load) = match self.slot_of(block) {
            Some(slot) => (slot, false),
            None => (self.victim(&[], &ahead), true),
        };
        self.slots[slot] = Some(block);
        let mut prefetch = Vec::new();
        let mut kept = vec![block];
        for next in ahead {
            if self.slot_of(next).is_none() {
                let slot = self.victim(&kept, &[]);
                self.slots[slot] = Some(next);
                prefetch.push((slot, next));
            }
            kept.push(next);
        }
        Step {
            slot,
            load,
            prefetch,
        }
    }

    /// A load failed: the slot contains nothing usable.
    pub(crate) fn forget(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn slot_of(&self, block: usize) -> Option<usize> {
        self.slots.iter().position(|held| *held == Some(block))
    }

    fn update_direction(&mut self, block: usize) {
        self.direction = match self.last {
            Some(last) if block > last => Direction::Up,
            // From the end to the start is a new pass, not a step down.
            Some(last) if block == 0 && last + 1 == self.blocks && self.blocks > 2 => Direction::Up,
            Some(last) if block < last => Direction::Down,
            // The same block again: the direction has changed.
            Some(_) if self.direction == Direction::Up => Direction::Down,
            _ => Direction::Up,
        };
        self.last = Some(block);
    }

    /// The blocks after this one, as many as there are other slots.
    fn ahead(&self, block: usize, traversal: Traversal) -> Vec<usize> {
        let mut ahead = Vec::new();
        let mut at = block;
        while ahead.len() + 1 < self.slots.len() {
            at = match (self.direction, traversal) {
                (Direction::Up, Traversal::Evaluation) => (at + 1) % self.blocks,
                (Direction::Up, Traversal::Training) if at + 1 < self.blocks => at + 1,
                (Direction::Down, _) if at > 0 => at - 1,
                // The direction changes here; the next blocks are those just used.
                _ => break,
            };
            ahead.push(at);
        }
        ahead
    }

    /// The slot to overwrite: an empty one, or the one whose block is needed last. `kept` are never
    /// overwritten, `wanted` only if there is no other.
    fn victim(&self, kept: &[usize], wanted: &[usize]) -> usize {
        let current = self.last.unwrap_or(0);
        let reluctance = |held: &Option<usize>| match held {
            None => (0, 0),
            Some(block) if kept.contains(block) => (3, 0),
            Some(block) if wanted.contains(block) => (2, 0),
            // The most distant first.
            Some(block) => (1, usize::MAX - block.abs_diff(current)),
        };
        let slots = self.slots.iter().enumerate();
        slots
            .min_by_key(|(_, held)| reluctance(held))
            .map_or(0, |(slot, _)| slot)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Traverses the blocks, checks every step, and returns the number of loads.
    fn traversal(
        ring: &mut Ring,
        path: impl IntoIterator<Item = usize>,
        traversal: Traversal,
    ) -> (usize, usize) {
        let (mut waited, mut fetched) = (0, 0);
        for block in path {
            let step = ring.step(block, traversal);
            waited += usize::from(step.load);
            fetched += step.prefetch.len();
            assert!(
                step.prefetch.iter().all(|&(slot, _)| slot != step.slot),
                "{block}: {step:?}"
            );
            assert_eq!(ring.slots[step.slot], Some(block));
        }
        (waited, fetched)
    }

    #[test]
    fn only_the_first_block_is_waited_for() {
        let mut ring = Ring::new(40, 2);
        assert_eq!(traversal(&mut ring, 0..40, Traversal::Training), (1, 39));
        // 39 and 38 are still there; each of the others is loaded once.
        assert_eq!(
            traversal(&mut ring, (0..40).rev(), Traversal::Training),
            (0, 38)
        );
        assert_eq!(
            traversal(&mut ring, 0..40, Traversal::Training),
            (0, 38),
            "0 and 1 are still there"
        );
    }

    #[test]
    fn evaluation_starts_again_without_waiting() {
        let mut ring = Ring::new(10, 2);
        traversal(&mut ring, 0..10, Traversal::Evaluation);
        assert_eq!(traversal(&mut ring, 0..10, Traversal::Evaluation), (0, 10));
    }

    #[test]
    fn a_ring_that_holds_everything_loads_everything_once() {
        let mut ring = Ring::new(3, 8);
        assert_eq!(ring.slots(), 3);
        let (waited, fetched) = traversal(&mut ring, 0..3, Traversal::Training);
        assert_eq!(waited + fetched, 3);
        assert_eq!(
            traversal(&mut ring, [2, 1, 0, 0, 1, 2], Traversal::Training),
            (0, 0)
        );
    }

    #[test]
    fn one_slot_works_without_looking_ahead() {
        let mut ring = Ring::new(4, 1);
        assert_eq!(traversal(&mut ring, 0..4, Traversal::Training), (4, 0));
        assert_eq!(traversal(&mut ring, [3, 2], Traversal::Training), (1, 0));
    }

    #[test]
    fn a_slot_that_failed_is_loaded_again() {
        let mut ring = Ring::new(4, 2);
        let step = ring.step(0, Traversal::Training);
        ring.forget(step.slot);
        assert!(ring.step(0, Traversal::Training).load);
    }

    proptest! {
        /// In any order: the block in use is in its slot, no block is in two slots, and no prefetched block
        /// is overwritten in the same step.
        #[test]
        fn any_walk_is_served(
            blocks in 1..12_usize,
            slots in 1..6_usize,
            path in prop::collection::vec((0..12_usize, any::<bool>()), 0..60),
        ) {
            let mut ring = Ring::new(blocks, slots);
            let mut shadow: Vec<Option<usize>> = vec![None; ring.slots()];
            for (block, training) in path {
                let block = block % blocks;
                let step = ring.step(block, if training { Traversal::Training } else { Traversal::Evaluation });
                if step.load {
                    shadow[step.slot] = Some(block);
                }
                prop_assert_eq!(shadow[step.slot], Some(block), "stale block");
                for &(slot, next) in &step.prefetch {
                    prop_assert_ne!(slot, step.slot);
                    shadow[slot] = Some(next);
                }
                prop_assert_eq!(&shadow, &ring.slots);
                let mut held: Vec<usize> = shadow.iter().flatten().copied().collect();
                held.sort_unstable();
                held.dedup();
                prop_assert_eq!(held.len(), shadow.iter().flatten().count(), "a block twice");
            }
        }
    }
}
