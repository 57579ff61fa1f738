//! The dimensions of a transformer, from `transformer/config.json` of a diffusers folder.

use std::path::Path;

use serde_json::{Value, json};

use super::{ApproximatorSizes, EPSILON, PATCH};
use crate::Error;
use crate::diffusion::files::PartFile;
use crate::diffusion::flux1::{ARCH, chroma};
use crate::diffusion::parts::dimensions::{
    Problem, Shapes, of_axes, of_class, problem_of_axes, sound,
};
use crate::diffusion::parts::double::Sizes;
use crate::json::Object;

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
    /// Width of CLIP's vector; 0 if there is none.
    pub pooled_projection_dim: i64,
    /// Whether it is told the guidance.
    pub guidance_embeds: bool,
    /// The network that modulates Chroma.
    pub approximator: Option<ApproximatorSizes>,
    /// Parts of a head that are turned by the picture, the row and the column.
    pub axes_dims_rope: [i64; 3],
}

/// The classes, and the keys of each beside [`KEYS`].
const FLUX1: (&str, [&str; 2]) = (
    "FluxTransformer2DModel",
    ["pooled_projection_dim", "guidance_embeds"],
);
const CHROMA: (&str, [&str; 3]) = (
    "ChromaTransformer2DModel",
    [
        "approximator_num_channels",
        "approximator_hidden_dim",
        "approximator_layers",
    ],
);

const KEYS: [&str; 9] = [
    "patch_size",
    "in_channels",
    "out_channels",
    "num_layers",
    "num_single_layers",
    "attention_head_dim",
    "num_attention_heads",
    "joint_attention_dim",
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
        let object = of_class(path, FLUX1.0, &[&KEYS[..], &FLUX1.1].concat())?;
        let width = object.integer("pooled_projection_dim", Some(768), 1..=1 << 20)?;
        let guidance = object.flag("guidance_embeds", false)?;
        Self::of_object(&object, (width, guidance, None))
    }

    /// The same of Chroma.
    ///
    /// # Errors
    /// As [`TransformerConfig::read`].
    pub fn read_chroma(path: &Path) -> Result<Self, Error> {
        let object = of_class(path, CHROMA.0, &[&KEYS[..], &CHROMA.1].concat())?;
        let integer = |key, default, largest| object.integer(key, Some(default), 1..=largest);
        let approximator = ApproximatorSizes {
            channels: integer("approximator_num_channels", 64, 1 << 16)?,
            hidden: integer("approximator_hidden_dim", 5120, 1 << 20)?,
            layers: integer("approximator_layers", 5, 1024)?,
        };
        Self::of_object(&object, (0, false, Some(approximator)))
    }

    /// What both have; with the width of CLIP's vector, whether it is told the guidance, and the network that modulates it.
    fn of_object(
        object: &Object,
        (pooled, guidance, approximator): (i64, bool, Option<ApproximatorSizes>),
    ) -> Result<Self, Error> {
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
            pooled_projection_dim: pooled,
            guidance_embeds: guidance,
            approximator,
            axes_dims_rope: of_axes(object, "axes_dims_rope", AXES, axes)?,
        };
        let problem = config.problem();
        sound(object, config, problem)
    }

    /// Infers the config from the shapes in a file with diffusers' names; what they do not tell is as published.
    ///
    /// # Errors
    /// If it is no transformer of this kind.
    pub fn of_shapes(file: &PartFile) -> Result<Self, Error> {
        let shapes = Shapes::new(&ARCH, file);
        let of_text = "time_text_embed.text_embedder.linear_1.weight";
        let guidance = shapes.has("time_text_embed.guidance_embedder.linear_1.weight");
        let others = (shapes.size(of_text, 1)?, guidance, None);
        Self::inferred(&shapes, others)
    }

    /// The same of Chroma.
    ///
    /// # Errors
    /// As [`TransformerConfig::of_shapes`].
    pub fn chroma_of_shapes(file: &PartFile) -> Result<Self, Error> {
        let shapes = Shapes::new(&chroma::ARCH, file);
        if file.unknown().iter().any(|name| name.contains("nerf_")) {
            let reason = "it is one of Chroma Radiance (`nerf_`), which works on pixels and is not supported";
            return Err(shapes.no(reason));
        }
        let input = "distilled_guidance_layer.in_proj.weight";
        let layer = |number: &i64| {
            shapes.has(&format!(
                "distilled_guidance_layer.layers.{number}.linear_1.weight"
            ))
        };
        let approximator = ApproximatorSizes {
            channels: shapes.size(input, 1)?,
            hidden: shapes.size(input, 0)?,
            layers: (0..).take_while(layer).count() as i64,
        };
        Self::inferred(&shapes, (0, false, Some(approximator)))
    }

    /// What both have, as in [`Self::of_object`].
    fn inferred(
        shapes: &Shapes<'_>,
        (pooled, guidance, approximator): (i64, bool, Option<ApproximatorSizes>),
    ) -> Result<Self, Error> {
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
        let config = Self {
            in_channels,
            num_layers: shapes.blocks(0),
            num_single_layers: shapes.blocks(1),
            attention_head_dim: head,
            num_attention_heads: width / head,
            joint_attention_dim: size("context_embedder.weight", 1)?,
            pooled_projection_dim: pooled,
            guidance_embeds: guidance,
            approximator,
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
        let sines = self.approximator.map_or(8, |network| network.channels);
        if sines % 8 != 0 {
            let reason = format!("is {sines}: a quarter of them must be pairs");
            return Some(("approximator_num_channels", reason));
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
        let read_chroma = reading(TransformerConfig::read_chroma);
        let base = read(&json!({})).unwrap();
        assert_eq!((base.width(), base.channels()), (3072, 16));
        assert!(base.approximator.is_none() && read_chroma(&json!({})).unwrap() != base);
        let another = |key: &str| match key {
            "axes_dims_rope" => json!([48, 40, 40]),
            "guidance_embeds" => json!(true),
            _ => json!(96),
        };
        // The parts of a head are those of its width.
        let refusals = [("attention_head_dim", "`axes_dims_rope`")];
        let keys = [&KEYS[..], &FLUX1.1].concat();
        each_is_obeyed_or_refused(&read, &json!({}), keys, &another, &refusals);
        let keys = [&KEYS[..], &CHROMA.1].concat();
        each_is_obeyed_or_refused(&read_chroma, &json!({}), keys, &another, &refusals);
        let reason = read_chroma(&json!({"approximator_num_channels": 12})).unwrap_err();
        assert!(reason.contains("must be pairs"), "{reason}");
        let reason = read_chroma(&json!({"_class_name": "FluxTransformer2DModel"})).unwrap_err();
        assert!(reason.contains("only \"Chroma"), "{reason}");
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
