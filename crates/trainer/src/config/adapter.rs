//! The `adapter` section of a config: PEFT's `LoraConfig` by name.

use std::borrow::Cow;
use std::path::PathBuf;

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::bf16::Bf16;
use super::video::LoraFormat;
use models::Error;
use models::adapters::{AdapterType, Biases, Init, Layers, LoraConfig, Modules};

section! {
    /// An adapter, which is trained while the model stays frozen.
    pub struct AdapterConfig {
        /// What is added to the matrix of a layer: a product of two (`lora`), the element-wise product of two such products
        /// (`loha`), or a Kronecker product (`lokr`).
        #[serde(rename = "type")]
        #[schemars(extend("x-follows-from" = "adapter.resume_from"))]
        pub kind: AdapterKind = AdapterKind::Lora, for Any, resume Fixed;
        /// Rank of the change to each layer.
        #[schemars(range(min = 1, max = 65_536), extend("x-follows-from" = "adapter.resume_from"))]
        pub r: u32 = 8, for Any, resume Fixed;
        /// Strength: the change is scaled by `lora_alpha / r`.
        #[schemars(extend("x-follows-from" = "adapter.resume_from"))]
        pub lora_alpha: f64 = 8.0, for Any, resume Fixed;
        /// By what a LoKr divides the sides of a matrix: the first factor has as many rows and columns, or as near as there is a
        /// divisor. -1 divides near the square root; the fewer rows the first factor has, the more the second.
        #[schemars(range(min = -1, max = 65_536), extend("x-needs" = "adapter.type: lokr", "x-follows-from" = "adapter.resume_from"))]
        pub decompose_factor: i32 = -1, for Any, resume Fixed;
        /// Whether the first factor of a LoKr is a product of two of rank `r`, too, if it is larger than that.
        #[schemars(extend("x-needs" = "adapter.type: lokr", "x-follows-from" = "adapter.resume_from"))]
        pub decompose_both: bool = false, for Any, resume Fixed;
        /// Dropout probability of an adapter's inputs during training.
        #[schemars(range(min = 0), extend("x-needs" = "adapter.type: lora", "x-follows-from" = "adapter.resume_from", "exclusiveMaximum" = 1))]
        pub lora_dropout: f64 = 0.0, for Any, resume Free;
        /// Whether adapters compute in bfloat16, as the layers do with `train.bf16`; their matrices are trained and saved in
        /// fp32 either way. `auto` does on a GPU that is clearly faster with it, which is measured once; on the CPU it does
        /// not. DoRA computes in fp32.
        pub lora_bf16: Bf16 = Bf16::Auto, for Any, resume Free;
        /// Scale by `lora_alpha / √r` instead.
        #[schemars(extend("x-needs" = "adapter.type: lora", "x-follows-from" = "adapter.resume_from"))]
        pub use_rslora: bool = false, for Any, resume Fixed;
        /// Train the magnitude of each row separately from its direction (DoRA).
        #[schemars(extend("x-needs" = "adapter.type: lora", "x-follows-from" = "adapter.resume_from"))]
        pub use_dora: bool = false, for Any, resume Fixed;
        /// How a new LoRA begins: changing nothing (`default`); as the principal components of the weights, which the model
        /// loses (`pissa`); or as those of what `model.quantization` has lost of the weights (`loftq`, in one iteration). What a
        /// run with either writes is a plain LoRA of twice the rank for the model as it was published.
        #[schemars(extend("x-needs" = "adapter.type: lora", "x-follows-from" = "adapter.resume_from"))]
        pub init_lora_weights: AdapterInit = AdapterInit::Default, for Language, resume Fixed;
        /// Layers with an adapter: `all-linear`, a list of names, or a regular expression for the
        /// whole name. `embed_tokens` and `lm_head` are possible, too.
        #[schemars(extend("x-follows-from" = "adapter.resume_from"))]
        pub target_modules: ModuleNames = ModuleNames::Pattern("all-linear".into()), for Any, resume Fixed;
        /// Tensors of experts that get an adapter, too, by the end of their names: `mlp.experts.gate_up_proj` and
        /// `mlp.experts.down_proj`, each of all experts of a block, as in PEFT. Not with `lora_dropout` or `use_dora`.
        #[schemars(extend("x-follows-from" = "adapter.resume_from"))]
        pub target_parameters: Option<Vec<String>> = None, for Language, resume Fixed;
        /// Layers without an adapter: a list of names, or a regular expression for the whole name.
        #[schemars(extend("x-follows-from" = "adapter.resume_from"))]
        pub exclude_modules: Option<ModuleNames> = None, for Any, resume Fixed;
        /// Indices of the blocks whose layers get an adapter; unset means all blocks.
        #[schemars(extend("x-follows-from" = "adapter.resume_from"))]
        pub layers_to_transform: Option<Vec<u32>> = None, for Any, resume Fixed;
        /// Name of the module list that these indices refer to, such as `layers`; unset means any.
        #[schemars(extend("x-follows-from" = "adapter.resume_from"))]
        pub layers_pattern: Option<String> = None, for Any, resume Fixed;
        /// Modules that are fully trained and saved with the adapters, by the end of their
        /// names: `embed_tokens`, `lm_head`, `layers.0.mlp`, `norm`.
        #[schemars(extend("x-follows-from" = "adapter.resume_from"))]
        pub modules_to_save: Option<Vec<String>> = None, for Language, resume Fixed;
        /// Biases of the model that are also trained.
        #[schemars(extend("x-needs" = "adapter.type: lora", "x-follows-from" = "adapter.resume_from"))]
        pub bias: BiasConfig = BiasConfig::None, for Language, resume Fixed;
        /// Different ranks for layers whose name ends in a match of the key; the first match applies.
        #[schemars(extend("x-follows-from" = "adapter.resume_from"))]
        pub rank_pattern: IndexMap<String, u32> = IndexMap::new(), for Any, resume Fixed;
        /// Different alphas for layers whose name ends in a match of the key; the first match applies.
        #[schemars(extend("x-follows-from" = "adapter.resume_from"))]
        pub alpha_pattern: IndexMap<String, f64> = IndexMap::new(), for Any, resume Fixed;
        /// LoRA+: the learning rate of the second matrix of each pair, `B`, and of vectors, as a multiple of
        /// the first one's.
        #[schemars(extend("x-needs" = "adapter.type: lora", "exclusiveMinimum" = 0), range(max = 1000))]
        pub loraplus_lr_ratio: Option<f64> = None, for Any, resume Free;
        /// LoRA+: the learning rate of both matrices of an adapter on the embedding.
        #[schemars(extend("x-unused-without" = "adapter.loraplus_lr_ratio", "exclusiveMinimum" = 0), range(max = 1))]
        pub loraplus_lr_embedding: f64 = 1e-6, for Language, resume Free;
        /// At the end also save the model with the adapter merged into it, in `merged/` beside `adapter/`, for programs
        /// without support for adapters.
        pub save_merged: bool = false, for Language, resume Free;
        /// The naming scheme of a video model's LoRA file. Unset means `kohya`, or `comfy` if some
        /// linear layer of a block has no adapter.
        pub format: Option<LoraFormat> = None, for Diffusion, resume Free;
        /// An adapter in PEFT's format to continue training; all other keys here then follow from it.
        #[schemars(extend("format" = "path"))]
        pub resume_from: Option<PathBuf> = None, for Any, resume Free;
    }
}

/// What an adapter adds to a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdapterKind {
    /// A product of two matrices.
    #[default]
    Lora,
    /// The element-wise product of two products.
    Loha,
    /// A Kronecker product.
    Lokr,
}

/// How a new LoRA begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdapterInit {
    /// It changes nothing.
    #[default]
    Default,
    /// As the principal components of the weights.
    Pissa,
    /// As those of what quantisation has lost of them.
    Loftq,
}

impl From<AdapterInit> for Init {
    fn from(init: AdapterInit) -> Self {
        match init {
            AdapterInit::Default => Self::Default,
            AdapterInit::Pissa => Self::Pissa,
            AdapterInit::Loftq => Self::Loftq,
        }
    }
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
    /// Whether every change would be scaled by 0, and nothing else is trained.
    pub(super) fn learns_nothing(&self) -> bool {
        self.lora_alpha == 0.0
            && self.alpha_pattern.values().all(|alpha| *alpha == 0.0)
            && self.resume_from.is_none()
            && self.modules_to_save.is_none()
            && self.bias == BiasConfig::None
    }

    /// Whether tensors of experts have adapters, as far as the config says.
    pub(super) fn is_on_experts(&self) -> bool {
        let parameters = self.target_parameters.as_ref();
        self.resume_from.is_none() && parameters.is_some_and(|names| !names.is_empty())
    }

    /// Whether nothing is trained but a new adapter that begins as nothing, so that the model without it is the model before the
    /// first step.
    pub(crate) fn is_new_and_alone(&self) -> bool {
        self.resume_from.is_none()
            && self.init_lora_weights == AdapterInit::Default
            && self.modules_to_save.is_none()
            && self.bias == BiasConfig::None
    }

    /// The settings of the adapter for the model.
    ///
    /// # Errors
    /// If a pattern is not a supported regular expression.
    pub fn lora(&self) -> Result<LoraConfig, Error> {
        let ranks = self.rank_pattern.iter();
        Ok(LoraConfig {
            kind: match self.kind {
                AdapterKind::Lora => AdapterType::Lora,
                AdapterKind::Loha => AdapterType::Loha,
                AdapterKind::Lokr => AdapterType::Lokr {
                    factor: self.decompose_factor.into(),
                    decompose_both: self.decompose_both,
                },
            },
            rank: self.r.into(),
            alpha: self.lora_alpha,
            dropout: self.lora_dropout,
            rslora: self.use_rslora,
            dora: self.use_dora,
            target_modules: self.target_modules.modules("target_modules")?,
            target_parameters: self.target_parameters.clone().unwrap_or_default(),
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
