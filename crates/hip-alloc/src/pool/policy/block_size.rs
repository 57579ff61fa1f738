//! The size of new blocks.
//!
//! A block is a multiple of the request that it is allocated for. The requests of a
//! step are multiples of each other (of tokens × width), so they fill such a block
//! without a remainder, while a block of a round size ends in an unusable tail.
//!
//! The factor depends on what is known. Below the highest live memory so
//! far, large blocks cost nothing at the peak and save driver calls; but one request that
//! outlives the step pins a whole block, and how often that happens is only seen at the
//! end of a step. So the limit grows while ends of steps are clean, and shrinks when they
//! are not ([`LargeBlocks`]).

use super::step_detector::StepBoundary;
use super::{Held, Placement, Region};
use crate::units::MIB;

/// The minimum size of a block for several requests.
const SHARED_BLOCK: u64 = 32 * MIB;
/// But no more than this fraction of the capacity.
const SHARED_PART: u64 = 128;
/// The maximum size of a block for several persistent requests.
const PERSISTENT_BLOCK: u64 = 96 * MIB;
/// Blocks are multiples of this.
const BLOCK_STEP: u64 = MIB / 2;
/// The smallest and the largest block of the region for small requests.
pub(in crate::pool) const SMALL_BLOCK: (u64, u64) = (2 * MIB, 32 * MIB);
/// That region grows by this fraction.
const SMALL_GROWTH: u64 = 8;
/// A request of which nothing is known gets its own block from this size on: if
/// the prediction is wrong it pins only itself.
const ALONE: u64 = 8 * MIB;
/// When memory is tight: from this size on.
const ALONE_WHEN_TIGHT: u64 = MIB;
/// Blocks for one request are multiples of this: the page of host and device.
pub(in crate::pool) const DIRECT_STEP: u64 = 4096;

/// The initial, the lowest and the highest limit of [`LargeBlocks`].
const LIMIT: (u64, u64, u64) = (128 * MIB, 64 * MIB, 256 * MIB);
/// With more holes than this at the end of a step, large blocks are too large.
const MANY_HOLES: u64 = 256 * MIB;
/// With fewer than this they may be larger.
const FEW_HOLES: u64 = 128 * MIB;

/// How large blocks for transient requests may be, according to the ends of steps.
pub(super) struct LargeBlocks {
    limit: u64,
    /// The last end of a step that was evaluated.
    judged: u64,
}

impl Default for LargeBlocks {
    fn default() -> Self {
        LargeBlocks {
            limit: LIMIT.0,
            judged: 0,
        }
    }
}

impl LargeBlocks {
    /// The limit after evaluating the last end of a step.
    fn limit(&mut self, boundary: Option<StepBoundary>) -> u64 {
        if let Some(boundary) = boundary.filter(|boundary| boundary.event > self.judged) {
            self.judged = boundary.event;
            if boundary.holes > MANY_HOLES {
                self.limit = (self.limit / 2).max(LIMIT.1);
            } else if boundary.holes < FEW_HOLES {
                self.limit = (self.limit * 2).min(LIMIT.2);
            }
        }
        self.limit
    }

    /// The size of a new block for a request of `bytes`, after the last end of a step.
    pub(super) fn block_bytes(
        &mut self,
        bytes: u64,
        placement: Placement,
        held: &Held,
        boundary: Option<StepBoundary>,
    ) -> u64 {
        if placement.region == Region::Small {
            // Proportional to existing blocks, so that many small requests need few calls and
            // few small requests hold little memory.
            let (smallest, largest) = SMALL_BLOCK;
            return (held.small / SMALL_GROWTH)
                .next_multiple_of(BLOCK_STEP)
                .clamp(smallest, largest);
        }
        let usage = &held.usage;
        if usage.is_tight(bytes) && bytes >= ALONE_WHEN_TIGHT {
            return bytes.next_multiple_of(DIRECT_STEP);
        }
        if !placement.known && bytes >= ALONE {
            return bytes.next_multiple_of(BLOCK_STEP);
        }
        let shared = SHARED_BLOCK.min(usage.capacity / SHARED_PART);
        let fewest = shared.div_ceil(bytes).max(1);
        let most = 2 * fewest + 2;
        if placement.region == Region::Persistent {
            return best_multiple(bytes, fewest, most.min(PERSISTENT_BLOCK / bytes));
        }
        let least = best_multiple(bytes, fewest, most);
        let room = usage.ceiling(bytes).saturating_sub(held.in_use);
        let most = room.min(self.limit(boundary)) / bytes;
        if most <= fewest {
            return least;
        }
        least.max(best_multiple(
            bytes,
            most.saturating_sub(1).max(fewest),
            most,
        ))
    }
}

/// Of the multiples of `bytes` from `fewest` to `most` times, rounded up to the unit of
/// blocks, the one that wastes the smallest fraction; among equals, the smallest.
fn best_multiple(bytes: u64, fewest: u64, most: u64) -> u64 {
    /// The fraction of waste is compared in 256ths.
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

    fn boundary(event: u64, holes: u64) -> Option<StepBoundary> {
        Some(StepBoundary { event, holes })
    }

    #[test]
    fn clean_ends_of_steps_make_blocks_larger_and_others_smaller() {
        let mut blocks = LargeBlocks::default();
        assert_eq!(blocks.limit(None), 128 * MIB);
        assert_eq!(blocks.limit(boundary(5, 1024 * MIB)), 64 * MIB);
        assert_eq!(blocks.limit(boundary(10, 0)), 128 * MIB);
        assert_eq!(blocks.limit(boundary(10, 0)), 128 * MIB, "judged once");
        assert_eq!(blocks.limit(boundary(20, 0)), 256 * MIB);
        assert_eq!(blocks.limit(boundary(30, 0)), 256 * MIB);
        for event in [40, 50, 60, 70] {
            blocks.limit(boundary(event, 1024 * MIB));
        }
        assert_eq!(blocks.limit(boundary(80, 200 * MIB)), 64 * MIB);
    }

    #[test]
    fn a_multiple_without_a_remainder_is_preferred() {
        assert_eq!(best_multiple(12 * MIB, 3, 8), 36 * MIB);
        assert_eq!(best_multiple(MIB / 4 * 3, 43, 88), 33 * MIB);
    }
}
