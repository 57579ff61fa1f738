//! Qwen2 and Qwen2.5: the projections of queries, keys and values have biases, which its config does not say.

use serde_json::{Map, Value};

use super::config::{self, Defaults};
use super::{DecoderConfig, Family, Gguf, PRE_NORMS, TokenizerClass, windows};
use crate::Error;
use crate::json::Object;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    part_of: None,
    keys: &[&["hidden_act"], windows::KEYS],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(Gguf::plain("qwen2")),
    tokenizer_class: TokenizerClass::Always("Qwen2Tokenizer"),
};

/// What a config of this family or of Qwen3 means without a key.
pub(super) const DEFAULTS: Defaults = Defaults {
    num_key_value_heads: Some(32),
    max_position_embeddings: 32_768,
    ..Defaults::NONE
};

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    windows::refuse(object, &DEFAULTS)?;
    Ok(DecoderConfig {
        qkv_bias: true,
        ..config::read(&FAMILY, object, &DEFAULTS)?
    })
}

fn write(_: &DecoderConfig, keys: &mut Map<String, Value>) {
    keys.insert("hidden_act".into(), "silu".into());
}
