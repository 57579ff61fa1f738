//! Explains error messages, for `surefoot explain` and at the end of `surefoot run`.
//!
//! A catalogue of known messages ([`catalogue`]) gives causes line by line; the
//! numbers of out-of-memory messages are read and interpreted ([`oom`]); and the context from the
//! rest of the text (where it ran, the GPU, an override, a version, a
//! permission) refines both. Then everything is weighed together: a message that another one
//! explains better is left out, and so is one that the rest of the text contradicts.

pub mod catalogue;
mod clues;
mod context;
pub(crate) mod difference;
pub mod ending;
mod marks;
pub mod oom;
mod pairing;
mod patterns;
mod running;
mod shared_library;
mod translations;
mod weighing;

use crate::ansi::strip_escapes;
use crate::{failure, pasted, signs};
pub use catalogue::{Confidence, Severity};
use context::Context;
pub use patterns::Catalogue;
use patterns::Role;
use platform::Bytes;
use platform::machine::{Machine, System};
use running::Running;
use serde::Serialize;
use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use weighing::drop_covered;

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
    /// What else of the text was used, each with its line: `gfx1102 (line 5)`.
    pub facts: Vec<String>,
    /// Commands whose output would settle it; none where it is certain.
    pub ask: Vec<String>,
    /// Checks of `surefoot probe` that would decide whether this is the cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<&'static str>,
    /// Numbers read from the message; sizes in bytes.
    pub numbers: BTreeMap<&'static str, u64>,
    /// How often it occurs.
    pub count: usize,
    /// The first eight of the other lines with it.
    #[serde(skip)]
    pub(crate) others: Vec<String>,
    /// How near to the cause its entry is.
    #[serde(skip)]
    pub(crate) rank: u16,
    /// What stands in the places of its texts that it alone fills.
    #[serde(skip)]
    pub(crate) values: Vec<(&'static str, String)>,
}

impl Match {
    /// An error of which only the name is known yet.
    pub(crate) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            line: String::new(),
            line_number: 0,
            severity: Severity::Error,
            cause: String::new(),
            fix: Vec::new(),
            source: String::new(),
            confidence: Confidence::Medium,
            facts: Vec::new(),
            ask: Vec::new(),
            probe: Vec::new(),
            numbers: BTreeMap::new(),
            count: 1,
            others: Vec::new(),
            rank: 0,
            values: Vec::new(),
        }
    }
}

/// Everything recognised in a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Explanation {
    /// The messages, those nearest to the cause first.
    pub matches: Vec<Match>,
    /// What follows from all of the text.
    pub verdict: Verdict,
    /// That in words where neither the messages nor the verdict have them: what `surefoot doctor --from` says last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// What follows from all of a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Verdict {
    /// The text shows neither a failure nor a GPU at work.
    #[default]
    Unknown,
    /// What is wrong is known.
    Explained,
    /// A program works on the GPU, and nothing complains.
    Works {
        /// The line that shows it.
        line: String,
    },
    /// A program failed, and why is not known.
    Failed {
        /// The line that tells most of it.
        line: String,
        /// Its number in the text, from 1.
        line_number: usize,
        /// The part of the software that it is from.
        component: Option<String>,
        /// It is what a person says; no program says why.
        is_said: bool,
        /// Commands whose output would tell more.
        ask: Vec<String>,
    },
}

impl Verdict {
    /// In words; nothing where the messages say it.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Unknown | Self::Explained | Self::Works { .. } => None,
            Self::Failed {
                line,
                line_number,
                component,
                is_said,
                ask,
            } => {
                let (start, of) = match is_said {
                    true => (
                        "The text tells of a failure, and why is not known. No program says it; its author does, in",
                        "concerns",
                    ),
                    false => (
                        "A program failed here, and why is not known. The line that tells most is",
                        "is from",
                    ),
                };
                let of = component.as_ref().map(|name| format!(" It {of} {name}."));
                Some(format!(
                    "{start} line {line_number}, `{}`.{} These would tell more: {}.",
                    clip(line, 200),
                    of.unwrap_or_default(),
                    ask.join("; ")
                ))
            }
        }
    }
}

/// What to collect when nothing was recognised.
pub const WHAT_TO_COLLECT: [&str; 4] = [
    "the last 50 lines of the program, from the first line that mentions an error",
    "on Linux: sudo dmesg | grep -iE 'amdgpu|kfd|ttm|oom' | tail -n 50",
    "surefoot doctor --dump machine.txt",
    "surefoot probe --report probe.json",
];

impl Explanation {
    /// The most commands that are suggested: nobody runs more for a stranger.
    pub(crate) const MOST_TO_ASK: usize = 3;

    /// The commands whose output would settle the most uncertain explanations, at most
    /// three; none if all are certain. Without explanations, what to collect.
    #[must_use]
    pub fn to_ask(&self) -> Vec<&str> {
        if let Verdict::Failed { ask, .. } = &self.verdict {
            return ask.iter().map(String::as_str).collect();
        }
        if self.matches.is_empty() {
            return WHAT_TO_COLLECT[..Self::MOST_TO_ASK].to_vec();
        }
        let uncertain = self.matches.iter().filter(|found| {
            found.severity < Severity::Info && found.confidence != Confidence::High
        });
        let mut asked = Vec::new();
        for command in uncertain.flat_map(|found| &found.ask) {
            if asked.len() < Self::MOST_TO_ASK && !asked.contains(&command.as_str()) {
                asked.push(command);
            }
        }
        asked
    }
}

/// Known facts about the machine that a log is from, which refine the explanations.
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

/// Explains a log piece by piece, so that a log of any length needs little memory.
///
/// Colours are removed, and a carriage return ends a line like a newline: progress
/// bars overwrite themselves, and an error may follow them on the same line.
pub struct Explainer {
    hints: Hints,
    catalogue: &'static Catalogue,
    context: Context,
    messages: oom::Messages,
    running: Running,
    matches: Vec<Match>,
    /// Which patterns of the catalogue were found at all.
    seen: Vec<bool>,
    /// The patterns found in lines that were read before, by their hash: most lines of a long log come again and again.
    known: HashMap<u64, Box<[(usize, Role)]>>,
    /// The part of the current line that has been read.
    partial: Vec<u8>,
    /// The number of that line, less one.
    lines: usize,
    /// The number of the last line that asked PyTorch whether it sees a GPU.
    asked: Option<usize>,
    /// The beginning of the log, until it shows the width of its terminal.
    head: Option<Vec<u8>>,
    /// The width of the terminal at which lines were broken.
    columns: Option<usize>,
    /// Whether the last line ended with a carriage return, to which a newline may belong.
    is_after_return: bool,
    /// The lines since one that was broken, each with its number.
    broken: Vec<(usize, String)>,
}

/// How much of a log shows whether its lines were broken.
const HEAD: usize = 64 << 10;
/// Widths that terminals often have.
const USUAL_COLUMNS: [usize; 4] = [80, 100, 120, 132];
/// The most parts of a line that was broken.
const MOST_PARTS: usize = 30;

/// How many different lines are remembered.
const MOST_KNOWN: usize = 1 << 15;
/// A post longer than this is a log.
const MOST_SAID: usize = 2000;
/// How much of a line is kept; it can be one long JSON document.
const LONGEST_LINE: usize = 64 << 10;

impl Explainer {
    /// Ready for the first piece.
    #[must_use]
    pub fn new(hints: Hints) -> Self {
        Self::with(hints, Catalogue::built_in())
    }

    /// The same with another catalogue.
    #[must_use]
    pub fn with(hints: Hints, catalogue: &'static Catalogue) -> Self {
        Self {
            hints,
            catalogue,
            context: Context::default(),
            messages: oom::Messages::default(),
            running: Running::default(),
            matches: Vec::new(),
            seen: vec![false; catalogue.len()],
            known: HashMap::new(),
            partial: Vec::new(),
            lines: 0,
            asked: None,
            head: Some(Vec::new()),
            columns: None,
            is_after_return: false,
            broken: Vec::new(),
        }
    }

    /// One for another text of the same machine.
    pub(crate) fn anew(&self) -> Self {
        Self::with(self.hints, self.catalogue)
    }

    /// Takes the next piece; it may end within a line, or within a character.
    pub fn read(&mut self, piece: &[u8]) {
        match &mut self.head {
            Some(head) => {
                head.extend_from_slice(piece);
                if head.len() >= HEAD {
                    self.begin();
                }
            }
            None => self.split(piece),
        }
    }

    /// Reads the beginning of the log, once.
    fn begin(&mut self) {
        if let Some(head) = self.head.take() {
            let text = String::from_utf8_lossy(&head);
            self.columns = pasted::columns(&strip_escapes(&text), &USUAL_COLUMNS);
            self.split(&head);
        }
    }

    /// Splits a piece into lines.
    fn split(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|&byte| matches!(byte, b'\n' | b'\r')) {
            let (text, ending) = match part {
                [text @ .., ending @ (b'\n' | b'\r')] => (text, Some(*ending)),
                text => (text, None),
            };
            let room = LONGEST_LINE.saturating_sub(self.partial.len());
            self.partial
                .extend_from_slice(&text[..text.len().min(room)]);
            if let Some(ending) = ending {
                let is_empty = self.partial.is_empty() && !self.is_after_return;
                if is_empty {
                    self.close_broken_line();
                }
                self.close_line();
                self.is_after_return = ending == b'\r';
                self.lines += usize::from(ending == b'\n');
            }
        }
    }

    /// The messages of everything read.
    #[must_use]
    pub fn finish(mut self) -> Explanation {
        self.end();
        self.judge(None, "")
    }

    /// Takes what is left of the last line, and what the numbers of all lines say.
    pub(crate) fn end(&mut self) {
        self.begin();
        self.close_line();
        self.close_broken_line();
        let sentences: Vec<_> = self.running.sentences().collect();
        for (number, sentence) in sentences {
            self.match_patterns(&sentence, number, true);
        }
    }

    /// The line that shows a program at work whose numbers are right.
    pub(crate) fn works(&self) -> Option<&str> {
        self.running.works()
    }

    /// The system that the text shows.
    pub(crate) fn system(&self) -> Option<System> {
        self.context.system()
    }

    /// The package in which the last traceback ends.
    pub(crate) fn package(&self) -> Option<&str> {
        self.context.package()
    }

    /// Weighs the messages, on the machine that the text tells of.
    pub(crate) fn judge(self, machine: Option<&Machine>, text: &str) -> Explanation {
        let hints = Hints {
            ram: self
                .hints
                .ram
                .or(machine.and_then(|machine| machine.memory.total)),
        };
        let mut matches = self.messages.finish(&self.context, hints, self.catalogue);
        let system = self.context.system();
        let complains =
            |found: &Match| found.values.is_empty() && self.catalogue.is_complaint(&found.id);
        let is_complaint = self.matches.iter().any(complains);
        let has_failed = LazyCell::new(|| {
            is_complaint || failure::is_printed(text) || failure::complaint(text).is_some()
        });
        matches.extend(self.matches.into_iter().filter(|found| {
            let entry = self.catalogue.entry(&found.id);
            entry.is_some_and(|(owner, entry)| {
                found.count >= entry.times
                    && entry.scope.holds_on(system)
                    && self.catalogue.is_supported(owner, &self.seen)
                    && (!entry.said || text.is_empty() || failure::is_post(text))
                    && (found.values.is_empty() || text.is_empty() || *has_failed)
            })
        }));
        drop_covered(&mut matches, self.catalogue);
        self.context
            .sharpen(&mut matches, self.catalogue, machine, text);
        matches.sort_by_key(|found| {
            let rank = self.catalogue.entry(&found.id).map(|(_, entry)| entry.rank);
            (found.severity, rank, found.line_number)
        });
        Explanation {
            matches,
            ..Explanation::default()
        }
    }

    fn close_line(&mut self) {
        if self.partial.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.partial);
        let line = String::from_utf8_lossy(&bytes);
        for line in pasted::unescaped(&strip_escapes(&line)) {
            self.line(&pasted::plain(line));
        }
        self.partial = bytes;
        self.partial.clear();
    }

    /// Takes a line as it was posted: as a part of a longer one, if the terminal broke it.
    fn line(&mut self, line: &str) {
        let number = self.lines + 1;
        let Some(columns) = self.columns else {
            return self.message(line, number);
        };
        if let Some((_, before)) = self.broken.last()
            && (!pasted::is_rest(line, before) || self.broken.len() == MOST_PARTS)
        {
            self.close_broken_line();
        }
        if pasted::goes_on(line, columns) {
            self.broken.push((number, line.to_owned()));
        } else if self.broken.is_empty() {
            self.message(line, number);
        } else {
            self.broken.push((number, line.to_owned()));
            self.close_broken_line();
        }
    }

    /// The parts of a line that was broken are one message. Two lines that only happen to be as long as the
    /// terminal is wide are read one by one as well.
    fn close_broken_line(&mut self) {
        let parts = std::mem::take(&mut self.broken);
        if let [(number, _), ..] = parts[..] {
            let whole: String = parts.iter().map(|(_, part)| part.as_str()).collect();
            self.message(&whole, number);
        }
        if parts.len() > 1 {
            for (number, part) in &parts {
                self.match_patterns(part, *number, false);
            }
        }
    }

    /// Takes a line as the program printed it.
    fn message(&mut self, line: &str, number: usize) {
        self.context.read(line, number);
        self.messages.read(line, number);
        self.running.read(line, number);
        let line = if self.is_refusal(line, number) {
            "torch.cuda.is_available(): False"
        } else {
            line
        };
        self.match_patterns(line, number, true);
        if number <= MOST_SAID {
            for sentence in failure::sentences(line, number) {
                if !failure::is_over(sentence) {
                    self.match_sentence(sentence, line, number);
                }
                let found = difference::read(sentence, line, number, self.catalogue);
                let is_new = |one: &Match| self.matches.iter().all(|known| known.id != one.id);
                self.matches.extend(found.filter(is_new));
            }
        }
    }

    /// Notes the complaints of the catalogue in a sentence.
    fn match_sentence(&mut self, sentence: &str, line: &str, number: usize) {
        for (pattern, role) in self.catalogue.of_line(sentence, sentence, &[]) {
            let Role::Names(owner) = role else {
                continue;
            };
            let entry = self.catalogue.owner(owner);
            if entry.said && self.matches.iter().all(|known| known.id != entry.id) {
                self.seen[pattern] = true;
                self.matches.push(from_entry(entry, line, number));
            }
        }
    }

    /// Notes the messages of the catalogue in a line; those that are known are counted again, or not.
    fn match_patterns(&mut self, line: &str, number: usize, counts: bool) {
        let mut previous = None;
        let is_remark = LazyCell::new(|| is_remark(line));
        let mut hasher = DefaultHasher::new();
        line.hash(&mut hasher);
        let hash = hasher.finish();
        let line = LazyCell::new(|| translations::in_english(line));
        let known = self.known.get(&hash).cloned();
        let found = known.unwrap_or_else(|| {
            // A pattern may be about the beginning of what the program printed.
            let printed = pasted::without_prefix(&line);
            let printed = pasted::after_number(printed).map_or(printed, |(_, text)| text);
            let found: Box<[_]> = self.catalogue.of_line(&line, printed, &self.seen).into();
            if self.known.len() < MOST_KNOWN {
                self.known.insert(hash, found.clone());
            }
            found
        });
        for &(pattern, role) in &found {
            self.seen[pattern] = true;
            let Role::Names(owner) = role else {
                continue;
            };
            if previous.replace(owner) == Some(owner) {
                continue;
            }
            let entry = self.catalogue.owner(owner);
            if entry.said || entry.severity < Severity::Info && *is_remark {
                continue;
            }
            if let Some(known) = self.matches.iter_mut().find(|known| known.id == entry.id) {
                known.count += usize::from(counts);
                if counts && known.others.len() < 8 {
                    known.others.push(clip(line.trim(), 500).to_owned());
                }
            } else {
                self.matches.push(from_entry(entry, &line, number));
            }
        }
    }

    /// Whether a line is the answer `False` to `torch.cuda.is_available()` on one of the two before.
    fn is_refusal(&mut self, line: &str, number: usize) -> bool {
        if line.contains("is_available()") {
            self.asked = Some(number);
            return false;
        }
        let is_near = self.asked.is_some_and(|asked| number - asked <= 2);
        // `2.9.1+cpu False`, where the version was asked for as well.
        let answer = line.trim();
        let versioned = answer.strip_suffix(" False").is_some_and(|version| {
            version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains(' ')
        });
        is_near && (answer == "False" || versioned)
    }
}

/// Whether the program itself marks a line as information or debugging.
fn is_remark(line: &str) -> bool {
    let has = |marks: &[&str]| marks.iter().any(|mark| line.contains(mark));
    has(signs::REMARKS) && !has(signs::TELLING)
        || line.contains("level=INFO") && line.contains("shared object file")
}

/// What the entry says of it follows from all facts of the text: [`Context::sharpen`].
fn from_entry(entry: &catalogue::Entry, line: &str, line_number: usize) -> Match {
    Match {
        line: clip(line.trim(), 500).to_owned(),
        line_number,
        severity: entry.severity,
        source: entry.source.to_owned(),
        confidence: entry.confidence,
        rank: entry.rank,
        ..Match::new(entry.id)
    }
}

/// At most `limit` bytes, cut between characters.
pub(crate) fn clip(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests;
