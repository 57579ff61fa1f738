//! The dimensions of a text encoder, from the `config.json` of its folder.

use std::path::Path;

use serde_json::json;
use tch::Tensor;

use crate::Error;
use crate::formats::TensorSource;
use crate::json::Object;

/// Between the two layers of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClipActivation {
    /// `x · sigmoid(1.702 x)`, as in OpenAI's models.
    QuickGelu,
    /// The exact GELU, as in OpenCLIP's.
    Gelu,
}

impl ClipActivation {
    /// Of each element.
    pub(super) fn of(self, input: &Tensor) -> Result<Tensor, Error> {
        Ok(match self {
            Self::QuickGelu => input.f_mul(&input.f_mul_scalar(1.702)?.f_sigmoid()?)?,
            Self::Gelu => input.f_gelu("none")?,
        })
    }
}

/// Dimensions of a text encoder, with transformers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipConfig {
    /// Size of the vocabulary.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the feed-forward layers.
    pub intermediate_size: i64,
    /// Number of blocks.
    pub num_hidden_layers: i64,
    /// Number of heads.
    pub num_attention_heads: i64,
    /// Number of positions.
    pub max_position_embeddings: i64,
    /// Activation of the feed-forward layers.
    pub hidden_act: ClipActivation,
    /// Added to variances.
    pub layer_norm_eps: f64,
    /// Width of the vector for all of a text.
    pub projection_dim: i64,
    /// The end token; `None` if it is the one with the highest number, as in all older models.
    pub eos_token_id: Option<i64>,
    /// Whether the last matrix is `[width, projection]`, named `text_projection`.
    pub is_projection_transposed: bool,
}

const KEYS: [&str; 12] = [
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "hidden_act",
    "layer_norm_eps",
    "projection_dim",
    "eos_token_id",
    "attention_dropout",
];

/// Keys that matter in training the encoder, or to other programs.
const WITHOUT_EFFECT: [&str; 10] = [
    "architectures",
    "bos_token_id",
    "pad_token_id",
    "dropout",
    "dtype",
    "torch_dtype",
    "initializer_factor",
    "initializer_range",
    "transformers_version",
    "use_cache",
];

/// What older versions of transformers wrote as `eos_token_id`, which it never was.
const NO_END: i64 = 2;

/// Width of a head in all published models.
const HEAD: i64 = 64;

impl ClipConfig {
    /// Reads a `config.json`, with a warning for each unknown key.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let object = Object::read(path)?;
        object.require(
            "model_type",
            &json!("clip_text_model"),
            &json!("clip_text_model"),
        )?;
        object.warn_about_unknown_keys(&[&KEYS[..], &WITHOUT_EFFECT].concat());
        let integer = |key, default, largest| object.integer(key, Some(default), 1..=largest);
        let config = Self {
            vocab_size: integer("vocab_size", 49_408, 1 << 24)?,
            hidden_size: integer("hidden_size", 512, 1 << 20)?,
            intermediate_size: integer("intermediate_size", 2048, 1 << 20)?,
            num_hidden_layers: object.integer("num_hidden_layers", Some(12), 2..=1024)?,
            num_attention_heads: integer("num_attention_heads", 8, 1024)?,
            max_position_embeddings: integer("max_position_embeddings", 77, 1 << 20)?,
            hidden_act: match object.text("hidden_act")?.unwrap_or("quick_gelu") {
                "quick_gelu" => ClipActivation::QuickGelu,
                "gelu" => ClipActivation::Gelu,
                other => {
                    let reason = format!("is {other:?}: supported are \"quick_gelu\" and \"gelu\"");
                    return Err(object.error("hidden_act", reason));
                }
            },
            layer_norm_eps: object.positive("layer_norm_eps", Some(1e-5))?,
            projection_dim: integer("projection_dim", 512, 1 << 20)?,
            eos_token_id: match object.integer("eos_token_id", Some(49_407), 0..=1 << 24)? {
                NO_END => None,
                end => Some(end),
            },
            is_projection_transposed: false,
        };
        if config.hidden_size % config.num_attention_heads != 0 {
            let reason = format!(
                "is {}, which is not a multiple of {} heads",
                config.hidden_size, config.num_attention_heads
            );
            return Err(object.error("hidden_size", reason));
        }
        Ok(config)
    }

    /// Infers the config from the shapes in a file with transformers' names; what they do not tell is as published.
    ///
    /// # Errors
    /// If it is no encoder of this kind.
    pub fn of_shapes(tensors: &dyn TensorSource) -> Result<Self, Error> {
        let wrong =
            |reason: &str| Error::file(tensors.path(), format!("no CLIP text encoder: {reason}"));
        let size = |name: &str, dimension: usize| {
            let shape = tensors.shape(name);
            let size = shape.and_then(|shape| shape.get(dimension).copied());
            size.ok_or_else(|| wrong(&format!("there is no `{name}`")))
        };
        let layer = |index: &i64| format!("encoder.layers.{index}.mlp.fc1.weight");
        let table = "embeddings.token_embedding.weight";
        let hidden_size = size(table, 1)?;
        // OpenCLIP's have the exact activation.
        let open = tensors.shape("text_projection").is_some();
        let config = Self {
            vocab_size: size(table, 0)?,
            hidden_size,
            intermediate_size: size(&layer(&0), 0)?,
            num_hidden_layers: (0..1024)
                .take_while(|index| tensors.shape(&layer(index)).is_some())
                .count() as i64,
            num_attention_heads: (hidden_size / HEAD).max(1),
            max_position_embeddings: size("embeddings.position_embedding.weight", 0)?,
            hidden_act: match open {
                true => ClipActivation::Gelu,
                false => ClipActivation::QuickGelu,
            },
            layer_norm_eps: 1e-5,
            projection_dim: match open {
                true => size("text_projection", 1)?,
                false => hidden_size,
            },
            eos_token_id: None,
            is_projection_transposed: open,
        };
        match config.num_hidden_layers {
            ..2 => Err(wrong("it has fewer than two layers")),
            _ if hidden_size % config.num_attention_heads != 0 => Err(wrong(&format!(
                "a width of {hidden_size}, which is not made of heads of {HEAD}"
            ))),
            _ => Ok(config),
        }
    }

    /// The position of the end token in a text.
    pub(super) fn end_of(&self, tokens: &[i64]) -> usize {
        let end = self.eos_token_id.or(tokens.iter().max().copied());
        let mut tokens = tokens.iter();
        // As in transformers, the first token if there is none.
        tokens.position(|token| Some(*token) == end).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::testing::{each_is_obeyed_or_refused, reading};

    #[test]
    fn each_key_of_a_config_is_obeyed_or_refused() {
        let read = reading(ClipConfig::read);
        let another = |key: &str| match key {
            "model_type" => json!("siglip_text_model"),
            "hidden_act" => json!("gelu"),
            "layer_norm_eps" => json!(0.5),
            "num_attention_heads" => json!(16),
            _ => json!(1024),
        };
        let keys = KEYS.into_iter().filter(|key| *key != "attention_dropout");
        each_is_obeyed_or_refused(&read, &json!({}), keys, &another, &[]);
        for (config, key) in [
            (json!({"hidden_act": "relu"}), "`hidden_act`"),
            (json!({"hidden_size": 511}), "`hidden_size`"),
            (json!({"num_hidden_layers": 1}), "`num_hidden_layers`"),
        ] {
            let reason = read(&config).unwrap_err();
            assert!(reason.contains(key), "{config}: {reason}");
        }
    }

    #[test]
    fn the_end_is_the_highest_token_unless_the_config_says_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let end = |id: i64, tokens: &[i64]| {
            std::fs::write(&path, json!({ "eos_token_id": id }).to_string()).unwrap();
            ClipConfig::read(&path).unwrap().end_of(tokens)
        };
        assert_eq!(end(2, &[7, 1, 9, 2, 9, 0]), 2);
        assert_eq!(end(5, &[7, 1, 9, 5, 5, 0]), 3);
        assert_eq!(end(5, &[7, 1]), 0);
    }
}
