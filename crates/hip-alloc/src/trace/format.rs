//! The trace format: one line an event, as text, optionally zstd-compressed.
//!
//! ```text
//! # a comment
//! a 17 1048576 0     request 17 is for 1 MiB, on stream 0 (left out: stream 0)
//! f 17               request 17 is freed
//! s                  a step begins
//! ```
//!
//! Names of requests are numbers; a name may be used again after its `f`. A program that is
//! killed leaves half a line at the end of its recording, or half a compressed block: what is
//! cut off is left out, and [`Trace::is_cut_off`] says so.

use super::pickle::Pickle;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::SplitAsciiWhitespace;

/// A file begins with these bytes if it is zstd-compressed (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// The most bytes that a trace may ask for in all: far beyond any machine, and far from
/// where sums of sizes would overflow.
const MOST_BYTES: u64 = 1 << 60;
/// The longest trace or snapshot, unpacked, in bytes: some hundred million events.
const MOST_INPUT: u64 = 4 << 30;

/// Sizes that no machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes are more than any machine has, by themselves or with the requests before")]
pub struct SizeError {
    /// What was asked for.
    pub bytes: u64,
}

/// Adds up the sizes of a trace, so that whoever replays it may add without a thought.
#[derive(Debug, Default)]
pub(super) struct Tally {
    bytes: u64,
}

impl Tally {
    /// Counts a request.
    pub(super) fn request(&mut self, bytes: u64) -> Result<(), SizeError> {
        let sum = self
            .bytes
            .checked_add(bytes)
            .filter(|sum| *sum <= MOST_BYTES);
        self.bytes = sum.ok_or(SizeError { bytes })?;
        Ok(())
    }
}

/// One event of a trace. Requests are numbered from 0 without gaps: the number is
/// the position of the request among all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request.
    Allocate {
        /// Its number.
        id: u32,
        /// Its size.
        bytes: u64,
        /// The stream, as the trace names it.
        stream: u64,
    },
    /// A request is freed.
    Free {
        /// Its number.
        id: u32,
    },
    /// A step begins.
    Step,
}

/// A whole trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// In order of time.
    pub events: Vec<Event>,
    /// How many requests there are.
    pub requests: u32,
    /// The recording ends in the middle of a line or of a compressed block: its program was
    /// killed, and what came after is missing.
    pub is_cut_off: bool,
}

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read or decompressed.
    #[error("cannot read the trace: {0}")]
    Io(#[from] std::io::Error),
    /// Longer than any recording.
    #[error("the trace is longer than {} GiB", MOST_INPUT >> 30)]
    TooLong,
    /// Neither text nor a pickle.
    #[error(
        "this is neither a trace nor a snapshot of PyTorch: byte {at} is no text{}",
        hint.map(|hint| format!("; {hint}")).unwrap_or_default()
    )]
    Foreign {
        /// Counted from 1.
        at: usize,
        /// What it probably is, and what to do.
        hint: Option<&'static str>,
    },
    /// A snapshot of PyTorch's allocator that gives no trace.
    #[error(transparent)]
    Snapshot(#[from] super::snapshot::SnapshotError),
    /// A line does not follow the format.
    #[error(
        "line {line}: {problem}; a line is `a <id> <bytes> [stream]`, `f <id>`, `s`, or begins with `#`"
    )]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

impl Trace {
    /// Reads a trace, or a snapshot of PyTorch's allocator; either may be zstd-compressed.
    ///
    /// # Errors
    /// When the file cannot be read, is too long, or is something else.
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let file = File::open(path)?;
        // Known before anything is read, but for pipes and their like.
        if file.metadata()?.len() > MOST_INPUT {
            return Err(TraceError::TooLong);
        }
        Self::from_bytes(&read_all(file)?)
    }

    /// As [`Trace::read`], from memory.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Trace, TraceError> {
        if bytes.starts_with(&ZSTD_MAGIC) {
            let (mut unpacked, is_cut_off) = unpack(bytes)?;
            if is_cut_off && !Pickle::is_likely(&unpacked) {
                // Of the last line, too, only a part may have come through.
                let whole = unpacked.iter().rposition(|byte| *byte == b'\n');
                unpacked.truncate(whole.map_or(0, |end| end + 1));
            }
            let trace = Self::from_plain_bytes(&unpacked)?;
            return Ok(Trace {
                is_cut_off: is_cut_off || trace.is_cut_off,
                ..trace
            });
        }
        Self::from_plain_bytes(bytes)
    }

    fn from_plain_bytes(bytes: &[u8]) -> Result<Trace, TraceError> {
        if Pickle::is_likely(bytes) {
            return Ok(super::snapshot::read(bytes)?);
        }
        let text = std::str::from_utf8(bytes).map_err(|error| TraceError::Foreign {
            at: error.valid_up_to() + 1,
            hint: what_to_do(bytes),
        })?;
        Self::parse(text)
    }

    /// Reads a trace from text.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let mut trace = Trace::default();
        let mut live: HashMap<u64, u32> = HashMap::new();
        let mut tally = Tally::default();
        for (number, line) in text.split_inclusive('\n').enumerate() {
            match parse_line(line, &mut live, &mut trace.requests, &mut tally) {
                Ok(event) => trace.events.extend(event),
                Err(_) if !line.ends_with('\n') && number > 0 => trace.is_cut_off = true,
                Err(problem) => {
                    return Err(TraceError::Line {
                        line: number + 1,
                        problem,
                    });
                }
            }
        }
        Ok(trace)
    }

    /// The trace as text.
    pub fn to_text(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for event in &self.events {
            // Writing to a String cannot fail.
            let _ = match event {
                Event::Allocate {
                    id,
                    bytes,
                    stream: 0,
                } => writeln!(text, "a {id} {bytes}"),
                Event::Allocate { id, bytes, stream } => writeln!(text, "a {id} {bytes} {stream}"),
                Event::Free { id } => writeln!(text, "f {id}"),
                Event::Step => writeln!(text, "s"),
            };
        }
        text
    }
}

/// All of a source, unless that is too much.
fn read_all(source: impl Read) -> Result<Vec<u8>, TraceError> {
    let mut bytes = Vec::new();
    source.take(MOST_INPUT + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        0..=MOST_INPUT => Ok(bytes),
        _ => Err(TraceError::TooLong),
    }
}

/// What a zstd file holds, and whether it ends before its end.
fn unpack(bytes: &[u8]) -> Result<(Vec<u8>, bool), TraceError> {
    let mut unpacked = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(bytes)?;
    // What was read before an error stays.
    let outcome = decoder.take(MOST_INPUT + 1).read_to_end(&mut unpacked);
    if unpacked.len() as u64 > MOST_INPUT {
        return Err(TraceError::TooLong);
    }
    match outcome {
        Ok(_) => Ok((unpacked, false)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok((unpacked, true)),
        Err(error) => Err(error.into()),
    }
}

/// For formats that a trace or a snapshot is often kept in.
fn what_to_do(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x1f, 0x8b, ..] => Some("it is compressed with gzip: unpack it, or use zstd"),
        [b'P', b'K', 3, 4, ..] => {
            Some("it is a zip archive, such as torch.save writes: unpack it, or use pickle.dump")
        }
        _ => None,
    }
}

fn parse_line(
    line: &str,
    live: &mut HashMap<u64, u32>,
    requests: &mut u32,
    tally: &mut Tally,
) -> Result<Option<Event>, String> {
    let mut words = line.split_ascii_whitespace();
    let Some(kind) = words.next() else {
        return Ok(None);
    };
    let end = |words: &mut SplitAsciiWhitespace| match words.next() {
        None => Ok(()),
        Some(extra) => Err(format!("`{extra}` is one word too many")),
    };
    // Nothing is counted before the line is known to be right.
    let event = match kind {
        _ if kind.starts_with('#') => return Ok(None),
        "a" => {
            let name = number(words.next(), "id")?;
            let bytes = number(words.next(), "size")?;
            let stream = words
                .next()
                .map_or(Ok(0), |word| number(Some(word), "stream"))?;
            let id = *requests;
            end(&mut words)?;
            if live.contains_key(&name) {
                return Err(format!("request {name} is already live"));
            }
            let next = id.checked_add(1).ok_or("more than 2^32 requests")?;
            tally.request(bytes).map_err(|error| error.to_string())?;
            live.insert(name, id);
            *requests = next;
            Event::Allocate { id, bytes, stream }
        }
        "f" => {
            let name = number(words.next(), "id")?;
            end(&mut words)?;
            let id = live
                .remove(&name)
                .ok_or(format!("request {name} is not live"))?;
            Event::Free { id }
        }
        "s" => {
            end(&mut words)?;
            Event::Step
        }
        other => return Err(format!("`{other}` is not a kind of event")),
    };
    Ok(Some(event))
}

fn number(word: Option<&str>, what: &str) -> Result<u64, String> {
    let word = word.ok_or(format!("the {what} is missing"))?;
    word.parse()
        .map_err(|_| format!("the {what} `{word}` is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# of one step\na 7 4096\n\ns\na 2 100 5\nf 7\na 7 1\n";

    #[test]
    fn requests_are_numbered_in_order_and_names_are_used_again() {
        let trace = Trace::parse(TEXT).unwrap();
        let expected = "a 0 4096\ns\na 1 100 5\nf 0\na 2 1\n";
        assert_eq!((trace.to_text().as_str(), trace.requests), (expected, 3));
    }

    #[test]
    fn a_compressed_trace_is_the_trace() {
        let compressed = zstd::encode_all(TEXT.as_bytes(), 3).unwrap();
        let trace = Trace::from_bytes(&compressed).unwrap();
        assert_eq!(trace, Trace::parse(TEXT).unwrap());
        // Half a block is no error: its program was killed.
        let cut = Trace::from_bytes(&compressed[..compressed.len() - 3]).unwrap();
        assert!(cut.is_cut_off && trace.events.starts_with(&cut.events) && cut != trace);
        let mut broken = compressed;
        broken[4] |= 0x08; // reserved in the frame's header (RFC 8878, 3.1.1.1.1)
        assert!(matches!(Trace::from_bytes(&broken), Err(TraceError::Io(_))));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, problem) in [
            ("a 1 5\na 1 5\n", 2, "request 1 is already live"),
            ("s\nf 9\n", 2, "request 9 is not live"),
            ("a 1\n", 1, "the size is missing"),
            ("a 1 -5\n", 1, "the size `-5` is not a number"),
            ("a 1 5 0 0\n", 1, "`0` is one word too many"),
            ("b\n", 1, "`b` is not a kind of event"),
            // Not a line that was cut off: nothing was recorded before it.
            ("hello", 1, "`hello` is not a kind of event"),
        ] {
            let Err(TraceError::Line {
                line: at,
                problem: what,
            }) = Trace::parse(text)
            else {
                panic!("{text:?}");
            };
            assert_eq!((at, what.as_str()), (line, problem), "{text:?}");
        }
    }

    #[test]
    fn half_a_line_at_the_end_is_left_out() {
        for cut in ["a 1 5\nf", "a 1 5\na", "a 1 5\na 2"] {
            assert_eq!(Trace::parse(cut).unwrap().to_text(), "a 0 5\n", "{cut:?}");
        }
        // Nothing of it counts, not even the request.
        assert_eq!(Trace::parse("s\na 1 5 0 0").unwrap().requests, 0);
        let whole = Trace::parse("a 1 5\nf 1").unwrap();
        assert_eq!(whole.to_text(), "a 0 5\nf 0\n");
    }

    /// A history of two requests and a free, in protocol 0.
    const SNAPSHOT: &[u8] =
        b"(dVdevice_traces\n((l(dVaction\nValloc\nsVaddr\nI64\nsVsize\nI7\nsa(dVaction\nValloc\n\
        sVaddr\nI128\nsVsize\nI9\nsa(dVaction\nVfree_requested\nsVaddr\nI64\nsVsize\nI7\nsals.";

    #[test]
    fn snapshots_are_read_compressed_or_not() {
        let expected = "a 0 7\na 1 9\nf 0\n";
        let packed = zstd::encode_all(SNAPSHOT, 3).unwrap();
        for bytes in [SNAPSHOT, &packed] {
            assert_eq!(Trace::from_bytes(bytes).unwrap().to_text(), expected);
        }
    }

    #[test]
    fn a_cut_snapshot_says_so() {
        for end in 2..SNAPSHOT.len() {
            assert!(Trace::from_bytes(&SNAPSHOT[..end]).is_err(), "{end}");
        }
        let error = Trace::from_bytes(&SNAPSHOT[..60]).unwrap_err();
        assert_eq!(error.to_string(), "the pickle ends in the middle");
    }

    #[test]
    fn what_is_neither_says_what_to_do() {
        let message = |bytes: &[u8]| Trace::from_bytes(bytes).unwrap_err().to_string();
        let gzip = message(b"\x1f\x8b\x08\x00");
        assert!(gzip.contains("byte 2") && gzip.contains("gzip"), "{gzip}");
        assert!(message(b"PK\x03\x04\xff").contains("zip archive"));
        assert!(message(b"\x7fELF\xff").ends_with("byte 5 is no text"));
        assert!(message(b"{\"segments\": []}").starts_with("line 1"));
    }

    #[test]
    fn a_file_that_no_memory_holds_is_refused_unread() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        let error = Trace::read(file.path()).unwrap_err();
        assert_eq!(error.to_string(), "the trace is longer than 4 GiB");
    }
}
