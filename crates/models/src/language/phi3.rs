//! Phi-3 and Phi-4: fused projections, rotary embeddings of a part of a head, and LongRoPE.

use serde_json::{Map, Value, json};

use super::config::{self, Defaults};
use super::{DecoderConfig, Family, Gguf, LocalLayers, PRE_NORMS, TokenizerClass};
use crate::Error;
use crate::json::Object;
use crate::model::RopeScaling;
use crate::model::rope::Place;

pub(super) static FAMILY: Family = Family {
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    part_of: None,
    keys: &[&[
        "hidden_act",
        "sliding_window",
        "full_attn_mod",
        "interpolate_factor",
    ]],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(Gguf {
        parts: &[
            ("attn_norm", "input_layernorm"),
            ("ffn_norm", "post_attention_layernorm"),
            ("attn_qkv", "self_attn.qkv_proj"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        partial: true,
        keys: &[(WINDOW_KEY, "sliding_window")],
        derive: no_window,
        yarn: None,
        ..Gguf::plain("phi3")
    }),
    tokenizer_class: TokenizerClass::Always("TokenizersBackend"),
};

/// llama.cpp's key of the window, zero without one.
const WINDOW_KEY: &str = "attention.sliding_window";

fn no_window(keys: &mut Map<String, Value>) -> Result<(), String> {
    if keys.get("sliding_window") == Some(&json!(0)) {
        keys.insert("sliding_window".into(), Value::Null);
    }
    Ok(())
}

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    // Of the first versions of its class, where others than these changed what is computed.
    for key in ["full_attn_mod", "interpolate_factor"] {
        object.require(key, &json!(1), &json!(1))?;
    }
    let defaults = Defaults {
        vocab_size: Some(32_064),
        hidden_size: Some(3072),
        intermediate_size: Some(8192),
        num_hidden_layers: Some(32),
        num_attention_heads: Some(32),
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        rope: Place {
            longrope: true,
            part: Some(1.0),
            ..Place::FLAT
        },
        pad_token_id: Some(32_000),
        bos_token_id: Some(1),
        eos_token_id: Some(32_000),
        ..Defaults::NONE
    };
    let config = config::read(&FAMILY, object, &defaults)?;
    Ok(DecoderConfig {
        fused: true,
        local: LocalLayers::of_all(object, &config, None)?,
        ..config
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    let window = config.local.as_ref().map(|local| local.window);
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("sliding_window".into(), window.into());
    let part = config.rope.partial_rotary_factor;
    keys.insert("partial_rotary_factor".into(), part.into());
    if let RopeScaling::LongRope(scaling) = &config.rope.scaling {
        let original = scaling.original_max_position_embeddings;
        keys.insert("original_max_position_embeddings".into(), original.into());
    }
}
