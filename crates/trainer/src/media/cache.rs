//! Encoded clips and captions on disk: one file each, named after everything that affects its content.
//!
//! ```text
//! <folder>/media/<path, size, date>.json     facts about a medium: hash of its content, shape; for the cache of
//!                                            another trainer, the hash
//! <folder>/latents/<hash>.safetensors        `latents` [channels, frames, height, width], conditions
//! <folder>/texts/<hash>.safetensors          `text` [tokens, width]
//! ```
//!
//! Files are written under a temporary name, synced and renamed, so one with its final name is complete.
//! There is no other state: after a kill, encoding continues with the missing files.

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
use super::sources::Source;
use crate::Error;

/// Increase when the same media and settings would give other tensors.
const FORMAT: &str = "video-1";

/// A cache folder.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: PathBuf,
}

/// What is known about a medium without opening it again.
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

fn inspect(source: &Source, fps: f64) -> Result<Facts, String> {
    let shape = frames::shape(source, fps)?;
    Ok(Facts {
        content: content(&source.files())?,
        size: shape.size,
        frames: shape.frames,
        still: shape.still,
    })
}

/// A hexadecimal hash of several strings, unambiguous about where each one ends.
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
    /// Opens the cache in `folder`, creating it if necessary.
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

    /// The facts about `source` at `fps` frames per second, or why it cannot be read; it is only read if its
    /// files have changed.
    pub(crate) fn facts(&self, source: &Source, fps: f64) -> Result<Result<Facts, String>, Error> {
        let (path, facts) = match self.known(source, fps) {
            Ok((_, Some(facts))) => return Ok(Ok(facts)),
            Ok((path, None)) => match inspect(source, fps) {
                Ok(facts) => (path, facts),
                Err(reason) => return Ok(Err(reason)),
            },
            Err(reason) => return Ok(Err(reason)),
        };
        self.write_note(&path, &facts)?;
        Ok(Ok(facts))
    }

    /// The hash of another trainer's file; it is only read if it has changed.
    pub(super) fn content_of(&self, file: &Path) -> Result<String, Error> {
        let unread = |reason| Error::Data(format!("`{}`: {reason}", file.display()));
        let path = self.note(&["content".to_owned(), stamp(file).map_err(unread)?]);
        if let Some(known) = read_note(&path) {
            return Ok(known);
        }
        let content = content(&[file]).map_err(Error::Data)?;
        self.write_note(&path, &content)?;
        Ok(content)
    }

    /// The file for the facts about `source`, and the facts if known.
    fn known(&self, source: &Source, fps: f64) -> Result<(PathBuf, Option<Facts>), String> {
        let mut stamps = vec![format!("{fps}")];
        for file in source.files() {
            stamps.push(stamp(file)?);
        }
        let path = self.note(&stamps);
        let facts = read_note(&path);
        Ok((path, facts))
    }

    /// The file for the facts about files with these stamps.
    fn note(&self, stamps: &[String]) -> PathBuf {
        let stamps: Vec<&str> = stamps.iter().map(String::as_str).collect();
        self.folder.join("media").join(key(&stamps) + ".json")
    }

    /// Writes what [`read_note`] reads.
    fn write_note(&self, path: &Path, what: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string(what)
            .map_err(|error| Error::Internal(format!("facts of a medium: {error}")))?;
        let draft = draft(path);
        let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, path));
        written.map_err(|error| {
            let _ = fs::remove_file(&draft);
            Error::io("write", path, error)
        })
    }

    /// File of the latents with this key.
    pub(crate) fn latents(&self, key: &str) -> PathBuf {
        self.folder
            .join("latents")
            .join(format!("{key}.safetensors"))
    }

    /// File of the text with this key.
    pub(crate) fn text(&self, key: &str) -> PathBuf {
        self.folder.join("texts").join(format!("{key}.safetensors"))
    }
}

/// Path, size and modification time of a file: if they are the same, it is assumed unchanged.
pub(crate) fn stamp(file: &Path) -> Result<String, String> {
    let path = std::path::absolute(file).map_err(|error| error.to_string())?;
    let metadata = fs::metadata(&path).map_err(|error| error.to_string())?;
    let changed = metadata.modified().map_err(|error| error.to_string())?;
    let since = changed
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let (path, length) = (path.display(), metadata.len());
    Ok(format!("{path} {length} {since:?}"))
}

/// Reads the facts about files, if the file is complete.
fn read_note<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Whether an entry exists and is complete.
pub(crate) fn has(path: &Path) -> bool {
    path.is_file() && SafetensorsFile::open(path).is_ok()
}

/// Writes an entry atomically.
pub(crate) fn write(path: &Path, tensors: &[(String, &Tensor)]) -> Result<(), Error> {
    let draft = draft(path);
    let written = write_tensors(&draft, tensors).map_err(Error::from);
    let written = written
        .and_then(|_| fs::rename(&draft, path).map_err(|error| Error::io("write", path, error)));
    if written.is_err() {
        // Do not let a partial file take up scarce space.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// A temporary name for `path` that no other process uses.
fn draft(path: &Path) -> PathBuf {
    path.with_extension(format!("tmp-{}", std::process::id()))
}

/// Removes leftovers of killed processes after a day.
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
