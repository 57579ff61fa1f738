//! Policies: where a request is placed, how large a new block is, and how much may stay in empty
//! blocks.
//!
//! A pool consults its policy and informs it of events; everything else is the pool's responsibility.
//! A policy is deterministic, so that replays of traces can be compared. [`StepPolicy`] is
//! the one that the library uses.

mod block_size;
mod lifetime;
mod step_detector;
mod step_policy;
mod step_predictor;

pub use block_size::best_multiple;
pub(super) use block_size::{DIRECT_STEP, SMALL_BLOCK};
pub use step_policy::StepPolicy;

/// Which requests a block serves. Requests of different lifetimes are kept in
/// different blocks, so that long-lived ones do not pin short-lived ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Region {
    /// Expected to outlive the step: weights, gradients, optimizer state.
    Persistent = 0,
    /// Expected to be freed within the step: activations, workspaces.
    Transient = 1,
    /// Small requests of any lifetime.
    Small = 2,
}

impl Region {
    /// All of them.
    pub const ALL: [Region; 3] = [Region::Persistent, Region::Transient, Region::Small];
}

/// Where a request is placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The region in whose blocks free memory is searched, and that a new block will serve.
    pub region: Region,
    /// Whether free memory of the persistent and of the transient region is equally good, for
    /// requests that are freed so soon that they pin nothing.
    pub anywhere: bool,
    /// Whether this is more than a guess.
    pub known: bool,
}

/// Memory usage in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// In spans that are not free.
    pub used: u64,
    /// The highest `used` so far: holding no more than that costs nothing at the peak.
    pub used_peak: u64,
    /// The device's capacity when the pool was created.
    pub capacity: u64,
}

/// Memory is tight if less than this fraction was left at the peak.
const TIGHT: u64 = 4;

impl Usage {
    /// How much may be held while one more request of `bytes` is served.
    pub fn ceiling(&self, bytes: u64) -> u64 {
        self.used_peak.max(self.used + bytes)
    }

    /// Whether one more request of `bytes` brings the program so close to the capacity that
    /// no byte may be wasted: no floor, and as many driver calls as necessary.
    pub fn is_tight(&self, bytes: u64) -> bool {
        self.ceiling(bytes) > self.capacity - self.capacity / TIGHT
    }
}

/// What a pool holds when it asks for the size of a block, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The part that is used.
    pub usage: Usage,
    /// In blocks that are not empty.
    pub in_use: u64,
    /// In blocks for small requests.
    pub small: u64,
}

/// The decisions for a [`Pool`](super::Pool).
///
/// Each request is [`place`](Policy::place)d, and then [`served`](Policy::served) or
/// [`refused`](Policy::refused); each served request is [`freed`](Policy::freed) once.
pub trait Policy: Send {
    /// Where to place a request of `bytes`, which is rounded up already.
    fn place(&mut self, bytes: u64) -> Placement;

    /// The size in bytes of a new block for a request of `bytes`; at least that.
    fn block_bytes(&mut self, bytes: u64, placement: Placement, held: &Held) -> u64;

    /// The last request was served. `slot` is a small number that is unique among live requests;
    /// `used` is in use after it, and `holes` are free in large transient blocks (bytes).
    fn served(&mut self, _slot: usize, _bytes: u64, _used: u64, _holes: u64) {}

    /// The last request was not served.
    fn refused(&mut self) {}

    /// A request was freed; the arguments are as for [`served`](Policy::served).
    fn freed(&mut self, _slot: usize, _bytes: u64, _used: u64, _holes: u64) {}

    /// How many more bytes than now will be used before the next minimum, if that
    /// is known. Blocks that are kept for it are returned when it falls.
    fn growth(&self) -> Option<u64> {
        None
    }

    /// Bytes that were free in large transient blocks at the end of each of the last two steps, if that is much of what was
    /// used then: what is left in these blocks stays.
    fn pinned_holes(&self) -> u64 {
        0
    }

    /// Whether memory is known to be about as low as between two steps.
    fn is_between_steps(&self) -> bool {
        false
    }
}
