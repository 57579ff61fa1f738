//! Keys for runs on videos, and which other keys those do not support.
//!
//! `data.resolution` makes a run one on videos. Keys for the other kind of run are refused by name, so that no key
//! is silently ignored.

use std::borrow::Cow;

use models::diffusion::PartPaths;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{
    AdapterConfig, Config, DataConfig, Dataset, ModelConfig, SampleConfig, TrainConfig,
    WeightingScheme,
};

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

/// The shape of a video model that is trained from scratch, besides `num_attention_heads`.
pub(crate) fn shape_keys(model: &ModelConfig) -> [(&'static str, Option<u32>); 7] {
    [
        ("num_layers", model.num_layers),
        ("attention_head_dim", model.attention_head_dim),
        ("ffn_dim", model.ffn_dim),
        ("freq_dim", model.freq_dim),
        ("text_dim", model.text_dim),
        ("in_channels", model.in_channels),
        ("scale_factor_spatial", model.scale_factor_spatial),
    ]
}

/// Default number of latent channels of a model that is trained from scratch.
pub(crate) const CHANNELS: u32 = 16;
/// Default side of the square of pixels that one of its latents represents.
pub(crate) const SCALE_FACTOR: u32 = 4;

/// Section, key, and whether it is set.
type Set = (&'static str, &'static str, bool);

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

    /// Keys for videos.
    pub(super) fn video_keys(&self) -> Vec<Set> {
        let (model, data, train) = (&self.model, &self.data, &self.train);
        let adapter = self.adapter.as_ref();
        let sample = &self.sample;
        let shape = shape_keys(&self.model);
        let shape = shape.map(|(key, value)| ("model", key, value.is_some()));
        let mut keys = shape.to_vec();
        keys.extend([
            ("model", "transformer", model.transformer.is_some()),
            ("model", "transformer_2", model.transformer_2.is_some()),
            ("model", "vae", model.vae.is_some()),
            ("model", "text_encoder", model.text_encoder.is_some()),
            ("model", "tokenizer", model.tokenizer.is_some()),
            (
                "data",
                "dataset",
                data.dataset.is_some_and(Dataset::is_video),
            ),
            ("data", "num_frames", data.num_frames.is_some()),
            ("data", "frame_extraction", data.frame_extraction.is_some()),
            ("data", "frame_stride", data.frame_stride.is_some()),
            ("data", "frame_sample", data.frame_sample.is_some()),
            ("data", "max_frames", data.max_frames.is_some()),
            ("data", "fps", data.fps.is_some()),
            ("data", "enable_bucket", data.enable_bucket.is_some()),
            (
                "data",
                "bucket_no_upscale",
                data.bucket_no_upscale.is_some(),
            ),
            (
                "data",
                "caption_extension",
                data.caption_extension.is_some(),
            ),
            ("data", "trigger_word", data.trigger_word.is_some()),
            ("data", "caption_dropout", data.caption_dropout.is_some()),
            ("data", "num_repeats", data.num_repeats.is_some()),
            ("data", "image_to_video", data.image_to_video.is_some()),
            ("data", "cache_dir", data.cache_dir.is_some()),
            (
                "train",
                "weighting_scheme",
                train.weighting_scheme.is_some(),
            ),
            ("train", "flow_shift", train.flow_shift.is_some()),
            ("train", "logit_mean", train.logit_mean.is_some()),
            ("train", "logit_std", train.logit_std.is_some()),
            ("train", "min_sigma", train.min_sigma.is_some()),
            ("train", "max_sigma", train.max_sigma.is_some()),
            ("train", "experts", train.experts.is_some()),
            (
                "train",
                "steps_per_expert",
                train.steps_per_expert.is_some(),
            ),
            (
                "model",
                "boundary_ratio",
                self.model.boundary_ratio.is_some(),
            ),
            (
                "sample",
                "negative_prompt",
                sample.negative_prompt.is_some(),
            ),
            ("sample", "width", sample.width.is_some()),
            ("sample", "height", sample.height.is_some()),
            ("sample", "num_frames", sample.num_frames.is_some()),
            ("sample", "seed", sample.seed.is_some()),
            (
                "sample",
                "num_inference_steps",
                sample.num_inference_steps.is_some(),
            ),
            ("sample", "guidance_scale", sample.guidance_scale.is_some()),
            (
                "sample",
                "guidance_scale_2",
                sample.guidance_scale_2.is_some(),
            ),
            ("sample", "flow_shift", sample.flow_shift.is_some()),
            ("sample", "image", sample.image.is_some()),
            (
                "adapter",
                "format",
                adapter.is_some_and(|adapter| adapter.format.is_some()),
            ),
        ]);
        keys
    }

    /// Keys that a run on videos does not support, and whether they differ from their defaults.
    pub(super) fn text_keys(&self) -> Vec<Set> {
        let (data, none) = (&self.data, DataConfig::default());
        let (model, no_model) = (&self.model, ModelConfig::default());
        let (sample, no_sample) = (&self.sample, SampleConfig::default());
        let plain = AdapterConfig::default();
        let adapter = self.adapter.as_ref().unwrap_or(&plain);
        let train = &self.train;
        let nats = train.metric_for_best_model != TrainConfig::default().metric_for_best_model;
        vec![
            (
                "data",
                "dataset",
                data.dataset.is_some_and(|set| !set.is_video()),
            ),
            ("data", "mixture", data.mixture != none.mixture),
            ("data", "format", data.format != none.format),
            ("data", "block_size", data.block_size != none.block_size),
            ("data", "packing", data.packing != none.packing),
            (
                "data",
                "validation_shuffle",
                data.validation_shuffle != none.validation_shuffle,
            ),
            ("data", "tokenizer", data.tokenizer != none.tokenizer),
            ("data", "vocab_size", data.vocab_size != none.vocab_size),
            ("train", "metric_for_best_model", nats),
            (
                "model",
                "model_type",
                model.model_type != no_model.model_type,
            ),
            (
                "model",
                "hidden_size",
                model.hidden_size != no_model.hidden_size,
            ),
            (
                "model",
                "intermediate_size",
                model.intermediate_size != no_model.intermediate_size,
            ),
            (
                "model",
                "num_hidden_layers",
                model.num_hidden_layers != no_model.num_hidden_layers,
            ),
            (
                "model",
                "num_attention_heads",
                model.num_attention_heads != no_model.num_attention_heads
                    && model.name_or_path.is_some(),
            ),
            (
                "model",
                "num_key_value_heads",
                model.num_key_value_heads.is_some(),
            ),
            ("model", "head_dim", model.head_dim.is_some()),
            (
                "model",
                "rope_theta",
                model.rope_theta != no_model.rope_theta,
            ),
            (
                "model",
                "rms_norm_eps",
                model.rms_norm_eps != no_model.rms_norm_eps,
            ),
            (
                "model",
                "tie_word_embeddings",
                model.tie_word_embeddings != no_model.tie_word_embeddings,
            ),
            (
                "model",
                "initializer_range",
                model.initializer_range != no_model.initializer_range,
            ),
            ("adapter", "save_merged", adapter.save_merged),
            ("adapter", "use_dora", adapter.use_dora),
            (
                "adapter",
                "modules_to_save",
                adapter.modules_to_save.is_some(),
            ),
            ("adapter", "bias", adapter.bias != plain.bias),
            (
                "adapter",
                "loraplus_lr_embedding",
                adapter.loraplus_lr_embedding != plain.loraplus_lr_embedding,
            ),
            (
                "sample",
                "max_new_tokens",
                sample.max_new_tokens != no_sample.max_new_tokens,
            ),
            (
                "sample",
                "temperature",
                sample.temperature != no_sample.temperature,
            ),
            ("sample", "top_p", sample.top_p != no_sample.top_p),
        ]
    }
}

/// Problems of keys for the model's shape, which a published model determines itself.
fn shape_problems(config: &Config) -> Vec<([&'static str; 2], String, &'static str)> {
    let model = &config.model;
    let mut problems = Vec::new();
    let mut report = |key, message, help| problems.push((["model", key], message, help));
    if model.name_or_path.is_some() {
        for (key, _) in shape_keys(model)
            .iter()
            .filter(|(_, value)| value.is_some())
        {
            report(
                key,
                format!("`model.{key}` is for models that are trained from scratch"),
                "remove the key, or `model.name_or_path`",
            );
        }
        if config.adapter.is_none() {
            let message = "only a LoRA can be trained on a published video model";
            let help = "add an `adapter` section, or remove `model.name_or_path` to train one from scratch";
            problems.push((["data", "resolution"], message.into(), help));
        }
        return problems;
    }
    let parts = [
        ("transformer", model.transformer.is_some()),
        ("transformer_2", model.transformer_2.is_some()),
        ("vae", model.vae.is_some()),
        ("text_encoder", model.text_encoder.is_some()),
        ("tokenizer", model.tokenizer.is_some()),
    ];
    for (key, _) in parts.into_iter().filter(|(_, set)| *set) {
        report(
            key,
            format!("`model.{key}` is a part of a published model, but none is named"),
            "set `model.name_or_path`, or remove the key",
        );
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
    if !config.is_video() {
        for (section, key, _) in config.video_keys().into_iter().filter(|key| key.2) {
            problems.push((
                vec![section, key],
                format!("`{section}.{key}` is for videos, and this run is not on videos"),
                "set `data.resolution` to train on videos, or remove the key",
            ));
        }
        return problems;
    }
    for (section, key, _) in config.text_keys().into_iter().filter(|key| key.2) {
        problems.push((
            vec![section, key],
            format!("`{section}.{key}` has no effect on videos (`data.resolution` is set)"),
            "remove the key",
        ));
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
    let extraction = data.frame_extraction.unwrap_or(FrameExtraction::Head);
    let of_others = [
        (
            "frame_stride",
            data.frame_stride.is_some(),
            FrameExtraction::Slide,
            "slide",
        ),
        (
            "frame_sample",
            data.frame_sample.is_some(),
            FrameExtraction::Uniform,
            "uniform",
        ),
        (
            "max_frames",
            data.max_frames.is_some(),
            FrameExtraction::Full,
            "full",
        ),
    ];
    for (key, set, needs, name) in of_others {
        if set && extraction != needs {
            report(
                ["data", key],
                format!("`data.{key}` requires `data.frame_extraction: {name}`"),
                "set that, or remove the key",
            );
        }
    }
    if extraction == FrameExtraction::Full && data.num_frames.is_some() {
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
    for (key, set) in [
        ("logit_mean", train.logit_mean.is_some()),
        ("logit_std", train.logit_std.is_some()),
    ] {
        if set && train.weighting_scheme != Some(WeightingScheme::LogitNormal) {
            report(
                ["train", key],
                format!("`train.{key}` requires `train.weighting_scheme: logit_normal`"),
                "set that, or remove the key",
            );
        }
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
