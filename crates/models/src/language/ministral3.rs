//! Ministral 3, mostly as the text part of its multimodal models: YaRN, and queries that grow with their position.

use serde_json::{Map, Value, json};

use super::config::{self, Defaults};
use super::mistral::MULTIMODAL;
use super::{DecoderConfig, Family, Gguf, LocalLayers, PRE_NORMS, TokenizerClass};
use crate::Error;
use crate::json::Object;
use crate::model::RopeScaling;
use crate::model::rope::Place;

pub(super) static FAMILY: Family = Family {
    model_type: "ministral3",
    class: "Ministral3ForCausalLM",
    part_of: Some(&MULTIMODAL),
    keys: &[&["hidden_act", "sliding_window"]],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(Gguf {
        interleaved: true,
        keys: &[
            ("attention.temperature_scale", BETA),
            ("rope.scaling.yarn_log_multiplier", SHARPER),
        ],
        derive: from_gguf,
        more: |config, keys| {
            let growth = config.rope.query_growth.as_ref();
            keys.insert(BETA.into(), growth.map(|growth| growth.rate).into());
            // By what YaRN sharpens attention is divided by as much.
            if let RopeScaling::Yarn(yarn) = &config.rope.scaling
                && yarn.attention_factor == 1.0
            {
                keys.insert(SHARPER.into(), json!(1.0));
            }
        },
        ..Gguf::plain("mistral3")
    }),
    tokenizer_class: TokenizerClass::OfFile,
};

/// How fast queries grow, and the part of YaRN's factor of attention that is divided by.
const BETA: &str = "llama_4_scaling_beta";
const SHARPER: &str = "mscale_all_dim";

/// Puts what llama.cpp has beside the scaling of rotations into it.
fn from_gguf(keys: &mut Map<String, Value>) -> Result<(), String> {
    let mut scaling = keys.remove("rope_scaling").unwrap_or_default();
    if scaling.is_null() {
        scaling = json!({"rope_type": "default"});
    }
    for key in [BETA, SHARPER] {
        if let Some(number) = keys.remove(key).filter(|number| !number.is_null()) {
            scaling[key] = number;
        }
    }
    if scaling.get(SHARPER).is_some() {
        scaling["mscale"] = json!(1.0);
    }
    keys.insert("rope_scaling".into(), scaling);
    Ok(())
}

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    let defaults = Defaults {
        vocab_size: Some(131_072),
        hidden_size: Some(4096),
        intermediate_size: Some(14_336),
        num_hidden_layers: Some(34),
        num_attention_heads: Some(32),
        num_key_value_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 262_144,
        rms_norm_eps: 1e-5,
        rope: Place {
            growth: true,
            ..Place::FLAT
        },
        pad_token_id: Some(11),
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        ..Defaults::NONE
    };
    let keys = ["rope_parameters", "rope_scaling"];
    let mut object = object.clone();
    if keys.iter().all(|key| object.get(key).is_none()) {
        let theta = object.positive("rope_theta", Some(1_000_000.0))?;
        object.set(
            keys[0],
            json!({
                "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 16_384,
                "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0,
                "llama_4_scaling_beta": 0.1, "rope_theta": theta,
            }),
        );
    }
    let config = config::read(&FAMILY, &object, &defaults)?;
    Ok(DecoderConfig {
        local: LocalLayers::of_all(&object, &config, None)?,
        ..config
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    let window = config.local.as_ref().map(|local| local.window);
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("sliding_window".into(), window.into());
}
