//! Gemma 3 and the text part of its multimodal models: five of six blocks see a window, queries and keys are normalised, and each block has norms
//! before and after attention and feed-forward layer, whose weights are stored less one.

use serde_json::{Map, Value};

use super::config::{self, Defaults};
use super::{
    Activation, DecoderConfig, EmbeddingScale, Family, Gguf, LocalLayers, PartOf, QkNorm,
    TokenizerClass,
};
use crate::Error;
use crate::json::{self, Object};
use crate::model::rope::Place;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    part_of: Some(&MULTIMODAL),
    keys: &[&[
        "attention_bias",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "hidden_activation",
        "layer_types",
        "query_pre_attn_scalar",
        "rope_local_base_freq",
        "sliding_window",
        "sliding_window_pattern",
        "use_bidirectional_attention",
    ]],
    read,
    write,
    norms: NORMS,
    gguf: Some(Gguf {
        parts: GGUF_NORMS,
        norms_plus_one: true,
        keys: &[
            ("attention.sliding_window", "sliding_window"),
            ("rope.freq_base_swa", "rope_local_base_freq"),
        ],
        derive: |keys| {
            scale_of_scores(keys, 62);
            Ok(())
        },
        yarn: None,
        ..Gguf::plain("gemma3")
    }),
    tokenizer_class: TokenizerClass::OfFile,
};

/// Before and after attention and the feed-forward layer.
pub(super) const NORMS: [Option<&str>; 4] = [
    Some("input_layernorm"),
    Some("post_attention_layernorm"),
    Some("pre_feedforward_layernorm"),
    Some("post_feedforward_layernorm"),
];

/// [`NORMS`] as llama.cpp and transformers name them.
pub(super) const GGUF_NORMS: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// The models for text and images.
static MULTIMODAL: PartOf = PartOf {
    model_type: "gemma3",
    section: "text_config",
    tied: true,
    prefixes: &[("language_model.", ""), ("model.language_model.", "model.")],
    others: &[
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ],
};

/// The blocks that see the whole text.
const WHOLE: Place = Place {
    section: Some("full_attention"),
    theta: 1_000_000.0,
    ..Place::FLAT
};

/// The blocks with a window.
const LOCAL: Place = Place {
    section: Some("sliding_attention"),
    theta_key: Some("rope_local_base_freq"),
    scaled: false,
    ..Place::FLAT
};

pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(262_208),
    hidden_size: Some(2304),
    intermediate_size: Some(9216),
    num_hidden_layers: Some(26),
    num_attention_heads: Some(8),
    num_key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-6,
    rope: WHOLE,
    tie_word_embeddings: true,
    pad_token_id: Some(0),
    bos_token_id: Some(2),
    eos_token_id: Some(1),
    ..Defaults::NONE
};

/// llama.cpp has no key for `query_pre_attn_scalar`: it knows the largest model, which differs, by the number of its blocks.
pub(super) fn scale_of_scores(keys: &mut Map<String, Value>, largest: i64) {
    let integer = |key: &str| keys.get(key).and_then(Value::as_i64).unwrap_or(1);
    let scalar = match integer("num_hidden_layers") == largest {
        true => integer("hidden_size") / integer("num_attention_heads"),
        false => integer("head_dim"),
    };
    keys.insert("query_pre_attn_scalar".into(), scalar.into());
}

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    refuse_variants(
        object,
        &["attn_logit_softcapping", "final_logit_softcapping"],
    )?;
    refuse_later_tokens(object)?;
    let config = config::read(&FAMILY, object, &DEFAULTS)?;
    let bias = object.flag("attention_bias", false)?;
    let pattern = object.integer("sliding_window_pattern", Some(6), 1..=1 << 20)?;
    Ok(DecoderConfig {
        norm_plus_one: true,
        qk_norm: QkNorm::Head,
        local: Some(LocalLayers::read(
            object,
            &config,
            pattern,
            [&WHOLE, &LOCAL],
        )?),
        score_scale: Some(score_scale(object)?),
        embedding_scale: EmbeddingScale::RootOfWidth,
        activation: Activation::GeluTanh,
        qkv_bias: bias,
        output_bias: bias,
        ..config
    })
}

/// Refuses what no published model has: another activation, and soft caps by their keys.
pub(super) fn refuse_variants(object: &Object, caps: &[&str]) -> Result<(), Error> {
    require_tanh(object, "hidden_activation")?;
    for key in caps {
        if object.get(key).is_some() {
            return Err(object.error(key, "is set; soft caps are not supported"));
        }
    }
    Ok(())
}

/// Refuses another activation than the approximation of GELU by tanh.
pub(super) fn require_tanh(object: &Object, key: &str) -> Result<(), Error> {
    const ACTIVATION: &str = "gelu_pytorch_tanh";
    match object.text(key)? {
        Some(other) if other != ACTIVATION => {
            let reason = format!("is {other:?}; only {ACTIVATION:?} is supported");
            Err(object.error(key, reason))
        }
        _ => Ok(()),
    }
}

/// What scores are multiplied by.
pub(super) fn score_scale(object: &Object) -> Result<f64, Error> {
    let scalar = object.positive("query_pre_attn_scalar", Some(256.0))?;
    Ok(scalar.powf(-0.5))
}

/// Refuses models that attend to later tokens.
pub(super) fn refuse_later_tokens(object: &Object) -> Result<(), Error> {
    match object.flag("use_bidirectional_attention", false)? {
        true => {
            let reason = "is true; only causal models are supported";
            Err(object.error("use_bidirectional_attention", reason))
        }
        false => Ok(()),
    }
}

/// Adds what Gemma 2 has, too.
pub(super) fn write_shared(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    let scalar = config.score_scale.map_or(256.0, |scale| scale.powi(-2));
    // It has at most a few digits, of which the root kept all but the last.
    let scalar = (scalar * 1e6).round() / 1e6;
    keys.insert("hidden_activation".into(), "gelu_pytorch_tanh".into());
    keys.insert("attention_bias".into(), config.output_bias.into());
    keys.insert("query_pre_attn_scalar".into(), json::number(scalar));
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    write_shared(config, keys);
    let Some(local) = &config.local else { return };
    keys.insert("rope_local_base_freq".into(), local.rope.theta.into());
    local.write(keys);
}
