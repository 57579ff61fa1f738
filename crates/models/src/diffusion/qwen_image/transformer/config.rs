//! The dimensions of a transformer, from `transformer/config.json` of a diffusers folder.

use std::path::Path;

use serde_json::json;

use super::{EPSILON, PATCH};
use crate::Error;
use crate::diffusion::files::PartFile;
use crate::diffusion::parts::dimensions::{
    Problem, Shapes, of_axes, of_class, problem_of_axes, sound,
};
use crate::diffusion::parts::double::Sizes;
use crate::diffusion::qwen_image::ARCH;

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
    /// Whether control pictures have the time of a picture without noise.
    pub zero_cond_t: bool,
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

/// A tensor of single files that says that `zero_cond_t` is set.
pub(in crate::diffusion::qwen_image) const ZERO_TIME: &str = "__index_timestep_zero__";

/// A tensor of single files of Qwen-Image-Layered.
const LAYERED: &str = "time_text_embed.addition_t_embedding.weight";

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
        let object = of_class(path, CLASS, &KEYS)?;
        object.require("patch_size", &json!(PATCH), &json!(PATCH))?;
        // Guidance as an input, and layers.
        for key in [
            "guidance_embeds",
            "use_additional_t_cond",
            "use_layer3d_rope",
        ] {
            object.require(key, &json!(false), &json!(false))?;
        }
        let integer = |key, default, largest| object.integer(key, Some(default), 1..=largest);
        let axes = "frames, rows, columns";
        let config = Self {
            in_channels: integer("in_channels", 64, 4096)?,
            out_channels: integer("out_channels", 16, 4096)?,
            num_layers: object.integer("num_layers", Some(60), 0..=1024)?,
            attention_head_dim: integer("attention_head_dim", 128, 1 << 16)?,
            num_attention_heads: integer("num_attention_heads", 24, 1024)?,
            joint_attention_dim: integer("joint_attention_dim", 3584, 1 << 20)?,
            axes_dims_rope: of_axes(&object, "axes_dims_rope", AXES, axes)?,
            zero_cond_t: object.flag("zero_cond_t", false)?,
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
        let size = |name: &str, at| shapes.size(name, at);
        if has_unknown(file, LAYERED) {
            let reason =
                format!("its `{LAYERED}` is that of Qwen-Image-Layered, which is not supported");
            return Err(shapes.wrong(reason));
        }
        let width = size("img_in.weight", 0)?;
        let head = size("transformer_blocks.0.attn.norm_q.weight", 0)?;
        let in_channels = size("img_in.weight", 1)?;
        let config = Self {
            in_channels,
            out_channels: in_channels / (PATCH * PATCH),
            num_layers: shapes.blocks(0),
            attention_head_dim: head,
            num_attention_heads: width / head,
            joint_attention_dim: size("txt_in.weight", 1)?,
            axes_dims_rope: AXES,
            zero_cond_t: has_unknown(file, ZERO_TIME),
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
        let head = self.attention_head_dim;
        let problem = problem_of_axes("axes_dims_rope", &self.axes_dims_rope, head);
        if problem.is_some() {
            return problem;
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

/// Whether a file has a tensor whose name, which is not that of a weight, ends like this.
pub(in crate::diffusion::qwen_image) fn has_unknown(file: &PartFile, ending: &str) -> bool {
    file.unknown()
        .iter()
        .any(|unknown| unknown.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::testing::{each_is_obeyed_or_refused, reading};

    #[test]
    fn each_key_of_a_config_is_obeyed_or_refused() {
        let read = reading(TransformerConfig::read);
        let base = read(&json!({})).unwrap();
        assert_eq!((base.width(), base.sizes().inner), (3072, 12288));
        let another = |key: &str| match key {
            "axes_dims_rope" => json!([48, 40, 40]),
            "zero_cond_t" => json!(true),
            "guidance_embeds" | "use_additional_t_cond" | "use_layer3d_rope" => {
                json!(true)
            }
            _ => json!(96),
        };
        // The parts of a head are those of its width, and a token is made of latents.
        let refusals = [
            ("attention_head_dim", "`axes_dims_rope`"),
            ("out_channels", "`in_channels` is 64"),
        ];
        each_is_obeyed_or_refused(&read, &json!({}), KEYS, &another, &refusals);
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
