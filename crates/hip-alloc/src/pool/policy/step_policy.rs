//! The policy that the library uses: training steps repeat, so the last one predicts
//! this one.

use super::block_size::LargeBlocks;
use super::lifetime::{AllocationSite, Expectation, Guess, Lifetimes, SMALL};
use super::{Held, Placement, Region};
use crate::units::KIB;

/// Smaller requests have their own region.
const SMALLEST_GUESSED: u64 = 256 * KIB;

/// Predicts lifetimes from past requests, and keeps what the rest of a step will need.
#[derive(Default)]
pub(crate) struct StepPolicy {
    lifetimes: Lifetimes,
    large_blocks: LargeBlocks,
    /// For the last placed request.
    placed: AllocationSite,
    /// For live requests, by slot; small ones have none.
    sites: Vec<AllocationSite>,
}

impl StepPolicy {
    #[inline]
    pub(super) fn place(&mut self, bytes: u64) -> Placement {
        let (Guess { expectation, known }, site) = self.lifetimes.requested(bytes);
        self.placed = site;
        let region = if bytes < SMALLEST_GUESSED {
            Region::Small
        } else if expectation == Expectation::Persistent {
            Region::Persistent
        } else {
            Region::Transient
        };
        Placement {
            region,
            anywhere: expectation == Expectation::Brief,
            known,
        }
    }

    pub(super) fn block_bytes(&mut self, bytes: u64, placement: Placement, held: &Held) -> u64 {
        let boundary = self.lifetimes.last_boundary();
        self.large_blocks
            .block_bytes(bytes, placement, held, boundary)
    }

    #[inline]
    pub(super) fn served(&mut self, slot: usize, bytes: u64, used: u64, holes: u64) {
        if bytes >= SMALL {
            if slot >= self.sites.len() {
                self.sites.resize(slot + 1, AllocationSite::default());
            }
            self.sites[slot] = self.placed;
        }
        self.lifetimes.served(bytes, used, holes);
    }

    pub(super) fn refused(&mut self) {
        self.lifetimes.refused();
    }

    #[inline]
    pub(super) fn freed(&mut self, slot: usize, bytes: u64, used: u64, holes: u64) {
        let site = match bytes < SMALL {
            true => None,
            false => self.sites.get(slot).copied(),
        };
        self.lifetimes.freed(site, bytes, used, holes);
    }

    #[inline]
    pub(super) fn growth(&self) -> Option<u64> {
        self.lifetimes.growth()
    }

    pub(super) fn pinned_holes(&self) -> u64 {
        self.lifetimes.pinned_holes()
    }

    pub(super) fn is_between_steps(&self) -> bool {
        self.lifetimes.is_between_steps()
    }
}
