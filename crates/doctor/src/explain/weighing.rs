//! Which of several messages is told.

use super::catalogue::{self, Confidence, Severity};
use super::{Catalogue, Match};

/// The explanation that a line of `seen` must have: the first one. Before a warning or a remark there may be the error
/// that it goes with.
pub(super) fn is_first(id: &str, matches: &[Match]) -> bool {
    let own = matches.iter().find(|found| found.id == id);
    own.is_some_and(|own| {
        let as_bad = matches.iter().find(|found| found.severity >= own.severity);
        as_bad.is_some_and(|first| first.id == id)
    })
}

/// Leaves out what another message says better: one that `covers` it; for a guess, one of a lower rank that was first found on the
/// same line, unless it is less bad; and from [`catalogue::LAST_RESORT`] on, any other.
pub(super) fn drop_covered(matches: &mut Vec<Match>, all: &Catalogue) {
    /// A longer line may be a whole log.
    const LONGEST: usize = 400;
    let entry = |found: &Match| all.entry(&found.id).map(|(_, entry)| entry);
    let rank = |found: &Match| entry(found).map_or(0, |entry| entry.rank);
    let covers = matches
        .iter()
        .filter_map(entry)
        .flat_map(|entry| entry.covers);
    let covered: Vec<&str> = covers.copied().collect();
    matches.retain(|found| !covered.contains(&found.id.as_str()));
    let place = |found: &Match| (found.line_number, found.severity, rank(found));
    let is_of_person = |found: &Match| entry(found).is_some_and(|entry| entry.said);
    // What makes the difference is told beside everything else.
    let is_difference = |found: &Match| is_of_person(found) && rank(found) < catalogue::LAST_RESORT;
    let known = matches.iter().filter(|found| !is_difference(found));
    let known: Vec<_> = known.map(place).collect();
    // Of what somebody complains of, one is told: the title's before all others.
    let is_said = |found: &Match| is_of_person(found) && !is_difference(found);
    let order = |found: &&Match| {
        let place = all.entry(&found.id).map(|(place, _)| place);
        (rank(found), found.line_number != 1, place)
    };
    let said = matches
        .iter()
        .filter(|found| is_said(found))
        .min_by_key(order);
    let said = said.map(|found| found.id.clone());
    matches.retain(|found| {
        if is_difference(found) {
            return true;
        }
        if is_said(found) {
            let least = match found.severity {
                Severity::Info => Severity::Warning,
                _ => Severity::Error,
            };
            // A warning about the same sentence says more.
            let is_known = |(line, worse, rank): &(usize, Severity, u16)| {
                let is_same = *line == found.line_number && *worse <= found.severity;
                (*worse <= least || is_same) && *rank < catalogue::LAST_RESORT
            };
            return said.as_ref() == Some(&found.id) && !known.iter().any(is_known);
        }
        let (line, severity, own) = place(found);
        let is_better = |(other, worse, rank): &(usize, Severity, u16)| {
            let is_nearer = *rank < own && *worse <= severity;
            let is_last_resort = own >= catalogue::LAST_RESORT;
            let is_guess = found.confidence == Confidence::Low && found.line.len() <= LONGEST;
            is_nearer && is_guess && *other == line
                || is_last_resort && *worse < Severity::Info && *rank < catalogue::LAST_RESORT
        };
        !known.iter().any(is_better)
    });
}
