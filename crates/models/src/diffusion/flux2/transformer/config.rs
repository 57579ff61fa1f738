//! The dimensions of a transformer, from `transformer/config.json` of a diffusers folder.

use std::path::Path;

use serde_json::{Value, json};

use crate::Error;
use crate::diffusion::files::PartFile;
use crate::diffusion::flux2::ARCH;
use crate::diffusion::parts::dimensions::{
    Problem, Shapes, of_axes, of_class, problem_of_axes, sound,
};

/// Dimensions of a transformer, with diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// Channels of its latents, of which each is a token.
    pub in_channels: i64,
    /// Number of blocks with a stream for the text and one for the picture.
    pub num_layers: i64,
    /// Number of blocks with one stream for both.
    pub num_single_layers: i64,
    /// Width of a head.
    pub attention_head_dim: i64,
    /// Number of heads.
    pub num_attention_heads: i64,
    /// Width of the text encoder's states.
    pub joint_attention_dim: i64,
    /// Number of sines and cosines of the time.
    pub timestep_guidance_channels: i64,
    /// Width of the feed-forward layers, in widths of the residual stream.
    pub mlp_ratio: f64,
    /// Parts of a head that are turned by the reference, the row, the column and the position in the text.
    pub axes_dims_rope: [i64; 4],
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to variances and mean squares.
    pub eps: f64,
}

const CLASS: &str = "Flux2Transformer2DModel";

const KEYS: [&str; 14] = [
    "patch_size",
    "in_channels",
    "out_channels",
    "num_layers",
    "num_single_layers",
    "attention_head_dim",
    "num_attention_heads",
    "joint_attention_dim",
    "timestep_guidance_channels",
    "mlp_ratio",
    "axes_dims_rope",
    "rope_theta",
    "eps",
    "guidance_embeds",
];

/// What shapes do not tell, as published.
const THETA: f64 = 2000.0;
const EPSILON: f64 = 1e-6;

impl TransformerConfig {
    /// Width of the residual stream.
    pub fn width(&self) -> i64 {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Width of the feed-forward layers.
    pub fn inner(&self) -> i64 {
        // As in diffusers.
        (self.width() as f64 * self.mlp_ratio) as i64
    }

    /// Reads a `config.json`, with a warning for each unknown key.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let object = of_class(path, CLASS, &KEYS)?;
        object.require("patch_size", &json!(1), &json!(1))?;
        // FLUX.2 [dev] and its guidance are not supported.
        object.require("guidance_embeds", &json!(false), &json!(true))?;
        let integer = |key, default, largest| object.integer(key, Some(default), 1..=largest);
        let in_channels = integer("in_channels", 128, 4096)?;
        if object.get("out_channels").is_some() {
            object.require("out_channels", &json!(in_channels), &Value::Null)?;
        }
        let axes = "references, rows, columns, position in the text";
        let config = Self {
            in_channels,
            num_layers: object.integer("num_layers", Some(8), 0..=1024)?,
            num_single_layers: object.integer("num_single_layers", Some(48), 0..=1024)?,
            attention_head_dim: integer("attention_head_dim", 128, 1 << 16)?,
            num_attention_heads: integer("num_attention_heads", 48, 1024)?,
            joint_attention_dim: integer("joint_attention_dim", 15360, 1 << 20)?,
            timestep_guidance_channels: integer("timestep_guidance_channels", 256, 1 << 16)?,
            mlp_ratio: object.positive("mlp_ratio", Some(3.0))?,
            axes_dims_rope: of_axes(&object, "axes_dims_rope", [32; 4], axes)?,
            rope_theta: object.positive("rope_theta", Some(THETA))?,
            eps: object.positive("eps", Some(EPSILON))?,
        };
        let problem = config.problem();
        sound(&object, config, problem)
    }

    /// Infers the config from the shapes in a file with diffusers' names; what they do not tell is as published.
    ///
    /// # Errors
    /// If it is no transformer of this kind.
    pub fn of_shapes(tensors: &PartFile) -> Result<Self, Error> {
        let shapes = Shapes::new(&ARCH, tensors);
        if shapes.has("time_guidance_embed.guidance_embedder.linear_1.weight") {
            let reason = "its guidance is an input (`guidance_in`), as that of FLUX.2 [dev], which is not supported";
            return Err(shapes.wrong(reason));
        }
        let size = |name: &str, at| shapes.size(name, at);
        let width = size("x_embedder.weight", 0)?;
        let head = size("transformer_blocks.0.attn.norm_q.weight", 0)?;
        let inner = size("transformer_blocks.0.ff.linear_out.weight", 1)?;
        let time = "time_guidance_embed.timestep_embedder.linear_1.weight";
        let config = Self {
            in_channels: size("x_embedder.weight", 1)?,
            num_layers: shapes.blocks(0),
            num_single_layers: shapes.blocks(1),
            attention_head_dim: head,
            num_attention_heads: width / head,
            joint_attention_dim: size("context_embedder.weight", 1)?,
            timestep_guidance_channels: size(time, 1)?,
            mlp_ratio: inner as f64 / width as f64,
            axes_dims_rope: [head / 4; 4],
            rope_theta: THETA,
            eps: EPSILON,
        };
        match config.problem() {
            None if width % head == 0 => Ok(config),
            _ => Err(shapes.no(format!("a width of {width} with heads of {head}"))),
        }
    }

    /// An inconsistency: a key, and what is wrong with it.
    fn problem(&self) -> Option<Problem> {
        let head = self.attention_head_dim;
        let problem = problem_of_axes("axes_dims_rope", &self.axes_dims_rope, head);
        if problem.is_some() {
            return problem;
        }
        let sines = self.timestep_guidance_channels;
        if sines % 2 != 0 {
            let reason = format!("is {sines}: an even number is needed, of sines and cosines");
            return Some(("timestep_guidance_channels", reason));
        }
        (self.inner() < 1).then(|| {
            let reason = format!("is {}: the feed-forward layers are empty", self.mlp_ratio);
            ("mlp_ratio", reason)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::testing::{each_is_obeyed_or_refused, reading};

    #[test]
    fn each_key_of_a_config_is_obeyed_or_refused() {
        let read = reading(TransformerConfig::read);
        let reason = read(&json!({})).unwrap_err();
        assert!(
            reason.contains("`guidance_embeds` is missing, which means true"),
            "{reason}"
        );
        let plain = json!({"guidance_embeds": false});
        let base = read(&plain).unwrap();
        assert_eq!((base.width(), base.inner()), (6144, 18432));
        let another = |key: &str| match key {
            "axes_dims_rope" => json!([16, 48, 48, 16]),
            "guidance_embeds" => json!(true),
            "rope_theta" | "eps" | "mlp_ratio" => json!(0.5),
            _ => json!(64),
        };
        // The parts of a head are those of its width.
        let refusals = [("attention_head_dim", "`axes_dims_rope`")];
        each_is_obeyed_or_refused(&read, &plain, KEYS, &another, &refusals);
        for (config, told) in [
            (
                json!({"_class_name": "FluxTransformer2DModel"}),
                "`_class_name` is \"FluxTransformer2DModel\"",
            ),
            (
                json!({"guidance_embeds": false, "axes_dims_rope": [64, 64]}),
                "must have four values",
            ),
            (
                json!({"guidance_embeds": false, "axes_dims_rope": [31, 33, 32, 32]}),
                "even numbers are needed",
            ),
            (
                json!({"guidance_embeds": false, "timestep_guidance_channels": 3}),
                "`timestep_guidance_channels` is 3",
            ),
            (
                json!({"guidance_embeds": false, "mlp_ratio": 1e-9}),
                "`mlp_ratio` is",
            ),
        ] {
            let reason = read(&config).unwrap_err();
            assert!(reason.contains(told), "{config}: {reason}");
        }
    }
}
