//! Reading `metrics.jsonl` while it is written.
//!
//! The file can be a gigabyte, cut off in its last line, or damaged: it is read in pieces, from where the
//! last reading ended, and what is kept of it has a bound.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::curves::{Collector, Curves, Range};
use super::identity;

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;
/// A line longer than this is left out and counted.
const LONGEST_LINE: usize = 4 << 20;
/// Events that are kept, the newest.
const EVENTS: usize = 500;
/// Bytes of their lines that are kept in all; of a longer one alone, only what it is and when.
const EVENT_BYTES: usize = 1 << 20;
const LONGEST_EVENT: usize = 64 << 10;
/// Sets of samples whose places are kept, the newest.
const SAMPLE_SETS: usize = 2000;
/// What is read of the end of a file for the newest numbers: more, where long samples stand behind them.
const TAILS: [u64; 3] = [64 << 10, 512 << 10, 4 << 20];

/// A number, or nothing where there is something else.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Number(Option<f64>);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Number;
            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("anything")
            }
            fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
                Ok(Number(Some(value)))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(Number(Some(value as f64)))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
                Ok(Number(Some(value as f64)))
            }
            fn visit_str<E>(self, _: &str) -> Result<Number, E> {
                Ok(Number(None))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Number, E> {
                Ok(Number(None))
            }
            fn visit_unit<E>(self) -> Result<Number, E> {
                Ok(Number(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Number, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Number(None))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Number, A::Error> {
                while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Number(None))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Memory {
    live: Number,
    held: Number,
    live_peak: Number,
    held_peak: Number,
    resident: Number,
}

/// What is drawn of a line, whatever kind it is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    step: u64,
    to_step: u64,
    loss: Number,
    learning_rate: Number,
    grad_norm: Number,
    tokens_per_second: Number,
    memory: Option<Memory>,
    eval_loss: Number,
    eval_nats_per_byte: Number,
}

impl<'a> Line<'a> {
    /// A record, which is an object with a kind; `None` for anything else.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let line: Self = serde_json::from_slice(bytes).ok()?;
        (!line.kind.is_empty()).then_some(line)
    }
}

/// The newest numbers of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latest {
    /// Optimizer steps done.
    pub step: u64,
    /// Training loss.
    pub loss: Option<f64>,
    /// Held-out loss.
    pub eval_loss: Option<f64>,
    /// Learning rate.
    pub learning_rate: Option<f64>,
    /// Norm of the gradient before clipping.
    pub grad_norm: Option<f64>,
    /// Tokens a second.
    pub tokens_per_second: Option<f64>,
    /// The number to show for memory, in bytes: most that the allocator held, or the process.
    pub memory: Option<f64>,
}

impl Latest {
    fn see(&mut self, line: &Line<'_>) {
        match &*line.kind {
            "train" => {
                self.step = line.step;
                self.loss = line.loss.0;
                self.learning_rate = line.learning_rate.0;
                self.grad_norm = line.grad_norm.0;
                self.tokens_per_second = line.tokens_per_second.0;
                let memory = line.memory.as_ref();
                self.memory = memory.and_then(|memory| memory.held_peak.0.or(memory.resident.0));
            }
            "eval" => {
                self.step = self.step.max(line.step);
                self.eval_loss = line.eval_loss.0;
            }
            "rolled_back" => self.step = line.to_step,
            _ => {}
        }
    }

    /// Reads the end of a file alone.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn read(mut file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let mut latest = Self::default();
        for tail in TAILS {
            let from = length.saturating_sub(tail);
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            (&file).take(tail).read_to_end(&mut bytes)?;
            // The first line is cut off, unless the file begins here; the last may be.
            let skipped = usize::from(from > 0);
            let lines = bytes.split_inclusive(|byte| *byte == b'\n').skip(skipped);
            for line in lines.filter_map(Line::parse) {
                latest.see(&line);
            }
            if from == 0 || latest != Self::default() {
                break;
            }
        }
        Ok(latest)
    }
}

/// Something that happened in a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// The step at which it is drawn.
    pub step: u64,
    /// `skipped`, `rolled_back`, `resumed`, or a kind that a newer trainer writes.
    pub kind: String,
    /// The record itself; unset where it is longer than 64 KiB.
    pub record: Value,
}

/// A text that the model wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// What it was asked.
    pub prompt: String,
    /// What it answered; of a video, its size and where it came from.
    pub text: String,
    /// Files of what is no text, by their paths from the run's folder on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

/// The samples of one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleSet {
    /// Optimizer steps done.
    pub step: u64,
    /// One for each prompt.
    pub samples: Vec<Text>,
}

const TRAIN: [&str; 9] = [
    "loss",
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
    "live",
    "held",
    "live_peak",
    "held_peak",
    "resident",
];

/// What is kept of a run's metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Inode of the file; a resumed run writes a new one.
    inode: u64,
    /// Bytes that were read, up to the end of a line.
    offset: u64,
    train: Collector<9>,
    eval: Collector<2>,
    events: VecDeque<Event>,
    /// Lengths of their lines, as far as they are kept.
    event_lengths: VecDeque<usize>,
    event_bytes: usize,
    dropped_events: u64,
    /// Step, place and length of the lines with samples.
    sample_places: Vec<(u64, u64, usize)>,
    latest: Latest,
    unreadable: u64,
    /// In the middle of a line that is too long.
    skipping: bool,
}

/// What became of a file since the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Same,
    /// It has more records.
    More,
    /// It is another file, or shorter: all was read anew.
    Anew,
}

impl Metrics {
    /// Nothing yet, of which the curves will show `range`.
    pub fn new(range: Range) -> Self {
        Self {
            inode: 0,
            offset: 0,
            train: Collector::new(TRAIN, range),
            eval: Collector::new(["eval_loss", "eval_nats_per_byte"], range),
            events: VecDeque::new(),
            event_lengths: VecDeque::new(),
            event_bytes: 0,
            dropped_events: 0,
            sample_places: Vec::new(),
            latest: Latest::default(),
            unreadable: 0,
            skipping: false,
        }
    }

    /// Reads what is new.
    ///
    /// # Errors
    /// What the system says; what was read before that stays.
    pub fn update(&mut self, file: &mut File) -> io::Result<Change> {
        let metadata = file.metadata()?;
        let mut change = Change::Same;
        if identity(&metadata) != self.inode || metadata.len() < self.offset {
            *self = Self::new(self.train_range());
            self.inode = identity(&metadata);
            change = Change::Anew;
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut buffer: Vec<u8> = Vec::new();
        // What is written while this reads comes next time, or this would never end.
        let mut left = metadata.len().saturating_sub(self.offset);
        let mut begin = self.offset;
        while left > 0 {
            let before = buffer.len();
            buffer.resize(before + PIECE, 0);
            let count = match file.read(&mut buffer[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                result => result?,
            };
            buffer.truncate(before + count);
            if count == 0 {
                break;
            }
            left = left.saturating_sub(count as u64);
            let mut from = 0;
            while let Some(length) = position(&buffer[from..]) {
                match self.skipping {
                    true => self.skipping = false,
                    false => self.line(&buffer[from..from + length], begin + from as u64),
                }
                from += length + 1;
                if change == Change::Same {
                    change = Change::More;
                }
            }
            buffer.drain(..from);
            begin += from as u64;
            if buffer.len() > LONGEST_LINE {
                self.unreadable += u64::from(!self.skipping);
                self.skipping = true;
                begin += buffer.len() as u64;
                buffer.clear();
            }
            // In front of a line that is not whole, unless it is too long to ever be one.
            self.offset = begin;
        }
        Ok(change)
    }

    fn train_range(&self) -> Range {
        self.train.range()
    }

    fn line(&mut self, bytes: &[u8], place: u64) {
        let Some(line) = Line::parse(bytes) else {
            self.unreadable += 1;
            return;
        };
        self.latest.see(&line);
        match &*line.kind {
            "train" => {
                let memory = line.memory.unwrap_or_default();
                let values = [
                    line.loss,
                    line.learning_rate,
                    line.grad_norm,
                    line.tokens_per_second,
                    memory.live,
                    memory.held,
                    memory.live_peak,
                    memory.held_peak,
                    memory.resident,
                ];
                self.train.add(line.step, values.map(|number| number.0));
            }
            "eval" => {
                let values = [line.eval_loss.0, line.eval_nats_per_byte.0];
                self.eval.add(line.step, values);
            }
            "samples" => {
                if self.sample_places.len() == SAMPLE_SETS {
                    self.sample_places.remove(0);
                }
                self.sample_places.push((line.step, place, bytes.len()));
            }
            kind => {
                let (kind, step) = match kind {
                    "rolled_back" => {
                        self.train.rewind(line.to_step);
                        self.eval.rewind(line.to_step);
                        let after = |set: &(u64, u64, usize)| set.0 <= line.to_step;
                        self.sample_places.retain(after);
                        (kind.to_owned(), line.to_step)
                    }
                    kind => (kind.to_owned(), line.step),
                };
                self.event(step, kind, bytes);
            }
        }
    }

    /// Keeps an event, and the newest of those before it that there is room for.
    fn event(&mut self, step: u64, kind: String, bytes: &[u8]) {
        let kept = match bytes.len() <= LONGEST_EVENT {
            true => bytes,
            false => b"null",
        };
        self.event_bytes += kept.len();
        while self.events.len() >= EVENTS || self.event_bytes > EVENT_BYTES {
            let Some(length) = self.event_lengths.pop_front() else {
                break;
            };
            self.events.pop_front();
            self.event_bytes -= length;
            self.dropped_events += 1;
        }
        let record = serde_json::from_slice(kept).unwrap_or_default();
        self.event_lengths.push_back(kept.len());
        self.events.push_back(Event { step, kind, record });
    }

    /// Bytes read, up to the end of the last whole line.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Which file that was.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The newest numbers.
    pub fn latest(&self) -> Latest {
        self.latest
    }

    /// Training loss, learning rate, gradient norm, speed and memory over the steps.
    pub fn train(&self) -> Curves {
        self.train.curves()
    }

    /// Held-out loss over the steps.
    pub fn eval(&self) -> Curves {
        self.eval.curves()
    }

    /// What happened, at most 500, the newest, and how many were before them.
    pub fn events(&self) -> (&VecDeque<Event>, u64) {
        (&self.events, self.dropped_events)
    }

    /// Lines that could not be read.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Steps that have samples.
    pub fn sample_steps(&self) -> Vec<u64> {
        self.sample_places.iter().map(|place| place.0).collect()
    }

    /// The newest `count` sets of samples of the file that was read, in the order of their steps, and at most
    /// `bytes` of them.
    ///
    /// # Errors
    /// What the system says.
    pub fn samples(
        &self,
        file: &mut File,
        count: usize,
        bytes: usize,
    ) -> io::Result<Vec<SampleSet>> {
        let mut sets = Vec::new();
        let mut total = 0;
        for place in self.sample_places.iter().rev().take(count) {
            total += place.2;
            if total > bytes && !sets.is_empty() {
                break;
            }
            sets.extend(sample_set(file, *place)?);
        }
        sets.reverse();
        Ok(sets)
    }

    /// The newest set of samples of a step.
    ///
    /// # Errors
    /// What the system says.
    pub fn samples_of(&self, file: &mut File, step: u64) -> io::Result<Option<SampleSet>> {
        let place = self.sample_places.iter().rfind(|place| place.0 == step);
        place.map_or(Ok(None), |place| sample_set(file, *place))
    }
}

/// The set of samples whose line is at a place; nothing where the line is no such set.
fn sample_set(
    file: &mut File,
    (_, place, length): (u64, u64, usize),
) -> io::Result<Option<SampleSet>> {
    let mut line = vec![0; length];
    file.seek(SeekFrom::Start(place))?;
    file.read_exact(&mut line)?;
    Ok(serde_json::from_slice(&line).ok())
}

fn position(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

#[cfg(test)]
mod tests;
