//! Policies: where a request is placed, how large a new block is, and how much may stay in empty
//! blocks.
//!
//! A pool consults its policy and informs it of events; everything else is the pool's responsibility.
//! A policy is deterministic, so that replays of traces can be compared.

mod block_size;
mod lifetime;
mod step_detector;
mod step_policy;
mod step_predictor;

pub(super) use block_size::{DIRECT_STEP, SMALL_BLOCK};
pub(crate) use step_policy::StepPolicy;

use crate::units::{MIB, round_up};

/// In a private pool smaller requests share blocks.
const SMALL_IN_PRIVATE: u64 = MIB;
/// Its blocks are multiples of this, unless memory is tight or the request is large.
const PRIVATE_STEP: u64 = 2 * MIB;
/// The largest block for several requests.
const LARGEST_SHARED: u64 = 32 * MIB;
/// It grows by this fraction of what it uses.
const GROWTH_PART: u64 = 8;

/// Which requests a block serves. Requests of different lifetimes are kept in
/// different blocks, so that long-lived ones do not pin short-lived ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Region {
    /// Expected to outlive the step: weights, gradients, optimizer state.
    Persistent = 0,
    /// Expected to be freed within the step: activations, workspaces.
    Transient = 1,
    /// Small requests of any lifetime.
    Small = 2,
}

impl Region {
    /// All of them.
    pub(crate) const ALL: [Region; 3] = [Region::Persistent, Region::Transient, Region::Small];
}

/// Where a request is placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Placement {
    /// The region in whose blocks free memory is searched, and that a new block will serve.
    pub(crate) region: Region,
    /// Whether free memory of the persistent and of the transient region is equally good, for
    /// requests that are freed so soon that they pin nothing.
    pub(crate) anywhere: bool,
    /// Whether this is more than a guess.
    pub(crate) known: bool,
}

/// Memory usage in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Usage {
    /// In spans that are not free.
    pub(crate) used: u64,
    /// The highest `used` so far: holding no more than that costs nothing at the peak.
    pub(crate) used_peak: u64,
    /// The device's capacity when the pool was created.
    pub(crate) capacity: u64,
}

/// Memory is tight if less than this fraction was left at the peak.
const TIGHT: u64 = 4;

impl Usage {
    /// How much may be held while one more request of `bytes` is served.
    pub(crate) fn ceiling(&self, bytes: u64) -> u64 {
        self.used_peak.max(self.used + bytes)
    }

    /// Whether one more request of `bytes` brings the program so close to the capacity that
    /// no byte may be wasted: no floor, and as many driver calls as necessary.
    pub(crate) fn is_tight(&self, bytes: u64) -> bool {
        self.ceiling(bytes) > self.capacity - self.capacity / TIGHT
    }
}

/// What a pool holds when it asks for the size of a block, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// The part that is used.
    pub(crate) usage: Usage,
    /// In blocks that are not empty.
    pub(crate) in_use: u64,
    /// In blocks for small requests.
    pub(crate) small: u64,
}

/// The decisions for a [`Pool`](super::Pool): by the steps of the program in a device's own. A private pool holds
/// everything until the end, so there is no advantage in separating persistent and transient requests there.
///
/// Each request is [`place`](Policy::place)d, and then [`served`](Policy::served) or
/// [`refused`](Policy::refused); each served request is [`freed`](Policy::freed) once.
#[allow(
    clippy::large_enum_variant,
    reason = "a device has one large policy, which every request asks"
)]
pub(crate) enum Policy {
    /// The device's.
    Steps(StepPolicy),
    /// Best fit in existing blocks, then slightly more than requested.
    InOnePool,
}

impl Policy {
    /// Where to place a request of `bytes`, which is rounded up already.
    #[inline]
    pub(crate) fn place(&mut self, bytes: u64) -> Placement {
        if let Policy::Steps(steps) = self {
            return steps.place(bytes);
        }
        let small = bytes < SMALL_IN_PRIVATE;
        Placement {
            region: match small {
                true => Region::Small,
                false => Region::Transient,
            },
            anywhere: !small,
            known: true,
        }
    }

    /// The size in bytes of a new block for a request of `bytes`; at least that.
    pub(crate) fn block_bytes(&mut self, bytes: u64, placement: Placement, held: &Held) -> u64 {
        if let Policy::Steps(steps) = self {
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
        round_up(shared, PRIVATE_STEP).unwrap_or(bytes)
    }

    /// The last request was served. `slot` is a small number that is unique among live requests;
    /// `used` is in use after it, and `holes` are free in large transient blocks (bytes).
    #[inline]
    pub(crate) fn served(&mut self, slot: usize, bytes: u64, used: u64, holes: u64) {
        if let Policy::Steps(steps) = self {
            steps.served(slot, bytes, used, holes);
        }
    }

    /// The last request was not served.
    pub(crate) fn refused(&mut self) {
        if let Policy::Steps(steps) = self {
            steps.refused();
        }
    }

    /// A request was freed; the arguments are as for [`served`](Policy::served).
    #[inline]
    pub(crate) fn freed(&mut self, slot: usize, bytes: u64, used: u64, holes: u64) {
        if let Policy::Steps(steps) = self {
            steps.freed(slot, bytes, used, holes);
        }
    }

    /// How many more bytes than now will be used before the next minimum, if that
    /// is known. Blocks that are kept for it are returned when it falls.
    #[inline]
    pub(crate) fn growth(&self) -> Option<u64> {
        match self {
            Policy::Steps(steps) => steps.growth(),
            Policy::InOnePool => None,
        }
    }

    /// Bytes that were free in large transient blocks at the end of each of the last two steps, if that is much of what was
    /// used then: what is left in these blocks stays.
    pub(crate) fn pinned_holes(&self) -> u64 {
        match self {
            Policy::Steps(steps) => steps.pinned_holes(),
            Policy::InOnePool => 0,
        }
    }

    /// Whether memory is known to be about as low as between two steps.
    pub(crate) fn is_between_steps(&self) -> bool {
        match self {
            Policy::Steps(steps) => steps.is_between_steps(),
            Policy::InOnePool => false,
        }
    }
}
