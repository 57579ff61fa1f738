//! The dimensions of a transformer, from `transformer/config.json` of a diffusers folder.

use std::path::Path;

use serde_json::json;

use super::{PATCH, SEQUENCE_STEP};
use crate::Error;
use crate::diffusion::files::PartFile;
use crate::diffusion::parts::dimensions::{
    Problem, Shapes, of_axes, of_class, problem_of_axes, sound,
};
use crate::diffusion::z_image::ARCH;

/// Dimensions of a transformer, with diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// Latent channels.
    pub in_channels: i64,
    /// Width of the residual stream.
    pub dim: i64,
    /// Number of blocks that see picture and text.
    pub n_layers: i64,
    /// Number of blocks before them, for the picture and for the text.
    pub n_refiner_layers: i64,
    /// Number of heads.
    pub n_heads: i64,
    /// Added to mean squares.
    pub norm_eps: f64,
    /// Whether queries and keys are normalised.
    pub qk_norm: bool,
    /// Width of the text encoder's states.
    pub cap_feat_dim: i64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// What times from 0 to 1 are multiplied by.
    pub t_scale: f64,
    /// Parts of a head that are turned by the position in the text, the row and the column.
    pub axes_dims: [i64; 3],
    /// Number of positions on each axis.
    pub axes_lens: [i64; 3],
}

const CLASS: &str = "ZImageTransformer2DModel";

const KEYS: [&str; 16] = [
    "all_patch_size",
    "all_f_patch_size",
    "in_channels",
    "dim",
    "n_layers",
    "n_refiner_layers",
    "n_heads",
    "n_kv_heads",
    "norm_eps",
    "qk_norm",
    "cap_feat_dim",
    "siglip_feat_dim",
    "rope_theta",
    "t_scale",
    "axes_dims",
    "axes_lens",
];

/// diffusers' epsilon of the norms of queries and keys, whatever `norm_eps` says.
pub(super) const HEAD_NORM_EPSILON: f64 = 1e-5;

/// Width of the vector that modulates all blocks, if the model is wider.
const MODULATION: i64 = 256;

impl TransformerConfig {
    /// Width of a head.
    pub fn head_dim(&self) -> i64 {
        self.dim / self.n_heads
    }

    /// Width of the feed-forward layers.
    pub fn inner(&self) -> i64 {
        // In diffusers `int(dim / 3 * 8)`, in double precision.
        (self.dim as f64 / 3.0 * 8.0) as i64
    }

    /// Width of the vector that modulates all blocks.
    pub fn modulation(&self) -> i64 {
        self.dim.min(MODULATION)
    }

    /// Numbers of a token of the picture.
    pub fn patch(&self) -> i64 {
        PATCH * PATCH * self.in_channels
    }

    /// Reads a `config.json`, with a warning for each unknown key.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let object = of_class(path, CLASS, &KEYS)?;
        for (key, only) in [("all_patch_size", PATCH), ("all_f_patch_size", 1)] {
            object.require(key, &json!([only]), &json!([only]))?;
        }
        if object.get("siglip_feat_dim").is_some() {
            let reason = "is set: models that are given pictures (Omni) are not supported";
            return Err(object.error("siglip_feat_dim", reason));
        }
        let integer = |key, default, largest| object.integer(key, Some(default), 1..=largest);
        let axes = |key, default| of_axes(&object, key, default, "text, rows, columns");
        let n_heads = integer("n_heads", 30, 1024)?;
        object.require("n_kv_heads", &json!(n_heads), &json!(30))?;
        let config = Self {
            in_channels: integer("in_channels", 16, 4096)?,
            dim: integer("dim", 3840, 1 << 20)?,
            n_layers: integer("n_layers", 30, 1024)?,
            n_refiner_layers: object.integer("n_refiner_layers", Some(2), 0..=1024)?,
            n_heads,
            norm_eps: object.positive("norm_eps", Some(1e-5))?,
            qk_norm: object.flag("qk_norm", true)?,
            cap_feat_dim: integer("cap_feat_dim", 2560, 1 << 20)?,
            rope_theta: object.positive("rope_theta", Some(256.0))?,
            t_scale: object.positive("t_scale", Some(1000.0))?,
            axes_dims: axes("axes_dims", [32, 48, 48])?,
            axes_lens: axes("axes_lens", [1024, 512, 512])?,
        };
        let problem = config.problem();
        sound(&object, config, problem)
    }

    /// Infers the config from the shapes in a file with diffusers' names; what they do not tell is as published.
    ///
    /// # Errors
    /// If it is no transformer of this kind.
    pub fn of_shapes(tensors: &PartFile) -> Result<Self, Error> {
        Self::of_shapes_with(tensors, [32, 48, 48])
    }

    pub(in crate::diffusion::z_image) fn of_shapes_with(
        tensors: &PartFile,
        axes_dims: [i64; 3],
    ) -> Result<Self, Error> {
        let shapes = Shapes::new(&ARCH, tensors);
        if shapes.has("siglip_pad_token") {
            let reason =
                "`siglip_pad_token`: models that are given pictures (Omni) are not supported";
            return Err(shapes.wrong(reason));
        }
        let size = |name: &str, at| shapes.size(name, at);
        let patches = format!("all_x_embedder.{PATCH}-1.weight");
        let dim = size(&patches, 0)?;
        let head: i64 = axes_dims.iter().sum();
        let norm = "layers.0.attention.norm_q.weight";
        let config = Self {
            in_channels: size(&patches, 1)? / (PATCH * PATCH),
            dim,
            n_layers: shapes.blocks(2),
            n_refiner_layers: shapes.blocks(0),
            n_heads: dim / head,
            norm_eps: 1e-5,
            qk_norm: shapes.has(norm),
            cap_feat_dim: size("cap_embedder.1.weight", 1)?,
            rope_theta: 256.0,
            t_scale: 1000.0,
            axes_dims,
            axes_lens: [1536, 512, 512],
        };
        if dim % head != 0 || (config.qk_norm && size(norm, 0)? != head) {
            let reason = format!("a width of {dim}, which is not made of heads of {head}");
            return Err(shapes.no(reason));
        }
        Ok(config)
    }

    /// An inconsistency: a key, and what is wrong with it.
    fn problem(&self) -> Option<Problem> {
        if self.dim % self.n_heads != 0 {
            let reason = format!(
                "is {}, which is not a multiple of {} heads",
                self.dim, self.n_heads
            );
            return Some(("dim", reason));
        }
        let problem = problem_of_axes("axes_dims", &self.axes_dims, self.head_dim());
        if problem.is_some() {
            return problem;
        }
        (self.axes_lens[0] < SEQUENCE_STEP + 2).then(|| {
            let reason = format!(
                "is {:?}: a text takes at least {SEQUENCE_STEP} positions",
                self.axes_lens
            );
            ("axes_lens", reason)
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
        let base = read(&json!({})).unwrap();
        assert_eq!(
            (base.head_dim(), base.inner(), base.modulation()),
            (128, 10240, 256)
        );
        let another = |key: &str| match key {
            "all_patch_size" | "all_f_patch_size" => json!([2, 4]),
            "qk_norm" => json!(false),
            "axes_dims" => json!([64, 32, 32]),
            "axes_lens" => json!([1536, 512, 512]),
            "n_heads" => json!(15),
            "rope_theta" | "t_scale" | "norm_eps" => json!(0.5),
            _ => json!(7680),
        };
        // The heads of keys follow those of queries.
        let refusals = [("n_heads", "`n_kv_heads`")];
        each_is_obeyed_or_refused(&read, &json!({}), KEYS, &another, &refusals);
        for (config, key) in [
            (
                json!({"_class_name": "FluxTransformer2DModel"}),
                "`_class_name`",
            ),
            (json!({"dim": 3841}), "`dim`"),
            (json!({"axes_dims": [32, 48]}), "`axes_dims`"),
            (json!({"axes_dims": [31, 49, 48]}), "`axes_dims`"),
            (json!({"axes_lens": [33, 512, 512]}), "`axes_lens`"),
        ] {
            let reason = read(&config).unwrap_err();
            assert!(reason.contains(key), "{config}: {reason}");
        }
    }
}
