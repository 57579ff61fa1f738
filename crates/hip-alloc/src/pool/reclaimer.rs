//! Which empty blocks are returned to the driver, and when; used by `Memory::trim_to_slack`.
//!
//! Memory up to the highest usage so far costs nothing while a step may still reach it
//! again: empty blocks stay within that. If the rest of a step is known to use no more than
//! now, empty blocks are returned as [`Keep`] specifies.
//!
//! A pool that keeps nothing ([`Keep::Off`], and any pool while memory is short) returns a block
//! as soon as it is empty, unless what is held beyond the memory in use is within the slack:
//! the floor, or more for what the policy knows the step to use again (its *growth*), and this is checked
//! again whenever it expects less.

use super::heap::{Block, Heap};
use super::policy::Usage;
use crate::units::MIB;

/// The minimum of a proportional floor: two blocks for small requests.
const LEAST_FLOOR: u64 = 4 * MIB;
/// If anything is kept, at least a block for requests of common sizes.
const LEAST_KEPT: u64 = 32 * MIB;
/// If nothing is kept, this multiple of what the step will use again: requests of many sizes need more than one
/// set of blocks, which serve them slightly differently in every step.
const GROWTH_HELD: u64 = 2;

/// How much memory stays in empty blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keep {
    /// All memory of a step, if returning it would cost more than a fiftieth of the time; the same as `Off` while
    /// memory is short.
    Auto,
    /// What the rest of the step will use again, if that is known, and the floor.
    #[default]
    Off,
}

/// Which empty blocks may be returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spare {
    Any,
    /// All but the step block.
    NotStep,
}

/// Decides how much may stay in empty blocks, when to check that again, and which is returned first.
pub(crate) struct Reclaimer {
    keep: Keep,
    /// Whether memory is short: nothing is kept.
    under_pressure: bool,
    /// Bytes that may be held beyond those in use, unless memory is tight.
    warmup: u64,
    /// The floor is at most this fraction of the highest usage; 0: unlimited.
    floor_part: u64,
    /// The growth that the policy expected when blocks were last kept for it, in bytes.
    kept_for: u64,
    /// Whether more than the floor is kept.
    keeping: bool,
}

impl Reclaimer {
    pub(crate) fn new(keep: Keep, warmup: u64, floor_part: u64) -> Self {
        Reclaimer {
            keep,
            under_pressure: false,
            warmup,
            floor_part,
            kept_for: 0,
            keeping: false,
        }
    }

    /// Whether anything is kept beyond the floor and what the policy expects.
    pub(crate) fn keeps(&self) -> bool {
        self.keep == Keep::Auto && !self.under_pressure
    }

    /// Whether more than the floor was kept at the last check.
    #[inline]
    pub(crate) fn is_keeping(&self) -> bool {
        self.keeping
    }

    /// Sets whether memory is short; meanwhile nothing is kept.
    pub(crate) fn set_under_pressure(&mut self, under_pressure: bool) {
        self.under_pressure = under_pressure;
    }

    /// How many bytes may always be held beyond those in use.
    pub(crate) fn floor(&self, usage: Usage) -> u64 {
        match usage.used_peak.checked_div(self.floor_part) {
            _ if usage.is_tight(0) => 0,
            Some(part) => part.max(LEAST_FLOOR).min(self.warmup),
            None => self.warmup,
        }
    }

    /// How many bytes may be held beyond those in use; `affordable` returns how many bytes the
    /// program can afford to allocate again.
    pub(crate) fn slack(
        &self,
        growth: Option<u64>,
        usage: Usage,
        affordable: impl FnOnce() -> u64,
    ) -> u64 {
        if usage.is_tight(0) {
            return 0;
        }
        let floor = self.floor(usage);
        if !self.keeps() {
            return floor.max(growth.unwrap_or(0).saturating_mul(GROWTH_HELD));
        }
        let below_peak = usage.used_peak.saturating_sub(usage.used).max(LEAST_KEPT);
        let kept = match growth {
            Some(0) => below_peak.saturating_sub(affordable()),
            _ => below_peak,
        };
        kept.max(floor)
    }

    /// Blocks were returned until no more than the slack was held beyond what is used, or until
    /// there was none left to return; `held` is the remaining memory.
    pub(crate) fn trimmed(&mut self, growth: Option<u64>, held: u64, usage: Usage) {
        let beyond = held > usage.used.saturating_add(self.floor(usage));
        self.keeping = beyond && self.keeps();
        self.kept_for = match self.keeps() {
            true => u64::from(beyond && growth != Some(0)),
            false if beyond => growth.unwrap_or(0),
            false => 0,
        };
    }

    /// Whether to check blocks after a request. Each request leaves less to expect;
    /// nothing at all is expected once the program no longer repeats itself.
    #[inline]
    pub(crate) fn is_due_after_request(&self, growth: impl FnOnce() -> Option<u64>) -> bool {
        self.kept_for > 0 && self.is_due(growth(), 1)
    }

    /// Whether to check blocks after a free.
    #[inline]
    pub(crate) fn is_due_after_free(&self, growth: impl FnOnce() -> Option<u64>) -> bool {
        self.kept_for > 0 && self.is_due(growth(), self.kept_for)
    }

    /// Memory that is kept for the whole step is checked when its last part begins.
    #[inline]
    fn is_due(&self, growth: Option<u64>, below: u64) -> bool {
        growth.unwrap_or(0) < below && (!self.keeps() || growth == Some(0))
    }

    /// The index of the empty block to return first: blocks that can serve little
    /// else, then the one that became empty first, and the step block last.
    pub(crate) fn first_to_go(heap: &Heap, spare: Spare) -> Option<usize> {
        let position = |suits: fn(&Block) -> bool| {
            let mut blocks = heap.empty().iter();
            blocks.position(|block| suits(heap.block(*block)))
        };
        position(|block| block.direct)
            .or_else(|| position(|block| !block.serves_step))
            .or_else(|| position(|_| true).filter(|_| spare == Spare::Any))
    }
}

#[cfg(test)]
mod tests {
    use super::super::heap::Owner;
    use super::super::policy::Region;
    use super::*;

    fn using(used: u64) -> Usage {
        Usage {
            used,
            used_peak: used,
            capacity: u64::MAX,
        }
    }

    #[test]
    fn what_is_kept_beyond_the_floor_is_looked_at_when_less_is_expected() {
        let mut reclaimer = Reclaimer::new(Keep::Off, 100, 0);
        reclaimer.trimmed(Some(50), 1150, using(1000));
        assert!(reclaimer.is_due_after_free(|| Some(49)));
        assert!(!reclaimer.is_due_after_free(|| Some(50)));
        assert!(reclaimer.is_due_after_request(|| Some(0)));
        assert!(!reclaimer.is_due_after_request(|| Some(1)));
        // Within the floor nothing is kept for anything.
        reclaimer.trimmed(Some(50), 1100, using(1000));
        assert!(!reclaimer.is_due_after_free(|| Some(0)));
    }

    #[test]
    fn near_the_capacity_nothing_stays() {
        for keep in [Keep::Off, Keep::Auto] {
            let reclaimer = Reclaimer::new(keep, 100, 0);
            let slack = |used_peak| {
                let usage = Usage {
                    used: used_peak,
                    used_peak,
                    capacity: 1000,
                };
                reclaimer.slack(Some(0), usage, || u64::MAX)
            };
            assert_eq!((slack(750), slack(751)), (100, 0), "{keep:?}");
        }
    }

    #[test]
    fn the_floor_is_in_proportion_to_what_was_used() {
        let reclaimer = Reclaimer::new(Keep::Off, 100 * MIB, 8);
        let floor = |used| reclaimer.floor(using(used * MIB)) / MIB;
        assert_eq!((floor(80), floor(8000), floor(1)), (10, 100, 4));
    }

    /// Used once before, 100 now.
    fn below_peak() -> Usage {
        Usage {
            used_peak: 1000 * MIB,
            ..using(100 * MIB)
        }
    }

    #[test]
    fn within_a_step_all_that_was_used_before_stays() {
        let reclaimer = Reclaimer::new(Keep::Auto, 0, 0);
        let slack = reclaimer.slack(Some(1), below_peak(), || 900 * MIB);
        assert_eq!(slack, 900 * MIB);
    }

    #[test]
    fn where_a_step_ends_what_the_program_can_afford_goes_back() {
        let slack = |keep, affordable| {
            Reclaimer::new(keep, 10 * MIB, 0).slack(Some(0), below_peak(), || affordable * MIB)
                / MIB
        };
        assert_eq!(slack(Keep::Auto, 0), 900);
        assert_eq!(slack(Keep::Auto, 300), 600);
        assert_eq!(slack(Keep::Auto, 9000), 10, "the floor");
        assert_eq!(slack(Keep::Off, 0), 10);
    }

    #[test]
    fn while_somebody_lacks_memory_nothing_is_kept() {
        let mut reclaimer = Reclaimer::new(Keep::Auto, 10, 0);
        reclaimer.set_under_pressure(true);
        assert_eq!(reclaimer.slack(Some(5), below_peak(), || 0), 10);
        reclaimer.set_under_pressure(false);
        assert_eq!(reclaimer.slack(Some(5), below_peak(), || 0), 900 * MIB);
    }

    #[test]
    fn what_is_kept_for_a_step_is_looked_at_once_where_its_last_part_begins() {
        let mut reclaimer = Reclaimer::new(Keep::Auto, 100, 0);
        reclaimer.trimmed(Some(50), 1150, using(1000));
        assert!(!reclaimer.is_due_after_free(|| Some(49)));
        assert!(reclaimer.is_due_after_free(|| Some(0)));
        assert!(reclaimer.is_due_after_request(|| Some(0)));
        reclaimer.trimmed(Some(0), 1150, using(1000));
        assert!(!reclaimer.is_due_after_free(|| Some(0)));
    }

    #[test]
    fn blocks_of_one_large_request_go_before_the_one_that_was_emptied_first() {
        let mut heap = Heap::new(512);
        assert_eq!(Reclaimer::first_to_go(&heap, Spare::Any), None);
        for number in 0..3 {
            let address = 0x10_0000 * (number + 1);
            let block = heap.add_block(address, 4096, Region::Small, Owner::ANYONE);
            heap.list_empty(block);
        }
        assert_eq!(Reclaimer::first_to_go(&heap, Spare::Any), Some(0));
        let last = heap.empty()[2];
        heap.set_direct(last, true);
        assert_eq!(Reclaimer::first_to_go(&heap, Spare::Any), Some(2));
    }

    #[test]
    fn the_step_block_goes_last_and_only_where_it_may() {
        let mut heap = Heap::new(512);
        for number in 0..2 {
            let address = 0x10_0000 * (number + 1);
            let block = heap.add_block(address, 4096, Region::Persistent, Owner(1));
            if number == 0 {
                heap.begin_step_block(block, Owner(1));
            }
            heap.list_empty(block);
        }
        assert_eq!(Reclaimer::first_to_go(&heap, Spare::Any), Some(1));
        heap.unlist_empty(1);
        assert_eq!(Reclaimer::first_to_go(&heap, Spare::NotStep), None);
        assert_eq!(Reclaimer::first_to_go(&heap, Spare::Any), Some(0));
    }
}
