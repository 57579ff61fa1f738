//! Every entry of the error catalogue, met in a log as somebody really has one: with
//! progress bars, colours, line ends of Windows and other people's warnings around it.

use std::collections::BTreeSet;
use std::fs;
use surefoot_doctor::explain::{Catalogue, Explainer, Hints, explain};

mod wsl_and_windows;

/// Each entry, and a line that its file says somebody has seen.
fn messages() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/catalogue");
    let mut messages = Vec::new();
    for file in fs::read_dir(folder).expect("the catalogue") {
        let path = file.expect("a file").path();
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let file: toml::Table = text.parse().expect("the build script read it");
        for entry in file["entry"].as_array().expect("entries") {
            let text = |value: &toml::Value| value.as_str().expect("text").to_owned();
            let seen = entry["seen"].as_array().expect("lines").iter();
            messages.extend(seen.map(|line| (text(&entry["id"]), text(line))));
        }
    }
    assert!(messages.len() >= Catalogue::built_in().entries().count());
    messages
}

/// What is around a message in every log.
const BEFORE: &str = "2026-03-01 10:22:31,411 INFO trainer: starting run small-lora, 2 epochs\n\
    /venv/lib/python3.12/site-packages/transformers/utils/hub.py:111: FutureWarning: Using `TRANSFORMERS_CACHE` is deprecated\n\
    trainable params: 4,884,480 || all params: 139,399,488 || trainable%: 3.5039\n\
    step 10 loss 2.31 grad_norm 0.91 lr 1.0e-4 tokens/s 1234\n";
const AFTER: &str = "wandb: Run history: train/loss ▁▂▃\nProcess finished with exit code 1\n";

fn ids(text: &str) -> BTreeSet<String> {
    let found = explain(text).matches.into_iter();
    found.map(|found| found.id).collect()
}

#[test]
fn every_message_is_explained_by_its_entry_first() {
    let missed: Vec<_> = messages()
        .into_iter()
        .map(|(id, message)| {
            let found = explain(&format!("{BEFORE}{message}\n{AFTER}")).matches;
            // Before a warning or a remark there may be the error that it goes with.
            let own = found.iter().find(|found| found.id == id);
            let as_bad = own.and_then(|own| found.iter().find(|one| one.severity >= own.severity));
            (id, as_bad.map(|first| first.id.clone()), message)
        })
        .filter(|(id, found, _)| found.as_ref() != Some(id))
        .collect();
    for (id, found, message) in &missed {
        println!("{id} {found:?}: {message}");
    }
    assert!(missed.is_empty(), "{}", missed.len());
}

#[test]
fn colours_line_ends_and_progress_bars_change_nothing() {
    for (id, message) in messages() {
        let bars: String = (0..40)
            .map(|step| {
                format!(
                    "\r\u{1b}[2K{step:3}%|{}| {step}/100 [00:01<00:09]",
                    "█".repeat(step / 4)
                )
            })
            .collect();
        let coloured = message.replace('\n', "\u{1b}[0m\r\n\u{1b}[31m");
        let log = format!(
            "{}{bars}\r\u{1b}[1;31m{coloured}\u{1b}[0m\r\n{}",
            BEFORE.replace('\n', "\r\n"),
            AFTER.replace('\n', "\r\n")
        );
        assert!(ids(&log).contains(&id), "{log:?}: {:?}", ids(&log));
    }
}

#[test]
fn what_is_around_the_messages_means_nothing() {
    assert_eq!(ids(&format!("{BEFORE}{AFTER}")), BTreeSet::new());
}

/// A log of any length costs the memory of one line: it is read in pieces and none is kept.
#[test]
fn the_last_line_of_a_very_long_log_is_found() {
    let mut explainer = Explainer::new(Hints::default());
    let piece = BEFORE.repeat(16);
    let repeats = 256;
    for _ in 0..repeats {
        explainer.read(piece.as_bytes());
    }
    explainer.read(b"hipErrorInvalidImage");
    let found = explainer.finish().matches;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].line_number, 4 * 16 * repeats + 1);
}
