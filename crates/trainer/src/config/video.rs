//! Keys for runs on videos, and which of them do not fit each other.
//!
//! `data.resolution` makes a run one on videos.

use std::borrow::Cow;
use std::path::PathBuf;

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

/// A path, or a list of paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Paths {
    /// One.
    One(PathBuf),
    /// Several.
    List(Vec<PathBuf>),
}

impl Paths {
    /// The paths, in order.
    pub fn list(&self) -> &[PathBuf] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::List(paths) => paths,
        }
    }
}

impl JsonSchema for Paths {
    fn schema_name() -> Cow<'static, str> {
        "Paths".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A path, or a list of them.",
            "type": ["string", "array"],
            "format": "path",
            "minLength": 1,
            "minItems": 1,
            "items": { "type": "string", "format": "path", "minLength": 1 },
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

impl ModelConfig {
    /// Parts of a video model that are not in its folder.
    pub(crate) fn parts(&self) -> PartPaths {
        PartPaths {
            transformer: self.transformer.clone(),
            transformer_2: self.transformer_2.clone(),
            vae: self.vae.clone(),
            text_encoder: self.text_encoder.clone(),
            text_encoder_2: self.text_encoder_2.clone(),
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
        match (self.is_video(), &self.preference) {
            (true, _) => "mean squared error",
            (false, None) => "nats per token",
            (false, Some(_)) => "per preference",
        }
    }
}

/// Problems of a run on videos: key, message, and help.
pub(super) fn problems(config: &Config) -> Vec<([&'static str; 2], String, &'static str)> {
    if !config.is_video() {
        return Vec::new();
    }
    let mut problems = super::encoded_by::problems(config);
    let mut report = |path: [&'static str; 2], message: String, help: &'static str| {
        problems.push((path, message, help));
    };
    let (model, data, train) = (&config.model, &config.data, &config.train);
    let masks = (data.mask_path.is_some(), data.alpha_mask == Some(true));
    if masks.1 && data.encoded_by.is_some() {
        report(
            ["data", "alpha_mask"],
            "clips that another trainer has encoded have no masks".into(),
            "remove the key, or `data.encoded_by`",
        );
    }
    if masks.0 && data.eval_dataset.is_some() {
        report(
            ["data", "mask_path"],
            "masks are those of the media in `data.path`, and `data.eval_dataset` has others"
                .into(),
            "hold out some of `data.path` by `data.validation_fraction` in place of `data.eval_dataset`",
        );
    }
    if data.control_path.is_some() && (data.eval_dataset.is_some() || data.reg_data_dir.is_some()) {
        report(
            ["data", "control_path"],
            "control pictures are those of the media in `data.path`, and `data.eval_dataset` and `data.reg_data_dir` have others"
                .into(),
            "name those of all in the lines of `.jsonl` files (`control_path`), or remove the other key",
        );
    }
    if train.text_encoder && config.sample.transformer.is_some() {
        report(
            ["sample", "transformer"],
            "previews of trained text encoders are drawn with the model itself".into(),
            "remove the key, or `train.text_encoder`",
        );
    }
    if masks != (false, false) && data.reg_data_dir.is_some() {
        report(
            ["data", "reg_data_dir"],
            "masks are those of the media in `data.path`, and regularisation media have none"
                .into(),
            "remove the key, or the masks",
        );
    }
    if data
        .control_resolution
        .as_ref()
        .is_some_and(|sides| sides.list().len() > 2)
    {
        report(
            ["data", "control_resolution"],
            "`data.control_resolution` has more than two numbers".into(),
            "give the side of a square, or width and height",
        );
    }
    if masks == (false, false) && data.mask_min_value.is_some() {
        report(
            ["data", "mask_min_value"],
            "there are no masks".into(),
            "set `data.mask_path` or `data.alpha_mask: true`, or remove the key",
        );
    }
    match (&model.name_or_path, &config.adapter) {
        (None, _) => report(
            ["model", "name_or_path"],
            "no model is named to train on videos".into(),
            "set `model.name_or_path`; with `model.from_config: true`, its weights are not used",
        ),
        (Some(_), Some(_)) if model.from_config == Some(true) => report(
            ["model", "from_config"],
            "`model.from_config` trains the model itself, and `adapter` a LoRA on its weights"
                .into(),
            "remove one of the two",
        ),
        _ => {}
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
    if data.other_resolutions.is_some() && data.enable_bucket == Some(false) {
        report(
            ["data", "other_resolutions"],
            "without buckets, every picture gets `data.resolution`".into(),
            "remove `data.other_resolutions` or `data.enable_bucket: false`",
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
