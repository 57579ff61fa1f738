//! The rise and fall of memory usage over the steps, and the level it falls back to.
//!
//! A training step fills memory and empties it again. How much it swings is not known
//! in advance, and there are smaller swings within a step and larger ones around it
//! (loading, evaluation). So usage is observed at several scales at once: at each,
//! a trough is the lowest point between two rises of at least that scale. Two troughs
//! in a row at about the same level confirm a scale, and the largest confirmed one determines
//! the level between steps.

use crate::units::MIB;

/// The smallest swing that is observed.
const SMALLEST: u64 = 64 * MIB;
/// Each scale is twice the one before: up to 128 GiB.
const SCALES: usize = 12;
/// Smaller changes than this are ignored.
const STEP: u64 = 8 * MIB;
/// Troughs that differ by no more than this fraction of the scale are at the same level.
const SAME_LEVEL: u64 = 4;
/// Memory is low within this fraction of the scale above its last trough.
const LOW_PART: u64 = 8;
/// And at its minimum within this fraction.
const LOWEST_PART: u64 = 32;
/// Up to this many scales below that of the steps, a swing still leaves the low range.
const FINER: usize = 2;
/// Holes count as pinned if they are more than this fraction of what is used between steps.
const PINNED_PART: u64 = 4;
/// A scale is valid until it was quiet for this many of its periods.
const QUIET_PERIODS: u64 = 4;

/// The end of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StepBoundary {
    pub(super) event: u64,
    /// Free memory in blocks that could not be returned.
    pub(super) holes: u64,
}

/// Turning points of used memory at several scales.
#[derive(Default)]
pub(super) struct StepDetector {
    scales: [Scale; SCALES],
    /// Used memory at the last observation.
    seen: u64,
    /// The level between steps, if known.
    low: Option<Low>,
}

/// The level that memory falls back to between steps.
#[derive(Clone, Copy)]
struct Low {
    /// When usage was last there.
    event: u64,
    /// Up to this, usage counts as at that level.
    used: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Scale {
    rising: bool,
    /// The highest point of this rise, or the lowest of this fall.
    extreme: Point,
    /// The last trough and the one before.
    troughs: [Point; 2],
    /// Number of troughs so far.
    count: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Point {
    used: u64,
    /// As in [`StepBoundary`].
    holes: u64,
    event: u64,
}

impl StepDetector {
    /// Adds the memory used after an event, and the holes then. Returns whether a trough
    /// ended at any scale.
    pub(super) fn note(&mut self, used: u64, holes: u64, event: u64) -> bool {
        if used.abs_diff(self.seen) < STEP {
            return false;
        }
        let rises = used > self.seen;
        self.seen = used;
        let here = Point { used, holes, event };
        let mut ended = false;
        // A point that does not turn a scale, and is no new extreme of it, is neither for a larger
        // one, whose extremes are at least as far out, and whose swing is larger.
        for (number, scale) in self.scales.iter_mut().enumerate() {
            let swing = SMALLEST << number;
            match rises {
                true if used > scale.highest(swing) => ended |= scale.rise(here),
                false if used < scale.lowest(swing) => scale.fall(here),
                _ => break,
            }
        }
        if ended {
            self.low = self.main().map(|at| self.low(at));
        }
        ended
    }

    /// The scale of the steps and the event at which the last one ended, once known.
    pub(super) fn period(&self, event: u64) -> Option<(usize, u64)> {
        let at = (0..SCALES).rev().find(|at| self.is_confirmed(*at, event))?;
        Some((at, self.scales[at].troughs[0].event))
    }

    /// Whether a step ended since the event.
    pub(super) fn ended_since(&self, event: u64) -> bool {
        self.low.is_some_and(|low| low.event > event)
    }

    /// The last end of a step.
    pub(super) fn last_boundary(&self) -> Option<StepBoundary> {
        let [last, _] = self.confirmed()?.troughs;
        Some(StepBoundary {
            event: last.event,
            holes: last.holes,
        })
    }

    /// The holes that were left at the ends of the last two steps alike, if they are much of what is used then.
    pub(super) fn pinned_holes(&self) -> u64 {
        let [last, before] = self
            .confirmed()
            .map_or_else(Default::default, |scale| scale.troughs);
        let holes = last.holes.min(before.holes);
        match holes > last.used / PINNED_PART {
            true => holes,
            false => 0,
        }
    }

    /// The scale of the steps.
    fn confirmed(&self) -> Option<&Scale> {
        let at = (0..SCALES).rev().find(|at| self.is_confirmed(*at, 0))?;
        Some(&self.scales[at])
    }

    /// Whether usage is down at the level between steps.
    pub(super) fn is_low(&self, used: u64) -> bool {
        self.low.is_some_and(|low| used <= low.used)
    }

    /// Whether usage is as low as when the last step ended, up to a small fraction of the swing.
    pub(super) fn is_lowest(&self, used: u64) -> bool {
        self.main().is_some_and(|at| {
            used <= self.scales[at].troughs[0].used + (SMALLEST << at) / LOWEST_PART
        })
    }

    /// The level between the steps of a scale. A step that has not risen by the whole scale
    /// yet, after one that did, is detected at a finer scale, if usage was as low before it.
    fn low(&self, at: usize) -> Low {
        let Point { event, used, .. } = self.scales[at].troughs[0];
        let used = used + (SMALLEST << at) / LOW_PART;
        let finer = &self.scales[at.saturating_sub(FINER)..at];
        let troughs = finer.iter().map(|scale| scale.troughs[0]);
        let ended = troughs.filter(|trough| trough.used <= used);
        Low {
            event: ended.fold(event, |last, trough| last.max(trough.event)),
            used,
        }
    }

    /// The scale of the steps, if known.
    fn main(&self) -> Option<usize> {
        let confirmed = (0..SCALES).rev().find(|at| self.is_confirmed(*at, 0));
        // The first trough is the beginning, when nothing was used.
        confirmed.or_else(|| (0..SCALES).rev().find(|at| self.scales[*at].count > 1))
    }

    fn is_confirmed(&self, at: usize, event: u64) -> bool {
        let scale = &self.scales[at];
        let [last, before] = scale.troughs;
        let quiet = event.saturating_sub(last.event);
        scale.count > 2
            && last.used.abs_diff(before.used) <= (SMALLEST << at) / SAME_LEVEL
            && quiet <= QUIET_PERIODS * scale.period()
    }
}

impl Scale {
    fn period(&self) -> u64 {
        self.troughs[0].event - self.troughs[1].event
    }

    /// The highest point without an effect.
    fn highest(&self, swing: u64) -> u64 {
        match self.rising {
            true => self.extreme.used,
            false => self.extreme.used + swing - 1,
        }
    }

    /// The lowest point without an effect.
    fn lowest(&self, swing: u64) -> u64 {
        match self.rising {
            true => (self.extreme.used + 1).saturating_sub(swing),
            false => self.extreme.used,
        }
    }

    /// Handles a point above the highest. Returns whether a trough ended.
    fn rise(&mut self, here: Point) -> bool {
        let turns = !self.rising;
        if turns {
            self.troughs = [self.extreme, self.troughs[0]];
            self.count += 1;
            self.rising = true;
        }
        self.extreme = here;
        turns
    }

    /// Handles a point below the lowest.
    fn fall(&mut self, here: Point) {
        self.rising = false;
        self.extreme = here;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rises by `swing` in 100 events and falls again, with ripples of a tenth.
    fn step(detector: &mut StepDetector, start: u64, low: u64, swing: u64) {
        for event in 0..200u64 {
            let height = if event < 100 { event } else { 200 - event } * swing / 100;
            let ripple = if event % 10 < 5 { 0 } else { swing / 10 };
            detector.note(low + height + ripple, event, start + event);
        }
    }

    #[test]
    fn the_period_is_that_of_the_steps_and_not_of_the_ripples() {
        let mut detector = StepDetector::default();
        for number in 0..6 {
            step(&mut detector, number * 200, 10_000 * MIB, 4000 * MIB);
        }
        assert_eq!(detector.period(1200), Some((6, 1000)));
    }

    proptest! {
        /// Only the scales that an observation may change are updated: the others
        /// would not have changed.
        #[test]
        fn no_scale_misses_anything(moves in prop::collection::vec((0u32..16, any::<u32>()), 1..400)) {
            let mut detector = StepDetector::default();
            let mut each = [Scale::default(); SCALES];
            let mut used = 0u64;
            for (event, (log2, part)) in moves.into_iter().enumerate() {
                let by = u64::from(part) * 512 % ((16 * MIB) << log2);
                used = match part % 2 {
                    0 => used.saturating_add(by),
                    _ => used.saturating_sub(by),
                };
                let here = Point { used, holes: 0, event: event as u64 };
                let is_seen = used.abs_diff(detector.seen) >= STEP;
                let mut ended = false;
                for (number, scale) in each.iter_mut().enumerate().filter(|_| is_seen) {
                    let swing = SMALLEST << number;
                    ended |= used > scale.highest(swing) && scale.rise(here);
                    if used < scale.lowest(swing) {
                        scale.fall(here);
                    }
                }
                prop_assert_eq!(detector.note(used, 0, event as u64), ended);
                prop_assert_eq!(detector.scales, each);
            }
        }
    }

    #[test]
    fn loading_is_not_a_step() {
        let mut detector = StepDetector::default();
        for event in 0..1000u64 {
            detector.note(event * 10 * MIB, 0, event);
        }
        assert_eq!(detector.period(1000), None);
        assert_eq!(detector.last_boundary(), None);
        assert!(!detector.ended_since(0));
    }

    #[test]
    fn a_step_that_ended_is_a_boundary_with_the_holes_of_its_lowest_point() {
        let mut detector = StepDetector::default();
        for number in 0..4 {
            step(&mut detector, number * 200, 500 * MIB, 4000 * MIB);
        }
        let boundary = detector.last_boundary();
        assert_eq!(boundary.map(|boundary| boundary.event % 200), Some(0));
        assert_eq!(boundary.map(|boundary| boundary.holes), Some(0));
        assert!(detector.ended_since(599) && !detector.ended_since(601));
        assert!(detector.is_low(500 * MIB) && !detector.is_low(2500 * MIB));
    }

    #[test]
    fn a_step_that_rises_less_than_others_begins_after_an_end_too() {
        let mut detector = StepDetector::default();
        for number in 0..6 {
            step(&mut detector, number * 200, 500 * MIB, 4400 * MIB);
        }
        assert!(!detector.ended_since(1150));
        for event in 1200..1250 {
            detector.note(500 * MIB + (event - 1200) * 30 * MIB, 0, event);
        }
        assert!(detector.ended_since(1150) && !detector.ended_since(1210));
    }

    #[test]
    fn what_was_once_the_period_is_forgotten() {
        let mut detector = StepDetector::default();
        for number in 0..6 {
            step(&mut detector, number * 200, 500 * MIB, 4000 * MIB);
        }
        assert_eq!(detector.period(100_000), None);
    }
}
