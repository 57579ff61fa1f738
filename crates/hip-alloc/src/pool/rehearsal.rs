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
//!          followed   its lull   now
//! ```
//!
//! From the place that is followed up to its next *lull*, the lowest point before memory
//! rises again, the log tells how much more than now will be used: that much may stay in
//! empty blocks, since it will be asked for again, and at the lull nothing may. It tells
//! too how the request that comes next ended the last time ([`Rehearsal::next_ended`]).
//!
//! The place is found by the requests and frees just before it, with ratios of sizes
//! instead of sizes, and of equal places by the memory used. It is followed by the order
//! of requests and frees alone, so that another sequence length or resolution does not
//! lose it, and what was used then is scaled to what is used now. A program that does
//! something new is soon seen to, and then nothing is known.

use super::lifetime::{Expectation, SMALL, octaves};
use std::collections::VecDeque;

/// Events that are remembered: longer steps are not recognised. Eight bytes each.
const REMEMBERED: u64 = 1 << 19;
/// So many events must agree to take a place for the same.
const ALIKE: u64 = 32;
/// And at least this many lie between it and now.
const NEAREST: u64 = 64;
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
/// Of the places noted in a bucket, the last so many are compared.
const CANDIDATES: usize = 64;
/// Events of which the lowest and the highest level are kept.
const STRETCH: u64 = 256;
/// The scale of then to now is looked at again after so many events.
const SCALED_FOR: u64 = 16;
/// Fractions have so many bits.
const FRACTION: u32 = 16;
const BUCKETS_LOG2: u32 = 12;
/// Places that are noted, of one event in sixteen on average.
const NOTED: u64 = REMEMBERED / 8;
/// Memory is low within this part of the swing from the lowest.
const LOW_PART: u32 = 8;
/// Of a long stretch of low memory, so many events are looked at together.
const LONGEST_LOW: u64 = 2048;
/// How a request ended is believed where at least this many events lie between: nearer is
/// a layer of the same step.
const NEAREST_BELIEVED: u64 = 500;
/// Step ends that are remembered.
const EBBS: usize = 64;
/// Levels are counted in granules.
const LEVEL_LOG2: u32 = 9;

/// The log of events, and the place in it that the program is going through again.
///
/// Events are numbered from 1.
pub(super) struct Rehearsal {
    log: Vec<Event>,
    /// The lowest and the highest level of each stretch of the log.
    stretches: Vec<(u32, u32)>,
    /// Number of the last event.
    now: u64,
    last_bytes: u64,
    /// A hash of the last sixteen events.
    trail: u64,
    /// For each bucket of that hash, the last place that was noted, by number; 0: none.
    buckets: Box<[u64]>,
    places: Vec<Place>,
    noted: u64,
    /// Ends of steps, and the scale at which they were seen.
    ebbs: VecDeque<u64>,
    ebb_scale: usize,
    followed: Option<Followed>,
    /// The place that was followed and the event, when it was lost.
    lost: Option<(u64, u64)>,
    /// Not before this event is a place looked for again.
    search_at: u64,
    /// How often that was in vain.
    tries: u64,
}

#[derive(Clone, Copy)]
struct Event {
    /// Used after it, in granules.
    level: u32,
    /// The lowest bit: whether it is a request. Above: the ratio of its size to the one before.
    sign: u8,
    /// How the request ended.
    ended: Ended,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// A small one, or a free: nobody knows.
    Unknown,
    NotYet,
    As(Expectation),
}

/// An event that can be found by its trail.
#[derive(Clone, Copy)]
struct Place {
    event: u64,
    /// Number of the place before it in its bucket.
    before: u64,
}

/// Where the program was the last time that it did what it does now.
struct Followed {
    at: u64,
    /// The event at which it was found.
    since: u64,
    /// One bit for each of the last events: 1 was of another kind.
    misses: u32,
    /// The next event at which memory is at its lowest.
    lull: u64,
    /// Up to the lull, the events after which less is used than at them, the next first.
    crests: VecDeque<(u64, u32)>,
    /// The lowest and the highest level from there to now, and up to where they are of use.
    range: (u32, u32),
    range_until: u64,
    /// How high memory was above the lowest, now and then, in sum.
    heights: (u64, u64),
    /// The one divided by the other, in fractions; one, where that is not known.
    ratio: u32,
}

impl Default for Rehearsal {
    fn default() -> Self {
        Rehearsal {
            log: Vec::new(),
            stretches: Vec::new(),
            now: 0,
            last_bytes: 1,
            trail: 0,
            buckets: vec![0; 1 << BUCKETS_LOG2].into_boxed_slice(),
            places: Vec::new(),
            noted: 0,
            ebbs: VecDeque::new(),
            ebb_scale: 0,
            followed: None,
            lost: None,
            search_at: 0,
            tries: 0,
        }
    }
}

impl Rehearsal {
    /// How much more than now will be used before memory is next at its lowest, in bytes.
    /// Zero where nothing is known.
    pub(super) fn ahead(&self) -> u64 {
        let Some(place) = &self.followed else {
            return 0;
        };
        // What is done now was not done then: the program may be somewhere else already.
        if place.misses & 1 == 1 {
            return 0;
        }
        let crest = place.crests.front().map_or(0, |(_, level)| *level);
        let rise = crest.saturating_sub(self.level(place.at));
        ((u64::from(rise) * u64::from(place.ratio)) >> FRACTION) << LEVEL_LOG2
    }

    /// How the request that comes next ended the last time.
    pub(super) fn next_ended(&self) -> Option<Ended> {
        let followed = self.followed.as_ref()?;
        let recently = followed.misses & 0xFFFF;
        if recently != 0 || self.now - followed.at < NEAREST_BELIEVED {
            return None;
        }
        let next = self.event(followed.at + 1);
        next.is_request().then_some(next.ended)
    }

    /// Notes a request or a free of `bytes`, and what is used after it.
    pub(super) fn turn(&mut self, request: bool, bytes: u64, used: u64) {
        let sign = self.note(request, bytes, used);
        self.follow();
        self.trail =
            (self.trail << 4) ^ (u64::from(sign).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40);
        let hash = self.trail.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let bucket = (hash >> (64 - BUCKETS_LOG2)) as usize;
        let is_place = hash & 15 == 0;
        if self.followed.is_none()
            && self.now >= self.search_at
            && (is_place || self.now.is_multiple_of(INTERVAL))
        {
            self.search(is_place.then_some(bucket));
        }
        if is_place {
            self.note_place(bucket);
        }
    }

    /// A request ended.
    pub(super) fn ended(&mut self, request: u64, ended: Expectation) {
        if self.now - request < REMEMBERED {
            self.log[slot(request)].ended = Ended::As(ended);
        }
    }

    /// A step has ended at an event, seen at a scale of swings. Ends that were seen at
    /// smaller scales were none.
    pub(super) fn ebbed(&mut self, scale: usize, event: u64) {
        if self.ebbs.back() == Some(&event) {
            return;
        }
        if scale > self.ebb_scale {
            self.ebbs.clear();
        }
        self.ebb_scale = scale;
        if self.ebbs.len() == EBBS {
            self.ebbs.pop_front();
        }
        self.ebbs.push_back(event);
    }

    fn event(&self, number: u64) -> Event {
        self.log[slot(number)]
    }

    fn level(&self, number: u64) -> u32 {
        self.event(number).level
    }

    fn note(&mut self, request: bool, bytes: u64, used: u64) -> u8 {
        let ratio = octaves(bytes).wrapping_sub(octaves(self.last_bytes));
        self.last_bytes = bytes;
        let event = Event {
            level: (used >> LEVEL_LOG2).min(u64::from(u32::MAX)) as u32,
            sign: (ratio as u8) << 1 | u8::from(request),
            ended: match request && bytes >= SMALL {
                true => Ended::NotYet,
                false => Ended::Unknown,
            },
        };
        self.now += 1;
        let slot = slot(self.now);
        match self.log.get_mut(slot) {
            Some(old) => *old = event,
            None => self.log.push(event),
        }
        let stretch = slot / STRETCH as usize;
        if slot.is_multiple_of(STRETCH as usize) {
            let new = (event.level, event.level);
            match self.stretches.get_mut(stretch) {
                Some(old) => *old = new,
                None => self.stretches.push(new),
            }
        } else {
            let (low, high) = &mut self.stretches[stretch];
            (*low, *high) = ((*low).min(event.level), (*high).max(event.level));
        }
        event.sign
    }

    fn note_place(&mut self, bucket: usize) {
        self.noted += 1;
        let place = Place {
            event: self.now,
            before: std::mem::replace(&mut self.buckets[bucket], self.noted),
        };
        match self.places.get_mut(((self.noted - 1) % NOTED) as usize) {
            Some(old) => *old = place,
            None => self.places.push(place),
        }
    }

    /// Goes one event on from the place that is followed.
    fn follow(&mut self) {
        let Some(place) = &mut self.followed else {
            return;
        };
        place.at += 1;
        let (then, now) = (self.log[slot(place.at)], self.log[slot(self.now)]);
        let differs = then.is_request() != now.is_request();
        place.misses = place.misses << 1 | u32::from(differs);
        if place.misses.count_ones() > MISSES || self.now - place.at + PATIENCE > REMEMBERED {
            return self.lose();
        }
        let low = place.range.0;
        place.heights.0 += u64::from(now.level.saturating_sub(low));
        place.heights.1 += u64::from(then.level.saturating_sub(low));
        if self.now.is_multiple_of(SCALED_FOR) {
            place.scale();
        }
        while place.crests.front().is_some_and(|(at, _)| *at <= place.at) {
            place.crests.pop_front();
        }
        if place.at > place.lull
            && let Some(mut place) = self.followed.take()
        {
            self.look_ahead(&mut place);
            self.followed = Some(place);
        }
    }

    /// The program does something else.
    fn lose(&mut self) {
        let Some(place) = self.followed.take() else {
            return;
        };
        self.lost = Some((place.at, self.now));
        match self.now - place.since < PATIENCE {
            true => self.put_off(),
            false => self.tries = 0,
        }
    }

    fn put_off(&mut self) {
        self.tries += 1;
        let often = self.tries.saturating_sub(TRIES);
        self.search_at = self.now + (often * INTERVAL).min(LONGEST_INTERVAL);
    }

    /// Finds the next lull, and the crests up to it.
    fn look_ahead(&self, place: &mut Followed) {
        let from = place.at + 1;
        if place.at >= place.range_until {
            place.range = self.range(from);
            place.range_until = place.at + (self.now - place.at) / 4;
        }
        // What was long ago counts little.
        place.heights = (place.heights.0 / 256, place.heights.1 / 256);
        let ebb = self.ebbs.iter().find(|ebb| **ebb >= from);
        place.lull = self.next_low(place).min(ebb.copied().unwrap_or(u64::MAX));
        place.crests.clear();
        let mut crest = 0;
        for at in (from..=place.lull).rev() {
            let level = self.level(at);
            if level > crest {
                crest = level;
                place.crests.push_front((at, level));
            }
        }
    }

    /// The lowest and the highest level from an event to now.
    fn range(&self, from: u64) -> (u32, u32) {
        let whole = |event: &u64| slot(*event).is_multiple_of(STRETCH as usize);
        let first = (from..=self.now).find(whole).unwrap_or(self.now);
        let last = first + (self.now - first) / STRETCH * STRETCH;
        let ends = (from..first).chain(last..=self.now).map(|event| {
            let level = self.level(event);
            (level, level)
        });
        let stretches = (first..last).step_by(STRETCH as usize);
        let stretches = stretches.map(|event| self.stretches[slot(event) / STRETCH as usize]);
        ends.chain(stretches)
            .fold((u32::MAX, 0), |range, (low, high)| {
                (range.0.min(low), range.1.max(high))
            })
    }

    /// The lowest point of the stretch of low memory that a place is in, or of the next.
    fn next_low(&self, place: &Followed) -> u64 {
        let (low, high) = place.range;
        let low = low.saturating_add(high.saturating_sub(low) / LOW_PART);
        let lowest = |from: u64| {
            let mut lowest = from;
            let end = (from + LONGEST_LOW).min(self.now + 1);
            for at in from..end {
                if self.level(at) > low {
                    return (lowest, at);
                }
                if self.level(at) <= self.level(lowest) {
                    lowest = at;
                }
            }
            (lowest, end)
        };
        let (here, end) = lowest(place.at + 1);
        if end > place.at + 1 && self.level(here) < self.level(place.at) {
            return here;
        }
        let next = (end..=self.now).find(|at| self.level(*at) <= low);
        next.map_or(self.now, |at| lowest(at).0)
    }

    /// Looks for what happens now: near the place that was lost, else wherever the trail
    /// was the same; of these, where the memory used is nearest.
    fn search(&mut self, bucket: Option<usize>) {
        let recently = self.lost.filter(|(_, then)| self.now - then <= PATIENCE);
        let near = recently.and_then(|(at, then)| {
            let expected = at + (self.now - then);
            let mut around =
                (0..NEIGHBOURHOOD).flat_map(|by| [expected.saturating_sub(by), expected + by]);
            around.find(|at| self.is_alike(*at))
        });
        let found = near.or_else(|| self.noted_alike(bucket?));
        let Some(at) = found else {
            // The trail tells nothing where it was not noted.
            if bucket.is_some() {
                self.put_off();
            }
            return;
        };
        let mut place = Followed {
            at,
            since: self.now,
            misses: 0,
            lull: 0,
            crests: VecDeque::new(),
            range: (0, 0),
            range_until: 0,
            heights: (0, 0),
            ratio: 1 << FRACTION,
        };
        self.look_ahead(&mut place);
        self.followed = Some(place);
        self.lost = None;
    }

    fn noted_alike(&self, bucket: usize) -> Option<u64> {
        let mut next = self.buckets[bucket];
        let places = std::iter::from_fn(|| {
            let oldest = self.noted.saturating_sub(NOTED);
            let place = (next > oldest).then(|| self.places[((next - 1) % NOTED) as usize])?;
            next = place.before;
            Some(place.event)
        });
        let apart = |at: &u64| self.level(*at).abs_diff(self.level(self.now));
        let alike = places.take(CANDIDATES).filter(|at| self.is_alike(*at));
        alike.min_by_key(apart)
    }

    /// Whether the same happened before an event as did before now.
    fn is_alike(&self, at: u64) -> bool {
        let near = at + NEAREST > self.now;
        let gone = at < ALIKE || self.now - at.min(self.now) + 2 * PATIENCE > REMEMBERED;
        !near
            && !gone
            && (0..ALIKE).all(|back| self.event(at - back).sign == self.event(self.now - back).sign)
    }
}

impl Event {
    fn is_request(self) -> bool {
        self.sign & 1 == 1
    }
}

impl Followed {
    /// Looks how what is used now compares to what was used then.
    fn scale(&mut self) {
        let (now, then) = self.heights;
        if then > 0 {
            let ratio = (now as f64 / then as f64).clamp(0.25, 4.0);
            self.ratio = (ratio * f64::from(1 << FRACTION)) as u32;
        }
    }
}

fn slot(event: u64) -> usize {
    ((event - 1) % REMEMBERED) as usize
}

#[cfg(test)]
mod tests;
