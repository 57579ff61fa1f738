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
mod bf16;
mod check;
mod consistency;
mod data;
mod memory;
mod paths;
mod problem;
mod schema;
#[cfg(test)]
mod tests;
mod tree;

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use adapter::{AdapterConfig, BiasConfig, ModuleNames};
pub use bf16::Bf16;
pub use data::{DataConfig, DataFormat, Dataset, TokenizerKind};
pub use memory::{DeviceMapConfig, MemoryLimits, MemoryProfile, PlaceConfig, Size};
pub use problem::{ConfigError, Problem};
pub use schema::schema_json;

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
    /// The text.
    pub data: DataConfig,
    /// The optimization.
    pub train: TrainConfig,
    /// Text generated along the way.
    pub sample: SampleConfig,
}

/// A decoder-only transformer of the Llama family, by the key names of its `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelConfig {
    /// A published model to start from: a Hugging Face folder, a GGUF file, or the name of
    /// one in the cache. All other keys here then come from it.
    #[schemars(length(min = 1), extend("format" = "path"))]
    pub name_or_path: Option<String>,
    /// Keep the frozen matrices of a published model in fewer bits under an adapter; the
    /// embedding and the head stay as they are. Unset keeps every number.
    pub quantization: Option<Quantization>,
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
    /// Width of the residual stream.
    #[schemars(range(min = 1, max = 65_536))]
    pub hidden_size: u32,
    /// Width of the gated feed-forward layer.
    #[schemars(range(min = 1, max = 262_144))]
    pub intermediate_size: u32,
    /// Number of transformer blocks.
    #[schemars(range(min = 1, max = 1024))]
    pub num_hidden_layers: u32,
    /// Number of query heads.
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

/// The optimization: Hugging Face's `TrainingArguments` by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Optimizer steps of the whole run.
    #[schemars(range(min = 1))]
    pub max_steps: u64,
    /// Sequences in one forward pass.
    #[schemars(range(min = 1, max = 65_536))]
    pub per_device_train_batch_size: u32,
    /// Sequences in one forward pass of the evaluation; unset means as in training.
    #[schemars(range(min = 1, max = 65_536))]
    pub per_device_eval_batch_size: Option<u32>,
    /// Forward and backward passes before each optimizer step.
    #[schemars(range(min = 1, max = 65_536))]
    pub gradient_accumulation_steps: u32,
    /// The optimizer: AdamW with fp32 moments, or with moments of eight bits where a parameter
    /// has 4096 numbers or more and is no embedding, which take a quarter of the memory.
    pub optim: Optim,
    /// Peak learning rate of AdamW.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 10))]
    pub learning_rate: f64,
    /// Learning rate at the end of a `linear` or `cosine` schedule.
    #[schemars(range(min = 0, max = 10))]
    pub min_lr: f64,
    /// Shape of the learning rate after the warm-up.
    pub lr_scheduler_type: LrSchedulerType,
    /// Steps over which the learning rate rises linearly from zero.
    pub warmup_steps: u64,
    /// Decay of AdamW's running mean of the gradient.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub adam_beta1: f64,
    /// Decay of AdamW's running mean of the squared gradient.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub adam_beta2: f64,
    /// AdamW's epsilon.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub adam_epsilon: f64,
    /// Decoupled weight decay of the matrices; norms, biases and embeddings have none.
    #[schemars(range(min = 0, max = 10))]
    pub weight_decay: f64,
    /// Parameters that learn at another rate or decay otherwise; the first group whose `names`
    /// match counts.
    pub parameter_groups: Vec<ParameterGroup>,
    /// Keep an exponential moving average of the weights with this decay, as in 0.999, and
    /// evaluate, sample and export that; unset keeps none.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub ema_decay: Option<f64>,
    /// Largest norm of the whole gradient; 0 switches clipping off.
    #[schemars(range(min = 0))]
    pub max_grad_norm: f64,
    /// Whether the forward and backward passes compute in bfloat16; weights, norms, losses and
    /// the optimizer stay in fp32.
    pub bf16: Bf16,
    /// Compute the inside of each block a second time in the backward pass instead of
    /// keeping it: less memory, about a third more work.
    pub gradient_checkpointing: bool,
    /// With gradient checkpointing, let what is kept of each block wait in host memory. It
    /// frees device memory where the GPU has its own; on unified memory and on the CPU there
    /// is nothing to free, and it is left off.
    pub activation_offload: bool,
    /// Record metrics every this many steps.
    #[schemars(range(min = 1))]
    pub logging_steps: u64,
    /// Measure the held-out loss every this many steps; 0 leaves only the one at the end.
    pub eval_steps: u64,
    /// Held-out sequences in each evaluation on the way; the last one always takes all of them.
    #[schemars(range(min = 1))]
    pub max_eval_samples: Option<u64>,
    /// Write a checkpoint every this many steps; 0 leaves only the one at the end.
    pub save_steps: u64,
    /// Keep this many checkpoints, the newest; unset keeps all.
    #[schemars(range(min = 1))]
    pub save_total_limit: Option<u32>,
    /// Export the weights that were best in the evaluations on the way, not the last ones. Each
    /// evaluation that is the best so far is saved.
    pub load_best_model_at_end: bool,
    /// By what they are best; the least is.
    pub metric_for_best_model: BestMetric,
    /// Which tensors are compared, by a checksum, with what was sent once they are on the device.
    pub verify: VerifyMode,
    /// Seconds that one copy to or from the device may take before it counts as hung, beside the
    /// time that its bytes take on the slowest link (64 MiB a second).
    #[schemars(range(min = 1, max = 86_400))]
    pub transfer_deadline: u32,
    /// Where several processes train together: seconds that one waits for another before the run
    /// ends with that one's name. Longer than a step, a sample or a checkpoint takes; a process that
    /// is gone is noticed at once.
    #[schemars(range(min = 1, max = 86_400))]
    pub rank_timeout: u32,
    /// Continue from this checkpoint or run folder; `latest` takes the newest run of this name.
    #[schemars(extend("format" = "path"))]
    pub resume_from_checkpoint: Option<String>,
}

/// Parameters that are trained in a way of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParameterGroup {
    /// A regular expression that is found in the names of these parameters, as `norm|bias`.
    #[schemars(length(min = 1))]
    pub names: String,
    /// Their peak learning rate, on the schedule of all; unset takes `train.learning_rate`.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub learning_rate: Option<f64>,
    /// Their weight decay; unset leaves what they would have without this group.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub weight_decay: Option<f64>,
}

/// Which arrivals on the device are verified, as `docs/transfer.md` specifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerifyMode {
    /// None: wrong bytes pass unseen.
    Off,
    /// Each weight once, and each field of a batch the first time.
    First,
    /// Each weight once, and of the batches one in 64.
    Sample,
    /// Every copy.
    Always,
}

impl From<VerifyMode> for placement::Verify {
    fn from(mode: VerifyMode) -> Self {
        match mode {
            VerifyMode::Off => Self::Off,
            VerifyMode::First => Self::First,
            VerifyMode::Sample => Self::SAMPLE,
            VerifyMode::Always => Self::Always,
        }
    }
}

/// What an evaluation is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BestMetric {
    /// The held-out loss.
    EvalLoss,
    /// The held-out loss in nats per byte, of models that train a tokenizer of their own.
    EvalNatsPerByte,
}

/// The optimizer, by Hugging Face's names: two of each kind mean the same here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Optim {
    /// AdamW with fp32 moments.
    AdamwTorchFused,
    /// The same: libtorch's fused kernel either way.
    AdamwTorch,
    /// AdamW with eight-bit moments in bitsandbytes' format. Needs no bitsandbytes.
    #[serde(rename = "adamw_8bit")]
    Adamw8bit,
    /// The same.
    #[serde(rename = "adamw_bnb_8bit")]
    AdamwBnb8bit,
}

impl Optim {
    /// Whether moments are kept in eight bits.
    pub fn eight_bit(self) -> bool {
        matches!(self, Self::Adamw8bit | Self::AdamwBnb8bit)
    }
}

/// Shape of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedulerType {
    /// Stays at `learning_rate`.
    Constant,
    /// Falls in a straight line to `min_lr`.
    Linear,
    /// Falls along half a cosine to `min_lr`.
    Cosine,
}

/// Text generated along the way, to see what the numbers mean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SampleConfig {
    /// Generate every this many steps; 0 leaves only the sample at the end.
    pub sample_steps: u64,
    /// What the model is asked to continue.
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
        }
    }
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            name_or_path: None,
            quantization: None,
            profile: None,
            low_vram: None,
            blocks_to_swap: None,
            offload_fraction: None,
            max_memory: None,
            device_map: None,
            ring_slots: None,
            offload_folder: None,
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

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            max_steps: 1000,
            per_device_train_batch_size: 16,
            per_device_eval_batch_size: None,
            gradient_accumulation_steps: 1,
            optim: Optim::AdamwTorchFused,
            learning_rate: 1e-3,
            min_lr: 0.0,
            lr_scheduler_type: LrSchedulerType::Cosine,
            warmup_steps: 0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            weight_decay: 0.0,
            parameter_groups: Vec::new(),
            ema_decay: None,
            max_grad_norm: 1.0,
            bf16: Bf16::Auto,
            gradient_checkpointing: false,
            activation_offload: false,
            logging_steps: 10,
            eval_steps: 100,
            max_eval_samples: None,
            save_steps: 500,
            save_total_limit: None,
            load_best_model_at_end: false,
            metric_for_best_model: BestMetric::EvalLoss,
            verify: VerifyMode::First,
            transfer_deadline: 120,
            rank_timeout: 600,
            resume_from_checkpoint: None,
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
        if self.data.eval_dataset.is_some() {
            self.data.validation_fraction = 0.0;
        }
        self
    }

    /// The same without `train.resume_from_checkpoint`.
    pub(crate) fn without_resume(&self) -> Self {
        let mut config = self.clone();
        config.train.resume_from_checkpoint = None;
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
