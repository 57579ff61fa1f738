//! `--restart-on-fault`: what to start after a page fault on the GPU.
//!
//! Any command is started as it was. A trainer of ours resumes its run, which it named when it began.

use super::child::Ended;
use doctor::explain::ending::Ending;
use doctor::restart::{Restarts, announced, is_page_fault};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use surefoot_ui::runs::newest_checkpoint;

/// How much of the last output is compared with that of the fault before.
const COMPARED: usize = 4 << 10;

/// The command to start after this end; `None` if it was no page fault, or if starting again is of no use, which is
/// said.
pub(super) fn after(
    ended: &Ended,
    command: &[OsString],
    restarts: &mut Restarts,
) -> Option<Vec<OsString>> {
    let last = String::from_utf8_lossy(&ended.last_output);
    if ended.ending == Ending::Code(0) || !is_page_fault(&last) {
        return None;
    }
    let trains = is_trainer(command);
    let run = if trains {
        run_folder(&ended.first_output)
    } else {
        None
    };
    let step = run.as_deref().and_then(newest_checkpoint);
    let reached = match trains {
        true => format!("{step:?}"),
        false => without_addresses(&last),
    };
    match restarts.next(reached) {
        Ok(count) => {
            let start = announced(step, count);
            eprintln!("surefoot: a page fault on the GPU ended the command; {start}");
            Some(match run {
                Some(run) if step.is_some() => resumed(command, &run),
                _ => command.to_vec(),
            })
        }
        Err(refusal) => {
            eprintln!(
                "surefoot: a page fault on the GPU ended the command, which is not started again: {refusal}"
            );
            None
        }
    }
}

/// Whether a command is `surefoot train`, or `cargo xtask train`.
pub(super) fn is_trainer(command: &[OsString]) -> bool {
    let program = command
        .first()
        .and_then(|program| Path::new(program).file_stem());
    let second = match program.and_then(OsStr::to_str) {
        Some("surefoot" | "surefoot-trainer") => 1,
        Some("cargo") if command.get(1).is_some_and(|word| word == "xtask") => 2,
        _ => return false,
    };
    command.get(second).is_some_and(|word| word == "train")
}

/// The folder in the line `run        runs/name`, with which training begins.
fn run_folder(output: &[u8]) -> Option<PathBuf> {
    let text = String::from_utf8_lossy(output);
    let named = |line: &str| {
        let (_, folder) = line.split_once("run        ")?;
        let path = PathBuf::from(folder.trim_end());
        path.join("config.yaml").is_file().then_some(path)
    };
    text.split(['\n', '\r']).filter_map(named).next_back()
}

/// The same command, which resumes this run.
fn resumed(command: &[OsString], run: &Path) -> Vec<OsString> {
    let mut own = command.iter().peekable();
    let mut words = Vec::new();
    while let Some(word) = own.next() {
        let text = word.to_string_lossy();
        if text == "--resume" {
            own.next_if(|next| !next.to_string_lossy().starts_with('-'));
        } else if !text.starts_with("--resume=") {
            words.push(word.clone());
        }
    }
    words.extend(["--resume".into(), run.into()]);
    words
}

/// The end of an output without addresses, which differ from fault to fault.
fn without_addresses(output: &str) -> String {
    let from = output.len().saturating_sub(COMPARED);
    let end = output
        .get(output.ceil_char_boundary(from)..)
        .unwrap_or_default();
    let word = |word: &str| match word.find("0x") {
        Some(at) => word[..at].to_owned() + "0x",
        None => word.to_owned(),
    };
    end.split_whitespace()
        .map(word)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn only_our_trainers_resume() {
        for line in [
            "surefoot train a.yaml",
            "/x/surefoot-trainer train",
            "cargo xtask train a.yaml",
        ] {
            assert!(is_trainer(&words(line)), "{line}");
        }
        for line in [
            "python train.py",
            "surefoot generate train",
            "cargo test train",
            "surefoot",
        ] {
            assert!(!is_trainer(&words(line)), "{line}");
        }
    }

    #[test]
    fn a_command_resumes_its_run_whatever_it_resumed_before() {
        for line in [
            "surefoot train a.yaml --set x=1",
            "surefoot train a.yaml --resume --set x=1",
            "surefoot train a.yaml --resume runs/a/checkpoints/step-000001 --set x=1",
            "surefoot train --resume=latest a.yaml --set x=1",
        ] {
            let resumed = resumed(&words(line), Path::new("runs/a"));
            assert_eq!(
                resumed,
                words("surefoot train a.yaml --set x=1 --resume runs/a")
            );
        }
    }

    #[test]
    fn the_same_output_at_another_address_is_no_progress() {
        let fault = |address: &str| {
            format!(
                "step 5\nMemory access fault by GPU node-1 (Agent handle: {address}) on address {address}."
            )
        };
        assert_eq!(
            without_addresses(&fault("0x7f10")),
            without_addresses(&fault("0x8a20"))
        );
        assert_ne!(
            without_addresses("step 5 0x1"),
            without_addresses("step 6 0x1")
        );
    }
}
