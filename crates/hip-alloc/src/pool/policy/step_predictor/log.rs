//! The log of a program's requests and frees, and how positions in it are found again.
//!
//! ```text
//!  events      + + − + − − + …     the last half million, eight bytes each, numbered from 1
//!  stretches   |low high|…         of 256 events each, so that the log is searched in strides
//!  places      one event in sixteen, found by the hash of the sixteen events that led to it
//! ```
//!
//! An event has a *sign*: whether it is a request, and the ratio of its size to the one
//! before. Signs are the same for every sequence length and every resolution, so they show
//! whether the program repeats what it did before.

use super::super::lifetime::{Expectation, SMALL, log_size};

/// The number of events that are remembered: longer steps are not recognised.
pub(super) const REMEMBERED: u64 = 1 << 19;
/// How many events must agree for two positions to be considered the same.
const ALIKE: u64 = 32;
/// At least this many events must be between it and now,
const NEAREST: u64 = 64;
/// and at most this many, since the events that led to it are still needed.
const FARTHEST: u64 = REMEMBERED - 1024;
/// The last this many positions in a bucket are compared.
const CANDIDATES: usize = 64;
/// The number of events whose lowest and highest level are stored.
const STRETCH: u64 = 256;
const BUCKETS_LOG2: u32 = 12;
/// The number of positions that are stored, one event in sixteen on average.
const NOTED: u64 = REMEMBERED / 8;
/// Levels are counted in granules.
pub(super) const LEVEL_LOG2: u32 = 9;

/// The last events of a program.
pub(super) struct Log {
    events: Vec<Event>,
    /// The lowest and the highest level of each complete stretch.
    stretches: Vec<(u32, u32)>,
    /// Those of the stretch of the last event.
    stretch: (u32, u32),
    /// Number of the last event.
    now: u64,
    last_log_size: u8,
    /// A hash of the last sixteen events.
    trail: u64,
    /// For each bucket of that hash, the last position that was stored, by number; 0: none.
    buckets: Box<[u64]>,
    places: Vec<TrailEntry>,
    noted: u64,
}

/// A request or a free.
#[derive(Clone, Copy)]
pub(super) struct Event {
    /// The usage after it, in granules.
    pub(super) level: u32,
    /// The lowest bit: whether it is a request. Above: the ratio of its size to the one before.
    sign: u8,
    /// How the request ended.
    pub(super) ended: Ended,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool::policy) enum Ended {
    /// A small one, or a free: unknown.
    Unknown,
    NotYet,
    As(Expectation),
}

/// An event that can be found by its trail.
#[derive(Clone, Copy)]
struct TrailEntry {
    event: u64,
    /// Number of the previous position in its bucket.
    before: u64,
}

/// Where events with the same trail are stored.
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
            stretch: (u32::MAX, 0),
            now: 0,
            last_log_size: log_size(1),
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

    /// A remembered event, by its number.
    pub(super) fn event(&self, number: u64) -> Event {
        self.events[slot(number)]
    }

    /// The usage after it, in granules.
    pub(super) fn level(&self, number: u64) -> u32 {
        self.event(number).level
    }

    /// Adds a request or a free of `bytes` with the logarithm `log_size`, and the usage
    /// after it. Some events can be found again by what led to them: these have a bucket.
    pub(super) fn note(
        &mut self,
        request: bool,
        bytes: u64,
        log_size: u8,
        used: u64,
    ) -> (Event, Option<Bucket>) {
        let ratio = log_size.wrapping_sub(self.last_log_size);
        self.last_log_size = log_size;
        let event = Event {
            level: (used >> LEVEL_LOG2).min(u64::from(u32::MAX)) as u32,
            sign: ratio << 1 | u8::from(request),
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
        let (low, high) = self.stretch;
        self.stretch = (low.min(event.level), high.max(event.level));
        if self.now.is_multiple_of(STRETCH) {
            self.complete_stretch(slot);
        }
        let sign = u64::from(event.sign).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        self.trail = (self.trail << 4) ^ sign;
        let hash = self.trail.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let is_place = hash & 15 == 0;
        let bucket = is_place.then_some(Bucket((hash >> (64 - BUCKETS_LOG2)) as usize));
        (event, bucket)
    }

    /// The last event was the last of its stretch.
    fn complete_stretch(&mut self, slot: usize) {
        let stretch = std::mem::replace(&mut self.stretch, (u32::MAX, 0));
        match self.stretches.get_mut(slot / STRETCH as usize) {
            Some(old) => *old = stretch,
            None => self.stretches.push(stretch),
        }
    }

    /// Stores the last event in its bucket, so that it is found again.
    pub(super) fn note_place(&mut self, bucket: Bucket) {
        self.noted += 1;
        let place = TrailEntry {
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

    /// Among the positions with this trail before which the same happened as before now, the one
    /// with the nearest usage.
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
        let sign = self.event(self.now).sign;
        for by in 0..within {
            for at in [event.saturating_sub(by), event + by] {
                // Nearly all are distinguished by the last event.
                let last = self.events.get(slot(at.max(1)));
                if last.is_some_and(|last| last.sign == sign) && self.is_alike(at) {
                    return Some(at);
                }
            }
        }
        None
    }

    /// Whether the same happened before an event as before now.
    fn is_alike(&self, at: u64) -> bool {
        let near = at + NEAREST > self.now;
        let gone = at < ALIKE || at + FARTHEST < self.now;
        !near
            && !gone
            && (0..ALIKE).all(|back| self.event(at - back).sign == self.event(self.now - back).sign)
    }

    /// The lowest and the highest level from an event to now.
    pub(super) fn range(&self, from: u64) -> (u32, u32) {
        let pieces = self.pieces(from, self.now);
        pieces.fold((u32::MAX, 0), |range, piece| {
            let (low, high) = match piece.is_whole() {
                true => self.bounds(piece),
                false => range_of(self.events_of(piece)),
            };
            (range.0.min(low), range.1.max(high))
        })
    }

    /// The first event from `from` to now at which no more than `level` is used.
    pub(super) fn first_at_most(&self, level: u32, from: u64) -> Option<u64> {
        self.pieces(from, self.now)
            .filter(|piece| self.bounds(*piece).0 <= level)
            .find_map(|piece| {
                let mut events = self.events_of(piece).iter();
                let at = events.position(|event| event.level <= level)?;
                Some(piece.first + at as u64)
            })
    }

    /// From the first event on, the lowest of those up to the last that are no higher than
    /// the level; among equals the last. Also the event at which that ends.
    pub(super) fn lowest_of_low(&self, level: u32, first: u64, last: u64) -> (u64, u64) {
        let mut lowest = (u32::MAX, first);
        for piece in self.pieces(first, last) {
            for (number, event) in (piece.first..).zip(self.events_of(piece)) {
                if event.level > level {
                    return (lowest.1, number);
                }
                if event.level <= lowest.0 {
                    lowest = (event.level, number);
                }
            }
        }
        (lowest.1, last + 1)
    }

    /// The events from the first to the last after which all use less than at them, the
    /// last one first, with their levels.
    pub(super) fn peaks(&self, first: u64, last: u64, peaks: &mut Vec<(u64, u32)>) {
        peaks.clear();
        let mut peak = 0;
        for piece in self.pieces(first, last).rev() {
            if self.bounds(piece).1 <= peak {
                continue;
            }
            for (at, event) in self.events_of(piece).iter().enumerate().rev() {
                if event.level > peak {
                    peak = event.level;
                    peaks.push((piece.first + at as u64, peak));
                }
            }
        }
    }

    /// The events from the first to the last, in pieces within one stretch each.
    fn pieces(&self, first: u64, last: u64) -> impl DoubleEndedIterator<Item = Piece> + use<> {
        let stretches = (first - 1) / STRETCH..last.div_ceil(STRETCH);
        stretches.map(move |stretch| Piece {
            first: first.max(stretch * STRETCH + 1),
            last: last.min((stretch + 1) * STRETCH),
        })
    }

    fn events_of(&self, piece: Piece) -> &[Event] {
        let first = slot(piece.first);
        &self.events[first..first + (piece.last + 1 - piece.first) as usize]
    }

    /// The bounds of a piece's levels: those of its stretch.
    fn bounds(&self, piece: Piece) -> (u32, u32) {
        let stretch = (piece.first - 1) / STRETCH;
        if (stretch + 1) * STRETCH > self.now {
            self.stretch
        } else {
            self.stretches[slot(piece.first) / STRETCH as usize]
        }
    }
}

/// Events of one stretch, by their numbers.
#[derive(Clone, Copy)]
struct Piece {
    first: u64,
    last: u64,
}

impl Piece {
    fn is_whole(self) -> bool {
        self.last + 1 - self.first == STRETCH
    }
}

fn range_of(events: &[Event]) -> (u32, u32) {
    events.iter().fold((u32::MAX, 0), |(low, high), event| {
        (low.min(event.level), high.max(event.level))
    })
}

fn slot(event: u64) -> usize {
    ((event - 1) % REMEMBERED) as usize
}

#[cfg(test)]
mod tests;
