//! The tokenizer of T5 and UMT5, from a `tokenizers` or a sentencepiece file.
//!
//! Both give the same tokens as transformers: sentencepiece's normalisation, words split at whitespace, the
//! most likely pieces of each, and `</s>` at the end.

use std::path::Path;

use prost::Message;
use tch::Kind;
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::Precompiled;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, Tokenizer};

use super::prompt::clean;
use super::t5::TEXT_ROWS;
use crate::Error;
use crate::diffusion;
use crate::formats::{SafetensorsFile, TensorSource};
use crate::json::Object;

/// The end-of-text token.
const END: &str = "</s>";
/// The token that fills up texts.
const FILLER: &str = "<pad>";
/// The tensor in ComfyUI's single files that contains the sentencepiece file.
const EMBEDDED: &str = "spiece_model";

/// Cleans prompts and splits them into tokens.
#[derive(Debug)]
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    end: u32,
    /// Whether prompts are cleaned before.
    cleans: bool,
    /// Tokens that are read.
    length: usize,
    /// What follows shorter texts, and how many of them at most.
    filler: Option<(u32, usize)>,
}

impl TextTokenizer {
    /// Opens a diffusers `tokenizer` folder, a `tokenizer.json`, a `spiece.model`, or a single text encoder
    /// file that contains one, like ComfyUI's.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if path.is_dir() {
            let config = path.join("tokenizer_config.json");
            let whole = path.join("tokenizer.json");
            if whole.is_file() {
                return Self::of_json(&whole);
            }
            let pieces = path.join("spiece.model");
            if !pieces.is_file() {
                let reason = "has neither a `tokenizer.json` nor a `spiece.model`";
                return Err(Error::file(path, reason.to_owned()));
            }
            let extra = match config.is_file() {
                true => Object::read(&config)?.integer("extra_ids", Some(100), 0..=100_000)?,
                false => 0,
            };
            return Self::of_pieces(&pieces, &read(&pieces)?, extra);
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => Self::of_json(path),
            Some("safetensors" | "sft") => {
                let file = SafetensorsFile::open(path)?;
                if file.shape(EMBEDDED).is_none() {
                    let reason = format!(
                        "has no tensor `{EMBEDDED}`, the tokenizer that ComfyUI's files of UMT5 have: \
                         name a `tokenizer.json` or `spiece.model` beside it"
                    );
                    return Err(Error::file(path, reason));
                }
                let bytes = file.read(EMBEDDED, Kind::Uint8)?.f_reshape([-1])?;
                Self::of_pieces(path, &Vec::<u8>::try_from(&bytes)?, 0)
            }
            _ => Self::of_pieces(path, &read(path)?, 0),
        }
    }

    /// The same, for models whose prompts are not cleaned.
    pub fn without_cleaning(self) -> Self {
        Self {
            cleans: false,
            ..self
        }
    }

    /// The same, for models that see at most `length` tokens, of which those behind shorter texts are fillers, but no more
    /// than `most`.
    ///
    /// # Errors
    /// If there is no token for that.
    pub fn filled(self, length: usize, most: usize) -> Result<Self, Error> {
        let filler = self.tokenizer.token_to_id(FILLER);
        let missing = || Error::Invalid(format!("the tokenizer has no token {FILLER:?}"));
        Ok(Self {
            filler: Some((filler.ok_or_else(missing)?, most)),
            length,
            ..self
        })
    }

    /// The token that follows texts, if they are [`filled`](Self::filled).
    pub fn filler(&self) -> Option<u32> {
        self.filler.map(|(filler, _)| filler)
    }

    /// The tokens of `text` after cleaning: at most [`TEXT_ROWS`], or as it was [`filled`](Self::filled), of which `</s>`
    /// ends the text.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, Error> {
        let mut ids = self.cut(text)?;
        ids.truncate(self.length - 1);
        ids.push(self.end);
        if let Some((filler, most)) = self.filler {
            ids.resize(self.length.min(ids.len() + most), filler);
        }
        Ok(ids)
    }

    /// Number of tokens of `text`, including `</s>`, before truncation to [`TEXT_ROWS`].
    pub fn count(&self, text: &str) -> Result<usize, Error> {
        Ok(self.cut(text)?.len() + 1)
    }

    fn cut(&self, text: &str) -> Result<Vec<u32>, Error> {
        let cleaned = match self.cleans {
            true => clean(text),
            false => text.to_owned(),
        };
        let cut = self.tokenizer.encode_fast(cleaned, false);
        let cut = cut.map_err(|error| Error::Invalid(format!("{text:?}: {error}")))?;
        Ok(cut.get_ids().to_vec())
    }

    fn of_json(path: &Path) -> Result<Self, Error> {
        let wrong = |error: tokenizers::Error| Error::file(path, error.to_string());
        let mut tokenizer = Tokenizer::from_file(path).map_err(wrong)?;
        // Padding and truncation are done in this crate.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(wrong)?;
        let end = tokenizer.token_to_id(END);
        let end = end.ok_or_else(|| Error::file(path, no_end()))?;
        Ok(Self {
            tokenizer,
            end,
            cleans: true,
            length: TEXT_ROWS as usize,
            filler: None,
        })
    }

    /// A tokenizer from a sentencepiece model; `extra` of its tokens are not in the model.
    fn of_pieces(path: &Path, bytes: &[u8], extra: i64) -> Result<Self, Error> {
        let wrong = |reason: String| Error::file(path, reason);
        let model = ModelProto::decode(bytes)
            .map_err(|error| wrong(format!("not a sentencepiece model: {error}")))?;
        let trainer = model.trainer_spec.unwrap_or_default();
        if trainer.model_type.unwrap_or(UNIGRAM) != UNIGRAM || model.pieces.is_empty() {
            return Err(wrong(
                "not a unigram sentencepiece model, like UMT5's".into(),
            ));
        }
        let unknown = usize::try_from(trainer.unk_id.unwrap_or(0)).ok();
        let unknown = unknown.filter(|index| *index < model.pieces.len());
        let unknown =
            unknown.ok_or_else(|| wrong("it has no piece for unknown text".to_owned()))?;
        let mut vocabulary: Vec<(String, f64)> = Vec::with_capacity(model.pieces.len());
        let mut special = Vec::new();
        for (index, piece) in model.pieces.iter().enumerate() {
            let text = piece.piece.clone().unwrap_or_default();
            match piece.kind.unwrap_or(NORMAL) {
                CONTROL => special.push(AddedToken::from(&text, true)),
                USER_DEFINED => special.push(AddedToken::from(&text, false).normalized(false)),
                _ if index == unknown => special.push(AddedToken::from(&text, true)),
                _ => {}
            }
            vocabulary.push((text, f64::from(piece.score.unwrap_or(0.0))));
        }
        for number in (0..extra).rev() {
            let text = format!("<extra_id_{number}>");
            special.push(AddedToken::from(&text, true));
            vocabulary.push((text, 0.0));
        }
        let end = vocabulary.iter().position(|(text, _)| text == END);
        let end = end.ok_or_else(|| wrong(no_end()))? as u32;
        let library = |error: tokenizers::Error| wrong(error.to_string());
        let unigram = Unigram::from(vocabulary, Some(unknown), false).map_err(library)?;
        let mut tokenizer = Tokenizer::new(unigram);
        let rules = model
            .normalizer_spec
            .and_then(|spec| spec.precompiled_charsmap);
        if let Some(rules) = rules.filter(|rules| !rules.is_empty()) {
            let rules = Precompiled::from(&rules)
                .map_err(|error| wrong(format!("its normalisation: {error}")))?;
            tokenizer.with_normalizer(Some(rules)).map_err(library)?;
        }
        let words = [
            PreTokenizerWrapper::WhitespaceSplit(WhitespaceSplit),
            PreTokenizerWrapper::Metaspace(Metaspace::new('▁', PrependScheme::Always, true)),
        ];
        tokenizer.with_pre_tokenizer(Some(Sequence::new(words.into())));
        let template = TemplateProcessing::builder()
            .try_single(vec!["$A", END])
            .map_err(wrong)?
            .special_tokens(vec![(END, end)])
            .build()
            .map_err(|error| wrong(error.to_string()))?;
        tokenizer.with_post_processor(Some(template));
        tokenizer.add_tokens(special).map_err(library)?;
        Ok(Self {
            tokenizer,
            end,
            cleans: true,
            length: TEXT_ROWS as usize,
            filler: None,
        })
    }
}

impl diffusion::Tokenizer for TextTokenizer {
    fn tokens(&self, text: &str) -> Result<Vec<Vec<u32>>, Error> {
        Ok(vec![self.tokens(text)?])
    }

    fn length(&self, text: &str) -> Result<(usize, usize), Error> {
        Ok((self.count(text)?, self.length))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| Error::io("read", path, error))
}

fn no_end() -> String {
    format!("has no token {END:?}, which ends every text in UMT5")
}

/// The parts of a sentencepiece model that are read. The field numbers are those of
/// `sentencepiece_model.proto`.
#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer_spec: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    normalizer_spec: Option<NormalizerSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

#[derive(Clone, PartialEq, Message)]
struct TrainerSpec {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(int32, optional, tag = "40")]
    unk_id: Option<i32>,
}

const UNIGRAM: i32 = 1;

#[derive(Clone, PartialEq, Message)]
struct NormalizerSpec {
    #[prost(bytes = "vec", optional, tag = "2")]
    precompiled_charsmap: Option<Vec<u8>>,
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tch::Tensor;

    use super::*;
    use crate::formats::write_tensors;
    use crate::golden::golden;

    fn rows() -> Vec<(String, Vec<u32>)> {
        let text = std::fs::read_to_string(golden("wan/text/prompts.json")).unwrap();
        let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
        let row = |row: &Value| {
            let ids = row["ids"].as_array().unwrap().iter();
            let ids = ids.map(|id| id.as_u64().unwrap() as u32).collect();
            // Cleaning has its own test; cleaning cleaned text changes nothing.
            (row["cleaned"].as_str().unwrap().to_owned(), ids)
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn tokens_are_those_of_transformers() {
        let folder = golden("wan/text");
        let bare = tempfile::tempdir().unwrap();
        for name in ["spiece.model", "tokenizer_config.json"] {
            std::fs::copy(folder.join(name), bare.path().join(name)).unwrap();
        }
        for path in [folder.as_path(), bare.path()] {
            let tokenizer = TextTokenizer::open(path).unwrap();
            let mut longest = 0;
            for (text, ids) in rows() {
                if clean(&text) == text {
                    assert_eq!(tokenizer.tokens(&text).unwrap(), ids, "{text:?}");
                    longest = longest.max(ids.len());
                }
            }
            assert_eq!(longest, 512);
        }
    }

    #[test]
    fn a_single_file_of_comfyui_has_its_tokenizer_inside() {
        let bytes = std::fs::read(golden("wan/text/spiece.model")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("umt5.safetensors");
        let tensor = Tensor::from_slice(&bytes);
        write_tensors(&path, &[(EMBEDDED.to_owned(), &tensor)]).unwrap();
        let tokenizer = TextTokenizer::open(&path).unwrap();
        let mut count = 0;
        for (text, ids) in rows() {
            // A single file says nothing about the extra tokens.
            if clean(&text) == text && !text.contains("<extra_id_") {
                assert_eq!(tokenizer.tokens(&text).unwrap(), ids, "{text:?}");
                count += 1;
            }
        }
        assert!(count > 200);
        write_tensors(&path, &[("other".to_owned(), &tensor)]).unwrap();
        let error = TextTokenizer::open(&path).unwrap_err().to_string();
        assert!(error.contains("has no tensor `spiece_model`"), "{error}");
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = TextTokenizer::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("neither a `tokenizer.json`"), "{error}");
        let path = folder.path().join("spiece.model");
        for bytes in [&b""[..], b"\xff\xff\xff no model", b"\n\x03\n\x01a"] {
            std::fs::write(&path, bytes).unwrap();
            let error = TextTokenizer::open(&path).unwrap_err().to_string();
            assert!(error.contains("spiece.model"), "{error}");
        }
    }
}
