//! Reads `metrics.jsonl` while it is being written.
//!
//! The file may be a gigabyte, damaged, or cut off in its last line: it is read in pieces from where the last
//! reading ended, and what is kept of it is bounded.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use schemars::JsonSchema;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::curves::{Collector, Curves, Range};
use super::identity;

/// Bytes per read.
const READ_BYTES: usize = 256 << 10;
/// A longer line is skipped and counted, in bytes.
const MAX_LINE_BYTES: usize = 4 << 20;
/// How many events are kept; the oldest are dropped.
const MAX_EVENTS: usize = 500;
/// How many bytes of their lines are kept in all. Of a longer line only its kind and step are kept.
const MAX_EVENT_BYTES: usize = 1 << 20;
const MAX_EVENT_LINE: usize = 64 << 10;
/// How many sets of samples are remembered by their position; the oldest are dropped.
const MAX_SAMPLE_SETS: usize = 2000;
/// How much of the end of a file is read for the latest numbers; more if long samples come after them.
const TAILS: [u64; 3] = [64 << 10, 512 << 10, 4 << 20];
/// How far from the end the last evaluation is searched.
const MAX_SEARCH: u64 = 4 << 20;

/// A number, or `None` for any other value.
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

/// The plotted values of a line of any kind.
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
    /// Parses a record: an object with a kind. `None` for anything else.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let line: Self = serde_json::from_slice(bytes).ok()?;
        (!line.kind.is_empty()).then_some(line)
    }
}

/// The latest numbers of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Latest {
    /// Optimizer steps done.
    pub step: u64,
    /// Training loss.
    pub loss: Option<f64>,
    /// Held-out loss.
    pub eval_loss: Option<f64>,
    /// Learning rate.
    pub learning_rate: Option<f64>,
    /// Norm of the gradient, before clipping.
    pub grad_norm: Option<f64>,
    /// Tokens per second.
    pub tokens_per_second: Option<f64>,
    /// The memory to show, in bytes: the allocator's peak, or else that of the process.
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

    /// Reads the end of a file only, or what was added to it since `before`. Also returns how far it was read, up to
    /// the end of a line.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn read(file: &mut File, before: Option<(Self, u64)>) -> io::Result<(Self, u64)> {
        let length = file.metadata()?.len();
        let added = before.filter(|(_, end)| (*end..*end + TAILS[2]).contains(&length));
        let is_new = added.is_none();
        let (mut latest, mut end) = added.unwrap_or_default();
        for tail in TAILS {
            let from = match is_new {
                true => length.saturating_sub(tail),
                false => end,
            };
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(length - from).read_to_end(&mut bytes)?;
            // The first line is incomplete unless the file starts here; the last one may be.
            let skipped = usize::from(is_new && from > 0);
            let whole = bytes.iter().rposition(|byte| *byte == b'\n');
            end = from + whole.map_or(0, |last| last as u64 + 1);
            let lines = bytes.split_inclusive(|byte| *byte == b'\n').skip(skipped);
            for line in lines.filter_map(Line::parse) {
                latest.see(&line);
            }
            if !is_new || from == 0 || latest != Self::default() {
                break;
            }
        }
        // Evaluations are rarer than anything else.
        if is_new && latest.eval_loss.is_none() {
            latest.eval_loss = last_eval_loss(file, length)?;
        }
        Ok((latest, end))
    }
}

/// The last held-out loss before `end`, searched from there.
fn last_eval_loss(file: &mut File, mut end: u64) -> io::Result<Option<f64>> {
    const KEY: &[u8] = b"\"eval_loss\"";
    let stop = end.saturating_sub(MAX_SEARCH);
    // The end of a line whose beginning has not been read yet.
    let mut rest = Vec::new();
    while end > stop {
        let from = end.saturating_sub(READ_BYTES as u64);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(end - from).read_to_end(&mut bytes)?;
        bytes.append(&mut rest);
        let cut = match from {
            0 => 0,
            _ => position(&bytes).unwrap_or(bytes.len()),
        };
        for line in bytes[cut..].rsplit(|byte| *byte == b'\n') {
            let has_key = line.windows(KEY.len()).any(|part| part == KEY);
            if let Some(line) = has_key.then(|| Line::parse(line)).flatten()
                && line.kind == "eval"
            {
                return Ok(line.eval_loss.0);
            }
        }
        bytes.truncate(cut);
        rest = bytes;
        end = from;
    }
    Ok(None)
}

/// An event in a run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "RunEvent")]
pub struct Event {
    /// The step at which it is drawn.
    pub step: u64,
    /// `skipped`, `rolled_back`, `resumed`, `restarted`, or a kind from a newer trainer.
    pub kind: String,
    /// The record itself; unset if it is longer than 64 KiB.
    #[schemars(with = "Option<serde_json::Map<String, Value>>")]
    pub record: Value,
}

/// A sample of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SampleText")]
pub struct Text {
    /// The prompt.
    pub prompt: String,
    /// The generated text; for a video, its size and source.
    pub text: String,
    /// Generated media files, by their paths relative to the run's folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
}

/// The samples of one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Inode of the file; a resumed run writes a new file.
    inode: u64,
    /// Bytes read so far, up to the end of a line.
    offset: u64,
    train: Collector<9>,
    eval: Collector<2>,
    events: VecDeque<Event>,
    /// Lengths of the events' lines, as far as they are kept.
    event_lengths: VecDeque<usize>,
    event_bytes: usize,
    dropped_events: u64,
    /// Step, offset and length of each line with samples.
    sample_places: Vec<(u64, u64, usize)>,
    latest: Latest,
    unreadable: u64,
    /// Whether the reader is in the middle of a line that is too long.
    skipping: bool,
}

/// What happened to a file since the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Same,
    /// It has more records.
    More,
    /// It is another file, or shorter: everything was read again.
    Anew,
}

impl Metrics {
    /// Empty; the curves will show `range`.
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

    /// Reads what was added.
    ///
    /// # Errors
    /// I/O errors; what was read before stays.
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
        // Only up to the length at the start, or this might never end.
        let mut left = metadata.len().saturating_sub(self.offset);
        let mut begin = self.offset;
        while left > 0 {
            let before = buffer.len();
            buffer.resize(before + READ_BYTES, 0);
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
            if buffer.len() > MAX_LINE_BYTES {
                self.unreadable += u64::from(!self.skipping);
                self.skipping = true;
                begin += buffer.len() as u64;
                buffer.clear();
            }
            // Back to the start of an incomplete line, unless it is too long in any case.
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
                if self.sample_places.len() == MAX_SAMPLE_SETS {
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

    /// Keeps an event, and drops the oldest ones if there are too many.
    fn event(&mut self, step: u64, kind: String, bytes: &[u8]) {
        let kept = match bytes.len() <= MAX_EVENT_LINE {
            true => bytes,
            false => b"null",
        };
        self.event_bytes += kept.len();
        while self.events.len() >= MAX_EVENTS || self.event_bytes > MAX_EVENT_BYTES {
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

    /// Bytes read so far, up to the end of the last complete line.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The inode of the file.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The latest numbers.
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

    /// The events, at most the latest 500, and how many were dropped.
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

    /// The latest `count` sets of samples in `file`, ordered by step, and at most `bytes` of them.
    ///
    /// # Errors
    /// I/O errors.
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

    /// The latest set of samples of a step.
    ///
    /// # Errors
    /// I/O errors.
    pub fn samples_of(&self, file: &mut File, step: u64) -> io::Result<Option<SampleSet>> {
        let place = self.sample_places.iter().rfind(|place| place.0 == step);
        place.map_or(Ok(None), |place| sample_set(file, *place))
    }
}

/// The set of samples whose line is at this position; `None` if the line is not one.
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
