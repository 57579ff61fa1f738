//! A split of a data set as a folder: links to its files, in reading order.
//!
//! ```text
//! datasets--org--name/COMMIT/SUBSET/SPLIT/00000-train.parquet ──▶ the file in the hub's cache
//! ```
//!
//! Everything that reads a folder of data reads this one.

use std::fs;
use std::path::{Path, PathBuf};

use super::card;
use super::data_files::{self, Chosen, Selection};
use super::name::{HubName, escaped};
use crate::Error;

/// The file name of a data set's card.
pub(super) const CARD: &str = "README.md";
/// The branch of the hub's own conversion.
const CONVERTED: &str = "refs/convert/parquet";
/// Stands for the default subset in a folder name.
const DEFAULT: &str = "default";
/// How many names a warning lists.
const LISTED: usize = 5;

/// A split of a data set to fetch.
#[derive(Debug, Clone, Copy)]
pub(super) struct DataSet<'a> {
    pub(super) selection: Selection<'a>,
}

impl DataSet<'_> {
    /// Selects from `files` and the `card`, and warns about files of the split that cannot be read.
    ///
    /// # Errors
    /// What is missing, as a phrase to follow the data set's name.
    pub(super) fn choose(
        &self,
        name: &HubName,
        files: &[String],
        card: Option<&str>,
    ) -> Result<Vec<String>, String> {
        let subsets = card::subsets(card.unwrap_or_default())
            .map_err(|error| format!("has a card (`{CARD}`) that cannot be read: {error}"))?;
        let converted = name.revision == CONVERTED;
        let Chosen { files, left_out } =
            data_files::choose(files, &subsets, converted, self.selection)?;
        if !left_out.is_empty() {
            let listed: Vec<&str> = left_out.iter().take(LISTED).map(String::as_str).collect();
            tracing::warn!(
                "`{name}`: {} files of the split `{}` are not read, since most of its files are of another kind ({}{})",
                left_out.len(),
                self.selection.split,
                listed.join(", "),
                if left_out.len() > LISTED { ", …" } else { "" },
            );
        }
        Ok(files)
    }

    /// The same from `snapshot` in the cache, without asking the hub; the error says what is
    /// missing.
    pub(super) fn choose_in(&self, name: &HubName, snapshot: &Path) -> Result<Vec<String>, String> {
        let files = files_below(snapshot);
        let card = fs::read_to_string(snapshot.join(CARD)).ok();
        let chosen = self.choose(name, &files, card.as_deref())?;
        // The name of a shard contains the number of shards.
        let shard =
            regex::Regex::new(r"^(.*)-[0-9]{5}-of-([0-9]{5})").map_err(|e| e.to_string())?;
        for file in &chosen {
            let Some(found) = shard.captures(file) else {
                continue;
            };
            let of_it = |other: &&String| {
                shard
                    .captures(other)
                    .is_some_and(|other| other[1] == found[1] && other[2] == found[2])
            };
            if chosen.iter().filter(of_it).count() != found[2].parse().unwrap_or(0) {
                return Err(format!("some of the files `{}-…` are missing", &found[1]));
            }
        }
        Ok(chosen)
    }

    /// The path of the folder for this split.
    pub(super) fn folder(&self, views: &Path, name: &HubName, commit: &str) -> PathBuf {
        let Selection { subset, split } = self.selection;
        views
            .join(name.folder())
            .join(commit)
            .join(escaped(subset.unwrap_or(DEFAULT), false))
            .join(escaped(split, false))
    }
}

/// The files below a folder, as a hub would list them.
fn files_below(folder: &Path) -> Vec<String> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Some(name) = path.strip_prefix(folder).ok().and_then(Path::to_str) {
                files.push(name.replace('\\', "/"));
            }
        }
    }
    files.sort();
    files
}

/// Whether a folder of links exists, and all files that they point to.
pub(super) fn is_whole(folder: &Path) -> bool {
    let entries: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .collect();
    !entries.is_empty() && entries.iter().all(|entry| entry.path().is_file())
}

/// Creates `folder` with links to `files` in `snapshot`, atomically.
pub(super) fn link(folder: &Path, snapshot: &Path, files: &[String]) -> Result<(), Error> {
    if is_whole(folder) {
        return Ok(());
    }
    let parent = folder.parent().unwrap_or(folder);
    let io = |doing: &'static str| move |error| Error::io(doing, folder, error);
    fs::create_dir_all(parent).map_err(io("create"))?;
    let new = tempfile::Builder::new()
        .prefix(".new-")
        .tempdir_in(parent)
        .map_err(io("create"))?;
    for (number, file) in files.iter().enumerate() {
        let base = file.rsplit('/').next().unwrap_or(file);
        let path = new.path().join(format!("{number:05}-{base}"));
        let target = snapshot.join(file);
        let target =
            fs::canonicalize(&target).map_err(|error| Error::io("read", &target, error))?;
        give(&target, &path).map_err(io("write"))?;
    }
    if folder.exists() {
        // Its files have been removed from the hub's cache.
        fs::remove_dir_all(folder).map_err(io("remove"))?;
    }
    match fs::rename(new.path(), folder) {
        Ok(()) => {
            let _ = new.keep();
            Ok(())
        }
        // Another process was first.
        Err(_) if is_whole(folder) => Ok(()),
        Err(error) => Err(Error::io("write", folder, error)),
    }
}

#[cfg(unix)]
fn give(file: &Path, path: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(file, path)
}

#[cfg(not(unix))]
fn give(file: &Path, path: &Path) -> std::io::Result<()> {
    fs::copy(file, path).map(drop)
}
