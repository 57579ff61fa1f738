//! Granite 3, whose config has multipliers of embeddings, scores, residual stream and logits.

use serde_json::{Map, Value, json};

use super::config::{self, Defaults};
use super::{DecoderConfig, EmbeddingScale, Family, Gguf, PRE_NORMS, TokenizerClass};
use crate::Error;
use crate::json::Object;

pub(super) static FAMILY: Family = Family {
    model_type: "granite",
    class: "GraniteForCausalLM",
    part_of: None,
    keys: &[&[
        "hidden_act",
        "attention_bias",
        "mlp_bias",
        "attention_multiplier",
        "embedding_multiplier",
        "logits_scaling",
        "residual_multiplier",
    ]],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(Gguf {
        interleaved: true,
        keys: &[
            ("attention.scale", "attention_multiplier"),
            ("embedding_scale", "embedding_multiplier"),
            ("logit_scale", "logits_scaling"),
            ("residual_scale", "residual_multiplier"),
        ],
        derive: scale_of_scores,
        ..Gguf::plain("granite")
    }),
    tokenizer_class: TokenizerClass::Always("TokenizersBackend"),
};

/// Without the key, llama.cpp divides by the root of the head's width, and transformers by nothing.
fn scale_of_scores(keys: &mut Map<String, Value>) -> Result<(), String> {
    let width = keys.get("head_dim").and_then(Value::as_f64).unwrap_or(1.0);
    let scale = keys.entry("attention_multiplier").or_insert(Value::Null);
    if scale.is_null() {
        *scale = width.powf(-0.5).into();
    }
    Ok(())
}

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    let defaults = Defaults {
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        ..Defaults::NONE
    };
    let bias = object.flag("attention_bias", false)?;
    let multiplier = |key| object.positive(key, Some(1.0));
    Ok(DecoderConfig {
        score_scale: Some(multiplier("attention_multiplier")?),
        embedding_scale: EmbeddingScale::Number(multiplier("embedding_multiplier")?),
        residual_scale: multiplier("residual_multiplier")?,
        logits_divisor: multiplier("logits_scaling")?,
        qkv_bias: bias,
        output_bias: bias,
        mlp_bias: object.flag("mlp_bias", false)?,
        ..config::read(&FAMILY, object, &defaults)?
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    let embedding = match config.embedding_scale {
        EmbeddingScale::Number(scale) => scale,
        EmbeddingScale::RootOfWidth => (config.hidden_size as f64).sqrt(),
    };
    for (key, value) in [
        ("hidden_act", json!("silu")),
        ("attention_bias", config.output_bias.into()),
        ("mlp_bias", config.mlp_bias.into()),
        ("attention_multiplier", config.score_scale.into()),
        ("embedding_multiplier", embedding.into()),
        ("residual_multiplier", config.residual_scale.into()),
        ("logits_scaling", config.logits_divisor.into()),
    ] {
        keys.insert(key.into(), value);
    }
}
