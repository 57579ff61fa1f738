//! Predicts how long a request will live, from what happened just before it.
//!
//! A training step does the same things in the same order again and again. So the
//! pattern of requests and frees just before a request identifies the position in the
//! program, and the lifetime of the last request from that position predicts
//! that of this one. The pattern contains sizes only as ratios, so
//! that it is the same for every sequence length and every layer. If a position is
//! new, the size alone is used: gradients and optimizer state have exactly the
//! sizes of weights. If that is new too, the phase decides: while a program only
//! loads, everything stays. If the program is known to repeat what it did before
//! ([`StepPredictor`]), the end of the corresponding request then is better than all of these.

use super::step_detector::{StepBoundary, StepDetector};
use super::step_predictor::{Ended, StepPredictor};
use crate::units::MIB;

/// The expected lifetime of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expectation {
    /// Freed after a few more requests: may go anywhere, since it pins nothing.
    Brief,
    /// Freed within the step: activations.
    Transient,
    /// Freed when the step is over, or never: gradients, weights, optimizer state.
    Persistent,
}

/// A prediction, and whether it is based on observations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Guess {
    pub(super) expectation: Expectation,
    /// A request from this position or of this size was seen to end before.
    pub(super) known: bool,
}

/// The origin of a live request, to report it when it is freed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AllocationSite {
    place: u32,
    size: u32,
    /// Requests before it.
    request: u64,
    /// Events before it.
    event: u64,
}

/// Smaller requests are little in total and always considered persistent.
pub(super) const SMALL: u64 = MIB;
/// A request that is freed before this many others was brief.
const BRIEF: u64 = 64;
/// The number of events that identify a position: one bit each, a request or a free.
const PATTERN_EVENTS: u32 = 24;
/// The number of size ratios that identify a position, eight bits each.
const PATTERN_RATIOS: u32 = 2;
/// The number of positions that are remembered. Two in the same slot displace each other.
const SITES_LOG2: u32 = 14;
/// While fewer than this fraction of requests was freed, the program is loading.
const LOADING: u64 = 8;

/// What is known about lifetimes.
pub(super) struct Lifetimes {
    sites: Box<[SiteRecord]>,
    /// One bit for each event, the last one lowest: 1 is a request.
    pattern: u64,
    /// Ratios of the last sizes, the last one lowest.
    ratios: u64,
    /// Of the last request.
    last_log_size: u8,
    requests: u64,
    frees: u64,
    detector: StepDetector,
    predictor: StepPredictor,
}

/// Observations of requests from one position, or of one size.
#[derive(Clone, Copy, Default)]
struct SiteRecord {
    /// Distinguishes sites that share a slot.
    tag: u32,
    born_loading: bool,
    /// The lifetime of the last one that ended.
    ended: Option<Expectation>,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Lifetimes {
            sites: vec![SiteRecord::default(); 1 << SITES_LOG2].into_boxed_slice(),
            pattern: 0,
            ratios: 0,
            last_log_size: log_size(1),
            requests: 0,
            frees: 0,
            detector: StepDetector::default(),
            predictor: StepPredictor::default(),
        }
    }
}

impl Lifetimes {
    /// Adds a request, and predicts its lifetime. It is then [served](Lifetimes::served) or
    /// [refused](Lifetimes::refused).
    #[inline(always)]
    pub(super) fn requested(&mut self, bytes: u64) -> (Guess, AllocationSite) {
        self.requests += 1;
        let event = self.requests + self.frees;
        let log_size = log_size(bytes);
        let ratio = log_size.wrapping_sub(self.last_log_size);
        self.last_log_size = log_size;
        self.ratios = self.ratios << 8 | u64::from(ratio);
        self.pattern = self.pattern << 1 | 1;
        if bytes < SMALL {
            let guess = Guess {
                expectation: Expectation::Persistent,
                known: true,
            };
            return (guess, AllocationSite::default());
        }
        let place = mix(
            self.pattern & low_bits(PATTERN_EVENTS),
            self.ratios & low_bits(PATTERN_RATIOS * 8),
        );
        let place = self.slot(place);
        let size = self.slot(mix(bytes, 0));
        let known = self.sites[place].ended.or(self.sites[size].ended);
        let known = match self.predictor.next_ended() {
            // A request is brief only if all its predictions are.
            Some(Ended::As(Expectation::Brief)) => known.or(Some(Expectation::Brief)),
            Some(Ended::As(ended)) => Some(ended),
            Some(Ended::NotYet) => Some(Expectation::Persistent),
            _ => known,
        };
        let guess = Guess {
            expectation: known.unwrap_or(if self.sites[size].born_loading {
                Expectation::Persistent
            } else {
                Expectation::Transient
            }),
            known: known.is_some(),
        };
        let site = AllocationSite {
            place: place as u32,
            size: size as u32,
            request: self.requests,
            event,
        };
        (guess, site)
    }

    /// The last request was served, with the memory used after it and the holes in between.
    #[inline]
    pub(super) fn served(&mut self, bytes: u64, used: u64, holes: u64) {
        self.note(true, bytes, self.last_log_size, used, holes);
    }

    /// The last request was not served: the memory that it would have used is not a level that
    /// usage ever had.
    pub(super) fn refused(&mut self) {
        self.requests -= 1;
    }

    /// A request was freed, with the memory used after it and the holes in between.
    #[inline(always)]
    pub(super) fn freed(
        &mut self,
        site: Option<AllocationSite>,
        bytes: u64,
        used: u64,
        holes: u64,
    ) {
        self.frees += 1;
        self.pattern <<= 1;
        if let Some(site) = site {
            let ended = if self.requests - site.request < BRIEF {
                Expectation::Brief
            } else if self.detector.ended_since(site.event) || self.detector.is_low(used) {
                Expectation::Persistent
            } else {
                Expectation::Transient
            };
            self.sites[site.place as usize].ended = Some(ended);
            self.sites[site.size as usize].ended = Some(ended);
            self.predictor.ended(site.event, ended);
        }
        self.note(false, bytes, log_size(bytes), used, holes);
    }

    fn note(&mut self, request: bool, bytes: u64, log_size: u8, used: u64, holes: u64) {
        let event = self.requests + self.frees;
        if self.detector.note(used, holes, event)
            && let Some((scale, boundary)) = self.detector.period(event)
        {
            self.predictor.step_ended(scale, boundary);
        }
        self.predictor.note(request, bytes, log_size, used);
    }

    /// How many more bytes than now will be used before the next minimum, as
    /// far as the program repeats what it did before.
    pub(super) fn growth(&self) -> Option<u64> {
        self.predictor.growth()
    }

    /// Whether memory is known to be about as low as between two steps.
    pub(super) fn is_between_steps(&self) -> bool {
        self.predictor.is_at_trough() && self.detector.is_lowest(self.predictor.used())
    }

    /// The event at which memory was last at its minimum between two steps, and the
    /// holes that were left then.
    pub(super) fn last_boundary(&self) -> Option<StepBoundary> {
        self.detector.last_boundary()
    }

    /// The holes that were left at the ends of the last two steps alike, if they are many.
    pub(super) fn pinned_holes(&self) -> u64 {
        self.detector.pinned_holes()
    }

    /// The slot for a key; data of another key there is dropped.
    fn slot(&mut self, key: u64) -> usize {
        let at = (key >> (64 - SITES_LOG2)) as usize;
        let tag = key as u32;
        if self.sites[at].tag != tag {
            self.sites[at] = SiteRecord {
                tag,
                born_loading: self.frees * LOADING < self.requests,
                ended: None,
            };
        }
        at
    }
}

/// log2 in eighths, rounded down, modulo 256: enough to distinguish ratios.
pub(super) fn log_size(bytes: u64) -> u8 {
    let bytes = bytes.max(8);
    let whole = bytes.ilog2();
    (whole << 3) as u8 | (bytes >> (whole - 3) & 7) as u8
}

fn low_bits(count: u32) -> u64 {
    (1 << count) - 1
}

/// Mixes two numbers into 64 bits, the high ones best.
fn mix(first: u64, second: u64) -> u64 {
    let folded = first.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ second;
    folded.wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forward: a layer saves one tensor and uses a temporary. Backward frees in reverse.
    fn step(lifetimes: &mut Lifetimes, layers: usize, bytes: u64) -> Vec<Guess> {
        let mut guesses = Vec::new();
        let mut used = 1000 * MIB;
        let mut saved = Vec::new();
        for _ in 0..layers {
            let (guess, site) = lifetimes.requested(bytes);
            used += bytes;
            lifetimes.served(bytes, used, 0);
            guesses.push(guess);
            saved.push(site);
            let (guess, site) = lifetimes.requested(4 * bytes);
            lifetimes.served(4 * bytes, used + 4 * bytes, 0);
            guesses.push(guess);
            lifetimes.freed(Some(site), 4 * bytes, used, 0);
        }
        while let Some(site) = saved.pop() {
            used -= bytes;
            lifetimes.freed(Some(site), bytes, used, 0);
        }
        guesses
    }

    #[test]
    fn the_second_step_is_known_whatever_its_sequence_length() {
        let mut lifetimes = Lifetimes::default();
        for _ in 0..20 {
            lifetimes.requested(50 * MIB);
            lifetimes.served(50 * MIB, 50 * MIB, 0);
        }
        step(&mut lifetimes, 200, 8 * MIB);
        let guesses = step(&mut lifetimes, 200, 12 * MIB);
        // In the middle, away from the loading phase and the last layers.
        for pair in guesses[100..200].chunks(2) {
            assert_eq!(pair[0].expectation, Expectation::Transient);
            assert_eq!(pair[1].expectation, Expectation::Brief);
            assert!(pair[0].known && pair[1].known);
        }
    }

    #[test]
    fn what_a_program_loads_is_expected_to_stay() {
        let mut lifetimes = Lifetimes::default();
        let (guess, _) = lifetimes.requested(9 * MIB);
        assert_eq!(
            guess,
            Guess {
                expectation: Expectation::Persistent,
                known: false
            }
        );
    }

    #[test]
    fn small_requests_are_not_guessed_at() {
        let mut lifetimes = Lifetimes::default();
        let (guess, _) = lifetimes.requested(4096);
        lifetimes.served(4096, 4096, 0);
        lifetimes.freed(None, 4096, 0, 0);
        assert_eq!(guess.expectation, Expectation::Persistent);
        assert_eq!(lifetimes.requested(4096).0, guess);
    }

    #[test]
    fn what_was_refused_is_no_level_of_memory() {
        let mut lifetimes = Lifetimes::default();
        step(&mut lifetimes, 100, 8 * MIB);
        let before = lifetimes.requests + lifetimes.frees;
        for _ in 0..3 {
            lifetimes.requested(1 << 60);
            lifetimes.refused();
        }
        assert_eq!(lifetimes.requests + lifetimes.frees, before);
        assert!(lifetimes.last_boundary().is_none());
        let guesses = step(&mut lifetimes, 100, 8 * MIB);
        assert_eq!(guesses[100].expectation, Expectation::Transient);
    }
}
