//! The dimensions of a UNet, from `unet/config.json` of a diffusers folder.

use std::path::Path;

use serde_json::{Value, json};

use crate::Error;
use crate::diffusion::parts::dimensions::{Problem, of_class, sound};
use crate::diffusion::sdxl::ARCH;
use crate::diffusion::sdxl::names::LAYERS;
use crate::formats::TensorSource;
use crate::json::Object;

/// Dimensions of a UNet, with diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct UnetConfig {
    /// Latent channels, of what goes in and of what comes out.
    pub in_channels: i64,
    /// Channels of each stage; every stage but the last halves height and width.
    pub block_out_channels: Vec<i64>,
    /// Blocks of each of a stage's transformers; 0 for a stage without.
    pub transformer_layers_per_block: Vec<i64>,
    /// Number of heads of each stage, which diffusers calls `attention_head_dim`.
    pub heads: Vec<i64>,
    /// Width of the text's states.
    pub cross_attention_dim: i64,
    /// Sines and cosines of each of the six sizes.
    pub addition_time_embed_dim: i64,
    /// Width of the vector for all of the text, and of the sizes.
    pub projection_class_embeddings_input_dim: i64,
    /// Groups of channels that are normalised together.
    pub norm_num_groups: i64,
    /// Added to variances in residual blocks.
    pub norm_eps: f64,
}

const CLASS: &str = "UNet2DConditionModel";

/// Numbers that a picture's sizes are: the original height and width, top and left of what was cut out, and the height and
/// width of that.
pub(in crate::diffusion::sdxl) const SIZES: i64 = 6;

/// Width of a head in all published models.
const HEAD: i64 = 64;

/// Keys that are applied, or refused by more than one value.
const KEYS: [&str; 15] = [
    "in_channels",
    "out_channels",
    "down_block_types",
    "up_block_types",
    "block_out_channels",
    "layers_per_block",
    "transformer_layers_per_block",
    "attention_head_dim",
    "num_attention_heads",
    "cross_attention_dim",
    "addition_time_embed_dim",
    "projection_class_embeddings_input_dim",
    "norm_num_groups",
    "norm_eps",
    "time_cond_proj_dim",
];

/// Keys that change nothing: the size that was trained, what is only used with others, dropout in training, and how
/// attention and projections are computed.
const WITHOUT_EFFECT: [&str; 8] = [
    "sample_size",
    "addition_embed_type_num_heads",
    "class_embeddings_concat",
    "num_class_embeds",
    "mid_block_only_cross_attention",
    "dropout",
    "upcast_attention",
    "use_linear_projection",
];

/// Keys that have one supported value, with the value that diffusers takes without the key.
fn fixed() -> Vec<(&'static str, Value, Value)> {
    let same = [
        ("center_input_sample", json!(false)),
        ("flip_sin_to_cos", json!(true)),
        ("freq_shift", json!(0)),
        ("mid_block_type", json!("UNetMidBlock2DCrossAttn")),
        ("only_cross_attention", json!(false)),
        ("downsample_padding", json!(1)),
        ("mid_block_scale_factor", json!(1)),
        ("act_fn", json!("silu")),
        ("reverse_transformer_layers_per_block", Value::Null),
        ("encoder_hid_dim", Value::Null),
        ("encoder_hid_dim_type", Value::Null),
        ("dual_cross_attention", json!(false)),
        ("class_embed_type", Value::Null),
        ("resnet_time_scale_shift", json!("default")),
        ("resnet_skip_time_act", json!(false)),
        ("resnet_out_scale_factor", json!(1.0)),
        ("time_embedding_type", json!("positional")),
        ("time_embedding_dim", Value::Null),
        ("time_embedding_act_fn", Value::Null),
        ("timestep_post_act", Value::Null),
        ("conv_in_kernel", json!(3)),
        ("conv_out_kernel", json!(3)),
        ("attention_type", json!("default")),
        ("cross_attention_norm", Value::Null),
    ];
    let mut fixed: Vec<_> = same
        .into_iter()
        .map(|(key, only)| (key, only.clone(), only))
        .collect();
    fixed.push(("addition_embed_type", json!("text_time"), Value::Null));
    fixed
}

impl UnetConfig {
    /// Reads a `config.json`, with a warning for each unknown key.
    ///
    /// # Errors
    /// The error names the key, what is allowed and what was found.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let fixed = fixed();
        let known = fixed.iter().map(|(key, ..)| *key);
        let known: Vec<_> = known.chain(KEYS).chain(WITHOUT_EFFECT).collect();
        let object = of_class(path, CLASS, &known)?;
        let integer = |key, default| object.integer(key, Some(default), 1..=1 << 20);
        let in_channels = integer("in_channels", 4)?;
        if in_channels == 9 {
            return Err(object.error("in_channels", format!("is 9: {INPAINTING}")));
        }
        if object.get("time_cond_proj_dim").is_some() {
            return Err(object.error("time_cond_proj_dim", format!("is set: {LCM}")));
        }
        for (key, supported, default) in &fixed {
            object.require(key, supported, default)?;
        }
        object.require("out_channels", &json!(in_channels), &json!(4))?;
        object.require("layers_per_block", &json!(LAYERS), &json!(2))?;
        let widths = object.integers("block_out_channels", 1..=1 << 16)?;
        let widths = widths.unwrap_or_else(|| vec![320, 640, 1280, 1280]);
        let stages = widths.len();
        let each = |key, default: i64| -> Result<Vec<i64>, Error> {
            let list = match object.get(key) {
                Some(Value::Array(_)) => object.integers(key, 1..=1024)?.unwrap_or_default(),
                _ => vec![object.integer(key, Some(default), 1..=1024)?; stages],
            };
            match list.len() == stages {
                true => Ok(list),
                false => Err(object.error(
                    key,
                    format!("has {} values for {stages} stages", list.len()),
                )),
            }
        };
        let with_transformers = stages_with_transformers(&object, stages)?;
        let depths = each("transformer_layers_per_block", 1)?.into_iter();
        // Its other name in diffusers' code, which published configs do not use.
        object.require("num_attention_heads", &Value::Null, &Value::Null)?;
        let config = Self {
            in_channels,
            transformer_layers_per_block: depths
                .zip(with_transformers)
                .map(|(depth, there)| if there { depth } else { 0 })
                .collect(),
            heads: each("attention_head_dim", 8)?,
            block_out_channels: widths,
            cross_attention_dim: integer("cross_attention_dim", 1280)?,
            addition_time_embed_dim: object.integer(
                "addition_time_embed_dim",
                None,
                2..=1 << 16,
            )?,
            projection_class_embeddings_input_dim: object.integer(
                "projection_class_embeddings_input_dim",
                None,
                1..=1 << 20,
            )?,
            norm_num_groups: integer("norm_num_groups", 32)?,
            norm_eps: object.positive("norm_eps", Some(1e-5))?,
        };
        let problem = config.problem();
        sound(&object, config, problem)
    }

    /// Infers the config from the shapes in a file with diffusers' names, and the width of the vector for all of a text;
    /// what they do not tell is as published.
    ///
    /// # Errors
    /// If it is no UNet of this kind.
    pub fn of_shapes(tensors: &dyn TensorSource, pooled: i64) -> Result<Self, Error> {
        let wrong =
            |reason: String| Error::file(tensors.path(), format!("not an SDXL UNet: {reason}"));
        let size = |name: &str, dimension: usize| {
            let shape = tensors.shape(name);
            let size = shape.and_then(|shape| shape.get(dimension).copied());
            size.ok_or_else(|| wrong(format!("there is no `{name}`")))
        };
        let in_channels = size("conv_in.weight", 1)?;
        if in_channels == 9 {
            return Err(wrong(format!("`conv_in` has 9 channels: {INPAINTING}")));
        }
        if tensors.shape("time_embedding.cond_proj.weight").is_some() {
            return Err(wrong(format!("`time_embedding.cond_proj`: {LCM}")));
        }
        let block = |stage: usize| format!("down_blocks.{stage}.resnets.0.conv1.weight");
        let stages = (0..8).take_while(|stage| tensors.shape(&block(*stage)).is_some());
        let widths = stages.map(|stage| size(&block(stage), 0));
        let widths = widths.collect::<Result<Vec<_>, _>>()?;
        let counts = ARCH.blocks(tensors);
        let depth = |stage: usize| {
            let name = format!("down_blocks.{stage}.attentions.0.transformer_blocks");
            let at = ARCH.lists.iter().position(|list| list.name == name);
            at.and_then(|at| counts.get(at))
                .map_or(0, |count| *count as i64)
        };
        let inputs = size("add_embedding.linear_1.weight", 1)?;
        let text = "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight";
        let config = Self {
            in_channels,
            transformer_layers_per_block: (0..widths.len()).map(depth).collect(),
            heads: widths.iter().map(|width| (width / HEAD).max(1)).collect(),
            block_out_channels: widths,
            cross_attention_dim: size(text, 1)?,
            addition_time_embed_dim: (inputs - pooled) / SIZES,
            projection_class_embeddings_input_dim: inputs,
            norm_num_groups: 32,
            norm_eps: 1e-5,
        };
        match config.problem() {
            Some((key, reason)) => Err(wrong(format!("`{key}` {reason}"))),
            None => Ok(config),
        }
    }

    /// Width of the vector for all of the text.
    pub fn pooled(&self) -> i64 {
        self.projection_class_embeddings_input_dim - SIZES * self.addition_time_embed_dim
    }

    /// Width of the time's embedding.
    pub(super) fn time(&self) -> i64 {
        4 * self.block_out_channels.first().copied().unwrap_or(0)
    }

    /// An inconsistency: a key, and what is wrong with it.
    fn problem(&self) -> Option<Problem> {
        let widths = &self.block_out_channels;
        let sizes = self.projection_class_embeddings_input_dim;
        if (self.cross_attention_dim, sizes) == (1280, 2560) {
            let reason = format!("is {sizes}: {REFINER}");
            return Some(("projection_class_embeddings_input_dim", reason));
        }
        if !(2..=3).contains(&widths.len()) {
            let reason = format!("has {} stages: 2 or 3 are supported", widths.len());
            return Some(("block_out_channels", reason));
        }
        let groups = self.norm_num_groups;
        if let Some(width) = widths.iter().find(|width| **width % groups != 0) {
            let reason =
                format!("is {groups}, which does not divide the {width} channels of a stage");
            return Some(("norm_num_groups", reason));
        }
        let uneven = |(width, heads): &(&i64, &i64)| *width % *heads != 0;
        if let Some((width, heads)) = widths.iter().zip(&self.heads).find(uneven) {
            let reason = format!(
                "is {heads} for a stage of {width} channels, which cannot be divided into so many heads"
            );
            return Some(("attention_head_dim", reason));
        }
        if self.addition_time_embed_dim % 2 != 0 || self.pooled() < 1 {
            let reason = format!(
                "is {}: it must be even, and {SIZES} times that less than \
                 `projection_class_embeddings_input_dim`, {}",
                self.addition_time_embed_dim, self.projection_class_embeddings_input_dim
            );
            return Some(("addition_time_embed_dim", reason));
        }
        (self.transformer_layers_per_block.last() == Some(&0)).then(|| {
            let reason = "has no transformer in the last stage, whose number of blocks is that of the middle";
            ("down_block_types", reason.to_owned())
        })
    }
}

const INPAINTING: &str = "inpainting models, which are given a mask, are not supported";
const LCM: &str = "distilled models that are told the guidance (LCM) are not supported";
const REFINER: &str = "the refiner is not supported";

/// Which stages have transformers.
fn stages_with_transformers(object: &Object, stages: usize) -> Result<Vec<bool>, Error> {
    let types = |key: &'static str, plain: &str, crossed: &str| -> Result<Vec<bool>, Error> {
        let missing = || object.error(key, "is missing");
        let list = object
            .get(key)
            .and_then(Value::as_array)
            .ok_or_else(missing)?;
        if list.len() != stages {
            return Err(object.error(
                key,
                format!("has {} values for {stages} stages", list.len()),
            ));
        }
        let kinds = list.iter().map(|kind| match kind.as_str() {
            Some(kind) if kind == plain => Ok(false),
            Some(kind) if kind == crossed => Ok(true),
            _ => {
                let reason = format!("has {kind}: supported are \"{plain}\" and \"{crossed}\"");
                Err(object.error(key, reason))
            }
        });
        kinds.collect()
    };
    let down = types("down_block_types", "DownBlock2D", "CrossAttnDownBlock2D")?;
    let mut up = types("up_block_types", "UpBlock2D", "CrossAttnUpBlock2D")?;
    up.reverse();
    match down == up {
        true => Ok(down),
        false => {
            let reason = "has transformers in other stages than `down_block_types`";
            Err(object.error("up_block_types", reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::testing::{each_is_obeyed_or_refused, reading};

    #[test]
    fn each_key_of_a_config_is_obeyed_or_refused() {
        let read = reading(UnetConfig::read);
        let published = json!({
            "block_out_channels": [320, 640, 1280], "attention_head_dim": [5, 10, 20],
            "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
            "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
            "transformer_layers_per_block": [1, 2, 10], "cross_attention_dim": 2048,
            "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816, "in_channels": 4, "out_channels": 4,
            "norm_num_groups": 32, "norm_eps": 1e-5, "layers_per_block": 2,
        });
        let base = read(&published).unwrap();
        assert_eq!(base.pooled(), 1280);
        assert_eq!(base.transformer_layers_per_block, [0, 2, 10]);
        let another = |key: &str| match key {
            "down_block_types" => json!(vec!["CrossAttnDownBlock2D"; 3]),
            "up_block_types" => json!(vec!["AttnUpBlock2D"; 3]),
            "block_out_channels" => json!([320, 640, 640]),
            "transformer_layers_per_block" => json!([1, 2, 4]),
            "attention_head_dim" => json!([5, 10, 10]),
            "norm_eps" => json!(1e-6),
            "norm_num_groups" => json!(16),
            "projection_class_embeddings_input_dim" => json!(2048),
            _ => json!(128),
        };
        // What goes in is what comes out; both lists name the same stages.
        let refusals = [
            ("in_channels", "`out_channels`"),
            ("down_block_types", "`up_block_types`"),
        ];
        let keys = fixed().into_iter().map(|(key, ..)| key).chain(KEYS);
        each_is_obeyed_or_refused(&read, &published, keys, &another, &refusals);
        for (key, value, told) in [
            ("in_channels", json!(9), "inpainting"),
            ("time_cond_proj_dim", json!(256), "(LCM)"),
            ("_class_name", json!("UNet2DModel"), "`_class_name`"),
            ("norm_num_groups", json!(48), "does not divide"),
            (
                "attention_head_dim",
                json!([5, 10, 21]),
                "cannot be divided",
            ),
            (
                "attention_head_dim",
                json!([5, 10]),
                "2 values for 3 stages",
            ),
            (
                "block_out_channels",
                json!([320, 640, 1280, 1280]),
                "`down_block_types`",
            ),
            (
                "addition_time_embed_dim",
                json!(512),
                "`addition_time_embed_dim`",
            ),
        ] {
            let mut changed = published.clone();
            changed[key] = value;
            let reason = read(&changed).unwrap_err();
            assert!(reason.contains(told), "{key}: {reason}");
        }
        // The refiner has other sizes and one text encoder.
        let mut refiner = published.clone();
        refiner["cross_attention_dim"] = json!(1280);
        refiner["projection_class_embeddings_input_dim"] = json!(2560);
        assert!(read(&refiner).unwrap_err().contains(REFINER));
    }
}
