//! What a decoder computes, as data, and how it is read from Hugging Face's `config.json`.

#[cfg(test)]
mod tests;

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{
    DeltaLayers, Family, LocalLayers, Mixture, PerLayerInputs, REGISTRY, Saved, Sharing,
    WholeHeads, quantized,
};
use crate::Error;
use crate::json::Object;
use crate::model::rope::{self, Place};
use crate::model::{RopeScaling, RopeSettings};

/// Keys that every family applies or refuses.
const KEYS: &[&str] = &[
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "is_causal",
    "quantization_config",
    "compression_config",
];

/// Keys that most files have and that change nothing here: how a model was created, saved, or is called by a
/// program.
pub(super) const NO_EFFECT: &[&str] = &[
    "architectures",
    "dtype",
    "torch_dtype",
    "initializer_range",
    "pretraining_tp",
    "transformers_version",
    "transformers.js_config",
    "tokenizer_class",
    "use_cache",
    // Of a layer that predicts the token after the next, and how another library keeps states, which are fp32 here.
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "mamba_ssm_dtype",
    // Other names of keys of gpt-oss.
    "experts_per_token",
    "initial_context_length",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "attn_implementation",
    "auto_map",
    "cache_implementation",
    "is_llama_config",
    "unsloth_fixed",
    "unsloth_version",
];

/// Keys that many files have, and that lead to a warning unless they are off.
const OFF: &[&str] = &[
    "attention_bias",
    "attention_dropout",
    "embd_pdrop",
    "lm_head_bias",
    "mlp_bias",
    "resid_pdrop",
    "rope_interleaved",
    "use_mrope",
];

/// What a decoder computes. The dimensions are validated: positive, of plausible magnitude, and consistent
/// with each other.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Its family.
    pub family: &'static Family,
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
    /// Whether norms multiply by one plus their weight.
    pub norm_plus_one: bool,
    /// What of q and k is normalised.
    pub qk_norm: QkNorm,
    /// Rotary position embedding of the blocks that see the whole text.
    pub rope: RopeSettings,
    /// The blocks that see only the latest tokens, if there are any.
    pub local: Option<LocalLayers>,
    /// The blocks that have a gated delta rule in place of attention, if there are any.
    pub delta: Option<DeltaLayers>,
    /// Whether what attention gives is multiplied by a gate, which the query projection makes, too.
    pub gated: bool,
    /// The heads of blocks that see the whole text, if others than those of blocks with a window.
    pub whole_heads: Option<WholeHeads>,
    /// Whether values are normalised, each head for itself and without a weight.
    pub value_norm: bool,
    /// The blocks that use the keys and values of others, if there are any.
    pub sharing: Option<Sharing>,
    /// The embeddings that each block has, if they have some.
    pub per_layer: Option<PerLayerInputs>,
    /// Whether what leaves a block is multiplied by a number that is stored with it.
    pub layer_scalar: bool,
    /// What scores are between, as logits are.
    pub score_cap: Option<f64>,
    /// What logits are between: the number times the tanh of their share of it.
    pub logits_cap: Option<f64>,
    /// Whether each query head has a learned score that takes a part of the attention to nothing.
    pub sinks: bool,
    /// For each block, whether its queries and keys are rotated; empty if all are.
    pub rotated: Vec<bool>,
    /// What scores are multiplied by; `None` for one over the root of the head's width.
    pub score_scale: Option<f64>,
    /// The token of padding, whose embedding learns nothing from being looked up.
    pub pad_token_id: Option<i64>,
    /// What embeddings are multiplied by.
    pub embedding_scale: EmbeddingScale,
    /// What the outputs of attention and feed-forward layer are multiplied by before they are added to the residual
    /// stream.
    pub residual_scale: f64,
    /// What logits are divided by.
    pub logits_divisor: f64,
    /// The activation of the feed-forward layer's gate.
    pub activation: Activation,
    /// The experts that some blocks have in place of one feed-forward layer.
    pub experts: Option<Mixture>,
    /// Whether the output head shares the embedding's weight.
    pub tie_word_embeddings: bool,
    /// Whether the projections q, k and v are one matrix, and gate and up of the feed-forward layer another.
    pub fused: bool,
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

/// What of queries and keys is normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// Nothing.
    None,
    /// Each head for itself.
    Head,
    /// All heads together.
    Projection,
}

/// What embeddings are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EmbeddingScale {
    /// A number.
    Number(f64),
    /// The root of their width, rounded to their type.
    RootOfWidth,
}

/// Activations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// x · σ(x)
    Silu,
    /// The approximation of GELU by tanh.
    GeluTanh,
    /// x · σ(slope · x) of a gate up to a limit, and what it lets through within it, plus one.
    ClampedSwiglu {
        /// Transformers' `swiglu_alpha`.
        slope: f64,
        /// Transformers' `swiglu_limit`.
        limit: f64,
    },
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

    /// The keys of a `config.json`; `path` stands for the file in messages.
    ///
    /// # Errors
    /// As [`DecoderConfig::read`].
    pub fn from_json(path: &Path, keys: Value) -> Result<Self, Error> {
        Self::from_object(&Object::new(path, keys)?)
    }

    /// Reads the keys of a `config.json`.
    ///
    /// # Errors
    /// As [`DecoderConfig::read`].
    pub(crate) fn from_object(object: &Object) -> Result<Self, Error> {
        let model_type = object.text("model_type")?.unwrap_or_default();
        let family = Family::of_config(object)?.ok_or_else(|| {
            let known = REGISTRY.map(|family| family.model_type).join(", ");
            let nearest = nearest(model_type).map_or_else(String::new, |name| {
                format!("; the nearest of them is {name}, but it computes something else")
            });
            let reason = format!("is {model_type:?}; the supported models are {known}{nearest}");
            object.error("model_type", reason)
        })?;
        (family.read)(&family.section(object)?)
    }

    /// An inconsistency: the key, and what is wrong with it.
    fn check(&self) -> Result<(), (&'static str, String)> {
        // Zero if there are more heads than dimensions to divide among them.
        if self.head_dim < 2 || self.head_dim % 2 != 0 {
            let reason = format!(
                "must be even for the rotary embedding, not {}",
                self.head_dim
            );
            return Err(("head_dim", reason));
        }
        let rotated = self.rope.rotated(self.head_dim);
        if rotated < 2 || rotated % 2 != 0 {
            let reason = format!(
                "must leave an even number of a head's {} dimensions to rotate, not {rotated}",
                self.head_dim
            );
            return Err(("partial_rotary_factor", reason));
        }
        if let RopeScaling::LongRope(scaling) = &self.rope.scaling {
            for (key, factors) in [
                ("short_factor", &scaling.short_factor),
                ("long_factor", &scaling.long_factor),
            ] {
                if factors.len() as i64 != rotated / 2 {
                    let reason = format!(
                        "has {} numbers, but a head has {} pairs that are rotated",
                        factors.len(),
                        rotated / 2
                    );
                    return Err((key, reason));
                }
            }
        }
        if self.num_attention_heads % self.num_key_value_heads != 0 {
            let reason = format!(
                "must divide the {} query heads; {} does not",
                self.num_attention_heads, self.num_key_value_heads
            );
            return Err(("num_key_value_heads", reason));
        }
        Ok(())
    }

    /// Number of norms of the residual stream in a block.
    pub fn norms(&self) -> usize {
        self.family.norms.iter().flatten().count()
    }

    /// Whether the queries and keys of block `index` are rotated.
    pub fn is_rotated(&self, index: usize) -> bool {
        self.rotated.get(index) != Some(&false)
    }

    /// Whether block `index` sees only the latest tokens.
    pub fn is_local(&self, index: usize) -> bool {
        let local = self.local.as_ref();
        local.is_some_and(|local| local.layers.get(index) == Some(&true))
    }

    /// What block `index` has in place of attention, if it has.
    pub fn delta_in(&self, index: usize) -> Option<&DeltaLayers> {
        let delta = self.delta.as_ref();
        delta.filter(|delta| delta.layers.get(index) == Some(&true))
    }

    /// The `config.json` for `transformers`, with keys where both its fourth and its fifth major version look
    /// for them.
    pub fn to_json(&self) -> Value {
        let (rope_scaling, rope_parameters) = self.rope.to_json();
        let mut keys = Map::new();
        for (key, value) in [
            ("architectures", json!([self.family.class])),
            ("model_type", json!(self.family.model_type)),
            ("vocab_size", json!(self.vocab_size)),
            ("hidden_size", json!(self.hidden_size)),
            ("intermediate_size", json!(self.intermediate_size)),
            ("num_hidden_layers", json!(self.num_hidden_layers)),
            ("num_attention_heads", json!(self.num_attention_heads)),
            ("num_key_value_heads", json!(self.num_key_value_heads)),
            ("head_dim", json!(self.head_dim)),
            (
                "max_position_embeddings",
                json!(self.max_position_embeddings),
            ),
            ("rms_norm_eps", json!(self.rms_norm_eps)),
            ("rope_theta", json!(self.rope.theta)),
            ("rope_scaling", rope_scaling),
            ("rope_parameters", rope_parameters),
            ("tie_word_embeddings", json!(self.tie_word_embeddings)),
            ("pad_token_id", json!(self.pad_token_id)),
            ("bos_token_id", json!(self.bos_token_id)),
            (
                "eos_token_id",
                match self.eos_token_ids.as_slice() {
                    [] => Value::Null,
                    [one] => json!(one),
                    more => json!(more),
                },
            ),
        ] {
            keys.insert(key.to_owned(), value);
        }
        (self.family.write)(self, &mut keys);
        Value::Object(keys)
    }
}

/// What a `config.json` means without a key: the defaults of the family's class in transformers.
pub(super) struct Defaults {
    pub(super) vocab_size: Option<i64>,
    pub(super) hidden_size: Option<i64>,
    pub(super) intermediate_size: Option<i64>,
    pub(super) num_hidden_layers: Option<i64>,
    pub(super) num_attention_heads: Option<i64>,
    /// `None`: as many as query heads.
    pub(super) num_key_value_heads: Option<i64>,
    /// `None`: the width of the residual stream divided among the query heads.
    pub(super) head_dim: Option<i64>,
    pub(super) max_position_embeddings: i64,
    pub(super) rms_norm_eps: f64,
    pub(super) rope: Place,
    pub(super) tie_word_embeddings: bool,
    pub(super) pad_token_id: Option<i64>,
    pub(super) bos_token_id: Option<i64>,
    pub(super) eos_token_id: Option<i64>,
    /// The `quant_method` of files whose weights can be read although they are quantised.
    pub(super) quantized: Option<&'static str>,
}

impl Defaults {
    /// A family that requires its dimensions.
    pub(super) const NONE: Self = Self {
        vocab_size: None,
        hidden_size: None,
        intermediate_size: None,
        num_hidden_layers: None,
        num_attention_heads: None,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-6,
        rope: Place::FLAT,
        tie_word_embeddings: false,
        pad_token_id: None,
        bos_token_id: None,
        eos_token_id: None,
        quantized: None,
    };
}

/// Reads what every family has: dimensions, rotary embedding and tokens. The rest is that of a decoder without
/// peculiarities.
///
/// # Errors
/// The error names the key, what is allowed and what was found.
pub(super) fn read(
    family: &'static Family,
    object: &Object,
    defaults: &Defaults,
) -> Result<DecoderConfig, Error> {
    // In transformers, such a model attends to later tokens.
    if !object.flag("is_causal", true)? {
        return Err(object.error("is_causal", "is false; only causal models are supported"));
    }
    quantized::refuse(object, defaults.quantized)?;
    let size = |key, default| object.integer(key, default, 1..=1 << 20);
    let hidden_size = size("hidden_size", defaults.hidden_size)?;
    let heads = object.integer(
        "num_attention_heads",
        defaults.num_attention_heads,
        1..=4096,
    )?;
    let head_dim = defaults.head_dim.unwrap_or(hidden_size / heads);
    let key_value_heads = match defaults.num_key_value_heads {
        Some(default) if !object.has("num_key_value_heads") => default,
        _ => heads,
    };
    let context = object.integer(
        "max_position_embeddings",
        Some(defaults.max_position_embeddings),
        1..=1 << 30,
    )?;
    let ids = |key, default: Option<i64>| match default {
        Some(default) if !object.has(key) => Ok(vec![default]),
        _ => token_ids(object, key),
    };
    let config = DecoderConfig {
        family,
        vocab_size: object.integer("vocab_size", defaults.vocab_size, 1..=1 << 24)?,
        hidden_size,
        intermediate_size: size("intermediate_size", defaults.intermediate_size)?,
        num_hidden_layers: layers(object, defaults)?,
        num_attention_heads: heads,
        num_key_value_heads: object.integer(
            "num_key_value_heads",
            Some(key_value_heads),
            1..=4096,
        )?,
        head_dim: object.integer("head_dim", Some(head_dim), 2..=4096)?,
        max_position_embeddings: context,
        rms_norm_eps: object.positive("rms_norm_eps", Some(defaults.rms_norm_eps))?,
        norm_plus_one: false,
        qk_norm: QkNorm::None,
        rope: rope::read(object, context, &defaults.rope)?,
        local: None,
        delta: None,
        gated: false,
        whole_heads: None,
        value_norm: false,
        sharing: None,
        per_layer: None,
        layer_scalar: false,
        score_cap: None,
        logits_cap: None,
        sinks: false,
        rotated: Vec::new(),
        score_scale: None,
        // Others than a token mean none, as −1 does.
        pad_token_id: match object.has("pad_token_id") {
            true => object.get("pad_token_id").and_then(Value::as_i64),
            false => defaults.pad_token_id,
        },
        embedding_scale: EmbeddingScale::Number(1.0),
        residual_scale: 1.0,
        logits_divisor: 1.0,
        activation: Activation::Silu,
        experts: None,
        tie_word_embeddings: object.flag("tie_word_embeddings", defaults.tie_word_embeddings)?,
        fused: false,
        qkv_bias: false,
        output_bias: false,
        mlp_bias: false,
        bos_token_id: ids("bos_token_id", defaults.bos_token_id)?.first().copied(),
        eos_token_ids: ids("eos_token_id", defaults.eos_token_id)?,
    };
    config
        .check()
        .map_err(|(key, reason)| object.error(key, reason))?;
    Ok(config)
}

/// The supported model whose name begins most like `model_type`, if one does: with all of it, or with this many letters.
fn nearest(model_type: &str) -> Option<&'static str> {
    const LEAST: usize = 5;
    let shared = |name: &str| {
        let pairs = name.bytes().zip(model_type.bytes());
        pairs.take_while(|(ours, theirs)| ours == theirs).count()
    };
    let names = REGISTRY.map(|family| family.model_type).into_iter();
    let near = names.filter(|name| shared(name) >= LEAST.min(model_type.len().max(3)));
    near.max_by_key(|name| (shared(name), std::cmp::Reverse(name.len())))
}

/// The number of blocks.
///
/// # Errors
/// If it is missing or wrong.
pub(super) fn layers(object: &Object, defaults: &Defaults) -> Result<i64, Error> {
    object.integer("num_hidden_layers", defaults.num_hidden_layers, 1..=4096)
}

/// Refuses an activation other than SiLU.
pub(super) fn require_silu(object: &Object) -> Result<(), Error> {
    match object.text("hidden_act")? {
        Some(other) if !["silu", "swish"].contains(&other) => {
            let reason = format!("is {other:?}; only \"silu\" is supported");
            Err(object.error("hidden_act", reason))
        }
        _ => Ok(()),
    }
}

/// Keys of the `config.json` at `path` that are neither applied nor known to have no effect. Those that begin
/// with an underscore are notes of the library that wrote the file.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn keys_without_effect(path: &Path) -> Result<Vec<String>, Error> {
    let mut object = Object::read(path)?;
    Saved::take(&mut object)?;
    let family = Family::of_config(&object)?;
    if let Some(family) = family {
        object = family.section(&object)?;
    }
    let own = family.map_or(&[][..], |family| family.keys);
    let is_known = |key: &str| {
        [KEYS, NO_EFFECT]
            .iter()
            .chain(own)
            .any(|keys| keys.contains(&key))
    };
    let is_off = |key: &str, value: &Value| {
        OFF.contains(&key) && (value.as_f64() == Some(0.0) || value.as_bool() == Some(false))
    };
    let unknown = object.keys().filter(|(key, value)| {
        let note = value.is_null() || key.starts_with('_');
        !note && !is_known(key) && !is_off(key, value)
    });
    Ok(unknown.map(|(key, _)| key.clone()).collect())
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
