//! Qwen3.5 and Qwen3.6 without mixture of experts, and the text part of their multimodal models: three of four blocks
//! have a gated delta rule in place of attention, and attention has a gate of its own.

use serde_json::{Map, Value, json};

use super::config::{self, Defaults};
use super::{
    DecoderConfig, DeltaLayers, Family, Gguf, PRE_NORMS, PartOf, QkNorm, SHARED_WIDTH,
    TokenizerClass, delta,
};
use crate::Error;
use crate::json::Object;
use crate::model::rope::Place;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_5_text",
    class: "Qwen3_5ForCausalLM",
    part_of: Some(&MULTIMODAL),
    keys: &[GATED_KEYS, delta::KEYS],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(GGUF),
    tokenizer_class: TOKENIZER,
};

pub(super) const TOKENIZER: TokenizerClass = TokenizerClass::Default("Qwen3_5Tokenizer");

/// The models for text, images and videos.
static MULTIMODAL: PartOf = PartOf {
    model_type: "qwen3_5",
    ..PART_OF
};

pub(super) const PART_OF: PartOf = PartOf {
    model_type: "",
    section: "text_config",
    tied: false,
    prefixes: &[("model.language_model.", "model.")],
    // The last two are a layer that predicts the token after the next.
    others: &["model.visual.", "mtp.", "model.mtp."],
};

/// How llama.cpp stores dense models, and under another name those with experts.
pub(super) const GGUF: Gguf = Gguf {
    parts: GGUF_PARTS,
    whole: GGUF_WHOLE,
    norms_plus_one: true,
    partial: true,
    keys: GGUF_KEYS,
    // For pictures.
    arrays: &[("rope.dimension_sections", &[11, 11, 10, 0])],
    refused: &["attention.recurrent_layers"],
    derive: from_gguf,
    more: to_gguf,
    yarn: None,
    ..Gguf::plain("qwen35")
};

/// The keys that [`gated`] reads.
pub(super) const GATED_KEYS: &[&str] = &[
    "hidden_act",
    "attention_bias",
    "attn_output_gate",
    "output_gate_type",
    "mlp_only_layers",
];

const ROPE: Place = Place {
    part: Some(0.25),
    axes: true,
    ..Place::FLAT
};

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    let defaults = Defaults {
        intermediate_size: Some(12_288),
        num_attention_heads: Some(16),
        num_key_value_heads: Some(4),
        hidden_size: Some(4096),
        num_hidden_layers: Some(32),
        ..DEFAULTS
    };
    gated(config::read(&FAMILY, object, &defaults)?, object)
}

/// What dense models and those with experts have without a key.
pub(super) const DEFAULTS: Defaults = Defaults {
    vocab_size: Some(248_320),
    head_dim: Some(256),
    max_position_embeddings: 32_768,
    rope: ROPE,
    ..Defaults::NONE
};

/// `config` with what dense models and those with experts share.
pub(super) fn gated(config: DecoderConfig, object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    // Its class knows none of them.
    object.require("mlp_only_layers", &json!([]), &json!([]))?;
    object.require("attn_output_gate", &json!(true), &json!(true))?;
    if let Some(other) = object
        .text("output_gate_type")?
        .filter(|kind| *kind != "swish")
    {
        let reason = format!("is {other:?}; only \"swish\" is supported");
        return Err(object.error("output_gate_type", reason));
    }
    let bias = object.flag("attention_bias", false)?;
    Ok(DecoderConfig {
        norm_plus_one: true,
        qk_norm: QkNorm::Head,
        gated: true,
        delta: Some(DeltaLayers::read(object, config.num_hidden_layers)?),
        qkv_bias: bias,
        output_bias: bias,
        ..config
    })
}

pub(super) fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("attention_bias".into(), config.output_bias.into());
    // Without it, a quarter of a head is rotated.
    if let Some(parameters) = keys.get_mut("rope_parameters") {
        parameters["partial_rotary_factor"] = json!(config.rope.partial_rotary_factor);
    }
    if let Some(delta) = &config.delta {
        delta.write(keys);
    }
}

/// Parts of a block beside those of every family; some only where there are experts.
const GGUF_PARTS: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

/// Tensors that are no weight of a module.
const GGUF_WHOLE: &[(&str, &str)] = &[
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
];

/// The keys that have a counterpart, and those that [`from_gguf`] makes others of.
const GGUF_KEYS: &[(&str, &str)] = &[
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
    ("ssm.inner_size", VALUES),
    ("full_attention_interval", "full_attention_interval"),
    ("nextn_predict_layers", EXTRA),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    (SHARED_WIDTH, "shared_expert_intermediate_size"),
];

/// Width of all heads of values.
const VALUES: &str = "ssm_inner_size";
/// Layers at the end that predict the token after the next.
const EXTRA: &str = "nextn_predict_layers";

fn from_gguf(keys: &mut Map<String, Value>) -> Result<(), String> {
    let heads = keys.get("linear_num_value_heads").and_then(Value::as_i64);
    let values = keys.remove(VALUES).and_then(|values| values.as_i64());
    if let (Some(values), Some(heads)) = (values, heads) {
        let width = values / heads.max(1);
        if keys.get("linear_key_head_dim").and_then(Value::as_i64) != Some(width) {
            return Err(format!(
                "a delta rule whose heads of values are {width} wide must have keys as wide, in llama.cpp"
            ));
        }
        keys.insert("linear_value_head_dim".into(), width.into());
    }
    let extra = keys.remove(EXTRA).and_then(|extra| extra.as_i64());
    let blocks = keys.get("num_hidden_layers").and_then(Value::as_i64);
    if let (Some(extra), Some(blocks)) = (extra, blocks) {
        keys.insert("num_hidden_layers".into(), (blocks - extra).into());
    }
    Ok(())
}

/// The interval is that of the first block with attention; where others do not follow it, what is written is read back
/// as something else, and refused.
fn to_gguf(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    let Some(delta) = &config.delta else { return };
    let first = delta.layers.iter().position(|delta| !delta);
    let interval = first.map_or(delta.layers.len() + 1, |first| first + 1);
    keys.insert("full_attention_interval".into(), json!(interval));
    keys.insert(VALUES.into(), json!(delta.values()));
}
