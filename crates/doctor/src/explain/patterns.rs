//! All patterns of the catalogue in one automaton.

use super::catalogue::{self, Entry};
use regex::bytes::{RegexSet, RegexSetBuilder};
use std::sync::LazyLock;

/// The catalogue, compiled.
pub(super) struct Patterns {
    pub(super) entries: Vec<&'static Entry>,
    /// Matches bytes and ASCII classes only: a Unicode class such as `\w` would make the
    /// automaton hundreds of times larger, and Unicode `\b` would stop it at every non-ASCII character.
    set: RegexSet,
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
    let set = builder(&patterns)
        .build()
        .unwrap_or_else(|_| RegexSet::empty());
    Patterns {
        entries,
        set,
        roles,
        also,
        unless,
    }
});

fn builder(patterns: &[&str]) -> RegexSetBuilder {
    let mut builder = RegexSetBuilder::new(patterns);
    builder
        .unicode(false)
        .dfa_size_limit(64 << 20)
        .size_limit(64 << 20);
    builder
}

impl Patterns {
    pub(super) fn len(&self) -> usize {
        self.set.len()
    }

    /// The patterns that match a line, each with its role, in the order of the catalogue.
    pub(super) fn of(&self, line: &str) -> Vec<(usize, Role)> {
        let mut found = Vec::new();
        for part in parts(line) {
            found.extend(self.set.matches(part.as_bytes()));
        }
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
                let compiled = builder(&[pattern]).build();
                assert!(compiled.is_ok(), "{id}: {compiled:?}");
                assert!(
                    !compiled.is_ok_and(|set| set.is_match(b"")),
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
        assert_eq!(PATTERNS.set.len(), PATTERNS.roles.len());
    }
}
