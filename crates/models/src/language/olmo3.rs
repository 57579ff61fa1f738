//! Olmo 3: Olmo 2 with windows in three of four blocks, whose rotary embedding is not scaled.

use serde_json::{Map, Value};

use super::config::Defaults;
use super::olmo2::{self, DEFAULTS, POST_NORMS};
use super::{DecoderConfig, Family, LocalLayers, TokenizerClass};
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
    gguf: None,
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

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    olmo2::write(config, keys);
    if let Some(local) = &config.local {
        local.write(keys);
    }
}
