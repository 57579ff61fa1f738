//! Mistral: where there is a window, all blocks have it. Its GGUF files are those of Llama, without the window.

use serde_json::{Map, Value};

use super::config::{self, Defaults};
use super::{DecoderConfig, Family, Gguf, LocalLayers, PRE_NORMS, PartOf, TokenizerClass};
use crate::Error;
use crate::json::Object;

pub(super) static FAMILY: Family = Family {
    model_type: "mistral",
    class: "MistralForCausalLM",
    part_of: Some(&MULTIMODAL),
    keys: &[&["hidden_act", "sliding_window"]],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(Gguf {
        interleaved: true,
        ..Gguf::plain("llama")
    }),
    tokenizer_class: TokenizerClass::OfFile,
};

/// Mistral Small 3.1 and later, and the models that Ministral 3 is the text part of.
pub(super) static MULTIMODAL: PartOf = PartOf {
    model_type: "mistral3",
    section: "text_config",
    tied: true,
    prefixes: &[("language_model.", ""), ("model.language_model.", "model.")],
    others: &[
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ],
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
    Ok(DecoderConfig {
        local: LocalLayers::of_all(object, &config, Some(4096))?,
        ..config
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    let window = config.local.as_ref().map(|local| local.window);
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("sliding_window".into(), window.into());
}
