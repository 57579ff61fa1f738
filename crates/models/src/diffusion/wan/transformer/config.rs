//! The dimensions of a transformer, from `transformer/config.json` of a diffusers folder or from the shapes
//! in a single file.

use std::path::Path;

use crate::Error;
use crate::diffusion::parts::dimensions::of_class;
use crate::formats::TensorSource;

/// Dimensions of a transformer, with diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// Latent frames, rows and columns per token.
    pub patch_size: [i64; 3],
    /// Number of heads.
    pub num_attention_heads: i64,
    /// Width of a head.
    pub attention_head_dim: i64,
    /// Input channels: latents, and an image condition if there is one.
    pub in_channels: i64,
    /// Latent channels.
    pub out_channels: i64,
    /// Width of the text embeddings.
    pub text_dim: i64,
    /// Number of sines and cosines of the timestep.
    pub freq_dim: i64,
    /// Width of the feed-forward layers.
    pub ffn_dim: i64,
    /// Number of blocks.
    pub num_layers: i64,
    /// Whether the norm before the cross-attention has weights.
    pub cross_attn_norm: bool,
    /// Added to mean squares and variances.
    pub eps: f64,
    /// Maximum number of tokens along frames, rows or columns.
    pub rope_max_seq_len: i64,
}

const KNOWN: [&str; 16] = [
    "patch_size",
    "num_attention_heads",
    "attention_head_dim",
    "in_channels",
    "out_channels",
    "text_dim",
    "freq_dim",
    "ffn_dim",
    "num_layers",
    "cross_attn_norm",
    "qk_norm",
    "eps",
    "image_dim",
    "added_kv_proj_dim",
    "rope_max_seq_len",
    "pos_embed_seq_len",
];

const CLASS: &str = "WanTransformer3DModel";
const NORM: &str = "rms_norm_across_heads";

/// Head width of all published models.
const HEAD_WIDTH: i64 = 128;

impl TransformerConfig {
    /// Width of the residual stream.
    pub fn width(&self) -> i64 {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Elements of a token with `channels` channels.
    pub(super) fn patch(&self, channels: i64) -> i64 {
        channels * self.patch_size.iter().product::<i64>()
    }

    /// Reads a `config.json`, with a warning for each unknown key.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let object = of_class(path, CLASS, &KNOWN)?;
        for key in ["image_dim", "added_kv_proj_dim", "pos_embed_seq_len"] {
            if object.get(key).is_some() {
                return Err(object.error(key, IMAGE_EMBEDDER));
            }
        }
        let norm = object.text("qk_norm")?.unwrap_or(NORM);
        if norm != NORM {
            let reason = format!("is {norm:?}: only {NORM:?} is supported");
            return Err(object.error("qk_norm", reason));
        }
        let patch = object.integers("patch_size", 1..=64)?;
        let patch = patch.unwrap_or_else(|| vec![1, 2, 2]);
        let integer = |key, default, largest| object.integer(key, Some(default), 1..=largest);
        let in_channels = integer("in_channels", 16, 4096)?;
        let config = Self {
            patch_size: patch.try_into().map_err(|_| {
                object.error(
                    "patch_size",
                    "must have three values: frames, rows, columns",
                )
            })?,
            num_attention_heads: integer("num_attention_heads", 40, 1024)?,
            attention_head_dim: integer("attention_head_dim", 128, 4096)?,
            in_channels,
            out_channels: integer("out_channels", 16, 4096)?,
            text_dim: integer("text_dim", 4096, 1 << 16)?,
            freq_dim: integer("freq_dim", 256, 1 << 16)?,
            ffn_dim: integer("ffn_dim", 13824, 1 << 20)?,
            num_layers: integer("num_layers", 40, 1024)?,
            cross_attn_norm: object.flag("cross_attn_norm", true)?,
            eps: object.positive("eps", Some(1e-6))?,
            rope_max_seq_len: integer("rope_max_seq_len", 1024, 1 << 20)?,
        };
        let even = config.attention_head_dim % 2 == 0 && config.attention_head_dim >= 6;
        match (even, config.freq_dim % 2 == 0) {
            (true, true) => Ok(config),
            (false, _) => Err(object.error("attention_head_dim", "must be even, and at least 6")),
            (_, false) => Err(object.error("freq_dim", "must be even")),
        }
    }

    /// Infers the config from the shapes in a file with diffusers' names.
    pub fn of_shapes(tensors: &dyn TensorSource) -> Result<Self, Error> {
        Self::of_shapes_with(tensors, HEAD_WIDTH)
    }

    pub(super) fn of_shapes_with(
        tensors: &dyn TensorSource,
        head_width: i64,
    ) -> Result<Self, Error> {
        let wrong = |reason: String| Error::file(tensors.path(), reason);
        let names = tensors.names();
        let embedder = |name: &String| {
            name.starts_with("condition_embedder.image_embedder") || name.contains("add_k_proj")
        };
        if let Some(name) = names.iter().find(|name| embedder(name)) {
            return Err(wrong(format!("`{name}` {IMAGE_EMBEDDER}")));
        }
        let shape = |name: &str, dimensions: usize| {
            let shape = tensors
                .shape(name)
                .filter(|shape| shape.len() == dimensions);
            shape.ok_or_else(|| {
                wrong(format!(
                    "not a Wan transformer: there is no `{name}` of {dimensions} dimensions"
                ))
            })
        };
        let patch = shape("patch_embedding.weight", 5)?;
        let (width, patch_size) = (patch[0], [patch[2], patch[3], patch[4]]);
        if width % head_width != 0 {
            return Err(wrong(format!(
                "the width {width} is not a multiple of {head_width}, the width of a head"
            )));
        }
        let layer = |name: &String| -> Option<i64> {
            name.strip_prefix("blocks.")?
                .split('.')
                .next()?
                .parse()
                .ok()
        };
        Ok(Self {
            patch_size,
            num_attention_heads: width / head_width,
            attention_head_dim: head_width,
            in_channels: patch[1],
            out_channels: shape("proj_out.weight", 2)?[0] / patch_size.iter().product::<i64>(),
            text_dim: shape("condition_embedder.text_embedder.linear_1.weight", 2)?[1],
            freq_dim: shape("condition_embedder.time_embedder.linear_1.weight", 2)?[1],
            ffn_dim: shape("blocks.0.ffn.net.0.proj.weight", 2)?[0],
            num_layers: names
                .iter()
                .filter_map(layer)
                .max()
                .map_or(0, |last| last + 1),
            cross_attn_norm: tensors.shape("blocks.0.norm2.weight").is_some(),
            eps: 1e-6,
            rope_max_seq_len: 1024,
        })
    }
}

const IMAGE_EMBEDDER: &str = "belongs to the image-to-video model of Wan 2.1, whose image embedder \
                              (CLIP) is not supported; that of Wan 2.2 has none";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json::testing::{each_is_obeyed_or_refused, reading};

    #[test]
    fn each_key_of_a_config_is_obeyed_or_refused() {
        let read = reading(TransformerConfig::read);
        let another = |key: &str| match key {
            "patch_size" => json!([1, 4, 4]),
            "cross_attn_norm" => json!(false),
            "qk_norm" => json!("layer_norm"),
            "eps" => json!(0.5),
            _ => json!(8),
        };
        each_is_obeyed_or_refused(&read, &json!({}), KNOWN, &another, &[]);
    }
}
