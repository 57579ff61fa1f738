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
use context::Context;
use regex::{Regex, RegexSet};
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
    let context = Context::read(text);
    let mut matches: Vec<Match> = oom::matches(text, &context, hints);
    let compiled = &*COMPILED;
    for (number, line) in text.lines().enumerate() {
        // A line can be one long JSON document; what matters fits into this.
        let line = clip(line, 4000);
        let mut previous = None;
        for pattern in compiled.set.matches(line) {
            let owner = compiled.owners[pattern];
            if previous.replace(owner) == Some(owner) {
                continue;
            }
            let entry = compiled.entries[owner];
            if let Some(known) = matches.iter_mut().find(|known| known.id == entry.id) {
                known.count += 1;
            } else if compiled.also[owner]
                .iter()
                .all(|pattern| pattern.is_match(text))
            {
                matches.push(from_entry(entry, line, number + 1));
            }
        }
    }
    context.sharpen(&mut matches);
    let order: Vec<&str> = compiled.entries.iter().map(|entry| entry.id).collect();
    matches.sort_by_key(|found| {
        let place = order.iter().position(|id| *id == found.id);
        (
            found.severity,
            found.confidence,
            place.unwrap_or(0),
            found.line_number,
        )
    });
    Explanation { matches }
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
    /// The entry of each pattern.
    owners: Vec<usize>,
    /// For each entry, the patterns that must be found as well.
    also: Vec<Vec<Regex>>,
}

static COMPILED: LazyLock<Compiled> = LazyLock::new(|| {
    let entries: Vec<_> = catalogue::entries().collect();
    let (mut patterns, mut owners) = (Vec::new(), Vec::new());
    for (owner, entry) in entries.iter().enumerate() {
        patterns.extend_from_slice(entry.patterns);
        owners.extend(std::iter::repeat_n(owner, entry.patterns.len()));
    }
    // The patterns are constants, and a test compiles each of them.
    let set = RegexSet::new(&patterns).unwrap_or_else(|_| RegexSet::empty());
    let also = entries
        .iter()
        .map(|entry| {
            entry
                .also
                .iter()
                .filter_map(|pattern| Regex::new(pattern).ok())
                .collect()
        })
        .collect();
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
