//! The patterns of the catalogue, and the entries that they belong to.

use super::catalogue::{self, Entry};
use crate::pattern;
use regex::bytes::{Regex, RegexBuilder};
use std::sync::LazyLock;

/// The catalogue with its patterns.
pub(super) struct Patterns {
    pub(super) entries: Vec<&'static Entry>,
    /// They match bytes and ASCII classes only: programs write their messages in ASCII, and a Unicode class such as `\w`
    /// is a hundred times larger.
    all: pattern::Patterns<Regex>,
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
    Patterns {
        entries,
        all: pattern::Patterns::new(patterns, compile),
        roles,
        also,
        unless,
    }
});

/// A pattern of the catalogue; they are constants, and a test compiles each of them.
fn compile(pattern: &str) -> Option<Regex> {
    RegexBuilder::new(pattern).unicode(false).build().ok()
}

impl Patterns {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The patterns that match a line, each with its role, in the order of the catalogue.
    pub(super) fn of(&self, line: &str) -> Vec<(usize, Role)> {
        let is_match = |pattern: &Regex, part: &str| pattern.is_match(part.as_bytes());
        let matching = |part| self.all.matching(part, is_match);
        let mut found: Vec<usize> = parts(line).flat_map(matching).map(|(at, _)| at).collect();
        found.sort_unstable();
        found.dedup();
        let with_role = |pattern: usize| Some((pattern, *self.roles.get(pattern)?));
        found.into_iter().filter_map(with_role).collect()
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
                let compiled = compile(pattern);
                assert!(compiled.is_some(), "{id}: {pattern}");
                assert!(
                    compiled.is_some_and(|compiled| !compiled.is_match(b"")),
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
    }

    /// The words that are looked for first leave out no pattern that matches: every line of the tests of the catalogue is
    /// matched by the same patterns as without them.
    #[test]
    fn no_pattern_is_left_out() {
        let all: Vec<_> = PATTERNS.all.texts().collect();
        let unfiltered = regex::bytes::RegexSetBuilder::new(&all)
            .unicode(false)
            .size_limit(64 << 20)
            .dfa_size_limit(64 << 20)
            .build()
            .expect("valid patterns");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/catalogue");
        let mut matched = 0;
        for file in std::fs::read_dir(folder).expect("the tests of the catalogue") {
            let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
            for line in text.lines().flat_map(parts) {
                let expected: Vec<usize> =
                    unfiltered.matches(line.as_bytes()).into_iter().collect();
                let found: Vec<usize> = PATTERNS
                    .of(line)
                    .iter()
                    .map(|(pattern, _)| *pattern)
                    .collect();
                assert_eq!(found, expected, "{line}");
                matched += found.len();
            }
        }
        assert!(matched > PATTERNS.entries.len());
    }
}
