//! The language part of a model that sees pictures, as text encoder.
//!
//! A prompt stands in a template whose first tokens are not taken. Without pictures, the three kinds of positions that such
//! a model knows are alike, so that it is a decoder as others are; its tower for pictures is not read.

use std::path::Path;

use serde_json::{Map, Value};

use crate::Error;
use crate::diffusion::Tokenizer;
use crate::json::Object;
use crate::language::DecoderConfig;
use crate::text::Encoder;

/// What stands before a prompt, and how many tokens it has.
pub(crate) const BEFORE: &str = "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, \
                      spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n";
pub(crate) const TOKENS_BEFORE: usize = 34;

/// What stands behind it.
pub(crate) const BEHIND: &str = "<|im_end|>\n<|im_start|>assistant\n";

/// Tokens of a prompt that are read, with what stands behind it.
pub(crate) const LONGEST_TEXT: usize = 512;

/// The same with what stands before it.
pub(crate) const LONGEST: usize = TOKENS_BEFORE + LONGEST_TEXT;

/// A kind of such models.
#[derive(Debug)]
pub(crate) struct VisionLanguage {
    /// Its name for people.
    pub(crate) title: &'static str,
    /// `model_type` of the whole and of its language part.
    pub(crate) types: [&'static str; 2],
    /// That of the decoders that compute the same of a text.
    pub(crate) family: &'static str,
    /// Keys that its language part has beside those of all kinds.
    pub(crate) keys: &'static [&'static str],
}

/// Keys of the language part that are obeyed or refused.
const KEYS: [&str; 18] = [
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "hidden_act",
    "layer_types",
    "use_sliding_window",
    "sliding_window",
    "max_window_layers",
    "quantization_config",
];

/// Others that change nothing here: pictures, training, and how it was saved.
const WITHOUT_EFFECT: [&str; 19] = [
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
    "initializer_range",
    "tie_word_embeddings",
    "transformers_version",
    "use_cache",
    "text_config",
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "output_attentions",
];

impl VisionLanguage {
    /// Reads the language part of a `config.json`: older ones have its keys beside those for pictures.
    pub(crate) fn read(&self, path: &Path) -> Result<DecoderConfig, Error> {
        let whole = Object::read(path)?;
        let section = whole.object("text_config")?;
        for object in [Some(&whole), section.as_ref()].into_iter().flatten() {
            let found = object.text("model_type")?.unwrap_or("none");
            if !self.types.contains(&found) {
                let (known, title) = (self.types[0], self.title);
                let reason = format!("is {found:?}: the text encoder is {known:?}, {title}");
                return Err(object.error("model_type", reason));
            }
        }
        let section = section.unwrap_or(whole);
        let own = self.keys.iter().copied();
        let obeyed: Vec<_> = KEYS.into_iter().chain(own).collect();
        let known: Vec<_> = obeyed.iter().copied().chain(WITHOUT_EFFECT).collect();
        section.warn_about_unknown_keys(&known);
        let mut keys: Map<String, Value> = section
            .keys()
            .filter(|(key, _)| obeyed.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        keys.insert("model_type".into(), self.family.into());
        // How positions of pictures are divided does not matter.
        for key in ["rope_scaling", "rope_parameters"] {
            keys.remove(key);
            let Some(rope) = section.object(key)? else {
                continue;
            };
            for name in ["type", "rope_type"] {
                if !matches!(rope.text(name)?, None | Some("default" | "mrope")) {
                    return Err(rope.error(name, "must be \"default\" or \"mrope\""));
                }
            }
            if let Some(theta) = rope.get("rope_theta") {
                keys.insert("rope_theta".into(), theta.clone());
            }
            rope.warn_about_unknown_keys(&[
                "type",
                "rope_type",
                "rope_theta",
                "mrope_section",
                "mrope_interleaved",
            ]);
        }
        DecoderConfig::from_json(path, Value::Object(keys))
    }
}

/// Cuts a prompt in its template into tokens.
#[derive(Debug)]
pub(crate) struct PromptTokenizer {
    encoder: Encoder,
}

impl PromptTokenizer {
    /// The tokenizer in `folder`.
    ///
    /// # Errors
    /// If a file is missing or damaged, or it cuts the template otherwise than the model's.
    pub(crate) fn open(folder: &Path, config: &DecoderConfig) -> Result<Self, Error> {
        let encoder = Encoder::of_folder(folder, config)?;
        let before = encoder.tokens(BEFORE, true)?.len();
        if before != TOKENS_BEFORE {
            let reason = format!(
                "cuts what stands before a prompt into {before} tokens in place of {TOKENS_BEFORE}: it is the tokenizer of \
                 another model"
            );
            return Err(Error::file(folder, reason));
        }
        Ok(Self { encoder })
    }

    fn all(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.encoder
            .tokens(&format!("{BEFORE}{text}{BEHIND}"), true)
    }
}

impl Tokenizer for PromptTokenizer {
    fn tokens(&self, text: &str) -> Result<Vec<Vec<u32>>, Error> {
        let mut tokens = self.all(text)?;
        if tokens.len() > LONGEST {
            // What stands behind the prompt is kept.
            let end = self.encoder.tokens(BEHIND, true)?;
            tokens.truncate(LONGEST - end.len());
            tokens.extend(end);
        }
        Ok(vec![tokens])
    }

    fn length(&self, text: &str) -> Result<(usize, usize), Error> {
        let length = self.all(text)?.len().saturating_sub(TOKENS_BEFORE);
        Ok((length, LONGEST_TEXT))
    }
}
