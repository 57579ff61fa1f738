//! Qwen3 without mixture of experts: queries and keys are normalised per head.

use serde_json::{Map, Value, json};

use super::config::{self, Defaults};
use super::qwen2::DEFAULTS;
use super::{DecoderConfig, Family, Gguf, PRE_NORMS, QkNorm, TokenizerClass, windows};
use crate::Error;
use crate::formats::TensorSource;
use crate::json::Object;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    part_of: None,
    keys: &[&["hidden_act", "attention_bias"], windows::KEYS],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(Gguf::plain("qwen3")),
    tokenizer_class: TokenizerClass::Default("Qwen2Tokenizer"),
};

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    let defaults = Defaults {
        head_dim: Some(128),
        ..DEFAULTS
    };
    windows::refuse(object, &defaults)?;
    let bias = object.flag("attention_bias", false)?;
    Ok(DecoderConfig {
        qk_norm: QkNorm::Head,
        qkv_bias: bias,
        output_bias: bias,
        ..config::read(&FAMILY, object, &defaults)?
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("attention_bias".into(), config.output_bias.into());
}

/// The keys of a `config.json` for a file of this family, from its shapes; what they do not tell is as published. `None`
/// for a file of another.
fn keys_of_shapes(tensors: &dyn TensorSource) -> Option<Value> {
    let size = |name: &str, dimension: usize| {
        let shape = tensors.shape(&format!("model.{name}.weight"))?;
        shape.get(dimension).copied().filter(|size| *size > 0)
    };
    let first = |part: &str, dimension| size(&format!("layers.0.{part}"), dimension);
    let head = first("self_attn.q_norm", 0)?;
    // Other families have norms of queries and keys, too: Gemma 3 beside two more of the stream, Olmo without this one.
    first("input_layernorm", 0)?;
    if first("pre_feedforward_layernorm", 0).is_some() {
        return None;
    }
    let layer = |name: &String| -> Option<i64> {
        let rest = name.strip_prefix("model.layers.")?;
        rest.split('.').next()?.parse().ok()
    };
    let last = tensors.names().iter().filter_map(layer).max()?;
    Some(json!({
        "model_type": FAMILY.model_type,
        "vocab_size": size("embed_tokens", 0)?,
        "hidden_size": size("embed_tokens", 1)?,
        "intermediate_size": first("mlp.gate_proj", 0)?,
        "num_hidden_layers": last + 1,
        "num_attention_heads": first("self_attn.q_proj", 0)? / head,
        "num_key_value_heads": first("self_attn.k_proj", 0)? / head,
        "head_dim": head,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": true,
    }))
}

impl DecoderConfig {
    /// Infers the config of a text encoder from the shapes in a file that has no `config.json`, if there is a family that
    /// is known by them.
    ///
    /// # Errors
    /// If there is none.
    pub fn of_shapes(tensors: &dyn TensorSource) -> Result<Self, Error> {
        match keys_of_shapes(tensors) {
            Some(keys) => Self::from_json(tensors.path(), keys),
            None => {
                let reason = "its shapes do not tell what language model it is: name a folder with a `config.json`";
                Err(Error::file(tensors.path(), reason))
            }
        }
    }
}
