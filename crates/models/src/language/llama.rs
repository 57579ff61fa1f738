//! Llama, SmolLM2, TinyLlama and everything else with `LlamaForCausalLM`.

use serde_json::{Map, Value};

use super::config::{self, Defaults};
use super::{DecoderConfig, Family, Gguf, PRE_NORMS, TokenizerClass, windows};
use crate::Error;
use crate::json::Object;

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    part_of: None,
    keys: &[&["hidden_act", "attention_bias", "mlp_bias"], windows::KEYS],
    read,
    write,
    norms: PRE_NORMS,
    gguf: Some(Gguf {
        interleaved: true,
        ..Gguf::plain("llama")
    }),
    tokenizer_class: TokenizerClass::OfFile,
};

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    config::require_silu(object)?;
    let defaults = Defaults {
        max_position_embeddings: 2048,
        bos_token_id: Some(1),
        eos_token_id: Some(2),
        ..Defaults::NONE
    };
    windows::refuse(object, &defaults)?;
    let bias = object.flag("attention_bias", false)?;
    Ok(DecoderConfig {
        qkv_bias: bias,
        output_bias: bias,
        mlp_bias: object.flag("mlp_bias", false)?,
        ..config::read(&FAMILY, object, &defaults)?
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    keys.insert("hidden_act".into(), "silu".into());
    keys.insert("attention_bias".into(), config.output_bias.into());
    keys.insert("mlp_bias".into(), config.mlp_bias.into());
}
