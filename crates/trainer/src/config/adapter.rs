//! The `adapter` section of a config: PEFT's `LoraConfig` by name.

use std::borrow::Cow;
use std::path::PathBuf;

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::video::LoraFormat;
use models::Error;
use models::adapters::{Biases, Layers, LoraConfig, Modules};

/// A low-rank adapter: what is trained while the model stays as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdapterConfig {
    /// Rank of the change to each layer.
    #[schemars(range(min = 1, max = 65_536))]
    pub r: u32,
    /// Strength: the change is scaled by `lora_alpha / r`.
    pub lora_alpha: f64,
    /// Probability with which an input of an adapter is left out in training.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub lora_dropout: f64,
    /// Scale by `lora_alpha / √r` instead.
    pub use_rslora: bool,
    /// Learn each row's magnitude apart from its direction (DoRA).
    pub use_dora: bool,
    /// Layers that get an adapter: `all-linear`, a list of names, or a regular expression
    /// for the whole name. `embed_tokens` and `lm_head` are two of them.
    pub target_modules: ModuleNames,
    /// Layers that get none: a list of names, or a regular expression for the whole name.
    pub exclude_modules: Option<ModuleNames>,
    /// Numbers of the blocks whose layers get an adapter; all blocks when left out.
    pub layers_to_transform: Option<Vec<u32>>,
    /// Name of the list that these numbers count in, such as `layers`; any list when left out.
    pub layers_pattern: Option<String>,
    /// Modules that are trained whole beside the adapters and saved with them, by the end of their
    /// names: `embed_tokens`, `lm_head`, `layers.0.mlp`, `norm`.
    pub modules_to_save: Option<Vec<String>>,
    /// Biases of the model that are trained too.
    pub bias: BiasConfig,
    /// Other ranks for layers whose name ends in a match of the key; the first that matches counts.
    pub rank_pattern: IndexMap<String, u32>,
    /// Other alphas for layers whose name ends in a match of the key; the first that matches counts.
    pub alpha_pattern: IndexMap<String, f64>,
    /// LoRA+: the learning rate of the second matrix of each pair, `B`, and of vectors, in units of
    /// the first's.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
    pub loraplus_lr_ratio: Option<f64>,
    /// LoRA+: the learning rate of both matrices of an adapter on the embedding.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1))]
    pub loraplus_lr_embedding: f64,
    /// At the end also write the model with the adapter merged into it, for programs that know
    /// no adapters: to `merged/`, beside `adapter/`.
    pub save_merged: bool,
    /// Of a video model's LoRA, whose names the file has. Unset means `kohya`, or `comfy` where not every
    /// linear layer of every block has an adapter.
    pub format: Option<LoraFormat>,
    /// An adapter in PEFT's format to go on from; all other keys here then come from it.
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
    /// Those of layers that have an adapter.
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

/// A choice of layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ModuleNames {
    /// `all-linear`, or a regular expression.
    Pattern(String),
    /// Names, whole or after a dot.
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
    /// The adapter that this describes.
    ///
    /// # Errors
    /// When a pattern is not a regular expression that can be used here.
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
