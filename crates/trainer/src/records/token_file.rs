//! Tokens on disk, so that a data set may be larger than memory.
//!
//! One little-endian word per token; its highest bit says whether the token is trained on. Examples follow each
//! other without gaps; their positions are kept in memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use platform::files::FileExt as _;
use sha2::{Digest, Sha256};

use super::Located;
use crate::Error;
use models::text::{Encoder, Example};

/// Set in the words of tokens that are trained on; vocabularies are far smaller.
const LEARNED: u32 = 1 << 31;

/// A file of consecutive examples.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    file: File,
    tokens: u64,
    examples: Vec<Span>,
    fingerprint: String,
}

/// The position of an example in a [`TokenFile`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index of its first token.
    pub start: u64,
    /// Its length in tokens.
    pub length: u32,
    /// The index, within the example, of the first token that is trained on and has a predecessor; the example's length
    /// if there is none.
    pub first_learned: u32,
    /// Where its answers are, if it is a preference.
    pub judged: Judged,
}

/// How the answers of an example were judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Judged {
    /// Not at all: it is a text.
    #[default]
    No,
    /// It is a prompt with the answer that was chosen, and then the prompt with the one that was rejected.
    Pair {
        /// Where the second begins.
        second: u32,
        /// Tokens of the prompt in either.
        prompts: [u32; 2],
    },
    /// It is a prompt with one answer.
    One {
        /// Tokens of the prompt.
        prompt: u32,
        /// Whether the answer is desirable.
        desirable: bool,
    },
}

impl Judged {
    /// What tells preferences of the same tokens apart.
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::No => Vec::new(),
            Self::Pair {
                second,
                prompts: [one, other],
            } => [second, one, other].map(u32::to_le_bytes).concat(),
            Self::One { prompt, desirable } => {
                [prompt, desirable.into()].map(u32::to_le_bytes).concat()
            }
        }
    }
}

impl TokenFile {
    /// Encodes all records into the file `path`. `on_progress(records, tokens)` is called regularly.
    pub fn write(
        path: &Path,
        records: impl Iterator<Item = Result<Located, Error>>,
        encoder: &Encoder,
        on_progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file
            .open(path)
            .map_err(|error| Error::io("write", path, error))?;
        Self::fill(file, path, records, encoder, on_progress)
    }

    fn fill(
        file: File,
        path: &Path,
        records: impl Iterator<Item = Result<Located, Error>>,
        encoder: &Encoder,
        on_progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        let io = |error| Error::io("write", path, error);
        let mut writer = BufWriter::with_capacity(1 << 20, &file);
        let mut hash = Sha256::new();
        let mut tokens = 0;
        let mut examples = Vec::new();
        for record in records {
            let (example, judged) = record?.judged(encoder)?;
            let Example {
                tokens: ids,
                learned,
            } = example;
            let length = u32::try_from(ids.len())
                .map_err(|_| Error::Data("a record has more than 4 billion tokens".into()))?;
            let first_learned = learned.iter().skip(1).position(|learned| *learned);
            examples.push(Span {
                start: tokens,
                length,
                first_learned: first_learned.map_or(length, |index| index as u32 + 1),
                judged,
            });
            let words: Vec<u8> = ids
                .iter()
                .zip(learned)
                .flat_map(|(id, learned)| (id | if learned { LEARNED } else { 0 }).to_le_bytes())
                .collect();
            hash.update(&words);
            hash.update(judged.bytes());
            writer.write_all(&words).map_err(io)?;
            tokens += u64::from(length);
            on_progress(examples.len() as u64, tokens);
        }
        writer.flush().map_err(io)?;
        drop(writer);
        let digest = hash.finalize();
        Ok(Self {
            path: path.to_owned(),
            file,
            tokens,
            examples,
            fingerprint: digest
                .iter()
                .take(8)
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        })
    }

    /// Like [`TokenFile::write`], with an anonymous file in `folder`: its space is freed when the process ends, however
    /// it ends.
    pub fn temporary(
        folder: &Path,
        records: impl Iterator<Item = Result<Located, Error>>,
        encoder: &Encoder,
        on_progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, Error> {
        std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        let file = tempfile::tempfile_in(folder)
            .map_err(|error| Error::io("create a file in", folder, error))?;
        Self::fill(file, folder, records, encoder, on_progress)
    }

    /// A file with these tokens, each with whether it is trained on, as one example.
    #[cfg(test)]
    pub(crate) fn of_words(
        folder: &Path,
        words: impl Iterator<Item = (u32, bool)>,
    ) -> Result<Self, Error> {
        let path = folder.join("words.tokens");
        let words = words.map(|(id, learned)| id | if learned { LEARNED } else { 0 });
        let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        std::fs::write(&path, &bytes).map_err(|error| Error::io("write", &path, error))?;
        let file = File::open(&path).map_err(|error| Error::io("read", &path, error))?;
        Ok(Self {
            path,
            file,
            tokens: bytes.len() as u64 / 4,
            examples: Vec::new(),
            fingerprint: String::new(),
        })
    }

    /// Number of tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The examples, in order.
    pub fn examples(&self) -> &[Span] {
        &self.examples
    }

    /// Changes whenever a token does.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// `length` tokens from `start` on, and which of them are trained on.
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
