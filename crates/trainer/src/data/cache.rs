//! Tokenises each text once.
//!
//! Tokens and tokenizer are kept in the cache folder under a hash of everything
//! they depend on, so a changed text or setting never meets old tokens. The cache
//! is a convenience: when it cannot be written, training goes on without it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::source::Parts;
use super::tokenizer::Tokenizer;
use crate::Error;
use crate::config::{DataConfig, TokenizerKind};

/// Raise when the tokens of the same text and settings would change.
const FORMAT: &str = "tokens-1";

pub(super) struct Tokens {
    pub(super) tokenizer: Tokenizer,
    pub(super) training: Vec<u16>,
    pub(super) held_out: Vec<u16>,
    pub(super) fingerprint: String,
}

/// The tokens of `parts`, from the cache or made now.
pub(super) fn tokens(config: &DataConfig, parts: &Parts) -> Result<Tokens, Error> {
    let fingerprint = fingerprint(config, parts);
    let folder = super::cache_folder().join("tokens").join(&fingerprint);
    if let Some(tokens) = read(&folder, config.tokenizer, &fingerprint) {
        tracing::debug!(folder = %folder.display(), "tokens from the cache");
        return Ok(tokens);
    }
    // Whatever is there is not whole.
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
    Ok(tokens)
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

/// The cached tokens; `None` when there are none, or they are not whole.
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
