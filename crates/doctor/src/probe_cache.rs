//! What `surefoot probe` has found out, kept in a cache folder for `env`, `run` and `doctor`.
//!
//! A result holds for one GPU architecture and one build of torch, and for nothing else:
//! they are the name of its file. A line is a check and `ok` or `failed`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Keeps verdicts; those of earlier probes of other checks stay.
pub fn write<'a>(
    cache: &Path,
    architecture: &str,
    torch: &str,
    verdicts: impl Iterator<Item = (&'a str, bool)>,
) -> io::Result<()> {
    let text = with(&read(cache, architecture, torch), verdicts);
    let path = path(cache, architecture, torch);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}

/// Lines with the verdicts of a newer probe.
#[must_use]
pub fn with<'a>(known: &str, verdicts: impl Iterator<Item = (&'a str, bool)>) -> String {
    let mut known = parse(known);
    known.extend(verdicts.map(|(check, is_ok)| (check.to_owned(), is_ok)));
    known
        .iter()
        .map(|(check, is_ok)| format!("{check} {}\n", if *is_ok { "ok" } else { "failed" }))
        .collect()
}

/// The cached lines; empty if there are none.
#[must_use]
pub fn read(cache: &Path, architecture: &str, torch: &str) -> String {
    fs::read_to_string(path(cache, architecture, torch)).unwrap_or_default()
}

/// Reads what [`write()`] wrote.
#[must_use]
pub fn parse(text: &str) -> BTreeMap<String, bool> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(check, verdict)| (check.to_owned(), verdict == "ok"))
        .collect()
}

fn path(cache: &Path, architecture: &str, torch: &str) -> PathBuf {
    let safe: String = format!("{architecture}-{torch}")
        .chars()
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' | '+' => c,
            _ => '_',
        })
        .collect();
    cache.join("probe").join(safe)
}
