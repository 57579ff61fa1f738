//! Keys for runs on videos, and which other keys those do not support.
//!
//! `data.resolution` makes a run one on videos. Keys for the other kind of run are refused by name, so that no key
//! is silently ignored.

use std::borrow::Cow;

use models::diffusion::PartPaths;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{Config, ModelConfig};

/// A number, or a list of numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Numbers {
    /// One.
    One(u32),
    /// Several.
    List(Vec<u32>),
}

impl Numbers {
    /// The numbers, in order.
    pub fn list(&self) -> &[u32] {
        match self {
            Self::One(number) => std::slice::from_ref(number),
            Self::List(numbers) => numbers,
        }
    }
}

impl JsonSchema for Numbers {
    fn schema_name() -> Cow<'static, str> {
        "Numbers".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A whole number, or a list of them.",
            "type": ["integer", "array"],
            "minimum": 1,
            "maximum": 65_536,
            "minItems": 1,
            "items": { "type": "integer", "minimum": 1, "maximum": 65_536 },
        })
    }
}

/// Which clips are cut from a video, by musubi-tuner's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FrameExtraction {
    /// The first `num_frames`.
    Head,
    /// Consecutive clips without overlap; the rest at the end is not used.
    Chunk,
    /// One clip starting at every `frame_stride` frames.
    Slide,
    /// `frame_sample` clips, spread evenly from the first frame to the last.
    Uniform,
    /// The whole video, up to `max_frames`.
    Full,
}

/// Which of two experts are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Experts {
    /// The high-noise one, which determines layout and motion.
    High,
    /// The low-noise one, which determines details.
    Low,
    /// Both in turn, with a LoRA file for each.
    Both,
}

/// The naming scheme of a LoRA file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoraFormat {
    /// `lora_unet_….lora_down.weight`: read by ComfyUI, diffusers and musubi-tuner.
    Kohya,
    /// `diffusion_model.….lora_A.weight`: read by ComfyUI and diffusers.
    Comfy,
    /// `transformer.….lora_A.weight`: read by diffusers.
    Diffusers,
}

/// Default number of latent channels of a model that is trained from scratch.
pub(crate) const CHANNELS: u32 = 16;
/// Default side of the square of pixels that one of its latents represents.
pub(crate) const SCALE_FACTOR: u32 = 4;

impl ModelConfig {
    /// Parts of a video model that are not in its folder.
    pub(crate) fn parts(&self) -> PartPaths {
        PartPaths {
            transformer: self.transformer.clone(),
            transformer_2: self.transformer_2.clone(),
            vae: self.vae.clone(),
            text_encoder: self.text_encoder.clone(),
            tokenizer: self.tokenizer.clone(),
        }
    }
}

impl Config {
    /// Whether this is a run on videos.
    pub fn is_video(&self) -> bool {
        self.data.resolution.is_some() || self.data.encoded_by.is_some()
    }

    /// The unit of the loss.
    pub(crate) fn loss_unit(&self) -> &'static str {
        match self.is_video() {
            true => "mean squared error",
            false => "nats per token",
        }
    }
}

/// Problems of keys for the model's shape, which a published model determines itself.
fn shape_problems(config: &Config) -> Vec<([&'static str; 2], String, &'static str)> {
    let model = &config.model;
    let mut problems = Vec::new();
    let mut report = |key, message, help| problems.push((["model", key], message, help));
    if model.name_or_path.is_some() {
        if config.adapter.is_none() {
            let message = "only a LoRA can be trained on a published video model";
            let help = "add an `adapter` section, or remove `model.name_or_path` to train one from scratch";
            problems.push((["data", "resolution"], message.into(), help));
        }
        return problems;
    }
    for (key, value) in [
        ("attention_head_dim", model.attention_head_dim),
        ("freq_dim", model.freq_dim),
    ] {
        if value.is_some_and(|value| value % 2 == 1) {
            report(
                key,
                format!("`model.{key}` must be even"),
                "it is the number of sines and cosines",
            );
        }
    }
    let step = model.scale_factor_spatial.unwrap_or(SCALE_FACTOR);
    let channels = model.in_channels.unwrap_or(CHANNELS);
    if channels > 3 * step * step {
        report(
            "in_channels",
            format!(
                "{channels} channels are more than the {} values that a latent represents",
                3 * step * step
            ),
            "lower `model.in_channels`, or raise `model.scale_factor_spatial`",
        );
    }
    problems
}

/// Problems of a run on videos, or of one that is not but has keys for videos: key, message, and help.
pub(super) fn problems(config: &Config) -> Vec<(Vec<&'static str>, String, &'static str)> {
    let mut problems = Vec::new();
    if let Some(set) = config
        .data
        .dataset
        .filter(|set| set.is_video() != config.is_video())
    {
        let message = match set.is_video() {
            true => "`data.dataset` is for videos, and this run is not on videos",
            false => "`data.dataset` has no effect on videos (`data.resolution` is set)",
        };
        problems.push((
            vec!["data", "dataset"],
            message.into(),
            "name another, or set `data.path`",
        ));
    }
    if !config.is_video() {
        return problems;
    }
    let mut report = |path: [&'static str; 2], message: String, help: &'static str| {
        problems.push((path.to_vec(), message, help));
    };
    let (data, train) = (&config.data, &config.train);
    let others = super::encoded_by::problems(config);
    for (path, message, help) in shape_problems(config).into_iter().chain(others) {
        report(path, message, help);
    }
    let sides = data.resolution.as_ref().map_or(0, |r| r.list().len());
    if sides > 2 {
        report(
            ["data", "resolution"],
            format!("`data.resolution` has {sides} numbers"),
            "give the side of a square, or width and height",
        );
    }
    if let Err(reason) = config.previews() {
        report(
            ["sample", "prompts"],
            reason,
            "see `sample.prompts` in the handbook",
        );
    }
    if data.frame_extraction == Some(FrameExtraction::Full) && data.num_frames.is_some() {
        report(
            ["data", "num_frames"],
            "`data.frame_extraction: full` uses all frames, whatever `data.num_frames` is".into(),
            "set `data.max_frames` instead",
        );
    }
    if data.bucket_no_upscale.is_some() && data.enable_bucket == Some(false) {
        report(
            ["data", "bucket_no_upscale"],
            "without buckets, every picture gets `data.resolution`".into(),
            "remove `data.bucket_no_upscale` or `data.enable_bucket: false`",
        );
    }
    if train.steps_per_expert.is_some()
        && matches!(train.experts, Some(Experts::High | Experts::Low))
    {
        report(
            ["train", "steps_per_expert"],
            "`train.steps_per_expert` is for runs that train both experts".into(),
            "set `train.experts: both`, or remove the key",
        );
    }
    let (low, high) = (
        train.min_sigma.unwrap_or(0.0),
        train.max_sigma.unwrap_or(1.0),
    );
    if low >= high {
        report(
            ["train", "min_sigma"],
            format!("`train.min_sigma` {low} is not below `train.max_sigma` {high}"),
            "noise levels are drawn from between them",
        );
    }
    problems
}
