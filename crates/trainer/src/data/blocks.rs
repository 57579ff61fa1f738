//! The order in which blocks of text are trained on.
//!
//! Every epoch divides the text into blocks from a new random offset, and shuffles them. The order follows from
//! the seed and the number of the epoch, so a checkpoint only needs
//! the position.
//!
//! Where blocks are rows of different lengths, batches should have similar ones:
//!
//! ```text
//! shuffled     5 2 9 1 │ 7 3 8 6 │ 4 2 8 1
//! by length    9 5 2 1 │ 3 6 7 8 │ 8 4 2 1      groups of many rows, falling and rising in turns
//! ```
//!
//! Neighbours are alike across the borders, too, so any number of them is a batch, on any number of processes; the order
//! depends on neither.

use serde::{Deserialize, Serialize};

use super::random::SplitMix64;

/// The most rows that are sorted by length together: more give less padding and less chance.
const TOGETHER: usize = 1024;

/// The position of a run in its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderState {
    /// Complete epochs.
    pub epoch: u64,
    /// Blocks of the current epoch that were used.
    pub position: u64,
}

/// An endless sequence of block positions.
pub struct BlockOrder {
    seed: u64,
    tokens: usize,
    block_size: usize,
    state: OrderState,
    /// Whether an epoch is shuffled.
    shuffled: bool,
    /// The length of each row, where rows of similar length are neighbours; empty if they are not.
    lengths: Vec<u32>,
    /// Start of each block of the current epoch, in the order in which they are used.
    starts: Vec<u32>,
}

impl BlockOrder {
    /// Divides `tokens` tokens into blocks of `block_size`, each followed by one more token as a target.
    ///
    /// `tokens` must be more than `block_size`, and at most `u32::MAX`.
    pub fn new(seed: u64, tokens: usize, block_size: usize) -> Self {
        let state = OrderState {
            epoch: 0,
            position: 0,
        };
        let mut order = Self {
            seed,
            tokens,
            block_size,
            state,
            shuffled: true,
            lengths: Vec::new(),
            starts: Vec::new(),
        };
        order.shuffle();
        order
    }

    /// The same blocks, from the first to the last in each epoch.
    pub(crate) fn in_order(mut self) -> Self {
        self.shuffled = false;
        self.shuffle();
        self
    }

    /// Rows of these lengths, of which each start is the number, so that those of similar length are neighbours.
    pub(crate) fn by_length(mut self, lengths: Vec<u32>) -> Self {
        self.lengths = lengths;
        self.shuffle();
        self
    }

    /// Whether each epoch has an order of its own.
    pub(crate) fn is_shuffled(&self) -> bool {
        self.shuffled
    }

    /// The start of the next block.
    pub fn next_start(&mut self) -> usize {
        if self.state.position as usize >= self.starts.len() {
            self.state = OrderState {
                epoch: self.state.epoch + 1,
                position: 0,
            };
            self.shuffle();
        }
        let start = self.starts[self.state.position as usize];
        self.state.position += 1;
        start as usize
    }

    /// The starts of the blocks of the current epoch, in their order.
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }

    /// Remaining blocks of the current epoch.
    pub fn left(&self) -> usize {
        self.starts.len() - self.state.position as usize
    }

    /// Number of blocks in an epoch.
    pub fn blocks_in(&self, epoch: u64) -> usize {
        let (_, offset, last) = self.cut(epoch);
        (last - offset) / self.block_size + 1
    }

    /// The current position.
    pub fn state(&self) -> OrderState {
        self.state
    }

    /// Continues from a position that [`BlockOrder::state`] returned.
    pub fn restore(&mut self, state: OrderState) {
        self.state = state;
        self.shuffle();
    }

    /// The generator of an epoch after its first draw, the position of the first block, which that draw determines,
    /// and the last possible position of a block.
    fn cut(&self, epoch: u64) -> (SplitMix64, usize, usize) {
        let mut random = SplitMix64::new(&[self.seed, epoch]);
        // The last start must leave room for the block and the token after it.
        let last = self.tokens - self.block_size - 1;
        let offset = random.below(last.min(self.block_size - 1) as u64 + 1) as usize;
        (random, offset, last)
    }

    /// Divides and shuffles the text for the current epoch.
    fn shuffle(&mut self) {
        let (mut random, offset, last) = self.cut(self.state.epoch);
        self.starts.clear();
        self.starts.extend(
            (offset..=last)
                .step_by(self.block_size)
                .map(|start| start as u32),
        );
        let last = if self.shuffled { self.starts.len() } else { 0 };
        for end in (1..last).rev() {
            self.starts.swap(end, random.below(end as u64 + 1) as usize);
        }
        let length = |row: &u32| self.lengths.get(*row as usize).copied().unwrap_or_default();
        if self.lengths.is_empty() {
            return;
        }
        // A quarter of a small set, so that there is something left to chance.
        let together = (self.starts.len() / 4).clamp(1, TOGETHER);
        let longest = (0..self.starts.len()).max_by_key(|at| length(&self.starts[*at]));
        if let Some(at) = longest {
            self.starts.swap(0, at);
        }
        for (number, group) in self.starts.chunks_mut(together).enumerate() {
            group.sort_by_key(length);
            if number % 2 == 0 {
                group.reverse();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_block_fits_and_a_pass_repeats_none(
            seed: u64, block_size in 2usize..40, extra in 1usize..500,
        ) {
            let tokens = block_size + extra;
            let mut order = BlockOrder::new(seed, tokens, block_size);
            for _ in 0..3 {
                let epoch = order.state().epoch;
                prop_assert_eq!(order.left(), order.blocks_in(epoch));
                let mut starts = Vec::new();
                while order.state().epoch == epoch {
                    starts.push(order.next_start());
                    if order.state().position as usize == order.starts.len() { break; }
                }
                prop_assert!(starts.iter().all(|start| start + block_size < tokens));
                starts.sort_unstable();
                prop_assert!(starts.windows(2).all(|pair| pair[0] + block_size <= pair[1]));
                order.next_start();
                let state = OrderState { epoch: order.state().epoch, position: 0 };
                order.restore(state);
            }
        }

        #[test]
        fn a_restored_order_continues_as_if_never_stopped(
            seed: u64, taken in 0usize..100, block_size in 2usize..10, extra in 1usize..200,
        ) {
            let tokens = block_size + extra;
            let mut whole = BlockOrder::new(seed, tokens, block_size);
            for _ in 0..taken { whole.next_start(); }
            let mut resumed = BlockOrder::new(seed, tokens, block_size);
            resumed.restore(whole.state());
            for _ in 0..100 {
                prop_assert_eq!(whole.next_start(), resumed.next_start());
            }
        }
    }

    /// Padded tokens over tokens, in batches of `size` rows.
    fn padded(order: &[u32], lengths: &[u32], size: usize) -> f64 {
        let length = |row: &u32| u64::from(lengths[*row as usize]);
        let batches = order.chunks(size);
        let padded = batches.map(|rows| rows.iter().map(length).max().unwrap() * rows.len() as u64);
        padded.sum::<u64>() as f64 / order.iter().map(length).sum::<u64>() as f64
    }

    /// Lengths as of chats: most are short, few are long.
    #[test]
    fn rows_by_length_are_all_there_and_hardly_padded_in_batches_of_any_size() {
        let mut random = SplitMix64::new(&[3]);
        let lengths: Vec<u32> = (0..4001)
            .map(|_| (20.0 * (4.0 * random.unit()).exp()) as u32)
            .collect();
        let order = BlockOrder::new(1, lengths.len() + 1, 1);
        let mixed = order.starts().to_vec();
        let grouped = order.by_length(lengths.clone());
        let mut all = grouped.starts().to_vec();
        assert_ne!(all, mixed);
        let longest = *lengths.iter().max().unwrap();
        assert_eq!(lengths[all[0] as usize], longest);
        for size in [2, 7, 16, 64] {
            let found = [&mixed, &all].map(|order| padded(order, &lengths, size));
            assert!(found[1] < 1.2 && found[0] > 1.4, "{size}: {found:?}");
        }
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..4001));
        let mut resumed = BlockOrder::new(1, lengths.len() + 1, 1).by_length(lengths);
        let state = OrderState {
            epoch: 3,
            position: 9,
        };
        resumed.restore(state);
        assert_ne!(resumed.starts(), grouped.starts());
        let mut whole = grouped;
        for _ in 0..3 * 4001 + 9 {
            whole.next_start();
        }
        assert_eq!(whole.state(), state);
        assert_eq!(whole.next_start(), resumed.next_start());
    }

    #[test]
    fn seeds_and_passes_differ() {
        let take = |seed, epoch| {
            let mut order = BlockOrder::new(seed, 10_000, 10);
            order.restore(OrderState { epoch, position: 0 });
            (0..50).map(|_| order.next_start()).collect::<Vec<_>>()
        };
        assert_ne!(take(1, 0), take(2, 0));
        assert_ne!(take(1, 0), take(1, 1));
    }
}
