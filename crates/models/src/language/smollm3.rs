//! SmolLM3: in every fourth block, queries and keys are not rotated.

use serde_json::{Map, Value};

use super::config::{self, Defaults};
use super::{DecoderConfig, Family, Gguf, PRE_NORMS, TokenizerClass, windows};
use crate::Error;
use crate::json::Object;
use crate::model::rope::Place;

pub(super) static FAMILY: Family = Family {
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    part_of: None,
    keys: &[
        &[
            "hidden_act",
            "attention_bias",
            "mlp_bias",
            "no_rope_layers",
            "no_rope_layer_interval",
        ],
        windows::KEYS,
    ],
    read,
    write,
    norms: PRE_NORMS,
    // llama.cpp has no key for the blocks without rotation, and takes every fourth one.
    gguf: Some(Gguf {
        interleaved: true,
        ..Gguf::plain("smollm3")
    }),
    tokenizer_class: TokenizerClass::OfFile,
};

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    let defaults = Defaults {
        vocab_size: Some(128_256),
        hidden_size: Some(2048),
        intermediate_size: Some(11_008),
        num_hidden_layers: Some(36),
        num_attention_heads: Some(16),
        num_key_value_heads: Some(4),
        max_position_embeddings: 32_768,
        rope: Place {
            theta: 2_000_000.0,
            ..Place::FLAT
        },
        tie_word_embeddings: true,
        pad_token_id: Some(128_004),
        bos_token_id: Some(128_000),
        eos_token_id: Some(128_001),
        ..Defaults::NONE
    };
    // Its class has them in the blocks that are not rotated, whatever `max_window_layers` says.
    let mut all = object.clone();
    all.set("max_window_layers", 0.into());
    windows::refuse(&all, &defaults)?;
    let bias = object.flag("attention_bias", false)?;
    let config = config::read(&FAMILY, object, &defaults)?;
    Ok(DecoderConfig {
        rotated: rotated(object, config.num_hidden_layers)?,
        qkv_bias: bias,
        output_bias: bias,
        mlp_bias: object.flag("mlp_bias", false)?,
        ..config
    })
}

/// For each of `count` blocks, whether it is rotated: as the list says, in which 0 means that it is not, or all but
/// each one of an interval.
fn rotated(object: &Object, count: i64) -> Result<Vec<bool>, Error> {
    const LIST: &str = "no_rope_layers";
    let interval = object.integer("no_rope_layer_interval", Some(4), 1..=1 << 20)?;
    let Some(list) = object.integers(LIST, 0..=1)? else {
        return Ok((1..=count).map(|number| number % interval != 0).collect());
    };
    let count = usize::try_from(count).unwrap_or(0);
    if list.len() < count {
        let reason = format!("has {} numbers for {count} layers", list.len());
        return Err(object.error(LIST, reason));
    }
    Ok(list.into_iter().take(count).map(|one| one == 1).collect())
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    let rotated = config.rotated.iter().map(|rotated| i64::from(*rotated));
    keys.insert("no_rope_layers".into(), rotated.collect());
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("attention_bias".into(), config.output_bias.into());
    keys.insert("mlp_bias".into(), config.mlp_bias.into());
}
