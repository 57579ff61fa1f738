//! Qwen3 without mixture of experts: queries and keys are normalised per head.

use serde_json::{Map, Value};

use super::config::{self, Defaults};
use super::qwen2::DEFAULTS;
use super::{DecoderConfig, Family, Gguf, PRE_NORMS, QkNorm, TokenizerClass, windows};
use crate::Error;
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
