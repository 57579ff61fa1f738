//! Every finding: a machine where it is found, and one like it where it is not.
//!
//! Machines are dumps made of parts; a later part replaces the same file of an earlier one,
//! so that what differs between the two machines is all that a case shows.

mod hardware;
mod machines;
mod posted;
mod software;
mod wsl_and_windows;

use machines::{Case, DRIVER_OF_AMD, HIPINFO_LIVE, adapter, card, halo, windows};
use std::collections::BTreeSet;
use surefoot_doctor::findings::IDS;
use surefoot_doctor::{Report, diagnose_text};

fn cases() -> Vec<Case> {
    [
        hardware::of_gpus(),
        hardware::of_the_system(),
        hardware::of_memory(),
        posted::of_texts(),
        software::of_python(),
        software::of_variables(),
    ]
    .concat()
}

fn diagnose(text: &str) -> Report {
    // Parts of a dump; other texts are read as they are.
    let text = if text.starts_with("== ") {
        format!("# surefoot dump 1\n{text}")
    } else {
        text.to_owned()
    };
    diagnose_text(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn ids(report: &Report) -> Vec<&str> {
    report
        .findings
        .iter()
        .map(|finding| finding.id.as_str())
        .collect()
}

#[test]
fn every_finding_is_found_where_it_should_be_and_nowhere_else() {
    for (id, fires, silent) in cases() {
        let (fires, silent) = (diagnose(&fires), diagnose(&silent));
        assert!(
            ids(&fires).contains(&id),
            "{id} is not found: {:?}",
            ids(&fires)
        );
        assert!(
            !ids(&silent).contains(&id),
            "{id} is a false alarm: {:?}",
            ids(&silent)
        );
    }
}

#[test]
fn every_finding_has_a_case() {
    let shown: BTreeSet<&str> = cases().into_iter().map(|(id, ..)| id).collect();
    let known: BTreeSet<&str> = IDS.iter().copied().collect();
    let without_case: Vec<_> = known.difference(&shown).collect();
    assert!(
        without_case.is_empty(),
        "add a case to tests/findings/ for {without_case:?}"
    );
    let unknown: Vec<_> = shown.difference(&known).collect();
    assert!(
        unknown.is_empty(),
        "{unknown:?} is not in catalogue/findings"
    );
}

#[test]
fn machines_that_are_in_order_raise_no_alarm() {
    let on_windows = windows() + &adapter(DRIVER_OF_AMD) + HIPINFO_LIVE;
    for machine in [
        halo(),
        card(110_000),
        card(120_001),
        card(90_010),
        on_windows,
    ] {
        let report = diagnose(&machine);
        assert_eq!(ids(&report), [] as [&str; 0]);
    }
}

/// What was seen, why it matters, what to type, and where that is known from.
#[test]
fn every_finding_is_whole() {
    for (id, fires, _) in cases() {
        for finding in diagnose(&fires).findings {
            assert!(
                !finding.title.is_empty() && !finding.seen.is_empty() && !finding.why.is_empty(),
                "{id}: {finding:?}"
            );
            assert!(
                finding.source.starts_with("https://") || finding.source.starts_with("Linux, "),
                "{id}: {finding:?}"
            );
            let texts = [&finding.title, &finding.seen, &finding.why, &finding.source];
            for text in texts.into_iter().chain(&finding.fix) {
                assert!(!text.contains('{'), "{id}: a place is not filled: {text}");
            }
            let is_told_elsewhere = matches!(finding.id.as_str(), "no-gpu" | "torch-missing");
            assert!(
                !finding.fix.is_empty() || is_told_elsewhere,
                "{id}: {finding:?}"
            );
        }
    }
}
