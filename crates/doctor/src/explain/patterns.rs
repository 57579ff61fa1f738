//! All patterns of the catalogue in one automaton.

use super::catalogue::{self, Entry};
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::syntax;
use regex_automata::{Input, MatchKind, PatternSet};
use std::sync::{LazyLock, Mutex, PoisonError};

/// The catalogue, compiled.
pub(super) struct Patterns {
    pub(super) entries: Vec<&'static Entry>,
    /// Matches bytes and ASCII classes only: a Unicode class such as `\w` would make the
    /// automaton hundreds of times larger, and Unicode `\b` would stop it at every non-ASCII character.
    /// With the states of it that were needed so far.
    automaton: Option<(DFA, Mutex<Cache>)>,
    roles: Vec<Role>,
    /// For each entry, the patterns that must be found as well, and those that must not.
    also: Vec<Vec<usize>>,
    unless: Vec<Vec<usize>>,
}

/// The role of a pattern.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// The line is the error of this entry.
    Names(usize),
    /// It supports an entry, or contradicts one.
    Supports,
}

pub(super) static PATTERNS: LazyLock<Patterns> = LazyLock::new(|| {
    let entries: Vec<_> = catalogue::entries().collect();
    let (mut patterns, mut roles) = (Vec::new(), Vec::new());
    let (mut also, mut unless) = (Vec::new(), Vec::new());
    for (owner, entry) in entries.iter().enumerate() {
        let mut add = |these: &[&'static str], role: Role| -> Vec<usize> {
            let first = patterns.len();
            patterns.extend_from_slice(these);
            roles.extend(std::iter::repeat_n(role, these.len()));
            (first..patterns.len()).collect()
        };
        add(entry.patterns, Role::Names(owner));
        also.push(add(entry.also, Role::Supports));
        unless.push(add(entry.unless, Role::Supports));
    }
    // The patterns are constants, and a test compiles each of them.
    let automaton = automaton(&patterns).map(|automaton| {
        let states = Mutex::new(automaton.create_cache());
        (automaton, states)
    });
    Patterns {
        entries,
        automaton,
        roles,
        also,
        unless,
    }
});

/// Finds which of the patterns match. `RegexSet` does that, too, but also compiles the patterns backwards, for the start of
/// a match, and analyses them for literals: half of the time that `explain` needed for a short text.
fn automaton(patterns: &[&str]) -> Option<DFA> {
    let forward = thompson::Config::new()
        .utf8(false)
        .which_captures(WhichCaptures::None)
        .nfa_size_limit(Some(64 << 20));
    DFA::builder()
        .syntax(syntax::Config::new().unicode(false).utf8(false))
        .thompson(forward)
        .configure(
            DFA::config()
                .match_kind(MatchKind::All)
                .cache_capacity(64 << 20),
        )
        .build_many(patterns)
        .ok()
}

impl Patterns {
    pub(super) fn len(&self) -> usize {
        self.roles.len()
    }

    /// The patterns that match a line, each with its role, in the order of the catalogue.
    pub(super) fn of(&self, line: &str) -> Vec<(usize, Role)> {
        let mut found = PatternSet::new(self.len());
        if let Some((automaton, states)) = &self.automaton {
            let mut states = states.lock().unwrap_or_else(PoisonError::into_inner);
            for part in parts(line) {
                // It fails only with settings that are not made here: bytes to stop at, a limit on new states.
                let input = Input::new(part);
                let _ = automaton.try_which_overlapping_matches(&mut states, &input, &mut found);
            }
        }
        let with_role = |pattern: usize| Some((pattern, *self.roles.get(pattern)?));
        let found = found.iter().map(|pattern| pattern.as_usize());
        found.filter_map(with_role).collect()
    }

    /// The index of an entry in the catalogue; the first for one that is not part of it.
    pub(super) fn place(&self, id: &str) -> usize {
        let place = self.entries.iter().position(|entry| entry.id == id);
        place.unwrap_or(0)
    }

    /// Whether an entry's conditions on the rest of the text are met by the patterns seen.
    pub(super) fn is_supported(&self, owner: usize, seen: &[bool]) -> bool {
        let found = |pattern: &usize| seen[*pattern];
        self.also[owner].iter().all(found) && !self.unless[owner].iter().any(found)
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
    use std::collections::HashSet;

    #[test]
    fn the_catalogue_is_well_formed() {
        let known: HashSet<&str> = catalogue::entries().map(|entry| entry.id).collect();
        let mut ids = HashSet::new();
        for entry in catalogue::entries() {
            let id = entry.id;
            assert!(ids.insert(id), "{id} twice");
            assert!(!entry.cause.is_empty() && !entry.source.is_empty(), "{id}");
            let patterns = [entry.patterns, entry.also, entry.unless].concat();
            for pattern in patterns {
                let compiled = automaton(&[pattern]);
                assert!(compiled.is_some(), "{id}: {pattern}");
                let regex = regex::bytes::RegexBuilder::new(pattern)
                    .unicode(false)
                    .build();
                assert!(
                    !regex.is_ok_and(|regex| regex.is_match(b"")),
                    "{id}: {pattern} matches nothing"
                );
            }
            for covered in entry.covers {
                assert!(
                    known.contains(covered)
                        || covered.starts_with("oom-")
                        || *covered == "out-of-memory",
                    "{id}: {covered}"
                );
                assert_ne!(*covered, id);
            }
        }
        let compiled = PATTERNS.automaton.as_ref();
        let count = compiled.map(|(automaton, _)| automaton.pattern_len());
        assert_eq!(count, Some(PATTERNS.len()));
    }
}
