//! Olmo 3: Olmo 2 with windows in three of four blocks, whose rotary embedding is not scaled.

use serde_json::{Map, Value, json};

use super::config::Defaults;
use super::olmo2::{self, DEFAULTS, GGUF_NORMS, POST_NORMS};
use super::{DecoderConfig, Family, Gguf, LocalLayers, TokenizerClass};
use crate::Error;
use crate::json::Object;
use crate::model::rope::Place;

pub(super) static FAMILY: Family = Family {
    model_type: "olmo3",
    class: "Olmo3ForCausalLM",
    part_of: None,
    keys: &[&[
        "hidden_act",
        "attention_bias",
        "layer_types",
        "sliding_window",
    ]],
    read,
    write,
    norms: POST_NORMS,
    gguf: Some(Gguf {
        parts: GGUF_NORMS,
        marked_by: Some("attention.sliding_window"),
        keys: &[
            ("attention.sliding_window", "sliding_window"),
            ("attention.sliding_window_pattern", "layer_types"),
        ],
        derive: from_gguf,
        more: |config, keys| {
            let local = config.local.as_ref().map(|local| &local.layers);
            keys.insert("layer_types".into(), json!(local));
        },
        ..Gguf::plain("olmo2")
    }),
    tokenizer_class: TokenizerClass::Always("TokenizersBackend"),
};

/// The blocks that see the whole text.
const WHOLE: Place = Place {
    section: Some("full_attention"),
    theta: 500_000.0,
    ..Place::FLAT
};

/// The blocks with a window. An older file's base and scaling are not theirs.
const LOCAL: Place = Place {
    section: Some("sliding_attention"),
    theta_key: None,
    scaled: false,
    ..WHOLE
};

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    let defaults = Defaults {
        rope: WHOLE,
        ..DEFAULTS
    };
    let config = olmo2::shared(&FAMILY, object, &defaults)?;
    Ok(DecoderConfig {
        local: Some(LocalLayers::read(object, &config, 4, [&WHOLE, &LOCAL])?),
        ..config
    })
}

/// llama.cpp rotates all blocks with the same base, and gives three of four a window whatever a file lists.
fn from_gguf(keys: &mut Map<String, Value>) -> Result<(), String> {
    let blocks = keys.get("num_hidden_layers").and_then(Value::as_u64);
    let pattern: Vec<bool> = (1..=blocks.unwrap_or(0))
        .map(|number| number % 4 != 0)
        .collect();
    let listed = keys.remove("layer_types").unwrap_or_default();
    if ![Value::Null, json!(4), json!(pattern)].contains(&listed) {
        return Err(
            "`olmo2.attention.sliding_window_pattern` gives others than three of four blocks a window, which llama.cpp \
             does not"
                .into(),
        );
    }
    let theta = keys.remove("rope_theta");
    let mut whole = keys.remove("rope_scaling").unwrap_or_default();
    if whole.is_null() {
        whole = json!({"rope_type": "default"});
    }
    whole["rope_theta"] = json!(theta);
    let local = json!({"rope_type": "default", "rope_theta": theta});
    let sections = json!({"full_attention": whole, "sliding_attention": local});
    keys.insert("rope_parameters".into(), sections);
    Ok(())
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    olmo2::write(config, keys);
    if let Some(local) = &config.local {
        local.write(keys);
    }
}
