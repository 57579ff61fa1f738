//! The language part of Qwen2.5-VL as text encoder.
//!
//! A prompt stands in a template whose first tokens are not taken. Without pictures, the three kinds of positions that the
//! model knows are alike, so that it is a decoder as Qwen2.5 is; its tower for pictures is not read.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::Error;
use crate::diffusion::Tokenizer;
use crate::diffusion::files::PartFile;
use crate::formats::TensorSource;
use crate::json::Object;
use crate::language::DecoderConfig;
use crate::text::Encoder;

/// What stands before a prompt, and how many tokens it has.
const BEFORE: &str = "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, \
                      spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n";
pub(super) const TOKENS_BEFORE: usize = 34;

/// What stands behind it.
const BEHIND: &str = "<|im_end|>\n<|im_start|>assistant\n";

/// Tokens of a prompt that are read, with what stands behind it.
const LONGEST_TEXT: usize = 512;

/// The same with what stands before it.
pub(super) const LONGEST: usize = TOKENS_BEFORE + LONGEST_TEXT;

/// `model_type` of the whole and of its language part.
const TYPES: [&str; 2] = ["qwen2_5_vl", "qwen2_5_vl_text"];

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

/// Reads the language part of a `config.json`: older ones have its keys beside those for pictures.
pub(super) fn read(path: &Path) -> Result<DecoderConfig, Error> {
    let whole = Object::read(path)?;
    let section = whole.object("text_config")?;
    for object in [Some(&whole), section.as_ref()].into_iter().flatten() {
        let found = object.text("model_type")?.unwrap_or("none");
        if !TYPES.contains(&found) {
            let reason = format!(
                "is {found:?}: the text encoder is {:?}, Qwen2.5-VL",
                TYPES[0]
            );
            return Err(object.error("model_type", reason));
        }
    }
    let section = section.unwrap_or(whole);
    let known: Vec<_> = KEYS.into_iter().chain(WITHOUT_EFFECT).collect();
    section.warn_about_unknown_keys(&known);
    let mut keys: Map<String, Value> = section
        .keys()
        .filter(|(key, _)| KEYS.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    keys.insert("model_type".into(), "qwen2".into());
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
        rope.warn_about_unknown_keys(&["type", "rope_type", "rope_theta", "mrope_section"]);
    }
    DecoderConfig::from_json(path, Value::Object(keys))
}

/// Infers it from the shapes in a file; what they do not tell is as published.
pub(super) fn of_shapes(file: &PartFile) -> Result<DecoderConfig, Error> {
    const HEAD: i64 = 128;
    let size = |name: &str, dimension: usize| {
        let shape = file.shape(&format!("model.{name}"));
        let size = shape.and_then(|shape| shape.get(dimension).copied());
        size.ok_or_else(|| {
            let reason = format!("not the text encoder of Qwen-Image: there is no `model.{name}`");
            Error::file(file.path(), reason)
        })
    };
    let rows = |part: &str| size(&format!("layers.0.self_attn.{part}_proj.bias"), 0);
    let (queries, keys) = (rows("q")?, rows("k")?);
    if queries % HEAD != 0 || keys % HEAD != 0 {
        let reason = format!(
            "not the text encoder of Qwen-Image: queries of {queries} and keys of {keys} numbers are not made of heads of \
             {HEAD}"
        );
        return Err(Error::file(file.path(), reason));
    }
    let layer = |name: &String| -> Option<i64> {
        let rest = name.strip_prefix("model.layers.")?;
        rest.split('.').next()?.parse().ok()
    };
    let last = file.names().iter().filter_map(layer).max().unwrap_or(0);
    let keys = json!({
        "model_type": "qwen2",
        "vocab_size": size("embed_tokens.weight", 0)?,
        "hidden_size": size("embed_tokens.weight", 1)?,
        "intermediate_size": size("layers.0.mlp.gate_proj.weight", 0)?,
        "num_hidden_layers": last + 1,
        "num_attention_heads": queries / HEAD,
        "num_key_value_heads": keys / HEAD,
        "max_position_embeddings": 128_000,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
    });
    DecoderConfig::from_json(file.path(), keys)
}

/// Cuts a prompt in its template into tokens.
#[derive(Debug)]
pub(super) struct PromptTokenizer(Encoder);

impl PromptTokenizer {
    /// The tokenizer in `folder`.
    ///
    /// # Errors
    /// If a file is missing or damaged, or it cuts the template otherwise than the model's.
    pub(super) fn open(folder: &Path, config: &DecoderConfig) -> Result<Self, Error> {
        let encoder = Encoder::of_folder(folder, config)?;
        let before = encoder.tokens(BEFORE, true)?.len();
        if before != TOKENS_BEFORE {
            let reason = format!(
                "cuts what stands before a prompt into {before} tokens in place of {TOKENS_BEFORE}: it is the tokenizer of \
                 another model"
            );
            return Err(Error::file(folder, reason));
        }
        Ok(Self(encoder))
    }

    fn all(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.0.tokens(&format!("{BEFORE}{text}{BEHIND}"), true)
    }
}

impl Tokenizer for PromptTokenizer {
    fn tokens(&self, text: &str) -> Result<Vec<Vec<u32>>, Error> {
        let mut tokens = self.all(text)?;
        tokens.truncate(LONGEST);
        Ok(vec![tokens])
    }

    fn length(&self, text: &str) -> Result<(usize, usize), Error> {
        let length = self.all(text)?.len().saturating_sub(TOKENS_BEFORE);
        Ok((length, LONGEST_TEXT))
    }
}
