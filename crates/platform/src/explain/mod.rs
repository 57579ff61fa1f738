//! What an error message means: `surefoot explain`, and the end of `surefoot run`.
//!
//! A catalogue of known messages ([`catalogue`]) names causes line by line; the
//! numbers of out-of-memory messages are read and judged ([`oom`]); and what the
//! rest of the text says (an override, a version, a permission) sharpens both.

pub mod catalogue;
mod context;
pub mod ending;
pub mod oom;

use crate::Bytes;
use crate::plain::plain;
use context::Context;
use regex::{RegexSet, RegexSetBuilder};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// How bad an error or a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Training fails or computes wrongly.
    Error,
    /// Training may fail, or wastes much.
    Warning,
    /// Good to know.
    Info,
}

/// How sure it is that a cause is the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// The message has no other known cause.
    High,
    /// The usual cause.
    Medium,
    /// One of several causes.
    Low,
}

/// One recognised message.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Match {
    /// The name of the error.
    pub id: String,
    /// The line that was recognised.
    pub line: String,
    /// Its number in the text, from 1.
    pub line_number: usize,
    /// How bad it is.
    pub severity: Severity,
    /// What causes it.
    pub cause: String,
    /// What to do, most promising first.
    pub fix: Vec<String>,
    /// Where this is known from.
    pub source: String,
    /// How sure it is.
    pub confidence: Confidence,
    /// Numbers read from the message; sizes in bytes.
    pub numbers: BTreeMap<&'static str, u64>,
    /// How often it occurs.
    pub count: usize,
}

/// Everything recognised in a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Explanation {
    /// The messages, those nearest to the cause first.
    pub matches: Vec<Match>,
}

/// What to collect when nothing was recognised.
pub const WHAT_TO_COLLECT: [&str; 4] = [
    "the last 50 lines of the program, from the first line that mentions an error",
    "sudo dmesg | grep -iE 'amdgpu|kfd|ttm|oom' | tail -n 50",
    "surefoot doctor --dump machine.txt",
    "surefoot probe --report probe.json",
];

/// What is known about the machine that a log comes from; sharpens judgements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hints {
    /// RAM of the host.
    pub ram: Option<Bytes>,
}

/// Explains a log without knowing its machine.
#[must_use]
pub fn explain(text: &str) -> Explanation {
    explain_with(text, Hints::default())
}

/// Explains a log.
#[must_use]
pub fn explain_with(text: &str, hints: Hints) -> Explanation {
    let mut explainer = Explainer::new(hints);
    explainer.read(text.as_bytes());
    explainer.finish()
}

/// Explains a log piece by piece, so that one of any length fits into little memory.
///
/// Colours are removed, and a carriage return ends a line as a newline does: progress
/// bars overwrite themselves, and the error comes behind them on the same line.
#[derive(Default)]
pub struct Explainer {
    hints: Hints,
    context: Context,
    messages: oom::Messages,
    matches: Vec<Match>,
    /// Which patterns of the catalogue were found at all.
    seen: Vec<bool>,
    /// What was read of the line that is not over.
    partial: Vec<u8>,
    /// The number of that line, less one.
    lines: usize,
}

/// What is kept of a line; it can be one long JSON document.
const LONGEST_LINE: usize = 64 << 10;

impl Explainer {
    /// Ready for the first piece.
    #[must_use]
    pub fn new(hints: Hints) -> Self {
        Self {
            hints,
            seen: vec![false; COMPILED.set.len()],
            ..Self::default()
        }
    }

    /// Takes the next piece; it may end within a line, or within a character.
    pub fn read(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|&byte| matches!(byte, b'\n' | b'\r')) {
            let (text, ending) = match part {
                [text @ .., ending @ (b'\n' | b'\r')] => (text, Some(*ending)),
                text => (text, None),
            };
            let room = LONGEST_LINE.saturating_sub(self.partial.len());
            self.partial
                .extend_from_slice(&text[..text.len().min(room)]);
            if let Some(ending) = ending {
                self.close_line();
                self.lines += usize::from(ending == b'\n');
            }
        }
    }

    /// The explanation of everything read.
    #[must_use]
    pub fn finish(mut self) -> Explanation {
        self.close_line();
        let compiled = &*COMPILED;
        let mut matches = self.messages.finish(&self.context, self.hints);
        matches.extend(self.matches.into_iter().filter(|found| {
            let owner = compiled.entries.iter().position(|e| e.id == found.id);
            owner.is_some_and(|owner| compiled.also[owner].iter().all(|&also| self.seen[also]))
        }));
        self.context.sharpen(&mut matches);
        matches.sort_by_key(|found| {
            let place = compiled.entries.iter().position(|e| e.id == found.id);
            (
                found.severity,
                found.confidence,
                place.unwrap_or(0),
                found.line_number,
            )
        });
        Explanation { matches }
    }

    fn close_line(&mut self) {
        if self.partial.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.partial);
        self.line(&plain(&String::from_utf8_lossy(&bytes)));
        self.partial = bytes;
        self.partial.clear();
    }

    fn line(&mut self, line: &str) {
        let number = self.lines + 1;
        self.context.read(line);
        self.messages.read(line, number);
        let compiled = &*COMPILED;
        // What matters of a long line is at its start, or at its end.
        let (head, tail) = ends(line, 4000);
        let mut previous = None;
        let mut found: Vec<usize> = compiled.set.matches(head).into_iter().collect();
        if !tail.is_empty() {
            found.extend(compiled.set.matches(tail));
            found.sort_unstable();
        }
        for pattern in found {
            self.seen[pattern] = true;
            let Some(owner) = compiled.owners[pattern] else {
                continue;
            };
            if previous.replace(owner) == Some(owner) {
                continue;
            }
            let entry = compiled.entries[owner];
            if let Some(known) = self.matches.iter_mut().find(|known| known.id == entry.id) {
                known.count += 1;
            } else {
                self.matches.push(from_entry(entry, line, number));
            }
        }
    }
}

/// The first and the last bytes of a line; the second is empty when the first is all.
fn ends(line: &str, limit: usize) -> (&str, &str) {
    let head = clip(line, limit);
    let mut start = line.len().saturating_sub(limit).max(head.len());
    while !line.is_char_boundary(start) {
        start += 1;
    }
    (head, &line[start..])
}

fn from_entry(entry: &catalogue::Entry, line: &str, line_number: usize) -> Match {
    Match {
        id: entry.id.to_owned(),
        line: clip(line.trim(), 500).to_owned(),
        line_number,
        severity: entry.severity,
        cause: entry.cause.to_owned(),
        fix: entry.fix.iter().map(|&step| step.to_owned()).collect(),
        source: entry.source.to_owned(),
        confidence: entry.confidence,
        numbers: BTreeMap::new(),
        count: 1,
    }
}

/// At most `limit` bytes, cut between characters.
pub(crate) fn clip(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// All patterns of the catalogue in one automaton.
struct Compiled {
    entries: Vec<&'static catalogue::Entry>,
    set: RegexSet,
    /// The entry that each pattern names; `None` for one that only supports an entry.
    owners: Vec<Option<usize>>,
    /// For each entry, the patterns that must be found as well.
    also: Vec<Vec<usize>>,
}

static COMPILED: LazyLock<Compiled> = LazyLock::new(|| {
    let entries: Vec<_> = catalogue::entries().collect();
    let (mut patterns, mut owners, mut also) = (Vec::new(), Vec::new(), Vec::new());
    for (owner, entry) in entries.iter().enumerate() {
        patterns.extend_from_slice(entry.patterns);
        owners.extend(std::iter::repeat_n(Some(owner), entry.patterns.len()));
        also.push((patterns.len()..patterns.len() + entry.also.len()).collect());
        patterns.extend_from_slice(entry.also);
        owners.extend(std::iter::repeat_n(None, entry.also.len()));
    }
    // The patterns are constants, and a test compiles each of them.
    let set = RegexSetBuilder::new(&patterns)
        .dfa_size_limit(64 << 20)
        .build()
        .unwrap_or_else(|_| RegexSet::empty());
    Compiled {
        entries,
        set,
        owners,
        also,
    }
});

#[cfg(test)]
mod tests {
    use super::*;
    use regex::Regex;

    #[test]
    fn the_catalogue_is_well_formed() {
        let mut ids = std::collections::HashSet::new();
        for entry in catalogue::entries() {
            assert!(ids.insert(entry.id), "{} twice", entry.id);
            assert!(
                !entry.cause.is_empty() && !entry.source.is_empty(),
                "{}",
                entry.id
            );
            for pattern in entry.patterns.iter().chain(entry.also) {
                assert!(Regex::new(pattern).is_ok(), "{}: {pattern}", entry.id);
                assert!(
                    !Regex::new(pattern).is_ok_and(|p| p.is_match("")),
                    "{}: {pattern} matches nothing",
                    entry.id
                );
            }
        }
        assert_eq!(COMPILED.set.len(), COMPILED.owners.len());
    }

    #[test]
    fn the_same_error_is_reported_once() {
        let line = "RuntimeError: HIP error: invalid device function\n";
        let explanation = explain(&line.repeat(3));
        assert_eq!(explanation.matches.len(), 1);
        assert_eq!(
            (
                explanation.matches[0].line_number,
                explanation.matches[0].count
            ),
            (1, 3)
        );
    }

    #[test]
    fn pieces_may_end_anywhere() {
        let text = "\u{1b}[31mé loss: nan\u{1b}[0m\r\nHIP out of memory. Tried to allocate 2.00 GiB\n 10%|#   |\r 20%|##  |\rMemory access fault by GPU node-1\n";
        let whole = explain(text);
        assert_eq!(whole.matches.len(), 3, "{whole:?}");
        for size in 1..text.len() {
            let mut explainer = Explainer::new(Hints::default());
            for piece in text.as_bytes().chunks(size) {
                explainer.read(piece);
            }
            assert_eq!(explainer.finish(), whole, "{size}");
        }
    }

    #[test]
    fn a_line_without_end_is_cut_and_the_next_one_is_read() {
        let mut text = "x".repeat(1 << 20);
        text.push_str("\nHIP error: invalid device function\n");
        let found = explain(&text).matches;
        assert_eq!((found.len(), found[0].line_number), (1, 2));
    }

    #[test]
    fn progress_bars_hide_nothing_and_lines_keep_their_numbers() {
        let text = "start\r\n  1%|  | 1/100\r  2%|  | 2/100\rhipErrorInvalidImage\r\nend\r\n";
        let found = explain(text).matches;
        assert_eq!(
            (found[0].line_number, found[0].line.as_str()),
            (2, "hipErrorInvalidImage")
        );
    }

    #[test]
    fn errors_come_before_remarks() {
        let text = "Overriding blas backend to hipblas\nHIP error: invalid device function\n";
        let ids: Vec<String> = explain(text)
            .matches
            .into_iter()
            .map(|found| found.id)
            .collect();
        assert_eq!(ids, ["invalid-device-function", "hipblaslt-unsupported"]);
    }

    #[test]
    fn ordinary_output_is_not_explained() {
        let text = "step 100 loss 0.123 grad_norm 1.2\nEpoch 1: 100%|####| 10/10 [00:01<00:00]\nValueError: not enough values to unpack\n";
        assert_eq!(explain(text), Explanation::default());
    }
}
