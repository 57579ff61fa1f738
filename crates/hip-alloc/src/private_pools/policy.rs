//! Placement in a private pool: since it holds everything until the end, there is no advantage in
//! separating persistent and transient requests.

use crate::pool::policy::{Held, Placement, Policy, Region};
use crate::units::{MIB, round_up};

/// Smaller requests share blocks.
const SMALL: u64 = MIB;
/// Blocks are multiples of this,
const BLOCK_STEP: u64 = 2 * MIB;
/// or of this, if memory is tight or the request is large.
const DIRECT_STEP: u64 = 4096;
/// The largest block for several requests.
const LARGEST_SHARED: u64 = 32 * MIB;
/// A pool grows by this fraction of what it uses.
const GROWTH_PART: u64 = 8;

/// Best fit in existing blocks, then slightly more than requested.
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
