//! Qwen3.5 and Qwen3.6 with a mixture of experts, and the text part of their multimodal models: the blocks of the dense
//! ones, with many small experts of which each token goes through some, and one of all tokens.

use serde_json::{Map, Value, json};

use super::config::{self, Defaults};
use super::qwen3_5::{self, DEFAULTS, GATED_KEYS, GGUF, PART_OF, TOKENIZER};
use super::{DecoderConfig, Family, Gguf, Mixture, PRE_NORMS, PartOf, delta, mixture};
use crate::Error;
use crate::json::Object;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_5_moe_text",
    class: "Qwen3_5MoeForCausalLM",
    part_of: Some(&MULTIMODAL),
    keys: &[
        GATED_KEYS,
        delta::KEYS,
        mixture::KEYS,
        // The class always divides weights by their sum.
        &[WIDTH, SHARED, "norm_topk_prob"],
    ],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(Gguf {
        architecture: "qwen35moe",
        ..GGUF
    }),
    tokenizer_class: TOKENIZER,
};

static MULTIMODAL: PartOf = PartOf {
    model_type: "qwen3_5_moe",
    ..PART_OF
};

const WIDTH: &str = "moe_intermediate_size";
const SHARED: &str = "shared_expert_intermediate_size";

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    let width = |key| object.integer(key, Some(512), 1..=1 << 20);
    let shared = width(SHARED)?;
    let defaults = Defaults {
        // Of no layer.
        intermediate_size: Some(shared),
        num_attention_heads: Some(16),
        num_key_value_heads: Some(2),
        hidden_size: Some(2048),
        num_hidden_layers: Some(40),
        ..DEFAULTS
    };
    object.require("norm_topk_prob", &json!(true), &json!(true))?;
    let config = qwen3_5::gated(config::read(&FAMILY, object, &defaults)?, object)?;
    Ok(DecoderConfig {
        experts: Some(Mixture {
            width: width(WIDTH)?,
            shared: Some(shared),
            ..Mixture::in_all(object, config.num_hidden_layers, (256, 8))?
        }),
        ..config
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    qwen3_5::write(config, keys);
    if let Some(mixture) = &config.experts {
        mixture.write_in_all("num_experts", keys);
        keys.insert(WIDTH.into(), mixture.width.into());
        keys.insert(SHARED.into(), mixture.shared.into());
    }
}
