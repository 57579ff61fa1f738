//! The config of a run: a YAML file, overrides from the command line, and defaults.
//!
//! The structs here are the only description of a config. Their doc comments and range attributes become the JSON
//! schema (`configs/schema.json`), and a config is checked against that schema. So what an editor underlines, what
//! the trainer refuses, and what is documented here
//! always agree:
//!
//! ```text
//! YAML text ──parse──▶ tree with positions ◀──merge── --set a.b=value
//!                           │ check against the schema: all problems, each with its position
//!                           ▼
//!                        Config
//! ```
//!
//! Keys are named as by Hugging Face wherever it has a name for them.

mod adapter;
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

/// An environment variable with the only folders, separated as in `PATH`, that the paths of a config may lead to. It is
/// set if the config comes from somebody who must not read all files of this user.
pub const FOLDERS: &str = "SUREFOOT_CONFIG_FOLDERS";

/// The config of a training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of the run; its folder is `<output_dir>/<name>`.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Folder of the run folders.
    #[schemars(extend("format" = "path"))]
    pub output_dir: PathBuf,
    /// Seed of the initial weights, the data order and the samples.
    pub seed: u64,
    /// Where to train: `auto` uses the first GPU that libtorch sees, else the CPU.
    /// Or `cpu`, `gpu`, `gpu:1`.
    #[schemars(regex(pattern = "^(auto|cpu|gpu(:[0-9]{1,3})?)$"))]
    pub device: String,
    /// CPU threads per operation; unset leaves the choice to libtorch (one per core).
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u32>,
    /// The model.
    pub model: ModelConfig,
    /// The adapter that is trained on a published model; unset trains the whole model.
    pub adapter: Option<AdapterConfig>,
    /// The text or videos to train on.
    pub data: DataConfig,
    /// The optimization.
    pub train: TrainConfig,
    /// Text or videos that are generated during training.
    pub sample: SampleConfig,
    /// Notifications.
    pub notify: NotifyConfig,
}

/// A decoder-only transformer with the keys of its `config.json`; or, for videos, a Wan
/// transformer with the keys of diffusers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A published model to start from: a Hugging Face folder, a GGUF file, or the name of a model in the
    /// cache or on the Hugging Face hub, such as `org/name` or `org/name@revision`, which is downloaded
    /// once. For Wan, a diffusers folder or a single file of the transformer (the high-noise one, if there are
    /// two). All other keys here then follow from the model.
    #[schemars(length(min = 1), extend("format" = "path"))]
    pub name_or_path: Option<String>,
    /// For Wan: the transformer, or the high-noise one, in place of the folder's. A diffusers folder or a
    /// single file, as for the other parts.
    #[schemars(extend("format" = "path"))]
    pub transformer: Option<PathBuf>,
    /// For Wan 2.2 A14B: the low-noise transformer.
    #[schemars(extend("format" = "path"))]
    pub transformer_2: Option<PathBuf>,
    /// For Wan: the autoencoder.
    #[schemars(extend("format" = "path"))]
    pub vae: Option<PathBuf>,
    /// For Wan: the text encoder.
    #[schemars(extend("format" = "path"))]
    pub text_encoder: Option<PathBuf>,
    /// For Wan: the tokenizer, as a folder, `tokenizer.json` or `spiece.model`. Unset uses the folder's, or the
    /// one inside the single file of the text encoder.
    #[schemars(extend("format" = "path"))]
    pub tokenizer: Option<PathBuf>,
    /// Quantise the frozen weight matrices of a published model under an adapter, except the
    /// embedding and the head. Unset does not quantise.
    pub quantization: Option<Quantization>,
    /// The noise level, from 0 to 1, at and above which the first expert of Wan 2.2 is used. Unset
    /// uses the value in the model's `model_index.json`.
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    pub boundary_ratio: Option<f64>,
    /// A preset for the keys below, which the run prints; keys that are set explicitly override it.
    pub profile: Option<MemoryProfile>,
    /// Stream every block of a frozen model through a few slots of device memory.
    pub low_vram: Option<bool>,
    /// Stream this many blocks, spread evenly, and keep the others on the device.
    #[schemars(range(min = 0, max = 1024))]
    pub blocks_to_swap: Option<u32>,
    /// Stream at least this fraction of the blocks' bytes.
    #[schemars(range(min = 0, max = 1))]
    pub offload_fraction: Option<f64>,
    /// Stream as many blocks as necessary to stay below these limits.
    pub max_memory: Option<MemoryLimits>,
    /// Where each part of a frozen model is kept: `auto`, or a map of names to `device`, `cpu` or
    /// `disk`.
    pub device_map: Option<DeviceMapConfig>,
    /// How many streamed blocks are on the device at a time: one in use, the others in
    /// transfer. Unset means 2, or the value of the profile; if memory has room for only one,
    /// the plan says so.
    #[schemars(range(min = 2, max = 64))]
    pub ring_slots: Option<u32>,
    /// Folder on a disk for streamed blocks that are kept in a file and, if the device shares its memory with the CPU,
    /// for offloaded state when memory is short. The file is removed after the run. Unset uses a folder
    /// in the cache.
    #[schemars(extend("format" = "path"))]
    pub offload_folder: Option<PathBuf>,
    /// For a video model that is trained from scratch, its number of blocks. Unset means 4.
    #[schemars(range(min = 1, max = 1024))]
    pub num_layers: Option<u32>,
    /// For the same, the width of an attention head, an even number. Unset means 32.
    #[schemars(range(min = 6, max = 1024))]
    pub attention_head_dim: Option<u32>,
    /// For the same, the width of the feed-forward layers. Unset means four times that of the residual stream,
    /// which is `num_attention_heads` times `attention_head_dim`.
    #[schemars(range(min = 1, max = 262_144))]
    pub ffn_dim: Option<u32>,
    /// For the same, the size of the sinusoidal time embedding, an even number. Unset means 256.
    #[schemars(range(min = 2, max = 65_536))]
    pub freq_dim: Option<u32>,
    /// For the same, the width of its text encoder. Unset means 64.
    #[schemars(range(min = 1, max = 65_536))]
    pub text_dim: Option<u32>,
    /// For the same, the number of latent channels. Unset means 16.
    #[schemars(range(min = 1, max = 4096))]
    pub in_channels: Option<u32>,
    /// For the same, the side of the square of pixels that one latent represents. Unset means 4.
    #[schemars(range(min = 1, max = 64))]
    pub scale_factor_spatial: Option<u32>,
    /// The family of a model that is trained from scratch, as in its `config.json`.
    #[schemars(extend("enum" = families()))]
    pub model_type: String,
    /// Width of the residual stream.
    #[schemars(range(min = 1, max = 65_536))]
    pub hidden_size: u32,
    /// Width of the gated feed-forward layer.
    #[schemars(range(min = 1, max = 262_144))]
    pub intermediate_size: u32,
    /// Number of transformer blocks.
    #[schemars(range(min = 1, max = 1024))]
    pub num_hidden_layers: u32,
    /// Number of query heads; for a video model that is trained from scratch, of attention heads.
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

/// The `model_type` of each family of language models.
fn families() -> Vec<&'static str> {
    let known = models::language::REGISTRY.iter();
    known.map(|family| family.model_type).collect()
}

/// How frozen matrices are quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Quantization {
    /// Eight bits per value and a scale per row: half the size of bf16.
    Int8,
    /// Four bits per value and a scale per 64 values (QLoRA's format): 28 % of bf16.
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

/// Text or videos that are generated during training, as a check of progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SampleConfig {
    /// Generate samples every this many steps. With 0 there are only samples at the end and, for a
    /// published model, before the first step.
    pub sample_steps: u64,
    /// The prompts to continue. For videos, what they show; unset generates none. A prompt may be
    /// followed by options in musubi-tuner's form: `--w` (width), `--h` (height), `--f` (frames),
    /// `--d` (seed), `--s` (steps), `--l` (guidance), `--fs` (shift), `--n` (negative prompt),
    /// `--i` (image).
    #[schemars(length(min = 1))]
    pub prompts: Vec<String>,
    /// Length of each sample in tokens; 0 disables samples.
    #[schemars(range(max = 65_536))]
    pub max_new_tokens: u32,
    /// Sampling temperature; 0 always chooses the most likely token.
    #[schemars(range(min = 0, max = 100))]
    pub temperature: f64,
    /// Sample from the most likely tokens that together have this probability.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1))]
    pub top_p: f64,
    /// For videos, the negative prompt.
    pub negative_prompt: Option<String>,
    /// For videos, the width in pixels. Unset means that of `data.resolution`.
    #[schemars(range(min = 8, max = 8192))]
    pub width: Option<u32>,
    /// For videos, the height in pixels. Unset means that of `data.resolution`.
    #[schemars(range(min = 8, max = 8192))]
    pub height: Option<u32>,
    /// For videos, the number of frames: 4 n + 1. Unset means the maximum of `data.num_frames`, or one.
    #[schemars(range(min = 1, max = 10_000))]
    pub num_frames: Option<u32>,
    /// For videos, the seed of the noise. Unset means `seed`.
    pub seed: Option<u64>,
    /// For videos, the number of inference steps. Unset means 20.
    #[schemars(range(min = 1, max = 1000))]
    pub num_inference_steps: Option<u32>,
    /// For videos, the guidance scale. At 1 or below the negative prompt is not evaluated,
    /// which halves the time. Unset means 5.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 100))]
    pub guidance_scale: Option<f64>,
    /// The same for the low-noise expert. Unset means `guidance_scale`.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 100))]
    pub guidance_scale_2: Option<f64>,
    /// For videos, how far the solver's steps are shifted towards noise. Unset means the value of the model's
    /// scheduler.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
    pub flow_shift: Option<f64>,
    /// For image-to-video models, the first frame.
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
            model_type: families()[0].to_owned(),
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
    /// Reads the config file at `path` and applies `overrides` of the form `a.b=value`, or `b=value` if
    /// only one section has a key `b`.
    ///
    /// # Errors
    /// All problems in the file and the overrides, each with its line and column and what would be
    /// allowed.
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
    /// See [`Config::load`].
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
                let message = "`--i` in a prompt is not allowed here: set `sample.image`";
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

    /// The values of all keys by their full names, such as `train.learning_rate`; for a section that is unset, the
    /// section itself.
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

    /// The same without values that have no effect beside other keys, so that a written config shows what is
    /// in effect.
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

    /// The same without what must stay private, for files that are passed on.
    pub(crate) fn without_secrets(&self) -> Self {
        let mut config = self.clone();
        config.notify.url = None;
        config
    }

    /// The config as YAML with every key. [`Config::parse`] reads the same config from it, even if
    /// a path contains a `$`.
    ///
    /// # Errors
    /// If a value cannot be written as YAML, which the schema rules out.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        let wrong = |reason: String| ConfigError::of(&self.name, reason);
        let mut value = serde_json::to_value(self).map_err(|error| wrong(error.to_string()))?;
        paths::escape(&mut value, schema::schema());
        serde_saphyr::to_string(&value).map_err(|error| wrong(error.to_string()))
    }
}
