//! Learning which empty blocks are worth keeping for a moment.
//!
//! A block that goes back and is asked for again a moment later has cost two driver
//! calls for nothing. So the sizes of the last blocks that went back are remembered; when
//! a new block of such a size is asked for soon after, that size is regretted, and its
//! blocks are kept for as long as such a moment, beyond the floor. One that is then not
//! asked for goes back, and its size is no longer regretted.

use std::collections::VecDeque;

/// How many blocks that went back are remembered.
const REMEMBERED: usize = 64;
/// How many sizes are regretted at most.
const SIZES: usize = 64;

/// What went back, and what was missed.
#[derive(Default)]
pub(super) struct Regrets {
    /// Size and event.
    returned: VecDeque<(u64, u64)>,
    sizes: VecDeque<u64>,
}

impl Regrets {
    /// A block goes back.
    pub(super) fn returned(&mut self, bytes: u64, event: u64) {
        if self.returned.len() == REMEMBERED {
            self.returned.pop_front();
        }
        self.returned.push_back((bytes, event));
    }

    /// A new block is asked for; `moment`: how many events count as soon.
    pub(super) fn asked(&mut self, bytes: u64, event: u64, moment: u64) {
        let at = self.returned.iter().rposition(|(size, _)| *size == bytes);
        let Some((_, gone)) = at.and_then(|at| self.returned.remove(at)) else {
            return;
        };
        if event - gone <= moment && !self.sizes.contains(&bytes) {
            if self.sizes.len() == SIZES {
                self.sizes.pop_front();
            }
            self.sizes.push_back(bytes);
        }
    }

    /// Whether a block of this size was missed after it went back.
    pub(super) fn misses(&self, bytes: u64) -> bool {
        self.sizes.contains(&bytes)
    }

    /// A block was kept, and nobody asked for it.
    pub(super) fn kept_in_vain(&mut self, bytes: u64) {
        self.sizes.retain(|size| *size != bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_missed_when_it_is_asked_for_soon_after_it_went_back() {
        let mut regrets = Regrets::default();
        regrets.returned(100, 10);
        regrets.asked(100, 40, 16);
        assert!(!regrets.misses(100), "that was long ago");
        regrets.returned(100, 50);
        regrets.asked(200, 55, 16);
        regrets.asked(100, 60, 16);
        assert!(regrets.misses(100) && !regrets.misses(200));
        regrets.kept_in_vain(100);
        assert!(!regrets.misses(100));
    }

    #[test]
    fn one_block_that_went_back_is_missed_once() {
        let mut regrets = Regrets::default();
        regrets.returned(100, 10);
        regrets.asked(100, 11, 16);
        regrets.kept_in_vain(100);
        regrets.asked(100, 12, 16);
        assert!(!regrets.misses(100));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut regrets = Regrets::default();
        for bytes in 1..1000 {
            regrets.returned(bytes, bytes);
            regrets.returned(bytes, bytes);
            regrets.asked(bytes, bytes, 16);
        }
        assert!(regrets.returned.len() <= REMEMBERED && regrets.sizes.len() <= SIZES);
    }
}
