//! The dimensions of a transformer, from `transformer/config.json` of a diffusers folder.

use std::path::Path;

use serde_json::json;

use super::{EPSILON, PATCH};
use crate::Error;
use crate::diffusion::files::PartFile;
use crate::diffusion::parts::double::Sizes;
use crate::diffusion::qwen_image::ARCH;
use crate::formats::TensorSource;
use crate::json::Object;

/// Dimensions of a transformer, with diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// Numbers of a token of the picture.
    pub in_channels: i64,
    /// Latent channels.
    pub out_channels: i64,
    /// Number of blocks.
    pub num_layers: i64,
    /// Width of a head.
    pub attention_head_dim: i64,
    /// Number of heads.
    pub num_attention_heads: i64,
    /// Width of the text encoder's states.
    pub joint_attention_dim: i64,
    /// Parts of a head that are turned by the frame, the row and the column.
    pub axes_dims_rope: [i64; 3],
}

const CLASS: &str = "QwenImageTransformer2DModel";

const KEYS: [&str; 12] = [
    "patch_size",
    "in_channels",
    "out_channels",
    "num_layers",
    "attention_head_dim",
    "num_attention_heads",
    "joint_attention_dim",
    "guidance_embeds",
    "axes_dims_rope",
    "zero_cond_t",
    "use_additional_t_cond",
    "use_layer3d_rope",
];

/// What shapes do not tell, as published.
const AXES: [i64; 3] = [16, 56, 56];

/// Tensors of single files of other models of the family, and which those are.
const OTHERS: [(&str, &str); 2] = [
    ("__index_timestep_zero__", "Qwen-Image-Edit-2511"),
    (
        "time_text_embed.addition_t_embedding.weight",
        "Qwen-Image-Layered",
    ),
];

impl TransformerConfig {
    /// Width of the residual stream.
    pub fn width(&self) -> i64 {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Those of a block.
    pub(in crate::diffusion::qwen_image) fn sizes(&self) -> Sizes {
        Sizes {
            width: self.width(),
            inner: 4 * self.width(),
            head: self.attention_head_dim,
            epsilon: EPSILON,
        }
    }

    /// Reads a `config.json`, with a warning for each unknown key.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let object = Object::read(path)?;
        let class = object.text("_class_name")?;
        if let Some(class) = class.filter(|class| *class != CLASS) {
            let reason = format!("is {class:?}: only {CLASS:?} is supported");
            return Err(object.error("_class_name", reason));
        }
        object.warn_about_unknown_keys(&KEYS);
        object.require("patch_size", &json!(PATCH), &json!(PATCH))?;
        // Guidance as an input, pictures that are changed (Edit 2511), and layers.
        for key in [
            "guidance_embeds",
            "zero_cond_t",
            "use_additional_t_cond",
            "use_layer3d_rope",
        ] {
            object.require(key, &json!(false), &json!(false))?;
        }
        let integer = |key, default, largest| object.integer(key, Some(default), 1..=largest);
        let axes = object.integers("axes_dims_rope", 1..=1 << 16)?;
        let config = Self {
            in_channels: integer("in_channels", 64, 4096)?,
            out_channels: integer("out_channels", 16, 4096)?,
            num_layers: object.integer("num_layers", Some(60), 0..=1024)?,
            attention_head_dim: integer("attention_head_dim", 128, 1 << 16)?,
            num_attention_heads: integer("num_attention_heads", 24, 1024)?,
            joint_attention_dim: integer("joint_attention_dim", 3584, 1 << 20)?,
            axes_dims_rope: axes
                .unwrap_or_else(|| AXES.to_vec())
                .try_into()
                .map_err(|_| {
                    let reason = "must have three values: frames, rows, columns";
                    object.error("axes_dims_rope", reason)
                })?,
        };
        match config.problem() {
            Some((key, reason)) => Err(object.error(key, reason)),
            None => Ok(config),
        }
    }

    /// Infers the config from the shapes in a file with diffusers' names; what they do not tell is as published.
    ///
    /// # Errors
    /// If it is no transformer of this kind.
    pub fn of_shapes(file: &PartFile) -> Result<Self, Error> {
        let wrong = |reason: String| Error::file(file.path(), reason);
        let size = |name: &str, dimension: usize| {
            let shape = file.shape(name);
            let size = shape.and_then(|shape| shape.get(dimension).copied());
            size.filter(|size| *size > 0).ok_or_else(|| {
                wrong(format!(
                    "not a Qwen-Image transformer: there is no `{name}`"
                ))
            })
        };
        for (name, model) in OTHERS {
            if file.unknown().iter().any(|unknown| unknown.ends_with(name)) {
                let reason = format!("its `{name}` is that of {model}, which is not supported");
                return Err(wrong(reason));
            }
        }
        let width = size("img_in.weight", 0)?;
        let head = size("transformer_blocks.0.attn.norm_q.weight", 0)?;
        let blocks = ARCH.blocks(file).first().copied().unwrap_or(0);
        let in_channels = size("img_in.weight", 1)?;
        let config = Self {
            in_channels,
            out_channels: in_channels / (PATCH * PATCH),
            num_layers: blocks as i64,
            attention_head_dim: head,
            num_attention_heads: width / head,
            joint_attention_dim: size("txt_in.weight", 1)?,
            axes_dims_rope: AXES,
        };
        match config.problem() {
            None if width % head == 0 => Ok(config),
            _ => Err(wrong(format!(
                "not a Qwen-Image transformer: a width of {width} with heads of {head}, where heads are of 128"
            ))),
        }
    }

    /// An inconsistency: a key, and what is wrong with it.
    fn problem(&self) -> Option<(&'static str, String)> {
        let axes = self.axes_dims_rope;
        let head = self.attention_head_dim;
        if axes.iter().sum::<i64>() != head || axes.iter().any(|width| width % 2 != 0) {
            let reason = format!(
                "is {axes:?}: even numbers are needed whose sum is the width of a head, {head}"
            );
            return Some(("axes_dims_rope", reason));
        }
        let patch = PATCH * PATCH * self.out_channels;
        (self.in_channels != patch).then(|| {
            let reason = format!(
                "is {}: {patch} is needed, {PATCH} × {PATCH} latents of {} channels",
                self.in_channels, self.out_channels
            );
            ("in_channels", reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn each_key_of_a_config_is_obeyed_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let read = |config: &Value| {
            std::fs::write(&path, config.to_string()).unwrap();
            TransformerConfig::read(&path).map_err(|error| error.to_string())
        };
        let base = read(&json!({})).unwrap();
        assert_eq!((base.width(), base.sizes().inner), (3072, 12288));
        for key in KEYS {
            let mut config = json!({});
            config[key] = match key {
                "axes_dims_rope" => json!([48, 40, 40]),
                "guidance_embeds"
                | "zero_cond_t"
                | "use_additional_t_cond"
                | "use_layer3d_rope" => json!(true),
                _ => json!(96),
            };
            match read(&config) {
                Ok(found) => assert_ne!(found, base, "{key} changes nothing"),
                // The parts of a head are those of its width, and a token is made of latents.
                Err(reason) if key == "attention_head_dim" => {
                    assert!(reason.contains("`axes_dims_rope`"), "{reason}");
                }
                Err(reason) if key == "out_channels" => {
                    assert!(reason.contains("`in_channels` is 64"), "{reason}");
                }
                Err(reason) => assert!(reason.contains(key), "{key}: {reason}"),
            }
        }
        for (config, told) in [
            (json!({"_class_name": "Other"}), "`_class_name` is"),
            (json!({"axes_dims_rope": [64, 64]}), "must have three"),
            (json!({"axes_dims_rope": [17, 55, 56]}), "even numbers"),
        ] {
            let reason = read(&config).unwrap_err();
            assert!(reason.contains(told), "{config}: {reason}");
        }
    }
}
