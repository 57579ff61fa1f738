//! Placement in the pools of a device: by the steps of the program in its own. Since a private pool holds
//! everything until the end, there is no advantage in separating persistent and transient requests there.

use crate::pool::policy::{Held, Placement, Policy, Region, StepPolicy};
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

/// The policy of a pool.
#[allow(
    clippy::large_enum_variant,
    reason = "a device has one large policy, which every request asks"
)]
pub(crate) enum Placing {
    /// The device's.
    Steps(StepPolicy),
    /// Best fit in existing blocks, then slightly more than requested.
    InOnePool,
}

impl Default for Placing {
    fn default() -> Self {
        Placing::Steps(StepPolicy::default())
    }
}

impl Policy for Placing {
    #[inline]
    fn place(&mut self, bytes: u64) -> Placement {
        if let Placing::Steps(steps) = self {
            return steps.place(bytes);
        }
        let small = bytes < SMALL;
        Placement {
            region: match small {
                true => Region::Small,
                false => Region::Transient,
            },
            anywhere: !small,
            known: true,
        }
    }

    fn block_bytes(&mut self, bytes: u64, placement: Placement, held: &Held) -> u64 {
        if let Placing::Steps(steps) = self {
            return steps.block_bytes(bytes, placement, held);
        }
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

    #[inline]
    fn served(&mut self, slot: usize, bytes: u64, used: u64, holes: u64) {
        if let Placing::Steps(steps) = self {
            steps.served(slot, bytes, used, holes);
        }
    }

    fn refused(&mut self) {
        if let Placing::Steps(steps) = self {
            steps.refused();
        }
    }

    #[inline]
    fn freed(&mut self, slot: usize, bytes: u64, used: u64, holes: u64) {
        if let Placing::Steps(steps) = self {
            steps.freed(slot, bytes, used, holes);
        }
    }

    #[inline]
    fn growth(&self) -> Option<u64> {
        match self {
            Placing::Steps(steps) => steps.growth(),
            Placing::InOnePool => None,
        }
    }

    fn pinned_holes(&self) -> u64 {
        match self {
            Placing::Steps(steps) => steps.pinned_holes(),
            Placing::InOnePool => 0,
        }
    }

    fn is_between_steps(&self) -> bool {
        match self {
            Placing::Steps(steps) => steps.is_between_steps(),
            Placing::InOnePool => false,
        }
    }
}
