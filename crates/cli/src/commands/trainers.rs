//! The trainers beside this program.
//!
//! Cargo builds one, `surefoot-trainer`, against one libtorch. The trainer's wheel has one for each of
//! several releases of PyTorch, `surefoot-trainer-2.15.0`, since a trainer runs on the release that it
//! was built against and on no other; there, `surefoot-trainer` is a script that starts `surefoot`.

use anyhow::Context;
use std::path::{Path, PathBuf};
use surefoot_cli::TRAINER_TORCH;
use surefoot_cli::output::Failure;

const NAME: &str = "surefoot-trainer";

/// A program that trains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trainer {
    pub(crate) program: PathBuf,
    /// The release of PyTorch that it was built against: `2.15.0`.
    pub(crate) release: String,
}

/// Those that are there, the one for the newest PyTorch first; at least one.
pub(crate) fn beside() -> Result<Vec<Trainer>, Failure> {
    let here = std::env::current_exe().context("cannot tell where this executable is")?;
    let found = match here.parent() {
        Some(folder) => found_in(folder, cfg!(feature = "torch")),
        None => Vec::new(),
    };
    if !found.is_empty() {
        return Ok(found);
    }
    let remedy = match cfg!(feature = "torch") {
        _ if cfg!(windows) => "`surefoot_trainer.dll` belongs beside it",
        true => "build both with `cargo build -p surefoot`",
        false => "`pip install surefoot-trainer` brings it",
    };
    Err(Failure::usage(format_args!(
        "`{NAME}{}` is not beside `{}`: there is no trainer here; {remedy}",
        std::env::consts::EXE_SUFFIX,
        here.display()
    )))
}

/// The releases of some trainers, as in "2.15.0 or 2.13.0".
pub(crate) fn releases(trainers: &[Trainer], join: &str) -> String {
    let releases: Vec<&str> = trainers.iter().map(|one| one.release.as_str()).collect();
    releases.join(&format!(" {join} "))
}

/// `built_together`: this program has a trainer that was built with it, which is the one.
fn found_in(folder: &Path, built_together: bool) -> Vec<Trainer> {
    let suffix = std::env::consts::EXE_SUFFIX;
    let mut numbered = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let release = name
            .to_str()
            .and_then(|name| name.strip_prefix(NAME)?.strip_prefix('-'))
            .and_then(|name| name.strip_suffix(suffix));
        let Some((release, numbers)) = release.and_then(|text| Some((text, numbers(text)?))) else {
            continue;
        };
        if entry.path().is_file() {
            let release = release.to_owned();
            let program = entry.path();
            numbered.push((numbers, Trainer { program, release }));
        }
    }
    let plain = folder.join(format!("{NAME}{suffix}"));
    if plain.is_file() && (built_together || numbered.is_empty()) {
        return vec![Trainer {
            program: plain,
            release: TRAINER_TORCH.to_owned(),
        }];
    }
    numbered.sort_by_key(|(numbers, _)| std::cmp::Reverse(*numbers));
    numbered.into_iter().map(|(_, trainer)| trainer).collect()
}

/// `[2, 15, 0]` of `2.15.0`.
fn numbers(release: &str) -> Option<[u32; 3]> {
    let parts = release.split('.').map(|part| part.parse().ok());
    parts.collect::<Option<Vec<u32>>>()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn releases_in(names: &[&str], built_together: bool) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        for name in names {
            std::fs::write(folder.path().join(name), "").expect("a file");
        }
        let found = found_in(folder.path(), built_together).into_iter();
        found.map(|trainer| trainer.release).collect()
    }

    #[test]
    fn the_newest_release_is_first_whatever_the_order_of_names() {
        let names = [
            "surefoot-trainer",
            "surefoot-trainer-2.9.1",
            "surefoot-trainer-2.15.0",
            "surefoot-trainer-2.13.0",
            "surefoot-trainer-2.15.0.bak",
            "surefoot-trainer-old",
            "surefoot",
        ];
        assert_eq!(releases_in(&names, false), ["2.15.0", "2.13.0", "2.9.1"]);
    }

    #[test]
    fn what_was_built_together_belongs_together() {
        let names = ["surefoot-trainer", "surefoot-trainer-2.9.1"];
        assert_eq!(releases_in(&names, true), [TRAINER_TORCH]);
        assert_eq!(releases_in(&names[..1], false), [TRAINER_TORCH]);
        assert!(releases_in(&[], true).is_empty());
    }
}
