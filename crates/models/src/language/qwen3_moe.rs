//! Qwen3 with a mixture of experts: its attention, and in most or all blocks many small feed-forward layers.

use serde_json::{Map, Value, json};

use super::config::{self, Defaults};
use super::{
    DecoderConfig, Family, GGUF_PRE_NORMS, Gguf, LocalLayers, Mixture, PRE_NORMS, QkNorm,
    TokenizerClass, mixture,
};
use crate::Error;
use crate::json::Object;
use crate::model::rope::Place;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    part_of: None,
    keys: &[
        &["hidden_act", "attention_bias"],
        // The class has no use for the last.
        &["use_sliding_window", "sliding_window", "max_window_layers"],
        mixture::KEYS,
        mixture::SPARSE_KEYS,
    ],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(Gguf {
        parts: &[
            GGUF_PRE_NORMS[0],
            GGUF_PRE_NORMS[1],
            ("ffn_gate_inp", "mlp.gate"),
            ("ffn_gate_exps", "mlp.experts.gate_proj"),
            ("ffn_up_exps", "mlp.experts.up_proj"),
            ("ffn_down_exps", "mlp.experts.down_proj"),
        ],
        keys: &[
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
        ],
        derive: weights_of_experts,
        ..Gguf::plain("qwen3moe")
    }),
    tokenizer_class: TokenizerClass::Default("Qwen2Tokenizer"),
};

/// llama.cpp always divides the weights by their sum; and without their width, experts together have that of the
/// feed-forward layer.
fn weights_of_experts(keys: &mut Map<String, Value>) -> Result<(), String> {
    let integer = |key: &str| keys.get(key).and_then(Value::as_i64);
    if let (None, Some(whole), Some(used)) = (
        integer("moe_intermediate_size"),
        integer("intermediate_size"),
        integer("num_experts_per_tok"),
    ) {
        keys.insert("moe_intermediate_size".into(), json!(whole / used.max(1)));
    }
    keys.insert("norm_topk_prob".into(), json!(true));
    Ok(())
}

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    let defaults = Defaults {
        vocab_size: Some(151_936),
        hidden_size: Some(2048),
        intermediate_size: Some(6144),
        num_hidden_layers: Some(24),
        num_attention_heads: Some(32),
        num_key_value_heads: Some(4),
        max_position_embeddings: 32_768,
        rope: Place::FLAT,
        ..Defaults::NONE
    };
    let bias = object.flag("attention_bias", false)?;
    let config = config::read(&FAMILY, object, &defaults)?;
    Ok(DecoderConfig {
        qk_norm: QkNorm::Head,
        qkv_bias: bias,
        output_bias: bias,
        local: match object.flag("use_sliding_window", false)? {
            true => LocalLayers::of_all(object, &config, Some(4096))?,
            false => None,
        },
        experts: Some(Mixture::read(object, config.num_hidden_layers)?),
        ..config
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("attention_bias".into(), config.output_bias.into());
    let window = config.local.as_ref().map(|local| local.window);
    keys.insert("use_sliding_window".into(), window.is_some().into());
    keys.insert("sliding_window".into(), window.into());
    if let Some(mixture) = &config.experts {
        mixture.write(keys);
    }
}
