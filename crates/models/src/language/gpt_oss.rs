//! gpt-oss: sinks of attention, windows in every other block, and experts with clamped gates, which are published in
//! MXFP4.

use serde_json::{Map, Value, json};

use super::config::{self, Defaults};
use super::windows::{self, LocalLayers};
use super::{Activation, DecoderConfig, Family, Gguf, Mixture, PRE_NORMS, TokenizerClass, mixture};
use crate::Error;
use crate::json::Object;
use crate::model::RopeScaling;
use crate::model::rope::{Place, Yarn};

pub(super) static FAMILY: Family = Family {
    model_type: "gpt_oss",
    class: "GptOssForCausalLM",
    part_of: None,
    keys: &[
        &[
            "hidden_act",
            "attention_bias",
            "layer_types",
            "sliding_window",
        ],
        &["swiglu_alpha", "swiglu_limit"],
        mixture::KEYS,
    ],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(Gguf {
        parts: &[
            ("attn_norm", "input_layernorm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_gate_inp", "mlp.router"),
            ("ffn_gate_exps", "mlp.experts.gate_proj"),
            ("ffn_up_exps", "mlp.experts.up_proj"),
            ("ffn_down_exps", "mlp.experts.down_proj"),
        ],
        whole: &[("attn_sinks.weight", "self_attn.sinks")],
        keys: &[
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", EXPERTS),
            ("attention.sliding_window", "sliding_window"),
        ],
        biases: true,
        yarn: Some(false),
        derive: |keys| {
            if let Some(width) = keys.remove(EXPERTS).filter(|width| !width.is_null()) {
                keys.insert("intermediate_size".into(), width);
            }
            Ok(())
        },
        more: |config, keys| {
            keys.insert(EXPERTS.into(), config.intermediate_size.into());
        },
        ..Gguf::plain("gpt-oss")
    }),
    tokenizer_class: TokenizerClass::OfFile,
};

/// What llama.cpp has beside the width of the feed-forward layer.
const EXPERTS: &str = "moe_intermediate_size";

/// The rotations of a config that says nothing about them.
const YARN: Yarn = Yarn {
    factor: 32.0,
    // 0.1 · ln 32 + 1
    attention_factor: 1.346_573_590_279_972_6,
    beta_fast: 32.0,
    beta_slow: 1.0,
    truncate: false,
    original_max_position_embeddings: 4096.0,
};

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    let defaults = Defaults {
        vocab_size: Some(201_088),
        hidden_size: Some(2880),
        intermediate_size: Some(2880),
        num_hidden_layers: Some(36),
        num_attention_heads: Some(64),
        num_key_value_heads: Some(8),
        head_dim: Some(64),
        max_position_embeddings: 131_072,
        rms_norm_eps: 1e-5,
        rope: Place {
            theta: 150_000.0,
            ..Place::FLAT
        },
        quantized: Some("mxfp4"),
        ..Defaults::NONE
    };
    let mut config = config::read(&FAMILY, object, &defaults)?;
    let places = ["rope_scaling", "rope_parameters"];
    if places.iter().all(|key| object.get(key).is_none()) {
        config.rope.scaling = RopeScaling::Yarn(YARN);
    }
    let bias = object.flag("attention_bias", true)?;
    let blocks = config.num_hidden_layers;
    Ok(DecoderConfig {
        qkv_bias: bias,
        output_bias: bias,
        sinks: true,
        local: Some(LocalLayers {
            window: object.integer("sliding_window", Some(128), 1..=1 << 30)?,
            rope: config.rope.clone(),
            layers: windows::layers(object, blocks, 2, "sliding_attention")?,
        }),
        activation: Activation::ClampedSwiglu {
            slope: object.positive("swiglu_alpha", Some(1.702))?,
            limit: object.positive("swiglu_limit", Some(7.0))?,
        },
        experts: Some(Mixture {
            router: "router",
            biased: true,
            alternating: true,
            ..Mixture::in_all(object, blocks, (128, 4))?
        }),
        ..config
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("attention_bias".into(), config.output_bias.into());
    if let Some(local) = &config.local {
        local.write_layers(keys);
    }
    if let Activation::ClampedSwiglu { slope, limit } = config.activation {
        keys.insert("swiglu_alpha".into(), json!(slope));
        keys.insert("swiglu_limit".into(), json!(limit));
    }
    if let Some(mixture) = &config.experts {
        mixture.write_in_all("num_local_experts", keys);
    }
}
