//! Reads allocation traces: the text format that [`hip_alloc::recorder`] writes, or a
//! snapshot of PyTorch's allocator ([`snapshot`]), either of them optionally zstd-compressed.
//!
//! Blank lines and lines that begin with `#` are ignored. An omitted stream is 0. Requests are named by numbers; a
//! number may be reused after its `f`. A program that is killed leaves an incomplete line at the end of its recording,
//! or an incomplete compressed block: these are dropped, and
//! [`Trace::is_cut_off`] reports it.

pub mod snapshot;

use crate::pickle::Pickle;
pub use hip_alloc::recorder::Event;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::str::SplitAsciiWhitespace;

/// A file begins with these bytes if it is zstd-compressed (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// The most bytes that a trace may request in total: far beyond any machine, and far below
/// an overflow of sums of sizes.
const MOST_BYTES: u64 = 1 << 60;
/// Limits for reading, so that a small file which unpacks to a huge one does not use up all memory.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// The longest trace or snapshot, unpacked, in bytes.
    input: u64,
    /// The longest unpacked snapshot: unlike a trace it is read as a whole.
    packed_snapshot: u64,
    /// The most events: 24 bytes each.
    events: usize,
    /// The longest line, in bytes.
    line: u64,
}

const LIMITS: Limits = Limits {
    input: 4 << 30,
    packed_snapshot: 1 << 30,
    events: 1 << 26,
    line: 1 << 16,
};

/// Sizes that no machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes are more than any machine has, by themselves or with the requests before")]
pub struct SizeError {
    /// The requested bytes.
    pub bytes: u64,
}

/// Sums the sizes of a trace, so that replays can add them without overflow checks.
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
    #[error("the trace is longer than {} GiB", .limit >> 30)]
    TooLong {
        /// What is read, in bytes.
        limit: u64,
    },
    /// More than are kept in memory.
    #[error("the trace has more than {limit} events")]
    TooManyEvents {
        /// How many are read.
        limit: usize,
    },
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
    /// A snapshot of PyTorch's allocator that cannot be converted to a trace.
    #[error(transparent)]
    Snapshot(#[from] snapshot::SnapshotError),
    /// A line does not follow the format.
    #[error(
        "line {line}: {problem}; a line is `a <id> <bytes> [stream]`, `f <id>`, `s`, or begins with `#`"
    )]
    Line {
        /// Counted from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
}

impl Trace {
    /// Reads a trace, or a snapshot of PyTorch's allocator; either may be zstd-compressed.
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let file = File::open(path)?;
        // The size is known in advance, except for pipes and the like.
        if file.metadata()?.len() > LIMITS.input {
            let limit = LIMITS.input;
            return Err(TraceError::TooLong { limit });
        }
        read(BufReader::new(file), LIMITS)
    }

    /// Like [`Trace::read`], from memory.
    pub fn from_bytes(bytes: &[u8]) -> Result<Trace, TraceError> {
        read(bytes, LIMITS)
    }

    /// Reads a trace from text.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        read_lines(text.as_bytes(), LIMITS)
    }

    /// The trace as text.
    pub fn to_text(&self) -> String {
        let lines = self.events.iter().map(|event| format!("{event}\n"));
        lines.collect()
    }
}

/// Reads compressed or uncompressed bytes.
fn read(mut source: impl BufRead, limits: Limits) -> Result<Trace, TraceError> {
    let mut start = Vec::new();
    let length = ZSTD_MAGIC.len() as u64;
    source.by_ref().take(length).read_to_end(&mut start)?;
    let is_packed = start == ZSTD_MAGIC;
    let whole = start.as_slice().chain(source);
    if is_packed {
        let decoder = zstd::stream::read::Decoder::with_buffer(whole)?;
        let input = limits.input.min(limits.packed_snapshot);
        read_plain(BufReader::new(decoder), limits, input)
    } else {
        read_plain(whole, limits, limits.input)
    }
}

/// Reads uncompressed bytes; of a snapshot at most `snapshot` bytes.
fn read_plain(
    mut source: impl BufRead,
    limits: Limits,
    snapshot: u64,
) -> Result<Trace, TraceError> {
    let start = match source.fill_buf() {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => &[],
        start => start?,
    };
    if !Pickle::is_likely(start) {
        return read_lines(source, limits);
    }
    let mut bytes = Vec::new();
    let outcome = source.take(snapshot + 1).read_to_end(&mut bytes);
    if bytes.len() as u64 > snapshot {
        return Err(TraceError::TooLong { limit: snapshot });
    }
    let is_cut_off = is_cut_off(outcome)?;
    let trace = snapshot::read(&bytes)?;
    Ok(Trace {
        is_cut_off,
        ..trace
    })
}

/// Reads the text format, a line at a time.
fn read_lines(mut source: impl BufRead, limits: Limits) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    let mut live: HashMap<u64, u32> = HashMap::new();
    let mut tally = Tally::default();
    let mut line = Vec::new();
    // Bytes and lines before this one.
    let mut at = 0;
    for number in 0.. {
        line.clear();
        let outcome = source
            .by_ref()
            .take(limits.line + 1)
            .read_until(b'\n', &mut line);
        if is_cut_off(outcome)? {
            // Of this line, too, only a part may have come through.
            trace.is_cut_off = true;
            break;
        }
        if line.is_empty() {
            break;
        }
        let text = match std::str::from_utf8(&line) {
            Ok(text) if line.len() as u64 <= limits.line => Ok(text),
            Err(error) if error.error_len().is_some() || line.len() as u64 <= limits.line => {
                return Err(TraceError::Foreign {
                    at: at + error.valid_up_to() + 1,
                    hint: what_to_do(&line).filter(|_| at == 0),
                });
            }
            _ => Err(format!("longer than {} bytes", limits.line)),
        };
        let event =
            text.and_then(|text| parse_line(text, &mut live, &mut trace.requests, &mut tally));
        match event {
            Ok(event) => trace.events.extend(event),
            Err(_) if !line.ends_with(b"\n") && number > 0 => trace.is_cut_off = true,
            Err(problem) => {
                return Err(TraceError::Line {
                    line: number + 1,
                    problem,
                });
            }
        }
        at += line.len();
        if at as u64 > limits.input {
            let limit = limits.input;
            return Err(TraceError::TooLong { limit });
        }
        if trace.events.len() > limits.events {
            let limit = limits.events;
            return Err(TraceError::TooManyEvents { limit });
        }
    }
    Ok(trace)
}

/// Whether a compressed file ended before its end: its program was killed.
fn is_cut_off(outcome: io::Result<usize>) -> Result<bool, TraceError> {
    match outcome {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
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

    /// Of these nothing is ever at its end.
    #[test]
    fn a_source_without_end_is_refused_before_it_is_read_whole() {
        let limits = Limits {
            input: 1 << 16,
            packed_snapshot: 1 << 10,
            events: 1000,
            line: 100,
        };
        let problem = |pattern: &'static [u8]| {
            let endless = Endless {
                pattern,
                rest: pattern,
            };
            read(endless, limits).unwrap_err().to_string()
        };
        assert_eq!(problem(b"s\n"), "the trace has more than 1000 events");
        assert_eq!(problem(b"# nothing\n"), "the trace is longer than 0 GiB");
        assert!(problem(b"s s s s").starts_with("line 1: longer than 100 bytes"));
        assert_eq!(problem(b"(d"), "the trace is longer than 0 GiB");
    }

    /// A pattern again and again.
    struct Endless {
        pattern: &'static [u8],
        rest: &'static [u8],
    }

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.fill_buf()?.read(into)?;
            self.consume(count);
            Ok(count)
        }
    }

    impl BufRead for Endless {
        fn fill_buf(&mut self) -> io::Result<&[u8]> {
            if self.rest.is_empty() {
                self.rest = self.pattern;
            }
            Ok(self.rest)
        }

        fn consume(&mut self, count: usize) {
            self.rest = &self.rest[count..];
        }
    }

    #[test]
    fn a_small_file_that_unpacks_to_a_huge_one_is_refused() {
        let packed = zstd::encode_all(&vec![b'\n'; 1 << 20][..], 3).unwrap();
        let limits = Limits {
            input: 1 << 16,
            ..LIMITS
        };
        let outcome = read(packed.as_slice(), limits);
        assert!(matches!(outcome, Err(TraceError::TooLong { .. })));
    }

    #[test]
    fn a_file_that_no_memory_holds_is_refused_unread() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        let error = Trace::read(file.path()).unwrap_err();
        assert_eq!(error.to_string(), "the trace is longer than 4 GiB");
    }
}
