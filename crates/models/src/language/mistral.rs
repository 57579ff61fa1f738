//! Mistral: where there is a window, all blocks have it. Its GGUF files are those of Llama, without the window.

use serde_json::{Map, Value};

use super::config::{self, Defaults};
use super::{DecoderConfig, Family, Gguf, LocalLayers, PRE_NORMS, TokenizerClass};
use crate::Error;
use crate::json::Object;

pub(super) static FAMILY: Family = Family {
    model_type: "mistral",
    class: "MistralForCausalLM",
    part_of: None,
    keys: &[&["hidden_act", "sliding_window"]],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Gguf {
        interleaved: true,
        ..Gguf::plain("llama")
    },
    tokenizer_class: TokenizerClass::OfFile,
};

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    let defaults = Defaults {
        num_key_value_heads: Some(8),
        max_position_embeddings: 131_072,
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        ..Defaults::NONE
    };
    let config = config::read(&FAMILY, object, &defaults)?;
    let none = object.has("sliding_window") && object.get("sliding_window").is_none();
    let window = object.integer("sliding_window", Some(4096), 1..=1 << 30)?;
    let layers = usize::try_from(config.num_hidden_layers).unwrap_or(0);
    let local = LocalLayers {
        window,
        rope: config.rope.clone(),
        layers: vec![true; layers],
    };
    Ok(DecoderConfig {
        local: (!none).then_some(local),
        ..config
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    let window = config.local.as_ref().map(|local| local.window);
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("sliding_window".into(), window.into());
}
