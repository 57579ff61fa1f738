//! Predicts what the program is about to need, from the last time that it did the same.
//!
//! A training step does what the step before did. So every request and free is recorded with
//! the memory used after it, and the position where the same happened before is followed,
//! event by event:
//!
//! ```text
//!  used  │      ╭╮          │      ╭╮
//!        │   ╭╮╭╯╰╮╭╮       │   ╭╮╭╯
//!        │╭╮╭╯╰╯  ╰╯╰╮      │╭╮╭╯╰╯
//!        ┼╯╰╯        ╰──────┼╯╰╯  ·
//!                 ↑      ↑        ↑
//!          followed   its trough   now
//! ```
//!
//! From the followed position up to its next *trough*, the lowest point before usage
//! rises again, the log shows how much more than now will be used: that much may stay in
//! empty blocks, since it will be requested again, and at the trough nothing may. It also shows
//! how the next request ended the last time ([`StepPredictor::next_ended`]).
//!
//! The position is found by the requests and frees just before it, with ratios of sizes
//! instead of sizes, and among equal positions by the memory used. It is followed by the order
//! of requests and frees alone, so that another sequence length or resolution does not
//! lose it, and the usage then is scaled to the usage now. If a program does
//! something new, this is soon noticed, and then nothing is predicted.
//!
//! [`log`] stores the events and finds positions in them.

mod log;

pub(super) use log::Ended;

use super::lifetime::Expectation;
use log::{Bucket, Event, LEVEL_LOG2, Log};
use std::collections::VecDeque;

/// Of the last 32 events, this many may differ before the position is lost.
const MISSES: u32 = 10;
/// A lost position is searched again this many events to either side,
const NEIGHBOURHOOD: u64 = 96;
/// and for this many events.
const PATIENCE: u64 = 512;
/// Without a position, a search is made every this many events,
const INTERVAL: u64 = 16;
/// and after this many failed searches less and less often,
const TRIES: u64 = 64;
/// up to this.
const LONGEST_INTERVAL: u64 = 1024;
/// The scale from then to now is updated after this many events.
const SCALED_FOR: u64 = 16;
/// The number of fractional bits.
const FRACTION: u32 = 16;
/// Usage is low within this fraction of the swing above the minimum.
const LOW_PART: u32 = 8;
/// A trough is reached this many events before its lowest point.
const TROUGH_EVENTS: u64 = 4;
/// Of a long stretch of low usage, this many events are examined together.
const LONGEST_LOW: u64 = 2048;
/// The end of a request is a valid prediction if at least this many events are in between: nearer is
/// a layer of the same step.
const NEAREST_BELIEVED: u64 = 500;
/// How many step ends are remembered.
const BOUNDARIES: usize = 64;

/// The log, and the position in it that the program is repeating.
#[derive(Default)]
pub(super) struct StepPredictor {
    log: Log,
    /// Ends of steps, and the scale at which they were detected.
    boundaries: VecDeque<u64>,
    boundary_scale: usize,
    followed: Option<Followed>,
    /// The followed position and the event, when it was lost.
    lost: Option<(u64, u64)>,
    /// The event before which no search is made.
    search_at: u64,
    /// How many searches failed.
    tries: u64,
}

/// The position where the program last did what it does now.
struct Followed {
    at: u64,
    /// The usage after that event, in granules.
    level: u32,
    /// The event at which it was found.
    since: u64,
    /// One bit for each of the last events: 1 if it differed.
    misses: u32,
    /// How many of these differed.
    missed: u32,
    /// The next event at which usage is at its minimum.
    trough: u64,
    /// Up to the trough, the events after which less is used than at them, the next one last.
    peaks: Vec<(u64, u32)>,
    /// The lowest and the highest level from there to now, and how long they are valid.
    range: (u32, u32),
    range_until: u64,
    /// The sums of how high usage was above the minimum, now and then.
    heights: (u64, u64),
    /// Their ratio as a fixed-point number; one if unknown.
    ratio: u32,
}

impl StepPredictor {
    /// How many more bytes than now will be used before the next minimum, if that is known.
    pub(super) fn growth(&self) -> Option<u64> {
        let place = self.followed.as_ref()?;
        // The last event differs: the program may already be doing something else.
        if place.misses & 1 == 1 {
            return None;
        }
        let peak = place.peaks.last().map_or(0, |(_, level)| *level);
        let rise = peak.saturating_sub(place.level);
        Some(((u64::from(rise) * u64::from(place.ratio)) >> FRACTION) << LEVEL_LOG2)
    }

    /// The usage after the last event, in bytes.
    pub(super) fn used(&self) -> u64 {
        match self.log.now() {
            0 => 0,
            now => u64::from(self.log.level(now)) << LEVEL_LOG2,
        }
    }

    /// Whether usage is known to fall no further, up to a small fraction of its swing, before it
    /// rises again.
    pub(super) fn is_at_trough(&self) -> bool {
        let place = self.followed.as_ref();
        let Some(place) = place.filter(|_| self.growth() == Some(0)) else {
            return false;
        };
        place.trough.saturating_sub(place.at) <= TROUGH_EVENTS
    }

    /// How the next request ended the last time.
    pub(super) fn next_ended(&self) -> Option<Ended> {
        let followed = self.followed.as_ref()?;
        let recently = followed.misses & 0xFFFF;
        if recently != 0 || self.log.now() - followed.at < NEAREST_BELIEVED {
            return None;
        }
        let next = self.log.event(followed.at + 1);
        next.is_request().then_some(next.ended)
    }

    /// Adds a request or a free of `bytes` with the logarithm `log_size`, and the usage
    /// after it.
    pub(super) fn note(&mut self, request: bool, bytes: u64, log_size: u8, used: u64) {
        let (event, bucket) = self.log.note(request, bytes, log_size, used);
        self.follow(event);
        let now = self.log.now();
        if self.followed.is_none()
            && now >= self.search_at
            && (bucket.is_some() || now.is_multiple_of(INTERVAL))
        {
            self.search(bucket);
        }
        if let Some(bucket) = bucket {
            self.log.note_place(bucket);
        }
    }

    /// A request ended.
    pub(super) fn ended(&mut self, request: u64, ended: Expectation) {
        self.log.ended(request, ended);
    }

    /// A step ended at an event, detected at a scale of swings. Ends that were detected at
    /// smaller scales were not ends of steps.
    pub(super) fn step_ended(&mut self, scale: usize, event: u64) {
        if self.boundaries.back() == Some(&event) {
            return;
        }
        if scale > self.boundary_scale {
            self.boundaries.clear();
        }
        self.boundary_scale = scale;
        if self.boundaries.len() == BOUNDARIES {
            self.boundaries.pop_front();
        }
        self.boundaries.push_back(event);
    }

    /// Advances the followed position by one event.
    fn follow(&mut self, here: Event) {
        let Some(place) = &mut self.followed else {
            return;
        };
        place.at += 1;
        let then = self.log.event(place.at);
        place.level = then.level;
        let differs = u32::from(then.is_request() != here.is_request());
        place.missed = place.missed + differs - (place.misses >> 31);
        place.misses = place.misses << 1 | differs;
        if place.missed > MISSES {
            return self.lose();
        }
        let low = place.range.0;
        place.heights.0 += u64::from(here.level.saturating_sub(low));
        place.heights.1 += u64::from(then.level.saturating_sub(low));
        if self.log.now().is_multiple_of(SCALED_FOR) {
            place.scale();
        }
        while place.peaks.last().is_some_and(|(at, _)| *at <= place.at) {
            place.peaks.pop();
        }
        if place.at > place.trough
            && let Some(mut place) = self.followed.take()
        {
            self.look_forward(&mut place);
            self.followed = Some(place);
        }
    }

    /// The program does something else.
    fn lose(&mut self) {
        let Some(place) = self.followed.take() else {
            return;
        };
        self.lost = Some((place.at, self.log.now()));
        match self.log.now() - place.since < PATIENCE {
            true => self.put_off(),
            false => self.tries = 0,
        }
    }

    fn put_off(&mut self) {
        self.tries += 1;
        let often = self.tries.saturating_sub(TRIES);
        self.search_at = self.log.now() + (often * INTERVAL).min(LONGEST_INTERVAL);
    }

    /// Finds the next trough, and the peaks up to it.
    fn look_forward(&self, place: &mut Followed) {
        let from = place.at + 1;
        if place.at >= place.range_until {
            place.range = self.log.range(from);
            place.range_until = place.at + (self.log.now() - place.at) / 4;
        }
        // Older observations have less weight.
        place.heights = (place.heights.0 / 256, place.heights.1 / 256);
        let end = self.boundaries.iter().find(|end| **end >= from);
        place.trough = self.next_low(place).min(end.copied().unwrap_or(u64::MAX));
        self.log.peaks(from, place.trough, &mut place.peaks);
    }

    /// The lowest point of the current stretch of low usage, or of the next one.
    fn next_low(&self, place: &Followed) -> u64 {
        let (low, high) = place.range;
        let low = low.saturating_add(high.saturating_sub(low) / LOW_PART);
        let now = self.log.now();
        let lowest = |from: u64| {
            let last = (from + LONGEST_LOW - 1).min(now);
            self.log.lowest_of_low(low, from, last)
        };
        let (here, end) = lowest(place.at + 1);
        if end > place.at + 1 && self.log.event(here).level < place.level {
            return here;
        }
        let next = self.log.first_at_most(low, end);
        next.map_or(now, |at| lowest(at).0)
    }

    /// Searches for the current events: near the lost position, or else wherever the trail
    /// was the same; among these, where the usage is nearest.
    fn search(&mut self, bucket: Option<Bucket>) {
        let now = self.log.now();
        let recently = self.lost.filter(|(_, then)| now - then <= PATIENCE);
        let near =
            recently.and_then(|(at, then)| self.log.alike_near(at + (now - then), NEIGHBOURHOOD));
        let found = near.or_else(|| self.log.alike(bucket?));
        let Some(at) = found else {
            // Events without a trail entry cannot be compared by it.
            if bucket.is_some() {
                self.put_off();
            }
            return;
        };
        let mut place = Followed {
            at,
            level: self.log.event(at).level,
            since: now,
            misses: 0,
            missed: 0,
            trough: 0,
            peaks: Vec::new(),
            range: (0, 0),
            range_until: 0,
            heights: (0, 0),
            ratio: 1 << FRACTION,
        };
        self.look_forward(&mut place);
        self.followed = Some(place);
        self.lost = None;
    }
}

impl Followed {
    /// Updates the ratio of the usage now to the usage then.
    fn scale(&mut self) {
        let (now, then) = self.heights;
        if then > 0 {
            let ratio = (now as f64 / then as f64).clamp(0.25, 4.0);
            self.ratio = (ratio * f64::from(1 << FRACTION)) as u32;
        }
    }
}

#[cfg(test)]
mod tests;
