//! What the program is about to need, from the last time that it did the same.
//!
//! A training step does what the step before did. So every request and free is noted with
//! the memory used after it, and the place where the same happened before is followed,
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
//! From the place that is followed up to its next *trough*, the lowest point before memory
//! rises again, the log tells how much more than now will be used: that much may stay in
//! empty blocks, since it will be asked for again, and at the trough nothing may. It tells
//! too how the request that comes next ended the last time ([`StepPredictor::next_ended`]).
//!
//! The place is found by the requests and frees just before it, with ratios of sizes
//! instead of sizes, and of equal places by the memory used. It is followed by the order
//! of requests and frees alone, so that another sequence length or resolution does not
//! lose it, and what was used then is scaled to what is used now. A program that does
//! something new is soon seen to, and then nothing is known.
//!
//! What is remembered, and how a place in it is found, is the part of [`log`].

mod log;

pub(super) use log::Ended;

use super::lifetime::Expectation;
use log::{Bucket, Event, LEVEL_LOG2, Log};
use std::collections::VecDeque;

/// Of the last 32 events, so many may be of another kind until the place is lost.
const MISSES: u32 = 10;
/// A place that was lost is looked for again this many events to either side,
const NEIGHBOURHOOD: u64 = 96;
/// and for this long.
const PATIENCE: u64 = 512;
/// While no place is known, it is looked for at every so many events,
const INTERVAL: u64 = 16;
/// and after so many times in vain more and more seldom,
const TRIES: u64 = 64;
/// up to this.
const LONGEST_INTERVAL: u64 = 1024;
/// The scale of then to now is looked at again after so many events.
const SCALED_FOR: u64 = 16;
/// Fractions have so many bits.
const FRACTION: u32 = 16;
/// Memory is low within this part of the swing from the lowest.
const LOW_PART: u32 = 8;
/// A trough is reached so many events before its lowest point.
const TROUGH_EVENTS: u64 = 4;
/// Of a long stretch of low memory, so many events are looked at together.
const LONGEST_LOW: u64 = 2048;
/// How a request ended is believed where at least this many events lie between: nearer is
/// a layer of the same step.
const NEAREST_BELIEVED: u64 = 500;
/// Step ends that are remembered.
const BOUNDARIES: usize = 64;

/// The log, and the place in it that the program is going through again.
#[derive(Default)]
pub(super) struct StepPredictor {
    log: Log,
    /// Ends of steps, and the scale at which they were seen.
    boundaries: VecDeque<u64>,
    boundary_scale: usize,
    followed: Option<Followed>,
    /// The place that was followed and the event, when it was lost.
    lost: Option<(u64, u64)>,
    /// Not before this event is a place looked for again.
    search_at: u64,
    /// How often that was in vain.
    tries: u64,
}

/// Where the program was the last time that it did what it does now.
struct Followed {
    at: u64,
    /// What was used after that event, in granules.
    level: u32,
    /// The event at which it was found.
    since: u64,
    /// One bit for each of the last events: 1 was of another kind.
    misses: u32,
    /// How many of these.
    missed: u32,
    /// The next event at which memory is at its lowest.
    trough: u64,
    /// Up to the trough, the events after which less is used than at them, the next last.
    peaks: Vec<(u64, u32)>,
    /// The lowest and the highest level from there to now, and up to where they are of use.
    range: (u32, u32),
    range_until: u64,
    /// How high memory was above the lowest, now and then, in sum.
    heights: (u64, u64),
    /// The one divided by the other, in fractions; one, where that is not known.
    ratio: u32,
}

impl StepPredictor {
    /// How much more than now will be used before memory is next at its lowest, in bytes.
    /// Zero where nothing is known.
    pub(super) fn expected_growth(&self) -> u64 {
        let Some(place) = &self.followed else {
            return 0;
        };
        // What is done now was not done then: the program may be somewhere else already.
        if place.misses & 1 == 1 {
            return 0;
        }
        let peak = place.peaks.last().map_or(0, |(_, level)| *level);
        let rise = peak.saturating_sub(place.level);
        ((u64::from(rise) * u64::from(place.ratio)) >> FRACTION) << LEVEL_LOG2
    }

    /// Whether that is known to be nothing.
    pub(super) fn is_falling(&self) -> bool {
        let place = self.followed.as_ref();
        place.is_some_and(|place| place.misses & 1 == 0) && self.expected_growth() == 0
    }

    /// What is used after the last event, in bytes.
    pub(super) fn used(&self) -> u64 {
        match self.log.now() {
            0 => 0,
            now => u64::from(self.log.level(now)) << LEVEL_LOG2,
        }
    }

    /// Whether memory is known to fall no further, but for a small part of its swing, before it
    /// rises again.
    pub(super) fn is_at_trough(&self) -> bool {
        let Some(place) = self.followed.as_ref().filter(|_| self.is_falling()) else {
            return false;
        };
        place.trough.saturating_sub(place.at) <= TROUGH_EVENTS
    }

    /// How the request that comes next ended the last time.
    pub(super) fn next_ended(&self) -> Option<Ended> {
        let followed = self.followed.as_ref()?;
        let recently = followed.misses & 0xFFFF;
        if recently != 0 || self.log.now() - followed.at < NEAREST_BELIEVED {
            return None;
        }
        let next = self.log.event(followed.at + 1);
        next.is_request().then_some(next.ended)
    }

    /// Notes a request or a free of `bytes`, whose logarithm that is, and what is used
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

    /// A step has ended at an event, seen at a scale of swings. Ends that were seen at
    /// smaller scales were none.
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

    /// Goes one event on from the place that is followed.
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
        // What was long ago counts little.
        place.heights = (place.heights.0 / 256, place.heights.1 / 256);
        let end = self.boundaries.iter().find(|end| **end >= from);
        place.trough = self.next_low(place).min(end.copied().unwrap_or(u64::MAX));
        self.log.peaks(from, place.trough, &mut place.peaks);
    }

    /// The lowest point of the stretch of low memory that a place is in, or of the next.
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

    /// Looks for what happens now: near the place that was lost, else wherever the trail
    /// was the same; of these, where the memory used is nearest.
    fn search(&mut self, bucket: Option<Bucket>) {
        let now = self.log.now();
        let recently = self.lost.filter(|(_, then)| now - then <= PATIENCE);
        let near =
            recently.and_then(|(at, then)| self.log.alike_near(at + (now - then), NEIGHBOURHOOD));
        let found = near.or_else(|| self.log.alike(bucket?));
        let Some(at) = found else {
            // The trail tells nothing where it was not noted.
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
    /// Notes how what is used now compares to what was used then.
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
