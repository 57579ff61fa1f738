//! What was encoded, on the disk: one file for each clip and each caption, named after everything that
//! changes what is in it.
//!
//! ```text
//! <folder>/media/<path, size, date>.json     what a medium is: a hash of its content, its shape; of a cache that
//!                                            another trainer made, the hash
//! <folder>/latents/<hash>.safetensors        `latents` [channels, frames, height, width], `condition`
//! <folder>/texts/<hash>.safetensors          `text` [tokens, width]
//! ```
//!
//! A file is written under another name, forced to the disk and renamed, so that one that has its name
//! is whole. Nothing else has to be remembered: whoever is killed goes on where files are missing.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use models::formats::{SafetensorsFile, write_tensors};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tch::Tensor;

use super::frames::{self, Shape};
use super::media::Source;
use crate::Error;

/// Raise when the same media and settings would give other tensors.
const FORMAT: &str = "video-1";

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: PathBuf,
}

/// What is known of a medium without opening it again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// SHA-256 of its content.
    pub(crate) content: String,
    size: (u32, u32),
    frames: u32,
    still: bool,
}

impl Facts {
    pub(crate) fn shape(&self) -> Shape {
        Shape {
            size: self.size,
            frames: self.frames,
            still: self.still,
        }
    }
}

fn looked_at(source: &Source, fps: f64) -> Result<Facts, String> {
    let shape = frames::shape(source, fps)?;
    Ok(Facts {
        content: content(&source.files())?,
        size: shape.size,
        frames: shape.frames,
        still: shape.still,
    })
}

/// A hash of several things, in hexadecimal; no two lists give the same by being joined otherwise.
pub(crate) fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    hash.update(FORMAT);
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

fn hex(digest: &[u8]) -> String {
    digest
        .iter()
        .take(20)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

impl Cache {
    /// Opens the cache in `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn open(folder: &Path) -> Result<Self, Error> {
        for part in ["media", "latents", "texts"] {
            let folder = folder.join(part);
            fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, error))?;
            sweep(&folder);
        }
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What `source` is at `fps` frames a second, or why it cannot be read; it is read only where its files have
    /// changed since.
    ///
    /// # Errors
    /// When the cache cannot be written to.
    pub(crate) fn facts(&self, source: &Source, fps: f64) -> Result<Result<Facts, String>, Error> {
        let (path, facts) = match self.known(source, fps) {
            Ok((_, Some(facts))) => return Ok(Ok(facts)),
            Ok((path, None)) => match looked_at(source, fps) {
                Ok(facts) => (path, facts),
                Err(reason) => return Ok(Err(reason)),
            },
            Err(reason) => return Ok(Err(reason)),
        };
        self.remember(&path, &facts)?;
        Ok(Ok(facts))
    }

    /// The hash of the content of a file that another trainer made; it is read only where it has changed since.
    ///
    /// # Errors
    /// When it cannot be read, or the cache cannot be written to.
    pub(super) fn content_of(&self, file: &Path) -> Result<String, Error> {
        let unread = |reason| Error::Data(format!("`{}`: {reason}", file.display()));
        let path = self.note(&["content".to_owned(), stamp(file).map_err(unread)?]);
        if let Some(known) = remembered(&path) {
            return Ok(known);
        }
        let content = content(&[file]).map_err(Error::Data)?;
        self.remember(&path, &content)?;
        Ok(content)
    }

    /// The file for what is known of `source`, and what is.
    fn known(&self, source: &Source, fps: f64) -> Result<(PathBuf, Option<Facts>), String> {
        let mut stamps = vec![format!("{fps}")];
        for file in source.files() {
            stamps.push(stamp(file)?);
        }
        let path = self.note(&stamps);
        let facts = remembered(&path);
        Ok((path, facts))
    }

    /// The file for what is known of files with these stamps.
    fn note(&self, stamps: &[String]) -> PathBuf {
        let stamps: Vec<&str> = stamps.iter().map(String::as_str).collect();
        self.folder.join("media").join(key(&stamps) + ".json")
    }

    /// Writes what [`remembered`] reads.
    fn remember(&self, path: &Path, what: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string(what)
            .map_err(|error| Error::Internal(format!("facts of a medium: {error}")))?;
        let draft = draft(path);
        let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, path));
        written.map_err(|error| {
            let _ = fs::remove_file(&draft);
            Error::io("write", path, error)
        })
    }

    /// Where the latents of this key are.
    pub(crate) fn latents(&self, key: &str) -> PathBuf {
        self.folder
            .join("latents")
            .join(format!("{key}.safetensors"))
    }

    /// Where the text of this key is.
    pub(crate) fn text(&self, key: &str) -> PathBuf {
        self.folder.join("texts").join(format!("{key}.safetensors"))
    }
}

/// The place, the size and the date of a file: with the same, it is taken to be as it was.
fn stamp(file: &Path) -> Result<String, String> {
    let path = std::path::absolute(file).map_err(|error| error.to_string())?;
    let metadata = fs::metadata(&path).map_err(|error| error.to_string())?;
    let changed = metadata.modified().map_err(|error| error.to_string())?;
    let since = changed
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let (path, length) = (path.display(), metadata.len());
    Ok(format!("{path} {length} {since:?}"))
}

/// What was written of files, where it is there and whole.
fn remembered<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Whether an entry is there and whole.
pub(crate) fn has(path: &Path) -> bool {
    path.is_file() && SafetensorsFile::open(path).is_ok()
}

/// Writes an entry, whole or not at all.
///
/// # Errors
/// When the disk is full, or the folder cannot be written to.
pub(crate) fn write(path: &Path, tensors: &[(String, &Tensor)]) -> Result<(), Error> {
    let draft = draft(path);
    let written = write_tensors(&draft, tensors).map_err(Error::from);
    let written = written
        .and_then(|_| fs::rename(&draft, path).map_err(|error| Error::io("write", path, error)));
    if written.is_err() {
        // A part of it would take the place that is short.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Another name for `path` while it is written, which no other process has.
fn draft(path: &Path) -> PathBuf {
    path.with_extension(format!("tmp-{}", std::process::id()))
}

/// Removes what processes that were killed left, a day later.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_draft = entry.file_name().to_string_lossy().contains(".tmp-");
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok());
        if is_draft && age.is_some_and(|age| age > Duration::from_secs(86_400)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A hash of the bytes of `files`.
///
/// # Errors
/// Which of them cannot be read, and why.
pub(super) fn content(files: &[&Path]) -> Result<String, String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    for path in files {
        let failed = |error: std::io::Error| format!("`{}`: {error}", path.display());
        let mut file = File::open(path).map_err(failed)?;
        let mut length = 0u64;
        loop {
            let read = file.read(&mut buffer).map_err(failed)?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
            length += read as u64;
        }
        hash.update(length.to_le_bytes());
    }
    Ok(hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_takes_nothing_is_no_fault_of_a_medium() {
        let folder = tempfile::tempdir().unwrap();
        let picture = folder.path().join("a.png");
        image::RgbImage::new(4, 4).save(&picture).unwrap();
        let source = Source::Image(picture);
        let cache = Cache::open(&folder.path().join("cache")).unwrap();
        assert!(cache.facts(&source, 16.0).unwrap().is_ok());
        let broken = Source::Image(folder.path().join("none.png"));
        assert!(cache.facts(&broken, 16.0).unwrap().is_err());
        fs::remove_dir_all(cache.folder().join("media")).unwrap();
        let error = cache.facts(&source, 16.0).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
    }
}
