//! The dimensions of the tower, from `vision_config` of the text encoder's `config.json`.

use serde_json::json;

use super::{FRAMES, MERGED, NAME, PATCH};
use crate::Error;
use crate::diffusion::files::PartFile;
use crate::formats::TensorSource;
use crate::json::Object;

/// Dimensions of the tower, with transformers' names.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::diffusion::qwen_image) struct VisionConfig {
    pub(super) depth: i64,
    pub(super) hidden_size: i64,
    pub(super) intermediate_size: i64,
    pub(super) num_heads: i64,
    pub(in crate::diffusion::qwen_image) out_hidden_size: i64,
    /// Pixels of a window along each side.
    pub(super) window_size: i64,
    /// Blocks in which all patches see each other.
    pub(super) fullatt_block_indexes: Vec<i64>,
    pub(super) rope_theta: f64,
}

/// What shapes do not tell, as published.
const HEAD: i64 = 80;
const WINDOW: i64 = 112;
const WHOLE: [i64; 4] = [7, 15, 23, 31];
const THETA: f64 = 10_000.0;

/// Keys that are obeyed or refused.
const KEYS: [&str; 15] = [
    "model_type",
    "depth",
    "hidden_size",
    "hidden_act",
    "intermediate_size",
    "num_heads",
    "in_channels",
    "in_chans",
    "patch_size",
    "spatial_patch_size",
    "spatial_merge_size",
    "temporal_patch_size",
    "window_size",
    "out_hidden_size",
    "fullatt_block_indexes",
];

/// Others that change nothing here: videos, training, and how it was saved.
const WITHOUT_EFFECT: [&str; 6] = [
    "tokens_per_second",
    "initializer_range",
    "dtype",
    "torch_dtype",
    "output_attentions",
    "transformers_version",
];

impl VisionConfig {
    /// Reads it, with a warning for each unknown key.
    pub(in crate::diffusion::qwen_image) fn read(object: &Object) -> Result<Self, Error> {
        let known = KEYS.iter().chain(&WITHOUT_EFFECT).copied();
        let known: Vec<_> = known.chain(["rope_parameters"]).collect();
        object.warn_about_unknown_keys(&known);
        object.require("hidden_act", &json!("silu"), &json!("silu"))?;
        for (key, only) in [
            ("in_channels", 3),
            ("in_chans", 3),
            ("patch_size", PATCH),
            ("spatial_patch_size", PATCH),
            ("spatial_merge_size", MERGED),
            ("temporal_patch_size", FRAMES),
        ] {
            object.require(key, &json!(only), &json!(only))?;
        }
        let theta = match object.object("rope_parameters")? {
            None => THETA,
            Some(rope) => {
                rope.warn_about_unknown_keys(&["rope_type", "rope_theta"]);
                rope.require("rope_type", &json!("axial"), &json!("axial"))?;
                rope.positive("rope_theta", Some(THETA))?
            }
        };
        let integer = |key, default| object.integer(key, Some(default), 1..=1 << 20);
        let config = Self {
            depth: object.integer("depth", Some(32), 0..=1024)?,
            hidden_size: integer("hidden_size", 3584)?,
            intermediate_size: integer("intermediate_size", 3420)?,
            num_heads: integer("num_heads", 16)?,
            out_hidden_size: integer("out_hidden_size", 3584)?,
            window_size: integer("window_size", WINDOW)?,
            fullatt_block_indexes: object
                .integers("fullatt_block_indexes", 0..=1024)?
                .unwrap_or_else(|| WHOLE.to_vec()),
            rope_theta: theta,
        };
        let place = PATCH * MERGED;
        if config.window_size % place != 0 {
            let reason = format!("is {}: must be a multiple of {place}", config.window_size);
            return Err(object.error("window_size", reason));
        }
        if config.hidden_size % (4 * config.num_heads) != 0 {
            let reason = format!(
                "is {}: {} heads, in each of which rows and columns turn pairs, need a multiple of {}",
                config.hidden_size,
                config.num_heads,
                4 * config.num_heads
            );
            return Err(object.error("hidden_size", reason));
        }
        Ok(config)
    }

    /// Infers it from the shapes in a text encoder's file.
    pub(in crate::diffusion::qwen_image) fn of_shapes(file: &PartFile) -> Result<Self, Error> {
        let size =
            |name: &str| {
                let shape = file.shape(&format!("{NAME}.{name}"));
                shape.and_then(|shape| shape.first().copied()).ok_or_else(|| {
                let reason = format!(
                    "has no tower for pictures, which Edit needs: there is no `{NAME}.{name}`"
                );
                Error::file(file.path(), reason)
            })
            };
        let width = size("patch_embed.proj.weight")?;
        if width % HEAD != 0 {
            let reason = format!("has a tower of width {width}, where heads are of {HEAD}");
            return Err(Error::file(file.path(), reason));
        }
        let block = |name: &String| -> Option<i64> {
            let rest = name.strip_prefix("visual.blocks.")?;
            rest.split('.').next()?.parse().ok()
        };
        let last = file.names().iter().filter_map(block).max();
        Ok(Self {
            depth: last.unwrap_or(0) + 1,
            hidden_size: width,
            intermediate_size: size("blocks.0.mlp.gate_proj.weight")?,
            num_heads: width / HEAD,
            out_hidden_size: size("merger.mlp.2.weight")?,
            window_size: WINDOW,
            fullatt_block_indexes: WHOLE.to_vec(),
            rope_theta: THETA,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::testing::{each_is_obeyed_or_refused, reading};

    #[test]
    fn each_key_of_a_tower_is_obeyed_or_refused() {
        let read = reading(|path: &std::path::Path| VisionConfig::read(&Object::read(path)?));
        let another = |key: &str| match key {
            "hidden_act" | "model_type" => json!("gelu"),
            "fullatt_block_indexes" => json!([3]),
            "window_size" => json!(56),
            _ => json!(128),
        };
        let keys = KEYS.into_iter().filter(|key| *key != "model_type");
        let keys: [&str; 14] = keys.collect::<Vec<_>>().try_into().unwrap();
        let refusals = [("num_heads", "`hidden_size` is 1280")];
        each_is_obeyed_or_refused(
            &read,
            &json!({"hidden_size": 1280}),
            keys,
            &another,
            &refusals,
        );
        for (config, told) in [
            (json!({"window_size": 100}), "a multiple of 28"),
            (
                json!({"rope_parameters": {"rope_type": "yarn"}}),
                "rope_type",
            ),
        ] {
            let reason = read(&config).unwrap_err();
            assert!(reason.contains(told), "{config}: {reason}");
        }
    }
}
