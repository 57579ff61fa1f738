//! How large a new block is.
//!
//! A block is a multiple of the request that it is opened for. The requests of a
//! step are multiples of each other (of tokens × width), so they fill such a block
//! without a remainder, where one of a round size ends in a tail that nothing fits.
//!
//! How many times the request depends on what is known. Below the highest live memory so
//! far, large blocks cost nothing at the peak and save driver calls; but one request that
//! outlives the step pins a whole block, and how often that happens is only seen at the
//! end of a step. So the limit grows while ends of steps are clean, and shrinks when they
//! are not ([`LargeBlocks`]).

use super::lifetime::{Expectation, Guess};
use super::tide::Ebb;
use super::*;

/// A block for several requests is at least this large.
const SHARED_BLOCK: u64 = 32 * MIB;
/// But no more than one part in this many of the capacity.
const SHARED_PART: u64 = 128;
/// A block of several lasting requests is at most this large.
const LASTING_BLOCK: u64 = 96 * MIB;
/// Blocks are multiples of this.
const BLOCK_STEP: u64 = MIB / 2;
/// The smallest and the largest block of the region for small requests.
pub(super) const SMALL_BLOCK: (u64, u64) = (2 * MIB, 32 * MIB);
/// That region grows by one part in this many.
const SMALL_GROWTH: u64 = 8;
/// A request of which nothing is known gets a block of its own from this size on: if
/// the guess is wrong it pins nothing but itself.
const ALONE: u64 = 8 * MIB;
/// When memory is tight: from this size on.
const ALONE_WHEN_TIGHT: u64 = MIB;
/// Blocks for one request are multiples of this: the page of host and device.
pub(super) const DIRECT_STEP: u64 = 4096;

/// The limit of [`LargeBlocks`] at the start, and the lowest.
const LIMIT: (u64, u64) = (128 * MIB, 64 * MIB);
/// With more holes than this at the end of a step, large blocks are too large.
const MANY_HOLES: u64 = 256 * MIB;
/// With fewer than this they may be larger.
const FEW_HOLES: u64 = 128 * MIB;

/// How large blocks for passing requests may be, as the ends of steps have shown.
pub(super) struct LargeBlocks {
    limit: u64,
    /// The last end of a step that was judged.
    judged: u64,
    /// Free memory in large blocks for passing requests that are not empty.
    holes: u64,
}

impl Default for LargeBlocks {
    fn default() -> Self {
        LargeBlocks {
            limit: LIMIT.0,
            judged: 0,
            holes: 0,
        }
    }
}

impl LargeBlocks {
    /// Free memory in large blocks that cannot go back.
    pub(super) fn holes(&self) -> u64 {
        self.holes
    }

    /// A block is about to have `bytes` more in use. Whether it is large follows no
    /// pattern, so that is multiplied by and not branched on.
    pub(super) fn taken(&mut self, block: &Block, bytes: u64) {
        let large = u64::from(block.is_large_and_passing());
        let whole = if block.used == 0 { block.held() } else { 0 };
        self.holes += large * whole;
        self.holes -= large * bytes;
    }

    /// A block has `bytes` less in use.
    pub(super) fn freed(&mut self, block: &Block, bytes: u64) {
        let large = u64::from(block.is_large_and_passing());
        let whole = if block.used == 0 { block.held() } else { 0 };
        self.holes += large * bytes;
        self.holes -= large * whole;
    }

    /// A hole of `bytes` in a large block went back.
    pub(super) fn left(&mut self, bytes: u64) {
        self.holes -= bytes;
    }

    /// The limit, `most` at most, after the last end of a step was judged.
    fn limit(&mut self, ebb: Option<Ebb>, most: u64) -> u64 {
        if let Some(ebb) = ebb.filter(|ebb| ebb.event > self.judged) {
            self.judged = ebb.event;
            if ebb.holes > MANY_HOLES {
                self.limit = (self.limit / 2).max(LIMIT.1);
            } else if ebb.holes < FEW_HOLES {
                self.limit = self.limit.saturating_mul(2).min(most);
            }
        }
        self.limit.min(most)
    }
}

impl Pool {
    /// The size of a new block for a request of `bytes`.
    pub(super) fn growth(&mut self, bytes: u64, region: Region, guess: Guess) -> u64 {
        if region == Region::Small {
            return self.small_growth();
        }
        if self.is_tight(bytes) && bytes >= ALONE_WHEN_TIGHT {
            return bytes.next_multiple_of(DIRECT_STEP);
        }
        if guess.blind && bytes >= ALONE {
            return bytes.next_multiple_of(BLOCK_STEP);
        }
        let shared = SHARED_BLOCK.min(self.capacity / SHARED_PART);
        let fewest = shared.div_ceil(bytes).max(1);
        let most = 2 * fewest + 2;
        if guess.expectation == Expectation::Lasting {
            return best_multiple(bytes, fewest, most.min(LASTING_BLOCK / bytes));
        }
        let least = best_multiple(bytes, fewest, most);
        let held_by_live = self.stats.held_bytes.saturating_sub(self.empty_bytes());
        let room = self.ceiling(bytes).saturating_sub(held_by_live);
        let limit = self
            .large_blocks
            .limit(self.lifetimes.last_ebb(), self.config.large_block_bytes);
        let most = room.min(limit) / bytes;
        if most <= fewest {
            return least;
        }
        least.max(best_multiple(
            bytes,
            most.saturating_sub(1).max(fewest),
            most,
        ))
    }

    /// In proportion to what there is, so that many small requests need few calls and
    /// few small requests hold little.
    fn small_growth(&self) -> u64 {
        let small = self.blocks.iter().map(|(_, block)| block);
        let held: u64 = small
            .filter(|block| block.region == Region::Small)
            .map(|block| block.bytes)
            .sum();
        (held / SMALL_GROWTH)
            .next_multiple_of(BLOCK_STEP)
            .clamp(SMALL_BLOCK.0, SMALL_BLOCK.1)
    }
}

/// Of the multiples of `bytes` from `fewest` to `most` times, rounded up to the step of
/// blocks, the one that wastes the smallest share; of equals, the smallest.
fn best_multiple(bytes: u64, fewest: u64, most: u64) -> u64 {
    /// Shares of waste are told apart in 256ths.
    const PARTS: u64 = 256;
    let mut best = (PARTS, u64::MAX);
    for count in fewest.max(1)..=most.max(fewest).max(1) {
        let block = (count * bytes).next_multiple_of(BLOCK_STEP);
        let waste = (block - count * bytes) * PARTS / block;
        best = best.min((waste, block));
        if waste == 0 {
            break;
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ebb(event: u64, holes: u64) -> Option<Ebb> {
        Some(Ebb { event, holes })
    }

    #[test]
    fn clean_ends_of_steps_make_blocks_larger_and_others_smaller() {
        let mut blocks = LargeBlocks::default();
        assert_eq!(blocks.limit(None, 512 * MIB), 128 * MIB);
        assert_eq!(blocks.limit(ebb(10, 0), 512 * MIB), 256 * MIB);
        assert_eq!(
            blocks.limit(ebb(10, 0), 512 * MIB),
            256 * MIB,
            "judged once"
        );
        assert_eq!(blocks.limit(ebb(20, 0), 512 * MIB), 512 * MIB);
        assert_eq!(blocks.limit(ebb(30, 0), 512 * MIB), 512 * MIB);
        for event in [40, 50, 60, 70] {
            blocks.limit(ebb(event, 1024 * MIB), 512 * MIB);
        }
        assert_eq!(blocks.limit(ebb(80, 200 * MIB), 512 * MIB), 64 * MIB);
    }

    #[test]
    fn a_multiple_without_a_remainder_is_preferred() {
        assert_eq!(best_multiple(12 * MIB, 3, 8), 36 * MIB);
        assert_eq!(best_multiple(MIB / 4 * 3, 43, 88), 33 * MIB);
    }
}
