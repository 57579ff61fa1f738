//! The patterns of the catalogue, and the entries that they belong to.

use super::catalogue::{self, ENTRIES, Entry, WORDS};
use super::{Explainer, Hints};
use crate::pattern;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::syntax;
use regex_automata::{Input, MatchError};
use std::borrow::Cow;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The entries of the catalogue with their compiled patterns.
pub struct Catalogue {
    /// In the order of judgement.
    entries: Vec<&'static Entry>,
    /// They match bytes and ASCII classes only: programs write their messages in ASCII, and a Unicode class such as `\w`
    /// is a hundred times larger.
    all: pattern::Patterns<Matcher>,
    /// What searches remember, each for one pattern at a time: there are far more patterns than a text needs at once.
    caches: Vec<Mutex<Option<(usize, Cache)>>>,
    roles: Vec<Role>,
    /// For each entry, the patterns that must be found as well, and those that must not.
    also: Vec<Vec<usize>>,
    absent: Vec<Vec<usize>>,
}

/// The role of a pattern.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// The line is the error of this entry.
    Names(usize),
    /// It supports an entry, or contradicts one.
    Supports,
}

/// Patterns that are tried on the same lines stand together, and have different ones.
const CACHES: usize = 256;

static BUILT_IN: LazyLock<Catalogue> =
    LazyLock::new(|| Catalogue::of(ENTRIES.iter().collect(), Some(WORDS)));

/// A pattern of the catalogue, which is only asked whether it matches: a long log may match a thousand of them, and each would have
/// several times the memory with what tells where.
struct Matcher {
    dfa: DFA,
    /// It may be about the beginning of a text.
    is_anchored: bool,
}

impl Matcher {
    fn is_match(&self, cache: &mut Cache, text: &[u8]) -> bool {
        let input = Input::new(text).earliest(true);
        let found: Result<_, MatchError> = self.dfa.try_search_fwd(cache, &input);
        // It gives up only where it is told to.
        found.is_ok_and(|end| end.is_some())
    }
}

/// A pattern of the catalogue; what was read checked it.
fn compile(pattern: &str) -> Option<Matcher> {
    let dfa = DFA::builder()
        .syntax(syntax::Config::new().unicode(false).utf8(false))
        .thompson(
            thompson::Config::new()
                .utf8(false)
                .which_captures(WhichCaptures::None),
        )
        .build(pattern)
        .ok()?;
    Some(Matcher {
        dfa,
        is_anchored: pattern.contains('^'),
    })
}

impl Catalogue {
    /// The one of this crate.
    #[must_use]
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }

    /// The one of this crate with the entries of one more file, for as long as the program runs.
    ///
    /// # Errors
    ///
    /// What is wrong with the file: its name, the line and the key; or a line of `seen` that is not explained by
    /// its entry first.
    pub fn with(name: &str, text: &str) -> Result<&'static Self, String> {
        let read = catalogue::read(name, text)?;
        let mut entries: Vec<_> = ENTRIES
            .iter()
            .chain(read.iter().map(|(entry, _)| *entry))
            .collect();
        entries.sort_by_key(|entry| entry.rank);
        let whole: &Self = Box::leak(Box::new(Self::of(entries, None)));
        for (entry, seen) in &read {
            for message in seen {
                let mut explainer = Explainer::with(Hints::default(), whole);
                explainer.read(message.as_bytes());
                let matches = explainer.finish().matches;
                if !super::weighing::is_first(entry.id, &matches) {
                    let found: Vec<_> = matches.iter().map(|found| found.id.as_str()).collect();
                    let by = match found.is_empty() {
                        true => "no pattern matches it".to_owned(),
                        false => format!("it is by {}", found.join(", ")),
                    };
                    return Err(format!(
                        "{name}: {}: seen: '{message}' must be explained by this entry first, and {by}",
                        entry.id
                    ));
                }
            }
        }
        Ok(whole)
    }

    /// `words` are those of all patterns, in their order.
    fn of(
        entries: Vec<&'static Entry>,
        words: Option<&[(&'static str, &'static [usize])]>,
    ) -> Self {
        let (mut patterns, mut roles) = (Vec::new(), Vec::new());
        let (mut also, mut absent) = (Vec::new(), Vec::new());
        for (owner, entry) in entries.iter().enumerate() {
            let mut add = |these: &[&'static str], role: Role| -> Vec<usize> {
                let first = patterns.len();
                patterns.extend(these.iter().map(|&pattern| Cow::Borrowed(pattern)));
                roles.extend(std::iter::repeat_n(role, these.len()));
                (first..patterns.len()).collect()
            };
            add(entry.patterns, Role::Names(owner));
            also.push(add(entry.also, Role::Supports));
            absent.push(add(entry.absent, Role::Supports));
        }
        let all = match words {
            Some(words) => pattern::Patterns::with_words(patterns, words.iter().copied(), compile),
            None => pattern::Patterns::new(patterns, compile),
        };
        Self {
            entries,
            all,
            caches: (0..CACHES).map(|_| Mutex::default()).collect(),
            roles,
            also,
            absent,
        }
    }

    /// The entries, in the order of judgement.
    pub fn entries(&self) -> impl Iterator<Item = &'static Entry> {
        self.entries.iter().copied()
    }

    /// The number of patterns.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The patterns that match a line, or the end of it that the program printed, each with its role, in the order of
    /// the catalogue. Of those that only support an entry, the ones that were `seen` already are not looked for.
    pub(super) fn of_line(&self, line: &str, printed: &str, seen: &[bool]) -> Vec<(usize, Role)> {
        let start = parts(printed).next().unwrap_or_default().as_bytes();
        let has_prefix = printed.len() < line.len();
        let mut found = Vec::new();
        for part in parts(line) {
            let is_new = |at: &usize| {
                matches!(self.roles[*at], Role::Names(_)) || seen.get(*at) != Some(&true)
            };
            let candidates = self.all.candidates(part).into_iter().filter(is_new);
            found.extend(candidates.filter(|&at| {
                let is_match = |pattern: &Matcher| {
                    let mut slot = self.caches[at % CACHES]
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner);
                    let (owner, cache) =
                        slot.get_or_insert_with(|| (at, pattern.dfa.create_cache()));
                    if *owner != at {
                        *owner = at;
                        cache.reset(&pattern.dfa);
                    }
                    // Only its beginning tells the rest of a line from the whole.
                    pattern.is_match(cache, part.as_bytes())
                        || has_prefix && pattern.is_anchored && pattern.is_match(cache, start)
                };
                self.all.get(at).is_some_and(is_match)
            }));
        }
        found.sort_unstable();
        found.dedup();
        let with_role = |pattern: usize| Some((pattern, *self.roles.get(pattern)?));
        found.into_iter().filter_map(with_role).collect()
    }

    /// Whether a line is the message of a page fault on the GPU.
    pub(crate) fn is_page_fault(&self, line: &str) -> bool {
        let is_one = |(_, role): &(usize, Role)| match role {
            Role::Names(owner) => self.owner(*owner).page_fault,
            Role::Supports => false,
        };
        self.of_line(line, line, &[]).iter().any(is_one)
    }

    /// The entry that owns a pattern.
    pub(super) fn owner(&self, owner: usize) -> &'static Entry {
        self.entries[owner]
    }

    /// An entry and its index; `None` for judgements that are not from the catalogue.
    pub(super) fn entry(&self, id: &str) -> Option<(usize, &'static Entry)> {
        let index = self.entries.iter().position(|entry| entry.id == id)?;
        Some((index, self.entries[index]))
    }

    /// Whether this is a complaint that people make, and no message of a program.
    pub(crate) fn is_complaint(&self, id: &str) -> bool {
        self.entry(id).is_some_and(|(_, entry)| entry.said)
    }

    /// Whether an entry's conditions on the rest of the text are met by the patterns seen.
    pub(super) fn is_supported(&self, owner: usize, seen: &[bool]) -> bool {
        let found = |pattern: &usize| seen[*pattern];
        self.also[owner].iter().all(found) && !self.absent[owner].iter().any(found)
    }
}

/// A long line in parts that overlap by more than a message is long, so that a pattern does
/// not span two unrelated ones: a paste without line ends, or a document of JSON.
fn parts(line: &str) -> impl Iterator<Item = &str> {
    const LONGEST: usize = 4000;
    const OVERLAP: usize = 600;
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest.take()?;
        let part = super::clip(line, LONGEST);
        if part.len() < line.len() {
            let next = super::clip(line, LONGEST - OVERLAP).len();
            rest = Some(&line[next..]);
        }
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The build script parses the patterns; this compiles each.
    #[test]
    fn the_patterns_compile() {
        BUILT_IN.all.check();
        for entry in BUILT_IN.entries() {
            for pattern in [entry.patterns, entry.also, entry.absent].concat() {
                let matches_nothing = compile(pattern).is_some_and(|compiled| {
                    compiled.is_match(&mut compiled.dfa.create_cache(), b"")
                });
                assert!(!matches_nothing, "{}: {pattern} matches nothing", entry.id);
            }
        }
    }

    /// The words that are looked for first leave out no pattern that matches: every line that somebody has seen is
    /// matched by the same patterns as without them.
    #[test]
    fn no_pattern_is_left_out() {
        let all: Vec<_> = BUILT_IN.all.texts().collect();
        let unfiltered = regex::bytes::RegexSetBuilder::new(&all)
            .unicode(false)
            .size_limit(64 << 20)
            .dfa_size_limit(64 << 20)
            .build()
            .expect("valid patterns");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/catalogue");
        let mut matched = 0;
        for file in std::fs::read_dir(folder).expect("the catalogue") {
            let path = file.expect("a file").path();
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(path).expect("text");
            let file: toml::Table = text.parse().expect("the build script read it");
            let entries = file["entry"].as_array().expect("entries").iter();
            let seen = entries.flat_map(|entry| entry["seen"].as_array().expect("lines"));
            for line in seen.flat_map(|seen| seen.as_str().expect("text").lines()) {
                let expected: Vec<usize> =
                    unfiltered.matches(line.as_bytes()).into_iter().collect();
                let found: Vec<usize> = BUILT_IN
                    .of_line(line, line, &[])
                    .iter()
                    .map(|(pattern, _)| *pattern)
                    .collect();
                assert_eq!(found, expected, "{line}");
                matched += found.len();
            }
        }
        assert!(matched > BUILT_IN.entries.len());
    }
}
