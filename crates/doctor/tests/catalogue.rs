//! Every entry of the error catalogue, met in a log as somebody really has one: with
//! progress bars, colours, line ends of Windows and other people's warnings around it.

use std::collections::BTreeSet;
use surefoot_doctor::explain::{Explainer, Hints, catalogue, explain};

mod compute_programs;
mod environments;
mod inference;
mod messages;
mod posted;
mod processes;
mod python_stack;
mod servers;
mod shapes;
mod stack;
mod system;
mod training;
mod wsl_and_windows;

/// What the log says, and the entry that must recognise it.
fn messages() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    [
        messages::MESSAGES,
        posted::MESSAGES,
        stack::MESSAGES,
        processes::MESSAGES,
        environments::MESSAGES,
        training::MESSAGES,
        servers::MESSAGES,
        system::MESSAGES,
        python_stack::MESSAGES,
        inference::MESSAGES,
        shapes::MESSAGES,
        compute_programs::MESSAGES,
    ]
    .into_iter()
    .flatten()
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
fn every_entry_is_recognised_in_a_log() {
    let missed: Vec<_> = messages()
        .map(|(id, message)| (id, message, ids(&format!("{BEFORE}{message}\n{AFTER}"))))
        .filter(|(id, _, found)| !found.contains(**id))
        .collect();
    assert!(missed.is_empty(), "{missed:#?}");
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
        assert!(ids(&log).contains(*id), "{log:?}: {:?}", ids(&log));
    }
}

#[test]
fn every_entry_has_a_message_here() {
    let shown: BTreeSet<&str> = messages().map(|(id, _)| *id).collect();
    let known: BTreeSet<&str> = catalogue::entries().map(|entry| entry.id).collect();
    assert_eq!(shown, known);
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
