//! The order in which blocks of text are trained on.
//!
//! Every epoch divides the text into blocks from a new random offset, and shuffles them. The order follows from
//! the seed and the number of the epoch, so a checkpoint only needs
//! the position.

use serde::{Deserialize, Serialize};

use super::random::SplitMix64;

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
