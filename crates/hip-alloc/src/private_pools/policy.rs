//! How a private pool places requests: one that holds everything until the end gains nothing by
//! keeping apart what lasts from what does not.

use crate::pool::policy::{Held, Placement, Policy, Region};
use crate::units::{MIB, round_up};

/// Smaller requests share blocks of their own.
const SMALL: u64 = MIB;
/// Blocks are multiples of this,
const BLOCK_STEP: u64 = 2 * MIB;
/// or of this, where memory is tight or the request is large.
const DIRECT_STEP: u64 = 4096;
/// A block for several requests is at most this large.
const LARGEST_SHARED: u64 = 32 * MIB;
/// A pool grows by one part in this many of what it uses.
const GROWTH_PART: u64 = 8;

/// Best fit in what is there, then a little more than is asked for.
pub(super) struct InOnePool;

impl Policy for InOnePool {
    fn place(&mut self, bytes: u64) -> Placement {
        let small = bytes < SMALL;
        Placement {
            region: if small {
                Region::Small
            } else {
                Region::Transient
            },
            anywhere: !small,
            known: true,
        }
    }

    fn block_bytes(&mut self, bytes: u64, placement: Placement, held: &Held) -> u64 {
        if held.usage.is_tight(bytes) || bytes > LARGEST_SHARED {
            return round_up(bytes, DIRECT_STEP).unwrap_or(bytes);
        }
        let grown = match placement.region {
            Region::Small => held.small,
            _ => held.usage.used,
        };
        let shared = (grown / GROWTH_PART).min(LARGEST_SHARED).max(bytes);
        round_up(shared, BLOCK_STEP).unwrap_or(bytes)
    }
}
