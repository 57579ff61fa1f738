//! The dimensions of a transformer, from `transformer/config.json` of a diffusers folder.

use std::path::Path;

use serde_json::{Value, json};

use super::{EPSILON, PATCH};
use crate::Error;
use crate::diffusion::files::PartFile;
use crate::diffusion::flux1::{ARCH, names};
use crate::diffusion::parts::dimensions::{
    Problem, Shapes, of_axes, of_class, problem_of_axes, sound,
};
use crate::diffusion::parts::double::Sizes;

/// Dimensions of a transformer, with diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// Numbers of a token of the picture.
    pub in_channels: i64,
    /// Number of blocks with a stream for the text and one for the picture.
    pub num_layers: i64,
    /// Number of blocks with one stream for both.
    pub num_single_layers: i64,
    /// Width of a head.
    pub attention_head_dim: i64,
    /// Number of heads.
    pub num_attention_heads: i64,
    /// Width of T5's states.
    pub joint_attention_dim: i64,
    /// Width of CLIP's vector.
    pub pooled_projection_dim: i64,
    /// Whether it is told the guidance.
    pub guidance_embeds: bool,
    /// Parts of a head that are turned by the picture, the row and the column.
    pub axes_dims_rope: [i64; 3],
}

const CLASS: &str = "FluxTransformer2DModel";

const KEYS: [&str; 11] = [
    "patch_size",
    "in_channels",
    "out_channels",
    "num_layers",
    "num_single_layers",
    "attention_head_dim",
    "num_attention_heads",
    "joint_attention_dim",
    "pooled_projection_dim",
    "guidance_embeds",
    "axes_dims_rope",
];

/// What shapes do not tell, as published.
const AXES: [i64; 3] = [16, 56, 56];

impl TransformerConfig {
    /// Width of the residual stream.
    pub fn width(&self) -> i64 {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Latent channels.
    pub fn channels(&self) -> i64 {
        self.in_channels / (PATCH * PATCH)
    }

    /// Those of a block.
    pub(in crate::diffusion::flux1) fn sizes(&self) -> Sizes {
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
        let object = of_class(path, CLASS, &KEYS)?;
        object.require("patch_size", &json!(1), &json!(1))?;
        let integer = |key, default, largest| object.integer(key, Some(default), 1..=largest);
        let in_channels = integer("in_channels", 64, 4096)?;
        if object.get("out_channels").is_some() {
            // Others are given a picture, too (Fill, Canny, Depth).
            object.require("out_channels", &json!(in_channels), &Value::Null)?;
        }
        let axes = "pictures, rows, columns";
        let config = Self {
            in_channels,
            num_layers: object.integer("num_layers", Some(19), 0..=1024)?,
            num_single_layers: object.integer("num_single_layers", Some(38), 0..=1024)?,
            attention_head_dim: integer("attention_head_dim", 128, 1 << 16)?,
            num_attention_heads: integer("num_attention_heads", 24, 1024)?,
            joint_attention_dim: integer("joint_attention_dim", 4096, 1 << 20)?,
            pooled_projection_dim: integer("pooled_projection_dim", 768, 1 << 20)?,
            guidance_embeds: object.flag("guidance_embeds", false)?,
            axes_dims_rope: of_axes(&object, "axes_dims_rope", AXES, axes)?,
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
        if names::is_chroma(file) {
            let reason = "it is one of Chroma (`distilled_guidance_layer`), which is not supported";
            return Err(shapes.no(reason));
        }
        let size = |name: &str, at| shapes.size(name, at);
        let (width, in_channels) = (size("x_embedder.weight", 0)?, size("x_embedder.weight", 1)?);
        let outputs = size("proj_out.weight", 0)?;
        if outputs != in_channels {
            return Err(shapes.no(format!(
                "it takes {in_channels} numbers of a token and makes {outputs}, as models that are given a picture, too \
                 (Fill, Canny, Depth), which are not supported"
            )));
        }
        let head = size("transformer_blocks.0.attn.norm_q.weight", 0)?;
        let of_text = "time_text_embed.text_embedder.linear_1.weight";
        let config = Self {
            in_channels,
            num_layers: shapes.blocks(0),
            num_single_layers: shapes.blocks(1),
            attention_head_dim: head,
            num_attention_heads: width / head,
            joint_attention_dim: size("context_embedder.weight", 1)?,
            pooled_projection_dim: size(of_text, 1)?,
            guidance_embeds: shapes.has("time_text_embed.guidance_embedder.linear_1.weight"),
            axes_dims_rope: AXES,
        };
        match config.problem() {
            None if width % head == 0 => Ok(config),
            _ => Err(shapes.no(format!(
                "a width of {width} with heads of {head}, where heads are of 128"
            ))),
        }
    }

    /// An inconsistency: a key, and what is wrong with it.
    fn problem(&self) -> Option<Problem> {
        let channels = self.in_channels;
        if channels % (PATCH * PATCH) != 0 {
            let reason = format!("is {channels}: {PATCH} × {PATCH} latents are a token");
            return Some(("in_channels", reason));
        }
        let head = self.attention_head_dim;
        problem_of_axes("axes_dims_rope", &self.axes_dims_rope, head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::testing::{each_is_obeyed_or_refused, reading};

    #[test]
    fn each_key_of_a_config_is_obeyed_or_refused() {
        let read = reading(TransformerConfig::read);
        let base = read(&json!({})).unwrap();
        assert_eq!((base.width(), base.channels()), (3072, 16));
        let another = |key: &str| match key {
            "axes_dims_rope" => json!([48, 40, 40]),
            "guidance_embeds" => json!(true),
            _ => json!(96),
        };
        // The parts of a head are those of its width.
        let refusals = [("attention_head_dim", "`axes_dims_rope`")];
        each_is_obeyed_or_refused(&read, &json!({}), KEYS, &another, &refusals);
        for (config, told) in [
            (
                json!({"_class_name": "ChromaTransformer2DModel"}),
                "only \"Flux",
            ),
            (json!({"axes_dims_rope": [64, 64]}), "must have three"),
            (json!({"in_channels": 6}), "2 × 2 latents"),
            (
                json!({"in_channels": 384, "out_channels": 64}),
                "`out_channels` is 64",
            ),
        ] {
            let reason = read(&config).unwrap_err();
            assert!(reason.contains(told), "{config}: {reason}");
        }
    }
}
