//! CLIP's tokenizer: words in small letters, cut into pairs of bytes, with an end that counts as a letter.

use std::path::Path;

use serde_json::{Value, json};
use tokenizers::{AddedToken, Tokenizer};

use crate::Error;
use crate::json::Object;

/// Begins and ends texts if no file says otherwise.
const BEGIN: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";

/// What words are, as a regular expression.
const WORDS: &str =
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// Cuts texts into as many tokens as the encoder has positions.
#[derive(Debug)]
pub struct ClipTokenizer {
    tokenizer: Tokenizer,
    begin: u32,
    end: u32,
    padding: u32,
    length: usize,
}

impl ClipTokenizer {
    /// The tokenizer in `folder`, in the form of transformers (`tokenizer.json`, or `vocab.json` and `merges.txt`), for
    /// texts of `length` tokens. They are filled up with the token `padding`; if it is `None`, with the one that the
    /// folder's files name.
    ///
    /// # Errors
    /// If a file is missing or damaged, or lacks one of the special tokens.
    pub fn open(folder: &Path, padding: Option<&str>, length: usize) -> Result<Self, Error> {
        let special = Special::read(folder)?;
        let padding = padding.unwrap_or(&special.padding);
        let whole = folder.join("tokenizer.json");
        let (path, tokenizer) = match whole.is_file() {
            true => (whole.clone(), Tokenizer::from_file(&whole)),
            false => {
                let path = folder.join("vocab.json");
                let text = of_pairs(&path, &folder.join("merges.txt"))?.to_string();
                (path, Tokenizer::from_bytes(text))
            }
        };
        let wrong = |error: tokenizers::Error| Error::file(&path, error.to_string());
        let mut tokenizer = tokenizer.map_err(wrong)?;
        // Padding and truncation are done here.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(wrong)?;
        // Special tokens are not cut where a text has them, whatever letters they are made of.
        let names = [&*special.begin, &special.end, padding];
        let mut ids = [0; 3];
        for (id, name) in ids.iter_mut().zip(names) {
            *id = tokenizer.token_to_id(name).ok_or_else(|| {
                Error::file(
                    &path,
                    format!("has no token {name:?}, which the tokenizer's config names"),
                )
            })?;
            let _ = tokenizer.add_special_tokens([AddedToken::from(name, true)]);
        }
        let [begin, end, padding] = ids;
        if length < 2 {
            return Err(Error::Invalid(
                "a text encoder of fewer than two positions".into(),
            ));
        }
        Ok(Self {
            tokenizer,
            begin,
            end,
            padding,
            length,
        })
    }

    /// The tokens of the whole text, with those at the ends.
    fn all(&self, text: &str) -> Result<Vec<u32>, Error> {
        let cut = self.tokenizer.encode_fast(text, false);
        let cut = cut.map_err(|error| Error::Invalid(format!("{text:?}: {error}")))?;
        Ok([&[self.begin], cut.get_ids(), &[self.end]].concat())
    }

    /// The tokens of a text: exactly as many as the encoder has positions.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, Error> {
        let mut tokens = self.all(text)?;
        if tokens.len() > self.length {
            tokens.truncate(self.length - 1);
            tokens.push(self.end);
        }
        tokens.resize(self.length, self.padding);
        Ok(tokens)
    }

    /// Number of tokens before truncation, without padding.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn count(&self, text: &str) -> Result<usize, Error> {
        Ok(self.all(text)?.len())
    }
}

/// The special tokens of a folder.
struct Special {
    begin: String,
    end: String,
    padding: String,
}

impl Special {
    /// From `special_tokens_map.json` and `tokenizer_config.json`, either of which may say them.
    fn read(folder: &Path) -> Result<Self, Error> {
        let mut found = Self {
            begin: BEGIN.to_owned(),
            end: END.to_owned(),
            padding: END.to_owned(),
        };
        for name in ["special_tokens_map.json", "tokenizer_config.json"] {
            let path = folder.join(name);
            if !path.is_file() {
                continue;
            }
            let object = Object::read(&path)?;
            let places = [&mut found.begin, &mut found.end, &mut found.padding];
            for (key, place) in ["bos_token", "eos_token", "pad_token"]
                .into_iter()
                .zip(places)
            {
                let token = object.get(key);
                // A string, or an object with its settings.
                let text = token.map(|token| token.get("content").unwrap_or(token));
                match text {
                    None => {}
                    Some(Value::String(text)) => text.clone_into(place),
                    Some(_) => return Err(object.error(key, "must be a token")),
                }
            }
        }
        Ok(found)
    }
}

/// A tokenizer's file as transformers makes it of a vocabulary and a list of pairs.
fn of_pairs(vocabulary: &Path, pairs: &Path) -> Result<Value, Error> {
    if !vocabulary.is_file() {
        let folder = vocabulary.parent().unwrap_or(vocabulary);
        let reason = "has neither a `tokenizer.json` nor a `vocab.json` with a `merges.txt`";
        return Err(Error::file(folder, reason));
    }
    let words = Object::read(vocabulary)?;
    let words: serde_json::Map<String, Value> = words
        .keys()
        .map(|(word, id)| (word.clone(), id.clone()))
        .collect();
    let text = std::fs::read_to_string(pairs).map_err(|error| Error::io("read", pairs, error))?;
    let pairs: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("#version") && !line.trim().is_empty())
        .collect();
    Ok(json!({
        "version": "1.0",
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFC"},
                {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
                {"type": "Lowercase"},
            ],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Removed", "invert": true},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            ],
        },
        "model": {
            "type": "BPE",
            "unk_token": END,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "</w>",
            "fuse_unk": false,
            "vocab": words,
            "merges": pairs,
        },
    }))
}
