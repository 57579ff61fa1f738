//! Text as training data: read, split into a training and a held-out part, tokenised once, and served in blocks
//! whose order follows from a seed and a position.
//!
//! ```text
//! files ──▶ documents ──split──▶ training ──tokenise (cached)──▶ tokens ──▶ blocks ──▶ batches
//!                          └───▶ held out ──tokenise (cached)──▶ tokens ──▶ blocks, in order
//! ```

mod blocks;
mod cache;
mod format;
mod random;
mod source;
mod tokenizer;

use std::path::{Path, PathBuf};

use crate::Error;
use crate::config::DataConfig;

pub use blocks::{BlockOrder, OrderState};
pub(crate) use cache::sweep;
pub(crate) use format::{ending, named as format_of_name, of as file_format, refuse_pointer};
pub(crate) use random::SplitMix64;
pub(crate) use source::{NOT_DATA, RecordTexts, SPLIT_WORDS, files_in, held_out_records};
pub use tokenizer::Tokenizer;

/// A tokenised text, ready for making batches.
pub struct TextData {
    /// The tokenizer that was used.
    pub tokenizer: Tokenizer,
    /// The tokens to train on.
    pub training: Vec<u16>,
    /// The held-out tokens.
    pub held_out: Vec<u16>,
    /// A one-line description for the start-up message.
    pub description: String,
    /// Changes whenever the tokens do; a resumed run must find the same.
    pub fingerprint: String,
}

impl TextData {
    /// Reads, splits and tokenises the text at `path` according to `config`. If `other` is given, its text is held
    /// out instead. `records` reads files of records.
    ///
    /// # Errors
    /// If the text is missing, empty, not UTF-8, or one of the parts is shorter than a block.
    pub(crate) fn load(
        config: &DataConfig,
        seed: u64,
        path: &Path,
        other: Option<&Path>,
        records: RecordTexts<'_>,
    ) -> Result<Self, Error> {
        let block_size = config.block_size as usize;
        let read = |path: &Path| source::read_documents(path, config.format, records);
        let (documents, whole_files) = read(path)?;
        if whole_files && !config.columns.is_empty() {
            return Err(Error::Data(format!(
                "`{}` is plain text, but `data.columns` names columns: remove the key, or use a file of records",
                path.display()
            )));
        }
        let count = documents.len();
        let bytes: usize = documents.iter().map(String::len).sum();
        let fraction = config.validation_fraction;
        let parts = match other {
            Some(other) => source::Parts {
                training: documents,
                held_out: read(other)?.0,
            },
            None if config.validation_shuffle && count < 2 => {
                return Err(Error::Data(format!(
                    "`{}` is one text, of which `data.validation_shuffle` cannot hold out a part: \
                    remove the key to hold out its end",
                    path.display()
                )));
            }
            None if config.validation_shuffle => source::split_documents(documents, fraction, seed),
            None => source::split(documents, fraction),
        };
        let cached = cache::tokens(config, &parts)?;
        let nothing_held_out = !config.has_eval_data() && fraction == 0.0;
        for (part, tokens) in [
            ("training", &cached.training),
            ("held-out", &cached.held_out),
        ] {
            if part == "held-out" && nothing_held_out {
                continue;
            }
            if tokens.len() <= block_size {
                return Err(Error::Data(format!(
                    "the {part} part of `{}` has {} tokens, but a block needs {} \
                    (`data.block_size` plus one): use more text, a smaller `data.block_size`, \
                    or another `data.validation_fraction` (0 holds nothing out)",
                    path.display(),
                    tokens.len(),
                    block_size + 1,
                )));
            }
        }
        let description = format!(
            "{} ({} in {count} {}), {} training and {} held-out tokens of {}",
            config
                .dataset
                .map_or_else(|| path.display().to_string(), |set| set.name().into()),
            platform::Bytes(bytes as u64),
            match (whole_files, count) {
                (true, 1) => "file",
                (true, _) => "files",
                (false, 1) => "text",
                (false, _) => "texts",
            },
            crate::text::thousands(cached.training.len() as u64),
            match nothing_held_out {
                true => "no".into(),
                false => crate::text::thousands(cached.held_out.len() as u64),
            },
            cached.tokenizer.description(),
        );
        Ok(Self {
            tokenizer: cached.tokenizer,
            training: cached.training,
            held_out: cached.held_out,
            description,
            fingerprint: cached.fingerprint,
        })
    }
}

/// The folder for what is downloaded or derived once and used by all runs.
pub fn cache_folder() -> PathBuf {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = from("SUREFOOT_CACHE") {
        return folder.into();
    }
    match (from("XDG_CACHE_HOME"), from("HOME")) {
        (Some(folder), _) => Path::new(&folder).join("surefoot"),
        (None, Some(home)) => Path::new(&home).join(".cache/surefoot"),
        (None, None) => std::env::temp_dir().join("surefoot"),
    }
}

/// The folder of models that a config may name without a path.
pub(crate) fn models_folder() -> PathBuf {
    cache_folder().join("models")
}
