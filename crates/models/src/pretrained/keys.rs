//! Every key of a `config.json` and of a GGUF file's metadata: what is done about it.
//!
//! A key is obeyed or refused where the model is read, means nothing for what is computed here (as
//! in transformers 5.23), or is told in a warning. A key that is in no table is told, too.

use std::path::Path;

use serde_json::Value;

use crate::Error;
use crate::formats::gguf::{self, Header};
use crate::json::Object;

/// What is done about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Read, or refused by name where its value is not known here.
    Obeyed,
    /// It changes nothing here, nor would it in transformers.
    WithoutEffect,
    /// Told unless its value is what it would be without it.
    Told,
}

use Treatment::{Obeyed, Told, WithoutEffect};

const CONFIG: &[(&str, Treatment)] = &[
    ("model_type", Obeyed),
    ("vocab_size", Obeyed),
    ("hidden_size", Obeyed),
    ("intermediate_size", Obeyed),
    ("num_hidden_layers", Obeyed),
    ("num_attention_heads", Obeyed),
    ("num_key_value_heads", Obeyed),
    ("head_dim", Obeyed),
    ("hidden_act", Obeyed),
    ("max_position_embeddings", Obeyed),
    ("rms_norm_eps", Obeyed),
    ("rope_theta", Obeyed),
    ("rope_scaling", Obeyed),
    ("rope_parameters", Obeyed),
    ("partial_rotary_factor", Obeyed),
    ("original_max_position_embeddings", Obeyed),
    ("tie_word_embeddings", Obeyed),
    ("attention_bias", Obeyed),
    ("mlp_bias", Obeyed),
    ("bos_token_id", Obeyed),
    ("eos_token_id", Obeyed),
    ("layer_types", Obeyed),
    ("use_sliding_window", Obeyed),
    ("is_causal", Obeyed),
    ("sliding_window", Obeyed),
    ("max_window_layers", Obeyed),
    ("quantization_config", Obeyed),
    ("compression_config", Obeyed),
    // How a model was made, is saved, or is called by a program.
    ("architectures", WithoutEffect),
    ("dtype", WithoutEffect),
    ("torch_dtype", WithoutEffect),
    ("initializer_range", WithoutEffect),
    ("pad_token_id", WithoutEffect),
    ("pretraining_tp", WithoutEffect),
    ("transformers_version", WithoutEffect),
    ("transformers.js_config", WithoutEffect),
    ("tokenizer_class", WithoutEffect),
    ("use_cache", WithoutEffect),
    ("return_dict", WithoutEffect),
    ("output_hidden_states", WithoutEffect),
    ("output_attentions", WithoutEffect),
    ("attn_implementation", WithoutEffect),
    ("_attn_implementation", WithoutEffect),
    ("_attn_implementation_autoset", WithoutEffect),
    ("_name_or_path", WithoutEffect),
    ("_commit_hash", WithoutEffect),
    ("is_llama_config", WithoutEffect),
    ("unsloth_fixed", WithoutEffect),
    ("unsloth_version", WithoutEffect),
    // Of other tasks.
    ("chunk_size_feed_forward", WithoutEffect),
    ("is_encoder_decoder", WithoutEffect),
    ("problem_type", WithoutEffect),
    ("id2label", WithoutEffect),
    ("label2id", WithoutEffect),
    ("finetuning_task", WithoutEffect),
    ("task_specific_params", WithoutEffect),
    // Applied by transformers while it trains.
    ("attention_dropout", Told),
    // Code, and variants of the architecture that come with it.
    ("auto_map", Told),
    ("rope_interleaved", Told),
    ("use_mrope", Told),
    // What older versions of transformers write into every file, mostly as it would be without it.
    ("add_cross_attention", Told),
    ("bad_words_ids", Told),
    ("cross_attention_hidden_size", Told),
    ("do_sample", Told),
    ("early_stopping", Told),
    ("encoder_no_repeat_ngram_size", Told),
    ("is_decoder", Told),
    ("min_length", Told),
    ("no_repeat_ngram_size", Told),
    ("num_beam_groups", Told),
    ("pruned_heads", Told),
    ("remove_invalid_values", Told),
    ("tf_legacy_loss", Told),
    ("tie_encoder_decoder", Told),
    ("torchscript", Told),
    ("use_bfloat16", Told),
];

/// Of any architecture, after its name and a dot.
pub(super) const GGUF_MODEL: &[(&str, Treatment)] = &[
    ("embedding_length", Obeyed),
    ("block_count", Obeyed),
    ("context_length", Obeyed),
    ("feed_forward_length", Obeyed),
    ("attention.head_count", Obeyed),
    ("attention.head_count_kv", Obeyed),
    ("attention.key_length", Obeyed),
    ("attention.layer_norm_rms_epsilon", Obeyed),
    ("attention.causal", Obeyed),
    ("rope.dimension_count", Obeyed),
    ("rope.freq_base", Obeyed),
    ("rope.scale_linear", Obeyed),
    ("rope.scaling.type", Obeyed),
    ("rope.scaling.factor", Obeyed),
    // What the tensors say, too.
    ("vocab_size", WithoutEffect),
    ("attention.value_length", WithoutEffect),
    // Notes on how the file was made, of a scaling that is refused unless it is linear.
    ("rope.scaling.original_context_length", WithoutEffect),
    ("rope.scaling.finetuned", WithoutEffect),
];

pub(super) const GGUF_FILE: &[(&str, Treatment)] = &[
    ("general.architecture", Obeyed),
    ("general.type", Obeyed),
    ("split.count", Obeyed),
    ("tokenizer.ggml.model", Obeyed),
    ("tokenizer.ggml.pre", Obeyed),
    ("tokenizer.ggml.tokens", Obeyed),
    ("tokenizer.ggml.token_type", Obeyed),
    ("tokenizer.ggml.merges", Obeyed),
    ("tokenizer.ggml.bos_token_id", Obeyed),
    ("tokenizer.ggml.eos_token_id", Obeyed),
    ("tokenizer.ggml.add_bos_token", Obeyed),
    ("tokenizer.chat_template", Obeyed),
    ("general.alignment", Obeyed),
    ("tokenizer.ggml.scores", WithoutEffect),
    ("tokenizer.ggml.padding_token_id", WithoutEffect),
    ("tokenizer.ggml.unknown_token_id", WithoutEffect),
    ("tokenizer.ggml.seperator_token_id", WithoutEffect),
    ("tokenizer.ggml.cls_token_id", WithoutEffect),
    ("tokenizer.ggml.mask_token_id", WithoutEffect),
    ("tokenizer.huggingface.json", WithoutEffect),
    // Of tokenizers that are refused.
    ("tokenizer.ggml.add_space_prefix", WithoutEffect),
    ("tokenizer.ggml.remove_extra_whitespaces", WithoutEffect),
    ("tokenizer.ggml.precompiled_charsmap", WithoutEffect),
];

/// Keys that are told unless they are off.
const GGUF_OFF: [&str; 3] = [
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_sep_token",
    "tokenizer.ggml.remove_extra_whitespaces",
];

/// Groups of keys that describe a file.
const GGUF_NOTES: [&str; 3] = ["general.", "quantize.", "split."];

/// Values that say what would hold without a key that is known.
fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Object(object) => object.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// Keys of the `config.json` at `path` that are not applied.
///
/// # Errors
/// When it cannot be read.
pub(super) fn not_applied_of_config(path: &Path) -> Result<Vec<String>, Error> {
    let object = Object::read(path)?;
    let told = object.keys().filter(|(key, value)| {
        match CONFIG.iter().find(|(known, _)| known == key) {
            Some((_, treatment)) => *treatment == Told && !is_default(value),
            // What `false` means for a key that is not known, nobody can say.
            None => !value.is_null(),
        }
    });
    Ok(told.map(|(key, _)| key.clone()).collect())
}

/// Keys of a GGUF file's metadata that are not applied.
pub(super) fn not_applied_of_gguf(header: &Header) -> Vec<String> {
    let prefix = match header.metadata.get("general.architecture") {
        Some(gguf::Value::String(name)) => format!("{name}."),
        _ => String::new(),
    };
    let told = header.metadata.iter().filter(|(key, value)| {
        let (table, rest) = match key.strip_prefix(&prefix) {
            Some(rest) if !prefix.is_empty() => (GGUF_MODEL, rest),
            _ => (GGUF_FILE, key.as_str()),
        };
        let known = table.iter().find(|(known, _)| *known == rest);
        let note = GGUF_NOTES.iter().any(|group| key.starts_with(group));
        let off = GGUF_OFF.contains(&key.as_str()) && matches!(value, gguf::Value::Bool(false));
        known.is_none() && !note && !off
    });
    let mut told: Vec<_> = told.map(|(key, _)| key.clone()).collect();
    told.sort();
    told
}

/// Tells of them.
pub(super) fn warn(path: &Path, keys: &[String]) {
    if keys.is_empty() {
        return;
    }
    let keys: Vec<_> = keys.iter().map(|key| format!("`{key}`")).collect();
    tracing::warn!(
        "`{}` has keys that are not applied: {}",
        path.display(),
        keys.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::DecoderConfig;

    /// What is read of a `config.json` and what is told, or why it is refused.
    fn read(config: &Value) -> Result<(DecoderConfig, Vec<String>), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let read = DecoderConfig::read(&path).map_err(|error| error.to_string())?;
        Ok((read, not_applied_of_config(&path).unwrap()))
    }

    /// A value that changes what is computed, or must be refused.
    fn telling(key: &str) -> Value {
        match key {
            "model_type" => json!("qwen3"),
            "hidden_act" => json!("gelu"),
            "rms_norm_eps" | "partial_rotary_factor" => json!(0.25),
            "rope_theta" => json!(123.0),
            "rope_scaling" => json!({"rope_type": "linear", "factor": 2.0}),
            "rope_parameters" => json!({"rope_type": "default", "rope_theta": 99.0}),
            "tie_word_embeddings" | "attention_bias" | "mlp_bias" => json!(true),
            "is_causal" => json!(false),
            "layer_types" => json!(["sliding_attention"]),
            "quantization_config" | "compression_config" => json!({"quant_method": "gptq"}),
            _ => json!(6),
        }
    }

    #[test]
    fn each_key_of_a_config_is_obeyed_told_or_without_effect() {
        let plain = json!({"model_type": "llama", "vocab_size": 8, "hidden_size": 12,
            "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 4});
        let (base, told) = read(&plain).unwrap();
        assert_eq!(told, [""; 0]);
        for (key, treatment) in CONFIG {
            let mut config = plain.clone();
            config[*key] = match treatment {
                Obeyed => telling(key),
                _ => json!("something"),
            };
            match (treatment, read(&config)) {
                // The base of YaRN's ramp, and windows of Qwen's layers: read with other keys.
                (Obeyed, Ok((_, told)))
                    if [
                        "original_max_position_embeddings",
                        "sliding_window",
                        "max_window_layers",
                        "use_sliding_window",
                    ]
                    .contains(key) =>
                {
                    assert_eq!(told, [""; 0]);
                }
                (Obeyed, Ok((found, told))) => {
                    assert!(found != base, "{key} changes nothing");
                    assert_eq!(told, [""; 0]);
                }
                (Obeyed, Err(reason)) => assert!(reason.contains(key), "{key}: {reason}"),
                (WithoutEffect, found) => {
                    assert_eq!(found, Ok((base.clone(), Vec::new())), "{key}")
                }
                (Told, found) => assert_eq!(found.unwrap().1, [*key]),
            }
        }
        let mut windows = plain.clone();
        windows["use_sliding_window"] = json!(true);
        windows["max_window_layers"] = json!(0);
        assert!(read(&windows).unwrap_err().contains("use_sliding_window"));
        windows["sliding_window"] = Value::Null;
        assert!(read(&windows).is_ok());
        let mut unknown = plain;
        unknown["never_seen"] = json!(1);
        unknown["nor_this"] = json!(false);
        unknown["without_a_value"] = Value::Null;
        unknown["torchscript"] = json!(false);
        assert_eq!(read(&unknown).unwrap().1, ["never_seen", "nor_this"]);
    }
}
