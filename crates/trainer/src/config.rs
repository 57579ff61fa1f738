//! What a run is asked to do: a YAML file, overrides from the command line, defaults.
//!
//! The structs here are the one description of a config. Their doc comments and
//! range attributes become the JSON schema (`configs/schema.json`), and a config is
//! checked by walking that schema, so what an editor underlines, what the trainer
//! refuses and what this file says cannot drift apart:
//!
//! ```text
//! YAML text ──parse──▶ tree with places ◀──merge── --set a.b=value
//!                           │ check against the schema: every problem, each with its place
//!                           ▼
//!                        Config
//! ```
//!
//! Keys are named with Hugging Face's words wherever Hugging Face has one.

mod adapter;
mod batch_size;
mod bf16;
mod check;
mod consistency;
mod data;
mod encoded_by;
mod memory;
mod mixture;
mod notify;
mod paths;
mod previews;
mod problem;
mod schedule;
mod schema;
mod strategy;
#[cfg(test)]
mod tests;
mod train;
#[cfg(test)]
mod train_tests;
mod tree;
mod video;
#[cfg(test)]
mod video_tests;

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use adapter::{AdapterConfig, BiasConfig, ModuleNames};
pub use batch_size::BatchSize;
pub use bf16::Bf16;
pub use data::{DataConfig, DataFormat, Dataset, TokenizerKind};
pub use encoded_by::EncodedBy;
pub use memory::{DeviceMapConfig, MemoryLimits, MemoryProfile, PlaceConfig, Size};
pub use mixture::{MixtureSource, StoppingStrategy};
pub use notify::NotifyConfig;
pub(crate) use previews::Preview;
pub use problem::{ConfigError, Problem};
pub(crate) use schedule::POLYNOMIAL_END;
pub use schedule::{LrSchedulerKwargs, LrSchedulerType, RampType};
pub use schema::schema_json;
pub use strategy::Strategy;
pub use train::{
    Backend, BestMetric, Optim, ParameterGroup, ReduceDtype, TrainConfig, VerifyMode,
    WeightingScheme,
};
pub(crate) use video::{CHANNELS, SCALE_FACTOR};
pub use video::{Experts, FrameExtraction, LoraFormat, Numbers};

/// The variable with the only folders, separated like those of `PATH`, that the paths of a config may lead
/// to: set where the config comes from somebody who may not read everything that this user may.
pub const FOLDERS: &str = "SUREFOOT_CONFIG_FOLDERS";

/// Everything a training run needs to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of the run; its folder is `<output_dir>/<name>`.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Folder that holds the run folders.
    #[schemars(extend("format" = "path"))]
    pub output_dir: PathBuf,
    /// Seed of the initial weights, the data order and the samples.
    pub seed: u64,
    /// Where to train: `auto` takes the first GPU that libtorch sees, else the CPU.
    /// Or `cpu`, `gpu`, `gpu:1`.
    #[schemars(regex(pattern = "^(auto|cpu|gpu(:[0-9]{1,3})?)$"))]
    pub device: String,
    /// CPU threads for one operation; unset leaves the choice to libtorch (one per core).
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u32>,
    /// The model.
    pub model: ModelConfig,
    /// What is trained of a published model; unset trains all of it.
    pub adapter: Option<AdapterConfig>,
    /// The text, or the videos.
    pub data: DataConfig,
    /// The optimization.
    pub train: TrainConfig,
    /// Text or videos generated along the way.
    pub sample: SampleConfig,
    /// Messages elsewhere.
    pub notify: NotifyConfig,
}

/// A decoder-only transformer of the Llama family, by the key names of its `config.json`; or, on videos,
/// a transformer of Wan by those of diffusers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A published model to start from: a Hugging Face folder, a GGUF file, the name of one in the
    /// cache, or of one on the Hugging Face hub, as `org/name` or `org/name@revision`, which is fetched
    /// once; of Wan, a folder of diffusers or a single file of the transformer (that of high noise,
    /// where there are two). All other keys here then come from it.
    #[schemars(length(min = 1), extend("format" = "path"))]
    pub name_or_path: Option<String>,
    /// Of Wan: the transformer, or that of high noise, in place of the folder's. A folder of diffusers or a
    /// single file, as the other parts.
    #[schemars(extend("format" = "path"))]
    pub transformer: Option<PathBuf>,
    /// Of Wan 2.2 A14B: the transformer of low noise.
    #[schemars(extend("format" = "path"))]
    pub transformer_2: Option<PathBuf>,
    /// Of Wan: the autoencoder.
    #[schemars(extend("format" = "path"))]
    pub vae: Option<PathBuf>,
    /// Of Wan: the text encoder.
    #[schemars(extend("format" = "path"))]
    pub text_encoder: Option<PathBuf>,
    /// Of Wan: the tokenizer, a folder, `tokenizer.json` or `spiece.model`; unset takes the folder's, or the
    /// one inside the single file of the text encoder.
    #[schemars(extend("format" = "path"))]
    pub tokenizer: Option<PathBuf>,
    /// Keep the frozen matrices of a published model in fewer bits under an adapter; the
    /// embedding and the head stay as they are. Unset keeps every number.
    pub quantization: Option<Quantization>,
    /// Level of noise, from 0 to 1, from which on the first of two experts of Wan 2.2 is used; unset
    /// takes what the model's `model_index.json` says.
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    pub boundary_ratio: Option<f64>,
    /// A named set of the keys below, which the run prints; what is set beside it wins.
    pub profile: Option<MemoryProfile>,
    /// Stream every block of a frozen model through a small ring of device memory.
    pub low_vram: Option<bool>,
    /// Stream so many blocks, spread evenly, and keep the others.
    #[schemars(range(min = 0, max = 1024))]
    pub blocks_to_swap: Option<u32>,
    /// Stream at least this share of the blocks' bytes.
    #[schemars(range(min = 0, max = 1))]
    pub offload_fraction: Option<f64>,
    /// Stream as many blocks as it takes to stay below these bounds.
    pub max_memory: Option<MemoryLimits>,
    /// Where each part of a frozen model goes: `auto`, or a map of names to `device`, `cpu` or
    /// `disk`.
    pub device_map: Option<DeviceMapConfig>,
    /// Blocks that are on the device at a time while they are streamed: one in use, the others
    /// on their way. Unset means 2, or what the profile says; where memory has room for one only,
    /// the plan says so.
    #[schemars(range(min = 2, max = 64))]
    pub ring_slots: Option<u32>,
    /// Folder on a disk for streamed blocks that wait in a file, and on one memory with the CPU
    /// for what is idle when memory is short. The file is gone after the run; unset takes a folder
    /// in the cache.
    #[schemars(extend("format" = "path"))]
    pub offload_folder: Option<PathBuf>,
    /// Of a video model that is trained from nothing, its blocks. Unset means 4.
    #[schemars(range(min = 1, max = 1024))]
    pub num_layers: Option<u32>,
    /// Of the same, the width of a head, an even number. Unset means 32.
    #[schemars(range(min = 6, max = 1024))]
    pub attention_head_dim: Option<u32>,
    /// Of the same, the width within the feed-forward layers. Unset means four times that of the stream,
    /// which is `num_attention_heads` times `attention_head_dim`.
    #[schemars(range(min = 1, max = 262_144))]
    pub ffn_dim: Option<u32>,
    /// Of the same, sines and cosines of the time, an even number. Unset means 256.
    #[schemars(range(min = 2, max = 65_536))]
    pub freq_dim: Option<u32>,
    /// Of the same, the width of its text encoder. Unset means 64.
    #[schemars(range(min = 1, max = 65_536))]
    pub text_dim: Option<u32>,
    /// Of the same, channels of latents. Unset means 16.
    #[schemars(range(min = 1, max = 4096))]
    pub in_channels: Option<u32>,
    /// Of the same, the side of the square of pixels that a latent stands for. Unset means 4.
    #[schemars(range(min = 1, max = 64))]
    pub scale_factor_spatial: Option<u32>,
    /// Width of the residual stream.
    #[schemars(range(min = 1, max = 65_536))]
    pub hidden_size: u32,
    /// Width of the gated feed-forward layer.
    #[schemars(range(min = 1, max = 262_144))]
    pub intermediate_size: u32,
    /// Number of transformer blocks.
    #[schemars(range(min = 1, max = 1024))]
    pub num_hidden_layers: u32,
    /// Number of query heads; of a video model that is trained from nothing, of heads.
    #[schemars(range(min = 1, max = 1024))]
    pub num_attention_heads: u32,
    /// Number of key and value heads; unset means as many as query heads.
    #[schemars(range(min = 1, max = 1024))]
    pub num_key_value_heads: Option<u32>,
    /// Width of one head; unset means `hidden_size / num_attention_heads`.
    #[schemars(range(min = 2, max = 1024))]
    pub head_dim: Option<u32>,
    /// Base of the rotary position embedding.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub rope_theta: f64,
    /// Epsilon of the RMS norms.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub rms_norm_eps: f64,
    /// Whether the output head shares the embedding's weight.
    pub tie_word_embeddings: bool,
    /// Standard deviation of the initial weights.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub initializer_range: f64,
}

/// How frozen matrices are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Quantization {
    /// Eight bits a number, and a scale for each row: half of bf16.
    Int8,
    /// Four bits a number, and a scale for every 64 (QLoRA's format): 28 % of bf16.
    Nf4,
}

impl From<Quantization> for models::quant::Quantization {
    fn from(quantization: Quantization) -> Self {
        match quantization {
            Quantization::Int8 => Self::Int8,
            Quantization::Nf4 => Self::Nf4,
        }
    }
}

/// Text or videos generated along the way, to see what the numbers mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SampleConfig {
    /// Generate every this many steps; 0 leaves only the sample at the end and, of a model that knows
    /// something already, that before the first step.
    pub sample_steps: u64,
    /// What the model is asked to continue. Of videos, what they show: unset makes none. Options may
    /// stand behind a prompt as musubi-tuner has them: `--w` (width), `--h` (height), `--f` (frames),
    /// `--d` (seed), `--s` (steps), `--l` (guidance), `--fs` (shift), `--n` (negative prompt),
    /// `--i` (image).
    #[schemars(length(min = 1))]
    pub prompts: Vec<String>,
    /// Length of each sample, in tokens; 0 switches samples off.
    #[schemars(range(max = 65_536))]
    pub max_new_tokens: u32,
    /// 0 takes the likeliest token every time.
    #[schemars(range(min = 0, max = 100))]
    pub temperature: f64,
    /// Sample from the likeliest tokens that together have this probability.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1))]
    pub top_p: f64,
    /// Of videos, what they are to go away from.
    pub negative_prompt: Option<String>,
    /// Of videos, pixels in a row. Unset means that of `data.resolution`.
    #[schemars(range(min = 8, max = 8192))]
    pub width: Option<u32>,
    /// Of videos, rows of pixels. Unset means that of `data.resolution`.
    #[schemars(range(min = 8, max = 8192))]
    pub height: Option<u32>,
    /// Of videos, frames: 4 n + 1. Unset means the most of `data.num_frames`, or one.
    #[schemars(range(min = 1, max = 10_000))]
    pub num_frames: Option<u32>,
    /// Of videos, where their noise comes from. Unset means `seed`.
    pub seed: Option<u64>,
    /// Of videos, steps of the solver. Unset means 20.
    #[schemars(range(min = 1, max = 1000))]
    pub num_inference_steps: Option<u32>,
    /// Of videos, how far to go from the negative prompt to the prompt; up to 1 the negative one is not
    /// asked, which takes half the time. Unset means 5.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 100))]
    pub guidance_scale: Option<f64>,
    /// The same for the expert of low noise. Unset means `guidance_scale`.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 100))]
    pub guidance_scale_2: Option<f64>,
    /// Of videos, how far the solver's steps are shifted towards noise. Unset means what the model's
    /// scheduler says.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
    pub flow_shift: Option<f64>,
    /// Of videos that begin with a picture, the picture.
    #[schemars(length(min = 1), extend("format" = "path"))]
    pub image: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "run".into(),
            output_dir: "runs".into(),
            seed: 42,
            device: "auto".into(),
            threads: None,
            model: ModelConfig::default(),
            adapter: None,
            data: DataConfig::default(),
            train: TrainConfig::default(),
            sample: SampleConfig::default(),
            notify: NotifyConfig::default(),
        }
    }
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            name_or_path: None,
            transformer: None,
            transformer_2: None,
            vae: None,
            text_encoder: None,
            tokenizer: None,
            quantization: None,
            boundary_ratio: None,
            profile: None,
            low_vram: None,
            blocks_to_swap: None,
            offload_fraction: None,
            max_memory: None,
            device_map: None,
            ring_slots: None,
            offload_folder: None,
            num_layers: None,
            attention_head_dim: None,
            ffn_dim: None,
            freq_dim: None,
            text_dim: None,
            in_channels: None,
            scale_factor_spatial: None,
            hidden_size: 256,
            intermediate_size: 704,
            num_hidden_layers: 6,
            num_attention_heads: 4,
            num_key_value_heads: None,
            head_dim: None,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-5,
            tie_word_embeddings: true,
            initializer_range: 0.02,
        }
    }
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self {
            sample_steps: 0,
            prompts: vec!["\n".into()],
            max_new_tokens: 200,
            temperature: 0.8,
            top_p: 0.95,
            negative_prompt: None,
            width: None,
            height: None,
            num_frames: None,
            seed: None,
            num_inference_steps: None,
            guidance_scale: None,
            guidance_scale_2: None,
            flow_shift: None,
            image: None,
        }
    }
}

impl ModelConfig {
    /// Width of one attention head.
    pub fn head_dim(&self) -> u32 {
        self.head_dim
            .unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Number of key and value heads.
    pub fn num_key_value_heads(&self) -> u32 {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }
}

impl Config {
    /// Reads the config file at `path` and applies `overrides`, each `a.b=value`; or `b=value`,
    /// where only one section has a key `b`.
    ///
    /// # Errors
    /// Every problem found in the file and the overrides at once, each with its
    /// line and column and what would be allowed.
    pub fn load(path: &Path, overrides: &[String]) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let reason = format!("the config cannot be read: {error}");
            ConfigError::of(&path.display().to_string(), reason)
        })?;
        Self::parse(&path.display().to_string(), &text, overrides)
    }

    /// Like [`Config::load`], from text; `name` stands for the file in messages.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(name: &str, text: &str, overrides: &[String]) -> Result<Self, ConfigError> {
        let mut tree = tree::parse_file(name, text)?;
        for argument in overrides {
            tree::apply_override(&mut tree, argument, &schema::section_of)?;
        }
        let mut problems = check::against_schema(&tree, schema::schema());
        problems.extend(paths::expand(&mut tree, schema::schema(), &|name| {
            std::env::var_os(name)
        }));
        if let Some(folders) = std::env::var_os(FOLDERS) {
            let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
            let base = std::env::current_dir().unwrap_or_default();
            problems.extend(paths::confine(&tree, schema::schema(), &base, &folders));
        }
        if problems.is_empty() {
            let config: Self = serde_json::from_value(tree.to_json())
                .map_err(|error| ConfigError::from(Problem::at(&tree.place, error.to_string())))?;
            problems = consistency::check(&config, &tree);
            if std::env::var_os(FOLDERS).is_some() && config.names_images_in_prompts() {
                let place = tree.find(&["sample", "prompts"]).unwrap_or(&tree);
                let message = "`--i` behind a prompt is not allowed here: set `sample.image`";
                problems.push(Problem::at(&place.place, message.to_owned()));
            }
            if problems.is_empty() {
                let unused = consistency::unused(&config, &tree);
                for warning in &unused {
                    tracing::warn!("{warning}");
                }
                return Ok(config.without_unused());
            }
        }
        Err(ConfigError { problems })
    }

    /// The value of every key by its full name, as `train.learning_rate`; of a section that is unset,
    /// the section itself.
    pub(crate) fn leaves(&self) -> Result<serde_json::Map<String, serde_json::Value>, ConfigError> {
        let config = serde_json::to_value(self)
            .map_err(|error| ConfigError::of(&self.name, error.to_string()))?;
        let mut leaves = serde_json::Map::new();
        for (key, value) in config.as_object().into_iter().flatten() {
            match value.as_object() {
                None => drop(leaves.insert(key.clone(), value.clone())),
                Some(section) => leaves.extend(
                    section
                        .iter()
                        .map(|(name, value)| (format!("{key}.{name}"), value.clone())),
                ),
            }
        }
        Ok(leaves)
    }

    /// The same with what other keys take the place of at what has no effect, so that the config that
    /// is written says what is in force.
    fn without_unused(mut self) -> Self {
        if self.data.has_eval_data() {
            self.data.validation_fraction = 0.0;
        }
        let train = &mut self.train;
        train.max_steps = train.steps();
        for (strategy, steps) in [
            (train.eval_strategy, &mut train.eval_steps),
            (train.save_strategy, &mut train.save_steps),
        ] {
            if strategy != Strategy::Steps {
                *steps = 0;
            }
        }
        if train.lr_scheduler_type.is_constant() {
            train.min_lr = 0.0;
        }
        self
    }

    /// The same without `train.resume_from_checkpoint`.
    pub(crate) fn without_resume(&self) -> Self {
        let mut config = self.clone();
        config.train.resume_from_checkpoint = None;
        config
    }

    /// The same without what only who runs it may know, for files that are passed on.
    pub(crate) fn without_secrets(&self) -> Self {
        let mut config = self.clone();
        config.notify.url = None;
        config
    }

    /// The config as YAML, every key written out. [`Config::parse`] reads the same from it, also
    /// where a path has a `$` in it.
    ///
    /// # Errors
    /// When a value has no YAML form, which the schema rules out.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        let wrong = |reason: String| ConfigError::of(&self.name, reason);
        let mut value = serde_json::to_value(self).map_err(|error| wrong(error.to_string()))?;
        paths::escape(&mut value, schema::schema());
        serde_saphyr::to_string(&value).map_err(|error| wrong(error.to_string()))
    }
}
