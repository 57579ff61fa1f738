//! Gemma 2: every other block sees a window, scores and logits have soft caps, and each block has the norms of Gemma 3, which came later.

use serde_json::{Map, Value};

use super::config::{self, Defaults};
use super::gemma3::{self, DEFAULTS, refuse_variants};
use super::windows::{self, LocalLayers};
use super::{Activation, DecoderConfig, EmbeddingScale, Family, Gguf, TokenizerClass};
use crate::Error;
use crate::json::Object;
use crate::model::rope::Place;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    part_of: None,
    keys: &[&[
        "attention_bias",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "hidden_act",
        "hidden_activation",
        "layer_types",
        "query_pre_attn_scalar",
        "sliding_window",
        "use_bidirectional_attention",
    ]],
    read,
    write,
    norms: gemma3::NORMS,
    gguf: Some(Gguf {
        parts: gemma3::GGUF_NORMS,
        norms_plus_one: true,
        keys: &[
            ("attention.sliding_window", "sliding_window"),
            (CAPS[0].0, CAPS[0].0),
            (CAPS[1].0, CAPS[1].0),
        ],
        derive: |keys| {
            for (key, default) in CAPS {
                if keys.get(key).is_none_or(Value::is_null) {
                    keys.insert(key.into(), default.into());
                }
            }
            gemma3::scale_of_scores(keys, 46);
            Ok(())
        },
        ..Gguf::plain("gemma2")
    }),
    tokenizer_class: TokenizerClass::OfFile,
};

/// Of scores and of logits, as transformers and llama.cpp call them, with what a file means that does not say it.
const CAPS: [(&str, f64); 2] = [
    ("attn_logit_softcapping", 50.0),
    ("final_logit_softcapping", 30.0),
];

fn read(object: &Object) -> Result<DecoderConfig, Error> {
    refuse_variants(object, &[])?;
    // Published files have this name, too.
    gemma3::require_tanh(object, "hidden_act")?;
    gemma3::refuse_later_tokens(object)?;
    let defaults = Defaults {
        vocab_size: Some(256_000),
        max_position_embeddings: 8192,
        rope: Place::FLAT,
        ..DEFAULTS
    };
    let config = config::read(&FAMILY, object, &defaults)?;
    let bias = object.flag("attention_bias", false)?;
    // Null means none.
    let cap = |(key, default): (&str, f64)| match object.has(key) && object.get(key).is_none() {
        true => Ok(None),
        false => object.positive(key, Some(default)).map(Some),
    };
    Ok(DecoderConfig {
        norm_plus_one: true,
        local: Some(LocalLayers {
            window: object.integer("sliding_window", Some(4096), 1..=1 << 30)?,
            rope: config.rope.clone(),
            layers: windows::layers(object, config.num_hidden_layers, 2, "sliding_attention")?,
        }),
        score_scale: Some(gemma3::score_scale(object)?),
        score_cap: cap(CAPS[0])?,
        logits_cap: cap(CAPS[1])?,
        embedding_scale: EmbeddingScale::RootOfWidth,
        activation: Activation::GeluTanh,
        qkv_bias: bias,
        output_bias: bias,
        ..config
    })
}

fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    gemma3::write_shared(config, keys);
    keys.insert(CAPS[0].0.into(), config.score_cap.into());
    keys.insert(CAPS[1].0.into(), config.logits_cap.into());
    if let Some(local) = &config.local {
        local.write_layers(keys);
    }
}
