//! The `adapter` section of a config: PEFT's `LoraConfig` by name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::adapters::{LoraConfig, Modules};

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
    /// for the whole name.
    pub target_modules: ModuleNames,
    /// Layers that get none: a list of names, or a regular expression for the whole name.
    pub exclude_modules: Option<ModuleNames>,
    /// Other ranks for layers whose name ends in a match of the key.
    pub rank_pattern: BTreeMap<String, u32>,
    /// Other alphas for layers whose name ends in a match of the key.
    pub alpha_pattern: BTreeMap<String, f64>,
    /// LoRA+: the learning rate of the second matrix of each pair, `B`, in units of the first's.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1000))]
    pub loraplus_lr_ratio: Option<f64>,
    /// At the end also write the model with the adapter merged into it, for programs that know
    /// no adapters: to `merged/`, beside `adapter/`.
    pub save_merged: bool,
    /// An adapter in PEFT's format to go on from; all other keys here then come from it.
    pub resume_from: Option<PathBuf>,
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
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            loraplus_lr_ratio: None,
            save_merged: false,
            resume_from: None,
        }
    }
}

impl ModuleNames {
    fn modules(&self, key: &str) -> Result<Modules, Error> {
        match self {
            Self::List(names) => Ok(Modules::Suffixes(names.clone())),
            Self::Pattern(text) => Modules::from_text(text)
                .map_err(|reason| Error::Data(format!("`adapter.{key}`: {reason}"))),
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
            rank_pattern: ranks
                .map(|(name, rank)| (name.clone(), i64::from(*rank)))
                .collect(),
            alpha_pattern: self.alpha_pattern.clone(),
        })
    }
}
