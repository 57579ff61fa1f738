//! Olmo 2: norms after attention and feed-forward layer and none before them, and one norm of all heads' queries, and
//! of their keys.

use serde_json::{Map, Value};

use super::config::{self, Defaults};
use super::{DecoderConfig, Family, Gguf, QkNorm, TokenizerClass};
use crate::Error;
use crate::json::Object;

pub(super) static FAMILY: Family = Family {
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    part_of: None,
    keys: &[&["hidden_act", "attention_bias"]],
    read,
    write,
    norms: POST_NORMS,
    gguf: Some(Gguf {
        parts: GGUF_NORMS,
        ..Gguf::plain("olmo2")
    }),
    tokenizer_class: TokenizerClass::Always("TokenizersBackend"),
};

/// The names of a block's norms.
pub(super) const POST_NORMS: [Option<&str>; 4] = [
    None,
    Some("post_attention_layernorm"),
    None,
    Some("post_feedforward_layernorm"),
];

/// [`POST_NORMS`] as llama.cpp and transformers name them.
pub(super) const GGUF_NORMS: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// What a config of this family or of Olmo 3 means without a key.
pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(50_304),
    hidden_size: Some(4096),
    intermediate_size: Some(11_008),
    num_hidden_layers: Some(32),
    num_attention_heads: Some(32),
    rms_norm_eps: 1e-5,
    pad_token_id: Some(1),
    eos_token_id: Some(50_279),
    ..Defaults::NONE
};

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    shared(&FAMILY, object, &DEFAULTS)
}

/// What the config of an Olmo of any generation says.
///
/// # Errors
/// The error names the key, what is allowed and what was found.
pub(super) fn shared(
    family: &'static Family,
    object: &Object,
    defaults: &Defaults,
) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    let bias = object.flag("attention_bias", false)?;
    Ok(DecoderConfig {
        qk_norm: QkNorm::Projection,
        qkv_bias: bias,
        output_bias: bias,
        ..config::read(family, object, defaults)?
    })
}

pub(super) fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("attention_bias".into(), config.output_bias.into());
}
