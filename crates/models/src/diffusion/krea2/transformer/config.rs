//! The dimensions of a transformer, from `transformer/config.json` of a diffusers folder or from the shapes in a file.

use std::path::Path;

use super::PATCH;
use super::layers::Sizes;
use crate::Error;
use crate::diffusion::files::PartFile;
use crate::diffusion::krea2::ARCH;
use crate::diffusion::parts::dimensions::{
    Problem, Shapes, Told, dimensions, of_axes, of_class, problem_of_axes, sound,
};

const CLASS: &str = "Krea2Transformer2DModel";

/// The norms of queries, whose width is that of a head.
const NORM: &str = "transformer_blocks.0.attn.norm_q.weight";
const TEXT_NORM: &str = "text_fusion.layerwise_blocks.0.attn.norm_q.weight";

dimensions! {
    /// Dimensions that shapes tell, with diffusers' names.
    pub struct Dimensions {
        /// Numbers of a token of the picture.
        in_channels = 64, Told::Size("img_in.weight", 1);
        /// Number of blocks.
        num_layers = 28, Told::Blocks(2);
        /// Width of a head.
        attention_head_dim = 128, Told::Size(NORM, 0);
        /// Number of heads of queries.
        num_attention_heads = 48, Told::Heads("transformer_blocks.0.attn.to_q.weight", NORM);
        /// Number of heads of keys and values.
        num_key_value_heads = 12, Told::Heads("transformer_blocks.0.attn.to_k.weight", NORM);
        /// Width inside the feed-forward layer.
        intermediate_size = 16384, Told::Size("transformer_blocks.0.ff.gate.weight", 0);
        /// Number of sines and cosines of the time.
        timestep_embed_dim = 256, Told::Size("time_embed.linear_1.weight", 1);
        /// Width of a state of the text.
        text_hidden_dim = 2560, Told::Size("txt_in.linear_1.weight", 1);
        /// Number of states of each token of the text.
        num_text_layers = 12, Told::Size("text_fusion.projector.weight", 1);
        /// Heads of queries in the blocks for the text.
        text_num_attention_heads = 20, Told::Heads("text_fusion.layerwise_blocks.0.attn.to_q.weight", TEXT_NORM);
        /// Heads of keys and values in the blocks for the text.
        text_num_key_value_heads = 20, Told::Heads("text_fusion.layerwise_blocks.0.attn.to_k.weight", TEXT_NORM);
        /// Width inside the feed-forward layers of the blocks for the text.
        text_intermediate_size = 6912, Told::Size("text_fusion.layerwise_blocks.0.ff.gate.weight", 0);
        /// Number of blocks across the states of a token.
        num_layerwise_text_blocks = 2, Told::Blocks(0);
        /// Number of blocks across the tokens of a text.
        num_refiner_text_blocks = 2, Told::Blocks(1);
    }
}

/// A transformer's config.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// What shapes tell, too.
    pub dimensions: Dimensions,
    /// Parts of a head that are turned by the frame, the row and the column.
    pub axes_dims_rope: [i64; 3],
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to mean squares.
    pub norm_eps: f64,
}

/// Keys beside the dimensions, and their values as published.
const KEYS: [&str; 3] = ["axes_dims_rope", "rope_theta", "norm_eps"];
const AXES: [i64; 3] = [32, 48, 48];
const THETA: f64 = 1000.0;
const EPSILON: f64 = 1e-5;

/// How the names of other parts begin in files of whole models.
const BESIDE: [&str; 3] = ["vae.", "first_stage_model.", "text_encoders."];

impl TransformerConfig {
    /// Width of the residual stream.
    pub fn width(&self) -> i64 {
        self.dimensions.num_attention_heads * self.dimensions.attention_head_dim
    }

    /// Latent channels.
    pub fn channels(&self) -> i64 {
        self.dimensions.in_channels / (PATCH * PATCH)
    }

    /// Width of the text, whose states are side by side.
    pub fn text_width(&self) -> i64 {
        self.dimensions.num_text_layers * self.dimensions.text_hidden_dim
    }

    /// Those of a block, for the text alone if `of_text`.
    pub(super) fn sizes(&self, of_text: bool) -> Sizes {
        let (own, epsilon) = (&self.dimensions, self.norm_eps);
        let heads = [own.num_attention_heads, own.num_key_value_heads];
        let of_texts = [own.text_num_attention_heads, own.text_num_key_value_heads];
        let (width, inner, heads) = match of_text {
            false => (self.width(), own.intermediate_size, heads),
            true => (own.text_hidden_dim, own.text_intermediate_size, of_texts),
        };
        Sizes {
            width,
            inner,
            heads,
            epsilon,
        }
    }

    /// Reads a `config.json`, with a warning for each unknown key.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let known: Vec<_> = Dimensions::KEYS.iter().copied().chain(KEYS).collect();
        let object = of_class(path, CLASS, &known)?;
        let config = Self {
            dimensions: Dimensions::read(&object)?,
            axes_dims_rope: of_axes(&object, "axes_dims_rope", AXES, "frames, rows, columns")?,
            rope_theta: object.positive("rope_theta", Some(THETA))?,
            norm_eps: object.positive("norm_eps", Some(EPSILON))?,
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
        let is_beside = |name: &&String| BESIDE.iter().any(|start| name.starts_with(start));
        if let Some(name) = file.unknown().iter().find(|name| !is_beside(name)) {
            return Err(shapes.no(format!("it has `{name}`, which is no part of one")));
        }
        let config = Self {
            dimensions: Dimensions::of_shapes(&shapes)?,
            axes_dims_rope: AXES,
            rope_theta: THETA,
            norm_eps: EPSILON,
        };
        match config.problem() {
            None => Ok(config),
            Some((key, reason)) => Err(shapes.no(format!("`{key}` {reason}"))),
        }
    }

    /// An inconsistency: a key, and what is wrong with it.
    fn problem(&self) -> Option<Problem> {
        let own = &self.dimensions;
        let (heads, of_text) = (own.num_attention_heads, own.text_num_attention_heads);
        let (keys, text_keys) = (own.num_key_value_heads, own.text_num_key_value_heads);
        let multiples = [
            ("in_channels", own.in_channels, PATCH * PATCH),
            ("num_attention_heads", heads, keys),
            ("text_num_attention_heads", of_text, text_keys),
            ("text_hidden_dim", own.text_hidden_dim, of_text),
        ];
        let other = multiples.into_iter().find(|(_, found, of)| found % of != 0);
        let problem = other
            .map(|(key, found, of)| (key, format!("is {found}: multiples of {of} are needed")));
        let (axes, head) = (&self.axes_dims_rope, own.attention_head_dim);
        problem.or_else(|| problem_of_axes("axes_dims_rope", axes, head))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json::testing::{each_is_obeyed_or_refused, reading};

    #[test]
    fn each_key_of_a_config_is_obeyed_or_refused() {
        let read = reading(TransformerConfig::read);
        let base = read(&json!({})).unwrap();
        assert_eq!(
            (base.width(), base.channels(), base.text_width()),
            (6144, 16, 30720)
        );
        let another = |key: &str| match key {
            "axes_dims_rope" => json!([48, 40, 40]),
            "rope_theta" | "norm_eps" => json!(0.5),
            "text_num_attention_heads" => json!(40),
            "text_num_key_value_heads" => json!(5),
            _ => json!(96),
        };
        // The parts of a head are those of its width, and heads share keys.
        let refusals = [
            ("attention_head_dim", "`axes_dims_rope`"),
            (
                "num_key_value_heads",
                "`num_attention_heads` is 48: multiples of 96",
            ),
        ];
        let keys = Dimensions::KEYS.iter().copied().chain(KEYS);
        each_is_obeyed_or_refused(&read, &json!({}), keys, &another, &refusals);
        for (config, told) in [
            (json!({"_class_name": "Other"}), "`_class_name` is"),
            (json!({"axes_dims_rope": [64, 64]}), "must have three"),
            (json!({"in_channels": 6}), "multiples of 4"),
            (json!({"text_num_key_value_heads": 3}), "multiples of 3"),
        ] {
            let reason = read(&config).unwrap_err();
            assert!(reason.contains(told), "{config}: {reason}");
        }
    }
}
