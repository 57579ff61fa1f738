//! What a program did: its requests and frees, and how a place in them is found again.
//!
//! ```text
//!  events      + + − + − − + …     the last half million, eight bytes each, numbered from 1
//!  stretches   |low high|…         of 256 events each, so that the log is searched in strides
//!  places      one event in sixteen, found by the hash of the sixteen events that led to it
//! ```
//!
//! An event has a *sign*: whether it is a request, and the ratio of its size to the one
//! before. Signs are the same for every sequence length and every resolution, so they tell
//! whether the program does again what it did before.

use super::super::lifetime::{Expectation, SMALL, octaves};

/// Events that are remembered: longer steps are not recognised.
pub(super) const REMEMBERED: u64 = 1 << 19;
/// So many events must agree to take a place for the same.
const ALIKE: u64 = 32;
/// And at least this many lie between it and now,
const NEAREST: u64 = 64;
/// and at most this many: what led to it is still needed.
const FARTHEST: u64 = REMEMBERED - 1024;
/// Of the places noted in a bucket, the last so many are compared.
const CANDIDATES: usize = 64;
/// Events of which the lowest and the highest level are kept.
const STRETCH: u64 = 256;
const BUCKETS_LOG2: u32 = 12;
/// Places that are noted, of one event in sixteen on average.
const NOTED: u64 = REMEMBERED / 8;
/// Levels are counted in granules.
pub(super) const LEVEL_LOG2: u32 = 9;

/// The last events of a program.
pub(super) struct Log {
    events: Vec<Event>,
    /// The lowest and the highest level of each stretch.
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
}

/// A request or a free.
#[derive(Clone, Copy)]
pub(super) struct Event {
    /// Used after it, in granules.
    pub(super) level: u32,
    /// The lowest bit: whether it is a request. Above: the ratio of its size to the one before.
    sign: u8,
    /// How the request ended.
    pub(super) ended: Ended,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Ended {
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

/// Where the events that were led to by the same trail are kept.
#[derive(Clone, Copy)]
pub(super) struct Bucket(usize);

impl Event {
    pub(super) fn is_request(self) -> bool {
        self.sign & 1 == 1
    }
}

impl Default for Log {
    fn default() -> Self {
        Log {
            events: Vec::new(),
            stretches: Vec::new(),
            now: 0,
            last_bytes: 1,
            trail: 0,
            buckets: vec![0; 1 << BUCKETS_LOG2].into_boxed_slice(),
            places: Vec::new(),
            noted: 0,
        }
    }
}

impl Log {
    /// Number of the last event.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// One of the events that are remembered, by its number.
    pub(super) fn event(&self, number: u64) -> Event {
        self.events[slot(number)]
    }

    /// What was used after it, in granules.
    pub(super) fn level(&self, number: u64) -> u32 {
        self.event(number).level
    }

    /// Notes a request or a free of `bytes`, and what is used after it. Some events can be
    /// found again by what led to them: these have a bucket.
    pub(super) fn note(&mut self, request: bool, bytes: u64, used: u64) -> Option<Bucket> {
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
        match self.events.get_mut(slot) {
            Some(old) => *old = event,
            None => self.events.push(event),
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
        let sign = u64::from(event.sign).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        self.trail = (self.trail << 4) ^ sign;
        let hash = self.trail.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (hash & 15 == 0).then_some(Bucket((hash >> (64 - BUCKETS_LOG2)) as usize))
    }

    /// Has the last event found again in its bucket.
    pub(super) fn note_place(&mut self, bucket: Bucket) {
        self.noted += 1;
        let place = Place {
            event: self.now,
            before: std::mem::replace(&mut self.buckets[bucket.0], self.noted),
        };
        match self.places.get_mut(((self.noted - 1) % NOTED) as usize) {
            Some(old) => *old = place,
            None => self.places.push(place),
        }
    }

    /// A request ended.
    pub(super) fn ended(&mut self, request: u64, ended: Expectation) {
        if self.now - request < REMEMBERED {
            self.events[slot(request)].ended = Ended::As(ended);
        }
    }

    /// Of the places with this trail before which the same happened as before now, the one
    /// where the memory used was nearest.
    pub(super) fn alike(&self, bucket: Bucket) -> Option<u64> {
        let mut next = self.buckets[bucket.0];
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

    /// The nearest event, fewer than `within` to either side, before which the same
    /// happened as before now.
    pub(super) fn alike_near(&self, event: u64, within: u64) -> Option<u64> {
        let mut around = (0..within).flat_map(|by| [event.saturating_sub(by), event + by]);
        around.find(|at| self.is_alike(*at))
    }

    /// Whether the same happened before an event as did before now.
    fn is_alike(&self, at: u64) -> bool {
        let near = at + NEAREST > self.now;
        let gone = at < ALIKE || at + FARTHEST < self.now;
        !near
            && !gone
            && (0..ALIKE).all(|back| self.event(at - back).sign == self.event(self.now - back).sign)
    }

    /// The lowest and the highest level from an event to now.
    pub(super) fn range(&self, from: u64) -> (u32, u32) {
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
}

fn slot(event: u64) -> usize {
    ((event - 1) % REMEMBERED) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MIB;

    /// Numbers without order, always the same.
    fn numbers(seed: u64) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(seed), |state| {
            let state = state.wrapping_mul(6_364_136_223_846_793_005);
            Some(state.wrapping_add(1_442_695_040_888_963_407))
        })
        .skip(1)
    }

    /// A log of so many events that hardly repeat themselves, with the levels they led to.
    fn noise(events: usize) -> (Log, Vec<u32>) {
        let mut log = Log::default();
        let mut levels = Vec::new();
        for number in numbers(1).take(events) {
            let (bytes, used) = ((number >> 40) % MIB, (number >> 20) % (1 << 36));
            levels.push((used >> LEVEL_LOG2) as u32);
            if let Some(bucket) = log.note(number >> 63 == 1, bytes, used) {
                log.note_place(bucket);
            }
        }
        (log, levels)
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (log, _) = noise(2 * REMEMBERED as usize);
        assert_eq!(log.events.len() as u64, REMEMBERED);
        assert!(log.places.len() as u64 <= NOTED);
    }

    #[test]
    fn the_range_is_that_of_the_levels() {
        let (log, levels) = noise(REMEMBERED as usize + 1000);
        let now = log.now();
        for from in [now, now - 1, now - 255, now - 1000, now - 100_000] {
            let levels = &levels[from as usize - 1..];
            let expected = (*levels.iter().min().unwrap(), *levels.iter().max().unwrap());
            assert_eq!(log.range(from), expected, "from {from}");
        }
    }

    /// What is done, with sizes in KiB, and noted.
    fn go(log: &mut Log, events: &[(bool, u64)]) -> Option<Bucket> {
        let mut bucket = None;
        for (request, kib) in events {
            bucket = log.note(*request, kib * 1024, 0);
            if let Some(bucket) = bucket {
                log.note_place(bucket);
            }
        }
        bucket
    }

    /// Fifty events that are their own.
    fn tune(number: u64) -> Vec<(bool, u64)> {
        let events = numbers(number).map(|number| (number >> 63 == 1, 4 << (number >> 59 & 7)));
        events.take(50).collect()
    }

    #[test]
    fn the_same_at_another_scale_is_alike_and_something_else_is_not() {
        let mut log = Log::default();
        for number in [1, 2, 3] {
            go(&mut log, &tune(number));
        }
        let larger: Vec<_> = tune(2)
            .iter()
            .map(|(request, kib)| (*request, kib * 4))
            .collect();
        go(&mut log, &larger);
        assert_eq!(log.alike_near(100, 1), Some(100));
        assert_eq!(log.alike_near(95, 20), Some(100), "five events away");
        assert_eq!(log.alike_near(50, 20), None);
        go(&mut log, &[(true, 3)]);
        assert_eq!(log.alike_near(100, 20), None);
    }

    #[test]
    fn a_place_is_found_by_what_led_to_it() {
        let mut log = Log::default();
        let mut found = 0;
        for round in 0..40u64 {
            for (at, event) in tune(round % 20).iter().enumerate() {
                let Some(bucket) = go(&mut log, &[*event]) else {
                    continue;
                };
                if round >= 20 && at as u64 >= ALIKE {
                    found += 1;
                    assert_eq!(log.alike(bucket), Some(log.now() - 20 * 50));
                }
            }
        }
        assert!(found > 10, "{found}");
    }
}
