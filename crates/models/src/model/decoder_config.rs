//! The dimensions of a decoder, from Hugging Face's `config.json`.
//!
//! The whole Llama family shares one struct, because its members differ only in a few details: Qwen2 adds
//! biases to q, k and v; Qwen3 drops them and normalises q and k per head.

use std::path::Path;

use serde_json::{Value, json};

use super::quantized;
use super::rope::{self, RopeSettings};
use crate::Error;
use crate::json::Object;

/// The members of the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, SmolLM2, TinyLlama and everything else with `LlamaForCausalLM`.
    Llama,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3 without mixture of experts.
    Qwen3,
}

impl Architecture {
    /// All members.
    pub const ALL: [Self; 3] = [Self::Llama, Self::Qwen2, Self::Qwen3];

    /// `model_type` in `config.json`, and the prefix of the keys in a GGUF file.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// Its class in `transformers`.
    pub fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The architecture with this `model_type`.
    pub fn from_model_type(model_type: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|known| known.model_type() == model_type)
    }
}

/// The dimensions of a decoder. They are validated: positive, of plausible magnitude, and consistent with
/// each other.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Which member of the family it is.
    pub architecture: Architecture,
    /// Number of tokens in the embedding's vocabulary.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the gated feed-forward layer.
    pub intermediate_size: i64,
    /// Number of blocks.
    pub num_hidden_layers: i64,
    /// Number of query heads.
    pub num_attention_heads: i64,
    /// Number of key and value heads; divides the query heads.
    pub num_key_value_heads: i64,
    /// Width of one head; even.
    pub head_dim: i64,
    /// Longest context the model was trained for, in tokens.
    pub max_position_embeddings: i64,
    /// Epsilon of the RMS norms.
    pub rms_norm_eps: f64,
    /// Rotary position embedding.
    pub rope: RopeSettings,
    /// Whether the output head shares the embedding's weight.
    pub tie_word_embeddings: bool,
    /// Whether the q, k and v projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection of the attention has a bias.
    pub output_bias: bool,
    /// Whether the three projections of the feed-forward layer have biases.
    pub mlp_bias: bool,
    /// The token at the start of a text, if the model has one.
    pub bos_token_id: Option<i64>,
    /// The tokens that end a text.
    pub eos_token_ids: Vec<i64>,
}

impl DecoderConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// The error names the file, the key, what is allowed and what was found.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::from_object(&Object::read(path)?)
    }

    /// Parses the text of a `config.json`; `path` stands for the file in messages.
    ///
    /// # Errors
    /// As [`DecoderConfig::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        Self::from_object(&Object::parse(path, text)?)
    }

    fn from_object(object: &Object) -> Result<Self, Error> {
        let model_type = object.text("model_type")?.unwrap_or_default();
        let architecture = Architecture::from_model_type(model_type).ok_or_else(|| {
            let known: Vec<_> = Architecture::ALL
                .iter()
                .map(|known| known.model_type())
                .collect();
            object.error(
                "model_type",
                format!(
                    "is {model_type:?}; the supported models are {}",
                    known.join(", ")
                ),
            )
        })?;
        refuse_unsupported_features(object)?;

        let size = |key, default| object.integer(key, default, 1..=1 << 20);
        let hidden_size = size("hidden_size", None)?;
        let heads = object.integer("num_attention_heads", None, 1..=4096)?;
        // transformers' defaults.
        let llama = architecture == Architecture::Llama;
        let head_dim = match architecture {
            Architecture::Qwen3 => 128,
            _ => hidden_size / heads,
        };
        let key_value_heads = match llama || object.has("num_key_value_heads") {
            true => heads,
            false => 32,
        };
        let context = if llama { 2048 } else { 32_768 };
        let context = object.integer("max_position_embeddings", Some(context), 1..=1 << 30)?;
        let ids = |key, llamas| match llama && !object.has(key) {
            true => Ok(vec![llamas]),
            false => token_ids(object, key),
        };
        let attention_bias = object.flag("attention_bias", architecture == Architecture::Qwen2)?;
        let config = Self {
            architecture,
            vocab_size: object.integer("vocab_size", None, 1..=1 << 24)?,
            hidden_size,
            intermediate_size: size("intermediate_size", None)?,
            num_hidden_layers: object.integer("num_hidden_layers", None, 1..=4096)?,
            num_attention_heads: heads,
            num_key_value_heads: object.integer(
                "num_key_value_heads",
                Some(key_value_heads),
                1..=4096,
            )?,
            head_dim: object.integer("head_dim", Some(head_dim), 2..=4096)?,
            max_position_embeddings: context,
            rms_norm_eps: object.positive("rms_norm_eps", Some(1e-6))?,
            rope: rope::read(object, context)?,
            tie_word_embeddings: object.flag("tie_word_embeddings", false)?,
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            output_bias: architecture != Architecture::Qwen2 && attention_bias,
            mlp_bias: architecture == Architecture::Llama && object.flag("mlp_bias", false)?,
            bos_token_id: ids("bos_token_id", 1)?.first().copied(),
            eos_token_ids: ids("eos_token_id", 2)?,
        };
        config
            .check()
            .map_err(|(key, reason)| object.error(key, reason))?;
        Ok(config)
    }

    /// An inconsistency: the key, and what is wrong with it.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        // Zero if there are more heads than dimensions to divide among them.
        if self.head_dim < 2 || self.head_dim % 2 != 0 {
            return Err((
                "head_dim",
                format!(
                    "must be even for the rotary embedding, not {}",
                    self.head_dim
                ),
            ));
        }
        if self.num_attention_heads % self.num_key_value_heads != 0 {
            return Err((
                "num_key_value_heads",
                format!(
                    "must divide the {} query heads; {} does not",
                    self.num_attention_heads, self.num_key_value_heads
                ),
            ));
        }
        Ok(())
    }

    /// Whether q and k are normalised per head.
    pub fn qk_norm(&self) -> bool {
        self.architecture == Architecture::Qwen3
    }

    /// The `config.json` for `transformers`, with keys where both its fourth and its fifth major version look
    /// for them.
    pub fn to_json(&self) -> Value {
        let (rope_scaling, rope_parameters) = self.rope.to_json();
        let mut value = json!({
            "architectures": [self.architecture.class()],
            "model_type": self.architecture.model_type(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope.theta,
            "rope_scaling": rope_scaling,
            "rope_parameters": rope_parameters,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_bias": self.output_bias || (self.qkv_bias && self.architecture != Architecture::Qwen2),
            "mlp_bias": self.mlp_bias,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": match self.eos_token_ids.as_slice() {
                [] => Value::Null,
                [one] => json!(one),
                more => json!(more),
            },
        });
        if self.architecture == Architecture::Qwen2 {
            // Implied by the class; its config has no such key.
            value
                .as_object_mut()
                .map(|keys| keys.remove("attention_bias"));
        }
        value
    }
}

/// Refuses features that would otherwise silently give wrong results.
fn refuse_unsupported_features(object: &Object) -> Result<(), Error> {
    if let Some(activation) = object.text("hidden_act")?
        && !["silu", "swish"].contains(&activation)
    {
        return Err(object.error(
            "hidden_act",
            format!("is {activation:?}; only \"silu\" is supported"),
        ));
    }
    // In transformers, such a model attends to later tokens.
    if !object.flag("is_causal", true)? {
        return Err(object.error("is_causal", "is false; only causal models are supported"));
    }
    refuse_sliding_windows(object)?;
    quantized::refuse(object)
}

/// Many of Qwen's configs have keys for a sliding window that no layer uses.
fn refuse_sliding_windows(object: &Object) -> Result<(), Error> {
    let layers = object.integer("num_hidden_layers", None, 1..=4096)?;
    match object.get("layer_types") {
        Some(Value::Array(types)) if types.len() as i64 != layers => Err(object.error(
            "layer_types",
            format!("has {} names for {layers} layers", types.len()),
        )),
        Some(Value::Array(types)) => match types.iter().find(|kind| *kind != "full_attention") {
            Some(kind) => Err(object.error(
                "layer_types",
                format!("has {kind}; only \"full_attention\" is supported"),
            )),
            None => Ok(()),
        },
        Some(_) => Err(object.error("layer_types", "must be a list of names")),
        None => {
            let whole = object.integer("max_window_layers", Some(28), 0..=1 << 20)?;
            let none = object.has("sliding_window") && object.get("sliding_window").is_none();
            match object.flag("use_sliding_window", false)? && whole < layers && !none {
                true => Err(object.error(
                    "use_sliding_window",
                    "is true; sliding windows are not supported",
                )),
                false => Ok(()),
            }
        }
    }
}

/// The end-of-text tokens in a config or a `generation_config.json`.
pub(crate) fn end_tokens(object: &Object) -> Result<Vec<i64>, Error> {
    token_ids(object, "eos_token_id")
}

/// One token id, several, or none.
fn token_ids(object: &Object, key: &str) -> Result<Vec<i64>, Error> {
    let id = |value: &Value| match value.as_i64() {
        Some(id) if (0..1 << 24).contains(&id) => Ok(id),
        _ => Err(object.error(
            key,
            format!("must be a token id or a list of them, not {value}"),
        )),
    };
    match object.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        Some(one) => Ok(vec![id(one)?]),
    }
}
