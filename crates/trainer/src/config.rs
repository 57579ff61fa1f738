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

#[macro_use]
mod keys;

mod adapter;
mod batch_size;
mod bf16;
mod check;
mod consistency;
mod data;
mod declared;
mod encoded_by;
pub mod import;
mod memory;
mod mixture;
mod notify;
mod optim;
mod paths;
mod preference;
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
mod words;

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use adapter::{AdapterConfig, AdapterInit, AdapterKind, BiasConfig, ModuleNames};
pub use batch_size::BatchSize;
pub use bf16::Bf16;
pub use data::{DataConfig, DataFormat, Dataset, TokenizerKind};
pub use encoded_by::EncodedBy;
pub(crate) use keys::{OnResume, key};
pub use memory::{MemoryLimits, Offload, PlaceConfig, Size};
pub use mixture::{MixtureSource, StoppingStrategy};
pub use notify::NotifyConfig;
pub use optim::{AdjustLr, Eps, Optim, OptimArgs};
pub(crate) use paths::{Confinement, LEADS_ELSEWHERE};
pub use preference::{LossType, PreferenceConfig};
pub(crate) use previews::Preview;
pub use problem::{ConfigError, Problem};
pub(crate) use schedule::POLYNOMIAL_END;
pub use schedule::{LrSchedulerKwargs, LrSchedulerType, RampType};
pub use schema::schema_json;
pub use strategy::Strategy;
pub use train::{
    Backend, BestMetric, KernelMode, ParameterGroup, ReduceDtype, ReportTo, TrainConfig,
    VerifyMode, WeightingScheme,
};
pub use video::{Experts, FrameExtraction, LoraFormat, Numbers, Paths};
pub use words::translated;

/// An environment variable with the only folders, separated as in `PATH`, that the paths of a config may lead to. It is
/// set if the config comes from somebody who must not read all files of this user.
pub const FOLDERS: &str = "SUREFOOT_CONFIG_FOLDERS";

section! {
    /// The config of a training run.
    pub struct Config {
        /// Name of the run; its folder is `<output_dir>/<name>`.
        #[schemars(length(min = 1))]
        pub name: String = "run".into(), for Any, resume Unrelated;
        /// Folder of the run folders.
        #[schemars(extend("x-per-machine" = true, "format" = "path"))]
        pub output_dir: PathBuf = "runs".into(), for Any, resume Unrelated;
        /// Seed of the initial weights, the data order and the samples.
        pub seed: u64 = 42, for Any, resume Fixed;
        /// Where to train: `auto` uses the first GPU that libtorch sees, else the CPU.
        /// Or `cpu`, `gpu`, `gpu:1`.
        #[schemars(regex(pattern = "^(auto|cpu|gpu(:[0-9]{1,3})?)$"), extend("x-per-machine" = true))]
        pub device: String = "auto".into(), for Any, resume Free;
        /// CPU threads per operation; unset leaves the choice to libtorch (one per core).
        #[schemars(range(min = 1, max = 1024), extend("x-per-machine" = true))]
        pub threads: Option<u32> = None, for Any, resume Free;
        /// The model.
        pub model: ModelConfig = ModelConfig::default(), for Any, resume ByKey;
        /// The adapter that is trained on a published model; unset trains the whole model.
        pub adapter: Option<AdapterConfig> = None, for Published, resume Fixed;
        /// Learning from preferences (DPO, ORPO, KTO, SimPO); unset learns the texts of the data.
        pub preference: Option<PreferenceConfig> = None, for PublishedLanguage, resume Fixed;
        /// The text or videos to train on.
        pub data: DataConfig = DataConfig::default(), for Any, resume ByKey;
        /// The optimization.
        pub train: TrainConfig = TrainConfig::default(), for Any, resume ByKey;
        /// Text or videos that are generated during training.
        pub sample: SampleConfig = SampleConfig::default(), for Any, resume ByKey;
        /// Notifications.
        pub notify: NotifyConfig = NotifyConfig::default(), for Any, resume ByKey;
    }
}

section! {
    /// A published model, or a decoder-only transformer with the keys of its `config.json`.
    #[schemars(transform = memory::add_older_words)]
    pub struct ModelConfig {
        /// A published model to start from: a Hugging Face folder, a GGUF file, or the name of a model in the
        /// cache or on the Hugging Face hub, such as `org/name` or `org/name@revision`, which is downloaded
        /// once. For Wan, a diffusers folder or a single file of the transformer (the high-noise one, if there are
        /// two). All other keys here then follow from the model.
        #[schemars(length(min = 1), extend("x-per-machine" = true, "format" = "path"))]
        pub name_or_path: Option<String> = None, for Any, resume Free;
        /// For Wan: the transformer, or the high-noise one, in place of the folder's. A diffusers folder or a
        /// single file, as for the other parts.
        #[schemars(extend("x-per-machine" = true, "format" = "path"))]
        pub transformer: Option<PathBuf> = None, for Diffusion, resume Free;
        /// For Wan 2.2 A14B: the low-noise transformer.
        #[schemars(extend("x-per-machine" = true, "format" = "path"))]
        pub transformer_2: Option<PathBuf> = None, for Diffusion, resume Free;
        /// For Wan: the autoencoder.
        #[schemars(extend("x-per-machine" = true, "format" = "path"))]
        pub vae: Option<PathBuf> = None, for Diffusion, resume Free;
        /// For Wan: the text encoder.
        #[schemars(extend("x-per-machine" = true, "format" = "path"))]
        pub text_encoder: Option<PathBuf> = None, for Diffusion, resume Free;
        /// For models with two: the second text encoder.
        #[schemars(extend("x-per-machine" = true, "format" = "path"))]
        pub text_encoder_2: Option<PathBuf> = None, for Diffusion, resume Free;
        /// For Wan: the tokenizer, as a folder, `tokenizer.json` or `spiece.model`. Unset uses the folder's, or the
        /// one inside the single file of the text encoder. For models with two text encoders, a folder with `tokenizer` and
        /// `tokenizer_2`.
        #[schemars(extend("x-per-machine" = true, "format" = "path"))]
        pub tokenizer: Option<PathBuf> = None, for Diffusion, resume Free;
        /// A LoRA that is added to a distilled model while it is trained and left out of previews, so that training does not
        /// wear the distillation off: a file in any form. Previews then load the transformer once more.
        #[schemars(length(min = 1), extend(
            "format" = "path",
            "x-needs" = "adapter",
            "x-because" = "it is added to a frozen model"
        ))]
        pub training_adapter: Option<PathBuf> = None, for Diffusion, resume Fixed;
        /// Train the whole model from random weights: of the model in `name_or_path`, only the `config.json` of its
        /// transformer and the other parts are used. Unset means `false`.
        pub from_config: Option<bool> = None, for Diffusion, resume Fixed;
        /// Quantise the frozen weight matrices of a published model under an adapter, except the
        /// embedding and the head. Unset does not quantise.
        #[schemars(extend(
            "x-needs" = "adapter",
            "x-because" = "only a frozen model can be quantised"
        ))]
        pub quantization: Option<Quantization> = None, for Any, resume Fixed;
        /// The noise level, from 0 to 1, at and above which the first expert of Wan 2.2 is used. Unset
        /// uses the value in the model's `model_index.json`.
        #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
        pub boundary_ratio: Option<f64> = None, for Diffusion, resume Fixed;
        /// Which blocks of a frozen model are streamed through a few slots of device memory: `auto`, as few as
        /// memory permits; `all`; a number of blocks, spread evenly; a share of their bytes, such as `50%`; or where
        /// each part is kept, as a map of names to `device`, `cpu` or `disk`.
        #[schemars(extend(
            "x-per-machine" = true,
            "x-needs" = "adapter",
            "x-because" = "blocks of a frozen model are streamed, but all of this one is trained"
        ))]
        pub offload: Option<Offload> = None, for Any, resume Free;
        /// Stream as many blocks as necessary to stay below these limits.
        #[schemars(extend(
            "x-per-machine" = true,
            "x-needs" = "adapter",
            "x-because" = "blocks of a frozen model are streamed, but all of this one is trained"
        ))]
        pub max_memory: Option<MemoryLimits> = None, for Any, resume Free;
        /// How many streamed blocks are on the device at a time: one in use, the others in
        /// transfer. Unset means 2; if memory has room for only one, the plan says so.
        #[schemars(range(min = 2, max = 64), extend(
            "x-per-machine" = true,
            "x-unused-without" = "model.offload or model.max_memory"
        ))]
        pub ring_slots: Option<u32> = None, for Any, resume Free;
        /// Folder on a disk for streamed blocks that are kept in a file and, if the device shares its memory with the CPU,
        /// for offloaded state when memory is short. The file is removed after the run. Unset uses a folder
        /// in the cache.
        #[schemars(extend("x-per-machine" = true, "format" = "path"))]
        pub offload_folder: Option<PathBuf> = None, for Any, resume Free;
        /// The family of a model that is trained from scratch, as in its `config.json`.
        #[schemars(extend("enum" = families()))]
        pub model_type: String = families()[0].to_owned(), for LanguageFromScratch, resume Free;
        /// Width of the residual stream.
        #[schemars(range(min = 1, max = 65_536))]
        pub hidden_size: u32 = 256, for LanguageFromScratch, resume Free;
        /// Width of the gated feed-forward layer.
        #[schemars(range(min = 1, max = 262_144))]
        pub intermediate_size: u32 = 704, for LanguageFromScratch, resume Free;
        /// Number of transformer blocks.
        #[schemars(range(min = 1, max = 1024))]
        pub num_hidden_layers: u32 = 6, for LanguageFromScratch, resume Free;
        /// Number of query heads.
        #[schemars(range(min = 1, max = 1024))]
        pub num_attention_heads: u32 = 4, for LanguageFromScratch, resume Free;
        /// Number of key and value heads; unset means as many as query heads.
        #[schemars(range(min = 1, max = 1024))]
        pub num_key_value_heads: Option<u32> = None, for LanguageFromScratch, resume Free;
        /// Width of one head; unset means `hidden_size / num_attention_heads`.
        #[schemars(range(min = 2, max = 1024))]
        pub head_dim: Option<u32> = None, for LanguageFromScratch, resume Free;
        /// Base of the rotary position embedding.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub rope_theta: f64 = 10_000.0, for LanguageFromScratch, resume Free;
        /// Epsilon of the RMS norms.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub rms_norm_eps: f64 = 1e-5, for LanguageFromScratch, resume Free;
        /// Whether the output head shares the embedding's weight.
        pub tie_word_embeddings: bool = true, for LanguageFromScratch, resume Free;
        /// Standard deviation of the initial weights.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub initializer_range: f64 = 0.02, for LanguageFromScratch, resume Free;
    }
}

/// The `model_type` of each family of language models that can be trained from scratch.
fn families() -> Vec<&'static str> {
    let known = models::language::REGISTRY.iter();
    let plain = known.filter(|family| family.is_plain());
    plain.map(|family| family.model_type).collect()
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

section! {
    /// Text or videos that are generated during training, as a check of progress.
    pub struct SampleConfig {
        /// Generate samples every this many steps. With 0 there are only samples at the end and, for a
        /// published model, before the first step.
        pub sample_steps: u64 = 0, for Any, resume Free;
        /// The prompts to continue; where the data are chats, the user's messages, in the model's template. Unset
        /// means the question of the data's first chat or completion that is short, else an empty line. For videos,
        /// what they show; unset generates none. A prompt may be
        /// followed by options in musubi-tuner's form: `--w` (width), `--h` (height), `--f` (frames),
        /// `--d` (seed), `--s` (steps), `--l` (guidance), `--fs` (shift), `--n` (negative prompt),
        /// `--i` (image), `--ci` (control image; may be repeated).
        #[schemars(length(min = 1))]
        pub prompts: Vec<String> = vec!["\n".into()], for Any, resume Free;
        /// Length of each sample in tokens, of those before the first step at most 32; 0 disables samples.
        #[schemars(range(max = 65_536))]
        pub max_new_tokens: u32 = 200, for Language, resume Free;
        /// Sampling temperature; 0 always chooses the most likely token.
        #[schemars(range(min = 0, max = 100))]
        pub temperature: f64 = 0.8, for Language, resume Free;
        /// Sample from the most likely tokens that together have this probability.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 1))]
        pub top_p: f64 = 0.95, for Language, resume Free;
        /// For videos, the negative prompt.
        pub negative_prompt: Option<String> = None, for Diffusion, resume Free;
        /// For videos, the width in pixels. Unset means that of `data.resolution`.
        #[schemars(range(min = 8, max = 8192))]
        pub width: Option<u32> = None, for Diffusion, resume Free;
        /// For videos, the height in pixels. Unset means that of `data.resolution`.
        #[schemars(range(min = 8, max = 8192))]
        pub height: Option<u32> = None, for Diffusion, resume Free;
        /// For videos, the number of frames: 4 n + 1. Unset means the maximum of `data.num_frames`, or one.
        #[schemars(range(min = 1, max = 10_000))]
        pub num_frames: Option<u32> = None, for Diffusion, resume Free;
        /// For videos, the seed of the noise. Unset means `seed`.
        pub seed: Option<u64> = None, for Diffusion, resume Free;
        /// For videos, the number of inference steps. Unset means 20.
        #[schemars(range(min = 1, max = 1000))]
        pub num_inference_steps: Option<u32> = None, for Diffusion, resume Free;
        /// For videos, the guidance scale. At 1 or below the negative prompt is not evaluated,
        /// which halves the time. A model that is told the guidance (FLUX.1-dev) takes no negative prompt. Unset means 5,
        /// or what such a model is usually told.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 100))]
        pub guidance_scale: Option<f64> = None, for Diffusion, resume Free;
        /// The same for the low-noise expert. Unset means `guidance_scale`.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 100))]
        pub guidance_scale_2: Option<f64> = None, for Diffusion, resume Free;
        /// For videos, how far the solver's steps are shifted towards noise. Unset means the value of the model's
        /// scheduler.
        #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
        pub flow_shift: Option<f64> = None, for Diffusion, resume Free;
        /// For image-to-video models, the first frame.
        #[schemars(length(min = 1), extend("format" = "path"))]
        pub image: Option<PathBuf> = None, for Diffusion, resume Free;
        /// The transformer that draws the previews, with the LoRA that is trained on another one: that of the distilled model
        /// while the base is trained. The model's folder, which brings its own schedule; or the transformer alone, as a
        /// folder or a single file. It is loaded for previews only.
        #[schemars(length(min = 1), extend(
            "x-per-machine" = true,
            "format" = "path",
            "x-needs" = "adapter",
            "x-because" = "it draws with the LoRA that is trained"
        ))]
        pub transformer: Option<PathBuf> = None, for Diffusion, resume Free;
        /// For models that change pictures, the control picture, or a list of them.
        pub control_image: Option<Paths> = None, for Diffusion, resume Free;
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
        let (mut problems, mut warnings) = memory::replace_older_words(&mut tree);
        for argument in overrides {
            tree::apply_override(&mut tree, argument, &schema::section_of)?;
            let (wrong, told) = memory::replace_older_words(&mut tree);
            problems.extend(wrong);
            warnings.extend(told);
        }
        check::restore_words(&mut tree, schema::schema(), schema::schema());
        problems.extend(check::against_schema(&tree, schema::schema()));
        let confinement = Confinement::of_the_environment();
        let expanded = paths::expand(&mut tree, schema::schema(), &|name| {
            paths::visible_variable(name, confinement.as_ref(), &|name| std::env::var_os(name))
        });
        problems.extend(expanded);
        if let Some(confinement) = &confinement {
            problems.extend(confinement.problems(&tree, schema::schema()));
        }
        if problems.is_empty() {
            let wrong = |error: &serde_json::Error| Problem::at(&tree.place, error.to_string());
            let config: Self =
                serde_json::from_value(tree.to_json()).map_err(|error| wrong(&error))?;
            problems = consistency::check(&config, &tree);
            if confinement.is_some() && config.names_images_in_prompts() {
                let place = tree.find(&["sample", "prompts"]).unwrap_or(&tree);
                let message = "`--i` in a prompt is not allowed here: set `sample.image`";
                problems.push(Problem::at(&place.place, message.to_owned()));
            }
            if problems.is_empty() {
                warnings.extend(consistency::unused(&config, &tree));
                for warning in &warnings {
                    tracing::warn!("{warning}");
                }
                let config: Self = serde_json::from_value(declared::in_effect(tree.to_json()))
                    .map_err(|error| wrong(&error))?;
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
        // A language model that is fine-tuned has a default by the size of its data.
        let is_by_data = self.model.name_or_path.is_some() && !self.is_video();
        let train = &mut self.train;
        if !is_by_data {
            train.max_steps = train.steps();
        }
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

    /// The config as YAML with every key that has an effect. [`Config::parse`] reads the same config from it, even if
    /// a path contains a `$`.
    ///
    /// # Errors
    /// If a value cannot be written as YAML, which the schema rules out.
    pub fn to_yaml(&self) -> Result<String, ConfigError> {
        let wrong = |reason: String| ConfigError::of(&self.name, reason);
        let mut value = serde_json::to_value(self).map_err(|error| wrong(error.to_string()))?;
        value = declared::in_effect(value);
        paths::escape(&mut value, schema::schema());
        serde_saphyr::to_string(&value).map_err(|error| wrong(error.to_string()))
    }
}
