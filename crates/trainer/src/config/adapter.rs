//! The `adapter` section of a config: PEFT's `LoraConfig` by name.

use std::borrow::Cow;
use std::path::PathBuf;

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::video::LoraFormat;
use models::Error;
use models::adapters::{Biases, Layers, LoraConfig, Modules};

/// A low-rank adapter, which is trained while the model stays frozen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterConfig {
    /// Rank of the change to each layer.
    #[schemars(range(min = 1, max = 65_536))]
    pub r: u32,
    /// Strength: the change is scaled by `lora_alpha / r`.
    pub lora_alpha: f64,
    /// Dropout probability of an adapter's inputs during training.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub lora_dropout: f64,
    /// Scale by `lora_alpha / √r` instead.
    pub use_rslora: bool,
    /// Train the magnitude of each row separately from its direction (DoRA).
    pub use_dora: bool,
    /// Layers with an adapter: `all-linear`, a list of names, or a regular expression for the
    /// whole name. `embed_tokens` and `lm_head` are possible, too.
    pub target_modules: ModuleNames,
    /// Layers without an adapter: a list of names, or a regular expression for the whole name.
    pub exclude_modules: Option<ModuleNames>,
    /// Indices of the blocks whose layers get an adapter; unset means all blocks.
    pub layers_to_transform: Option<Vec<u32>>,
    /// Name of the module list that these indices refer to, such as `layers`; unset means any.
    pub layers_pattern: Option<String>,
    /// Modules that are fully trained and saved with the adapters, by the end of their
    /// names: `embed_tokens`, `lm_head`, `layers.0.mlp`, `norm`.
    pub modules_to_save: Option<Vec<String>>,
    /// Biases of the model that are also trained.
    pub bias: BiasConfig,
    /// Different ranks for layers whose name ends in a match of the key; the first match applies.
    pub rank_pattern: IndexMap<String, u32>,
    /// Different alphas for layers whose name ends in a match of the key; the first match applies.
    pub alpha_pattern: IndexMap<String, f64>,
    /// LoRA+: the learning rate of the second matrix of each pair, `B`, and of vectors, as a multiple of
    /// the first one's.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
    pub loraplus_lr_ratio: Option<f64>,
    /// LoRA+: the learning rate of both matrices of an adapter on the embedding.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1))]
    pub loraplus_lr_embedding: f64,
    /// At the end also save the model with the adapter merged into it, in `merged/` beside `adapter/`, for programs
    /// without support for adapters.
    pub save_merged: bool,
    /// The naming scheme of a video model's LoRA file. Unset means `kohya`, or `comfy` if some
    /// linear layer of a block has no adapter.
    pub format: Option<LoraFormat>,
    /// An adapter in PEFT's format to continue training; all other keys here then follow from it.
    #[schemars(extend("format" = "path"))]
    pub resume_from: Option<PathBuf>,
}

/// Which of the model's own biases are trained beside an adapter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BiasConfig {
    /// None of them.
    #[default]
    None,
    /// Every bias of the model.
    All,
    /// Those of layers with an adapter.
    LoraOnly,
}

impl From<BiasConfig> for Biases {
    fn from(bias: BiasConfig) -> Self {
        match bias {
            BiasConfig::None => Self::None,
            BiasConfig::All => Self::All,
            BiasConfig::LoraOnly => Self::LoraOnly,
        }
    }
}

/// A selection of layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ModuleNames {
    /// `all-linear`, or a regular expression.
    Pattern(String),
    /// Names, complete or after a dot.
    List(Vec<String>),
}

impl JsonSchema for ModuleNames {
    fn schema_name() -> Cow<'static, str> {
        "ModuleNames".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`all-linear`, a list of layer names, or a regular expression for the whole name.",
            "type": ["string", "array"],
            "items": { "type": "string" },
        })
    }
}

impl Default for AdapterConfig {
    fn default() -> Self {
        Self {
            r: 8,
            lora_alpha: 8.0,
            lora_dropout: 0.0,
            use_rslora: false,
            use_dora: false,
            target_modules: ModuleNames::Pattern("all-linear".into()),
            exclude_modules: None,
            layers_to_transform: None,
            layers_pattern: None,
            modules_to_save: None,
            bias: BiasConfig::None,
            rank_pattern: IndexMap::new(),
            alpha_pattern: IndexMap::new(),
            loraplus_lr_ratio: None,
            loraplus_lr_embedding: 1e-6,
            save_merged: false,
            format: None,
            resume_from: None,
        }
    }
}

impl ModuleNames {
    fn modules(&self, key: &str) -> Result<Modules, Error> {
        match self {
            Self::List(names) => Ok(Modules::Suffixes(names.clone())),
            Self::Pattern(text) => Modules::from_text(text)
                .map_err(|reason| Error::Invalid(format!("`adapter.{key}`: {reason}"))),
        }
    }
}

impl AdapterConfig {
    /// The settings of the adapter for the model.
    ///
    /// # Errors
    /// If a pattern is not a supported regular expression.
    pub fn lora(&self) -> Result<LoraConfig, Error> {
        let ranks = self.rank_pattern.iter();
        Ok(LoraConfig {
            rank: self.r.into(),
            alpha: self.lora_alpha,
            dropout: self.lora_dropout,
            rslora: self.use_rslora,
            dora: self.use_dora,
            target_modules: self.target_modules.modules("target_modules")?,
            exclude_modules: match &self.exclude_modules {
                Some(names) => Some(names.modules("exclude_modules")?),
                None => None,
            },
            layers: (self.layers_to_transform.is_some() || self.layers_pattern.is_some()).then(
                || {
                    let indices = self.layers_to_transform.iter().flatten();
                    Layers {
                        indices: indices.copied().map(u64::from).collect(),
                        lists: self.layers_pattern.iter().cloned().collect(),
                    }
                },
            ),
            modules_to_save: self.modules_to_save.clone().unwrap_or_default(),
            bias: self.bias.into(),
            rank_pattern: ranks
                .map(|(name, rank)| (name.clone(), i64::from(*rank)))
                .collect(),
            alpha_pattern: self.alpha_pattern.clone(),
        })
    }
}
