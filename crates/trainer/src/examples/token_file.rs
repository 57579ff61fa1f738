//! Tokens on disk, so that a data set may be larger than memory.
//!
//! One little-endian word for each token; its highest bit says whether the token is
//! learned. Examples follow each other without gaps (packing): every block that is cut
//! from the file is full.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use super::{Encoder, Example, Record};
use crate::Error;

/// Set in the words of learned tokens; vocabularies are far smaller.
const LEARNED: u32 = 1 << 31;

/// Examples one after the other, on disk.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    file: File,
    tokens: u64,
    fingerprint: String,
}

impl TokenFile {
    /// Encodes all records into the file `path`. `told(records, tokens)` hears of progress.
    ///
    /// # Errors
    /// When a record cannot be read or encoded, or the disk is full.
    pub fn write(
        path: &Path,
        records: impl Iterator<Item = Result<Record, Error>>,
        encoder: &Encoder,
        told: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        let io = |error| Error::io("write", path, error);
        let file = File::create(path).map_err(io)?;
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        let mut hash = Sha256::new();
        let (mut count, mut tokens) = (0, 0);
        for record in records {
            let Example {
                tokens: ids,
                learned,
            } = encoder.encode(&record?)?;
            let words: Vec<u8> = ids
                .iter()
                .zip(learned)
                .flat_map(|(id, learned)| (id | if learned { LEARNED } else { 0 }).to_le_bytes())
                .collect();
            hash.update(&words);
            writer.write_all(&words).map_err(io)?;
            tokens += ids.len() as u64;
            count += 1;
            told(count, tokens);
        }
        writer.flush().map_err(io)?;
        drop(writer);
        let digest = hash.finalize();
        Ok(Self {
            path: path.to_owned(),
            file: File::open(path).map_err(|error| Error::io("read", path, error))?,
            tokens,
            fingerprint: digest
                .iter()
                .take(8)
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        })
    }

    /// As [`TokenFile::write`], into a file without a name in `folder`: it takes no place any
    /// more when the program ends, however it does.
    ///
    /// # Errors
    /// As [`TokenFile::write`].
    pub fn temporary(
        folder: &Path,
        records: impl Iterator<Item = Result<Record, Error>>,
        encoder: &Encoder,
        told: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        static FILES: AtomicU64 = AtomicU64::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{}-{number}.tokens", std::process::id()));
        let written = Self::write(&path, records, encoder, told);
        let removed = std::fs::remove_file(&path);
        let file = written?;
        removed.map_err(|error| Error::io("remove", &path, error))?;
        Ok(file)
    }

    /// Number of tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Changes whenever a token does.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The tokens from `start`, `length` of them, and which of them are learned.
    ///
    /// # Errors
    /// When the file cannot be read, or is not that long.
    pub fn block(&self, start: u64, length: usize) -> Result<Example, Error> {
        let mut bytes = vec![0; length * 4];
        self.file
            .read_exact_at(&mut bytes, start * 4)
            .map_err(|error| Error::io("read", &self.path, error))?;
        let words = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let (tokens, learned) = words
            .map(|word| (word & !LEARNED, word & LEARNED != 0))
            .unzip();
        Ok(Example { tokens, learned })
    }
}
