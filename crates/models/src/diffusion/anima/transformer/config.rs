//! The dimensions of transformer and conditioner, from the `config.json` of diffusers' folders or from the shapes in a
//! single file.

use std::path::Path;

use serde_json::{Value, json};

use super::PATCH;
use crate::Error;
use crate::diffusion::anima::ARCH;
use crate::diffusion::files::PartFile;
use crate::diffusion::parts::dimensions::{Problem, Shapes, of_axes, of_class, sound};
use crate::formats::TensorSource;

/// Dimensions of a transformer, with diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// Latent channels.
    pub in_channels: i64,
    /// Number of heads.
    pub num_attention_heads: i64,
    /// Width of a head.
    pub attention_head_dim: i64,
    /// Number of blocks.
    pub num_layers: i64,
    /// Width of the feed-forward layers, as a multiple of the width.
    pub mlp_ratio: f64,
    /// Width of the text's rows.
    pub text_embed_dim: i64,
    /// Width between the two matrices of a modulation.
    pub adaln_lora_dim: i64,
    /// The largest number of latents in time and in each direction; the largest of their numbers of patches is the limit
    /// for each.
    pub max_size: [i64; 3],
    /// By how much more positions the rotary frequencies of each axis are stretched than in the model's beginning.
    pub rope_scale: [f64; 3],
    /// Whether a channel of zeros follows those of the latents.
    pub concat_padding_mask: bool,
}

/// Dimensions of a conditioner, with diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct ConditionerConfig {
    /// Width of the language model's states.
    pub source_dim: i64,
    /// Width of the text's rows, inside and outside.
    pub target_dim: i64,
    /// Number of blocks.
    pub num_layers: i64,
    /// Number of heads.
    pub num_attention_heads: i64,
    /// Width of the feed-forward layers, as a multiple of the width.
    pub mlp_ratio: f64,
    /// Number of T5's tokens.
    pub target_vocab_size: i64,
    /// A shorter text is followed by zeros up to this number of rows.
    pub min_sequence_length: i64,
}

const CLASS: &str = "CosmosTransformer3DModel";

const KEYS: [&str; 20] = [
    "in_channels",
    "out_channels",
    "num_attention_heads",
    "attention_head_dim",
    "num_layers",
    "mlp_ratio",
    "text_embed_dim",
    "adaln_lora_dim",
    "max_size",
    "patch_size",
    "rope_scale",
    "concat_padding_mask",
    "extra_pos_embed_type",
    "use_crossattn_projection",
    "controlnet_block_every_n",
    "img_context_dim_in",
    // Of a projection that is not used.
    "crossattn_proj_in_channels",
    "encoder_hidden_states_channels",
    "img_context_num_tokens",
    "img_context_dim_out",
];

const CONDITIONER_CLASS: &str = "AnimaTextConditioner";

const CONDITIONER_KEYS: [&str; 10] = [
    "source_dim",
    "target_dim",
    "model_dim",
    "num_layers",
    "num_attention_heads",
    "mlp_ratio",
    "target_vocab_size",
    "use_self_attention",
    "use_layer_norm",
    "min_sequence_length",
];

impl TransformerConfig {
    /// Width of the residual stream.
    pub fn width(&self) -> i64 {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Width of the feed-forward layers.
    pub fn inner(&self) -> i64 {
        inner(self.width(), self.mlp_ratio)
    }

    /// Channels of the input: the latents', and perhaps one of zeros.
    pub fn patch_channels(&self) -> i64 {
        self.in_channels + i64::from(self.concat_padding_mask)
    }

    /// Widths of the parts of a head that are turned by the position in time, the row and the column.
    pub fn axes(&self) -> [i64; 3] {
        let in_space = self.attention_head_dim / 6 * 2;
        [self.attention_head_dim - 2 * in_space, in_space, in_space]
    }

    /// The largest number of tokens in each direction.
    pub fn most(&self) -> i64 {
        let [frames, rows, columns] = self.max_size;
        frames.max(rows / PATCH).max(columns / PATCH)
    }

    /// Reads a `config.json`, with a warning for each unknown key.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let object = of_class(path, CLASS, &KEYS)?;
        let patch = json!([1, PATCH, PATCH]);
        object.require("patch_size", &patch, &patch)?;
        // Its default is another one.
        object.require("extra_pos_embed_type", &Value::Null, &json!("learnable"))?;
        object.require("use_crossattn_projection", &json!(false), &json!(false))?;
        for key in ["controlnet_block_every_n", "img_context_dim_in"] {
            object.require(key, &Value::Null, &Value::Null)?;
        }
        let integer = |key, default| object.integer(key, Some(default), 1..=1 << 20);
        let in_channels = integer("in_channels", 16)?;
        object.require("out_channels", &json!(in_channels), &json!(16))?;
        let axes = "frames, rows, columns";
        let scales = object.numbers("rope_scale")?;
        let config = Self {
            in_channels,
            num_attention_heads: object.integer("num_attention_heads", Some(32), 1..=1024)?,
            attention_head_dim: object.integer("attention_head_dim", Some(128), 1..=4096)?,
            num_layers: object.integer("num_layers", Some(28), 1..=1024)?,
            mlp_ratio: object.positive("mlp_ratio", Some(4.0))?,
            text_embed_dim: integer("text_embed_dim", 1024)?,
            adaln_lora_dim: integer("adaln_lora_dim", 256)?,
            max_size: of_axes(&object, "max_size", [128, 240, 240], axes)?,
            rope_scale: (scales.unwrap_or_else(|| vec![2.0, 1.0, 1.0]).try_into()).map_err(
                |_| object.error("rope_scale", format!("must have three values: {axes}")),
            )?,
            concat_padding_mask: object.flag("concat_padding_mask", true)?,
        };
        let problem = config.problem();
        sound(&object, config, problem)
    }

    /// Infers the config from the shapes in a file with diffusers' names; what they do not tell is as published.
    ///
    /// # Errors
    /// If it is no transformer of this kind.
    pub fn of_shapes(file: &PartFile) -> Result<Self, Error> {
        let shapes = Shapes::new(&ARCH, file);
        let size = |name: &str, at| shapes.size(&format!("{name}.weight"), at);
        let extra = file
            .unknown()
            .iter()
            .find(|name| name.contains("extra_pos_embedder"));
        if let Some(name) = extra {
            let reason = format!("`{name}`: learned positions are not supported");
            return Err(Error::file(file.path(), reason));
        }
        let first = |part: &str| format!("transformer_blocks.0.{part}");
        let width = size("patch_embed.proj", 0)?;
        let head = size(&first("attn1.norm_q"), 0)?;
        let [inputs, outputs] =
            [size("patch_embed.proj", 1)?, size("proj_out", 0)?].map(|n| n / (PATCH * PATCH));
        if !(outputs..=outputs + 1).contains(&inputs) {
            let reason = format!(
                "takes {inputs} channels for latents of {outputs}: only text-to-picture models, which take {} of them, \
                 are supported",
                outputs + 1
            );
            return Err(Error::file(file.path(), reason));
        }
        let config = Self {
            in_channels: outputs,
            num_attention_heads: width / head,
            attention_head_dim: head,
            num_layers: shapes.blocks(1),
            mlp_ratio: size(&first("ff.net.0.proj"), 0)? as f64 / width as f64,
            text_embed_dim: size(&first("attn2.to_k"), 1)?,
            adaln_lora_dim: size(&first("norm1.linear_1"), 0)?,
            max_size: [128, 240, 240],
            rope_scale: [1.0, 4.0, 4.0],
            concat_padding_mask: inputs > outputs,
        };
        match config.problem() {
            Some((key, reason)) => Err(Error::file(file.path(), format!("`{key}` {reason}"))),
            None => Ok(config),
        }
    }

    /// An inconsistency: a key, and what is wrong with it.
    fn problem(&self) -> Option<Problem> {
        let head = self.attention_head_dim;
        // The frequencies of an axis with one pair cannot be stretched.
        if head % 2 != 0 || self.axes().iter().any(|width| *width < 4) {
            let reason = format!("is {head}: an even number is needed, of at least 12");
            return Some(("attention_head_dim", reason));
        }
        self.rope_scale
            .iter()
            .any(|scale| !scale.is_finite() || *scale <= 0.0)
            .then(|| ("rope_scale", "must be greater than zero".into()))
    }
}

impl ConditionerConfig {
    /// Width of the feed-forward layers.
    pub fn inner(&self) -> i64 {
        inner(self.target_dim, self.mlp_ratio)
    }

    /// Width of a head.
    pub fn head_dim(&self) -> i64 {
        self.target_dim / self.num_attention_heads
    }

    /// Reads a `config.json`, with a warning for each unknown key.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let object = of_class(path, CONDITIONER_CLASS, &CONDITIONER_KEYS)?;
        object.require("use_self_attention", &json!(true), &json!(true))?;
        object.require("use_layer_norm", &json!(false), &json!(false))?;
        let integer = |key, default| object.integer(key, Some(default), 1..=1 << 20);
        let target_dim = integer("target_dim", 1024)?;
        object.require("model_dim", &json!(target_dim), &json!(1024))?;
        let config = Self {
            source_dim: integer("source_dim", 1024)?,
            target_dim,
            num_layers: object.integer("num_layers", Some(6), 1..=1024)?,
            num_attention_heads: object.integer("num_attention_heads", Some(16), 1..=1024)?,
            mlp_ratio: object.positive("mlp_ratio", Some(4.0))?,
            target_vocab_size: integer("target_vocab_size", 32_128)?,
            min_sequence_length: object.integer("min_sequence_length", Some(512), 0..=1 << 20)?,
        };
        let problem = config.problem();
        sound(&object, config, problem)
    }

    /// Infers the config from the shapes in a file with diffusers' names; what they do not tell is as published.
    ///
    /// # Errors
    /// If there is no conditioner in it.
    pub fn of_shapes(file: &PartFile) -> Result<Self, Error> {
        let part = |part: &str| format!("text_conditioner.{part}");
        if file.shape(&part("embed.weight")).is_none() {
            let reason = format!(
                "has no `llm_adapter`, as {} has: it is Cosmos-Predict2, or the adapter was left out; take the file with \
                 it",
                ARCH.title
            );
            return Err(Error::file(file.path(), reason));
        }
        let shapes = Shapes::new(&ARCH, file);
        let size = |name: &str, at| shapes.size(&part(&format!("{name}.weight")), at);
        let width = size("embed", 1)?;
        let config = Self {
            source_dim: size("blocks.0.cross_attn.k_proj", 1)?,
            target_dim: width,
            num_layers: shapes.blocks(0),
            num_attention_heads: width / size("blocks.0.cross_attn.q_norm", 0)?,
            mlp_ratio: size("blocks.0.mlp.0", 0)? as f64 / width as f64,
            target_vocab_size: size("embed", 0)?,
            min_sequence_length: 512,
        };
        match config.problem() {
            Some((key, reason)) => Err(Error::file(file.path(), format!("`{key}` {reason}"))),
            None => Ok(config),
        }
    }

    /// An inconsistency: a key, and what is wrong with it.
    fn problem(&self) -> Option<Problem> {
        let (width, heads) = (self.target_dim, self.num_attention_heads);
        (heads < 1 || width % (2 * heads) != 0).then(|| {
            let reason =
                format!("is {heads}: a width of {width} is not made of so many even heads");
            ("num_attention_heads", reason)
        })
    }
}

/// Width of a feed-forward layer; in diffusers it is rounded down.
fn inner(width: i64, ratio: f64) -> i64 {
    (width as f64 * ratio) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::testing::reading;

    /// Reads a config with each of `keys` changed, which must show in what is read or in the error.
    fn each_key<T: PartialEq + std::fmt::Debug>(
        plain: &Value,
        keys: &[&str],
        ineffective: &[&str],
        read: fn(&Path) -> Result<T, Error>,
    ) {
        let read = reading(read);
        let base = read(plain).unwrap();
        for key in keys {
            let mut config = plain.clone();
            config[key] = match *key {
                "max_size" => json!([64, 480, 480]),
                "patch_size" => json!([1, 4, 4]),
                "rope_scale" => json!([1.0, 3.0, 3.0]),
                "use_crossattn_projection" | "use_layer_norm" => json!(true),
                "concat_padding_mask" | "use_self_attention" => json!(false),
                "extra_pos_embed_type" => json!("learnable"),
                "mlp_ratio" => json!(2.0),
                _ => json!(64),
            };
            match read(&config) {
                Ok(found) if ineffective.contains(key) => assert_eq!(found, base, "{key}"),
                Ok(found) => assert_ne!(found, base, "{key} changes nothing"),
                // Channels of the output follow those of the input, and the width inside that outside.
                Err(reason) => {
                    let other = match *key {
                        "in_channels" => "out_channels",
                        "target_dim" => "model_dim",
                        own => own,
                    };
                    assert!(reason.contains(other), "{key}: {reason}");
                }
            }
        }
        let mut config = plain.clone();
        config["_class_name"] = json!("FluxTransformer2DModel");
        assert!(read(&config).unwrap_err().contains("`_class_name`"));
    }

    #[test]
    fn each_key_of_a_config_is_obeyed_refused_or_without_effect() {
        let plain = json!({"extra_pos_embed_type": null});
        each_key(&plain, &KEYS, &KEYS[16..], TransformerConfig::read);
        each_key(&json!({}), &CONDITIONER_KEYS, &[], ConditionerConfig::read);
    }

    #[test]
    fn what_cannot_be_built_is_refused() {
        let read = reading(TransformerConfig::read);
        for (config, told) in [
            (json!({}), "`extra_pos_embed_type`"),
            (
                json!({"extra_pos_embed_type": null, "attention_head_dim": 10}),
                "`attention_head_dim`",
            ),
            (
                json!({"extra_pos_embed_type": null, "rope_scale": [1.0, 0.0, 1.0]}),
                "`rope_scale`",
            ),
            (
                json!({"extra_pos_embed_type": null, "max_size": [1, 2]}),
                "three values",
            ),
        ] {
            let error = read(&config).unwrap_err();
            assert!(error.contains(told), "{config}: {error}");
        }
        let read = reading(ConditionerConfig::read);
        let error = read(&json!({"num_attention_heads": 15})).unwrap_err();
        assert!(error.contains("`num_attention_heads`"), "{error}");
    }
}
