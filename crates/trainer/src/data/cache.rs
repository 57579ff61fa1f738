//! Tokenises each text only once.
//!
//! Tokens and tokenizer are stored in the cache folder under a hash of everything they depend on, so old tokens
//! are never used for a changed text or setting. The cache is optional: if it cannot be written, training goes on
//! without it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::source::Parts;
use super::tokenizer::Tokenizer;
use crate::Error;
use crate::config::{DataConfig, TokenizerKind};
use platform::files;

/// To be increased when the tokens of the same text and settings change.
const FORMAT: &str = "tokens-1";

pub(super) struct Tokens {
    pub(super) tokenizer: Tokenizer,
    pub(super) training: Vec<u16>,
    pub(super) held_out: Vec<u16>,
    pub(super) fingerprint: String,
}

/// The tokens of `parts`, from the cache or newly made.
pub(super) fn tokens(config: &DataConfig, parts: &Parts) -> Result<Tokens, Error> {
    let fingerprint = fingerprint(config, parts);
    let cache = super::cache_folder().join("tokens");
    sweep(&cache);
    let folder = cache.join(&fingerprint);
    if let Some(tokens) = read(&folder, config.tokenizer, &fingerprint) {
        tracing::debug!(folder = %folder.display(), "tokens from the cache");
        touch(&folder);
        return Ok(tokens);
    }
    // An incomplete entry.
    let _ = fs::remove_dir_all(&folder);
    let tokenizer = match config.tokenizer {
        TokenizerKind::Bytes => Tokenizer::bytes()?,
        TokenizerKind::Bpe => Tokenizer::train_bpe(&parts.training, config.vocab_size as usize)?,
    };
    let tokens = Tokens {
        training: tokenizer.encode_documents(&parts.training)?,
        held_out: tokenizer.encode_documents(&parts.held_out)?,
        tokenizer,
        fingerprint,
    };
    if let Err(error) = write(&folder, &tokens) {
        tracing::warn!("tokens are not cached: {error}");
    }
    evict(&cache, &folder, limit());
    Ok(tokens)
}

/// Removes incomplete files that killed processes left in the folder `tokens`.
pub(crate) fn sweep(tokens: &Path) {
    for entry in fs::read_dir(tokens).into_iter().flatten().flatten() {
        let path = entry.path();
        let ending = path.extension().unwrap_or_default().to_string_lossy();
        // A process that is still writing holds the lock of its file.
        let is_left =
            |file: std::io::Result<fs::File>| file.is_ok_and(|file| file.try_lock().is_ok());
        if ending.starts_with("tmp-") && is_left(files::lock_of(&path)) {
            let _ = fs::remove_dir_all(&path);
        } else if ending == "tokens" && is_left(fs::File::open(&path)) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// The limit of the token cache in bytes: `SUREFOOT_CACHE_LIMIT`, such as `2GB`, or 10 GB.
fn limit() -> u64 {
    const DEFAULT: u64 = 10_000_000_000;
    let Ok(text) = std::env::var("SUREFOOT_CACHE_LIMIT") else {
        return DEFAULT;
    };
    match text.parse::<platform::Bytes>() {
        Ok(bytes) => bytes.0,
        Err(error) => {
            tracing::warn!("`SUREFOOT_CACHE_LIMIT` is ignored, and the limit is 10 GB: {error}");
            DEFAULT
        }
    }
}

/// Marks an entry as used now, for [`evict`].
fn touch(folder: &Path) {
    // A read-only cache is still useful.
    let _ = files::touch(folder);
}

/// Removes the least recently used entries of `tokens` until at most `limit` bytes are left;
/// the entry `kept` stays.
fn evict(tokens: &Path, kept: &Path, limit: u64) {
    let size = |folder: &Path| -> u64 {
        let files = fs::read_dir(folder).into_iter().flatten().flatten();
        files
            .filter_map(|file| Some(file.metadata().ok()?.len()))
            .sum()
    };
    let entries = fs::read_dir(tokens).into_iter().flatten().flatten();
    let mut entries: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.path();
            // Entries that are being written have an extension.
            let whole = path.is_dir() && path.extension().is_none();
            let used = entry.metadata().ok()?.modified().ok()?;
            whole.then(|| (used, size(&path), path))
        })
        .collect();
    entries.sort();
    let mut total: u64 = entries.iter().map(|(_, size, _)| size).sum();
    for (_, size, path) in entries {
        if total <= limit {
            break;
        }
        if path != kept && fs::remove_dir_all(&path).is_ok() {
            tracing::debug!(folder = %path.display(), "removed from the cache");
            total -= size;
        }
    }
}

fn fingerprint(config: &DataConfig, parts: &Parts) -> String {
    let mut hash = Sha256::new();
    hash.update(FORMAT);
    match config.tokenizer {
        TokenizerKind::Bytes => hash.update("bytes"),
        TokenizerKind::Bpe => hash.update(format!("bpe {}", config.vocab_size)),
    }
    for part in [&parts.training, &parts.held_out] {
        hash.update((part.len() as u64).to_le_bytes());
        for document in part {
            hash.update((document.len() as u64).to_le_bytes());
            hash.update(document);
        }
    }
    hash.finalize()
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The cached tokens; `None` if there are none, or they are incomplete.
fn read(folder: &Path, kind: TokenizerKind, fingerprint: &str) -> Option<Tokens> {
    let tokenizer = Tokenizer::load(&folder.join("tokenizer.json"), kind).ok()?;
    let part = |name: &str| -> Option<Vec<u16>> {
        let bytes = fs::read(folder.join(name)).ok()?;
        let (tokens, checksum) = bytes.split_last_chunk::<4>()?;
        let whole = crc32c::crc32c(tokens) == u32::from_le_bytes(*checksum);
        let tokens: Vec<u16> = tokens
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .collect();
        let known = tokens
            .iter()
            .all(|token| usize::from(*token) < tokenizer.vocab_size());
        (whole && known).then_some(tokens)
    };
    let (training, held_out) = (part("training.bin")?, part("held-out.bin")?);
    Some(Tokens {
        tokenizer,
        training,
        held_out,
        fingerprint: fingerprint.to_owned(),
    })
}

fn write(folder: &Path, tokens: &Tokens) -> Result<(), Error> {
    let parent = folder.parent().unwrap_or(folder);
    fs::create_dir_all(parent).map_err(|error| Error::io("create", parent, error))?;
    let temporary: PathBuf = folder.with_extension(format!("tmp-{}", std::process::id()));
    let result = write_files(&temporary, tokens).and_then(|()| {
        // Another run may have been faster; its tokens are the same.
        fs::rename(&temporary, folder).or_else(|error| {
            if folder.is_dir() {
                Ok(())
            } else {
                Err(Error::io("create", folder, error))
            }
        })
    });
    let _ = fs::remove_dir_all(&temporary);
    result
}

fn write_files(folder: &Path, tokens: &Tokens) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
    // Locked, so that no other run takes it for the leftover of a killed process.
    let writing = files::lock_of(folder);
    let _lock = writing.inspect(|folder| drop(folder.try_lock()));
    tokens.tokenizer.save(&folder.join("tokenizer.json"))?;
    for (name, part) in [
        ("training.bin", &tokens.training),
        ("held-out.bin", &tokens.held_out),
    ] {
        let path = folder.join(name);
        let mut bytes: Vec<u8> = part.iter().flat_map(|token| token.to_le_bytes()).collect();
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        fs::File::create(&path)
            .and_then(|mut file| file.write_all(&bytes))
            .map_err(|error| Error::io("write", &path, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_entry_is_removed_first() {
        let cache = tempfile::tempdir().unwrap();
        let entry = |name: &str, age: u64| {
            let folder = cache.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("training.bin"), [0; 100]).unwrap();
            let used = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
            fs::File::open(&folder).unwrap().set_modified(used).unwrap();
            folder
        };
        let [oldest, old, new] = [("a", 300), ("b", 200), ("c", 100)].map(|(n, age)| entry(n, age));
        let writing = entry("d.tmp-1", 400);
        let held = fs::File::open(&writing).unwrap();
        held.lock().unwrap();
        touch(&oldest);
        sweep(cache.path());
        evict(cache.path(), &new, 250);
        let left = [&oldest, &old, &new, &writing].map(|folder| folder.exists());
        assert_eq!(left, [true, false, true, true]);
        evict(cache.path(), &new, 0);
        assert!(!oldest.exists() && new.exists());
        drop(held);
        sweep(cache.path());
        assert!(!writing.exists() && new.exists());
    }
}
