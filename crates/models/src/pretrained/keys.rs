//! How every key of a `config.json` and of a GGUF file's metadata is handled.
//!
//! A key is applied or refused when the model is read, has no effect on what is computed here (nor in
//! transformers 5.23), or leads to a warning. A key in none of the tables leads to a warning too.

use std::path::Path;

use serde_json::Value;

use crate::Error;
use crate::formats::gguf::{self, Header};
use crate::json::Object;

/// How a key is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeySupport {
    /// It is applied, or refused by name if its value is not supported.
    Applied,
    /// It changes nothing here, nor would it in transformers.
    NoEffect,
    /// A warning says that it has no effect, unless it has its default value.
    Warned,
}

use KeySupport::{Applied, NoEffect, Warned};

const CONFIG: &[(&str, KeySupport)] = &[
    ("model_type", Applied),
    ("vocab_size", Applied),
    ("hidden_size", Applied),
    ("intermediate_size", Applied),
    ("num_hidden_layers", Applied),
    ("num_attention_heads", Applied),
    ("num_key_value_heads", Applied),
    ("head_dim", Applied),
    ("hidden_act", Applied),
    ("max_position_embeddings", Applied),
    ("rms_norm_eps", Applied),
    ("rope_theta", Applied),
    ("rope_scaling", Applied),
    ("rope_parameters", Applied),
    ("partial_rotary_factor", Applied),
    ("original_max_position_embeddings", Applied),
    ("tie_word_embeddings", Applied),
    ("attention_bias", Applied),
    ("mlp_bias", Applied),
    ("bos_token_id", Applied),
    ("eos_token_id", Applied),
    ("layer_types", Applied),
    ("use_sliding_window", Applied),
    ("is_causal", Applied),
    ("sliding_window", Applied),
    ("max_window_layers", Applied),
    ("quantization_config", Applied),
    ("compression_config", Applied),
    // How a model was created, saved, or is called by a program.
    ("architectures", NoEffect),
    ("dtype", NoEffect),
    ("torch_dtype", NoEffect),
    ("initializer_range", NoEffect),
    ("pad_token_id", NoEffect),
    ("pretraining_tp", NoEffect),
    ("transformers_version", NoEffect),
    ("transformers.js_config", NoEffect),
    ("tokenizer_class", NoEffect),
    ("use_cache", NoEffect),
    ("return_dict", NoEffect),
    ("output_hidden_states", NoEffect),
    ("output_attentions", NoEffect),
    ("attn_implementation", NoEffect),
    ("_attn_implementation", NoEffect),
    ("_attn_implementation_autoset", NoEffect),
    ("_name_or_path", NoEffect),
    ("_commit_hash", NoEffect),
    ("is_llama_config", NoEffect),
    ("unsloth_fixed", NoEffect),
    ("unsloth_version", NoEffect),
    // For other tasks.
    ("chunk_size_feed_forward", NoEffect),
    ("is_encoder_decoder", NoEffect),
    ("problem_type", NoEffect),
    ("id2label", NoEffect),
    ("label2id", NoEffect),
    ("finetuning_task", NoEffect),
    ("task_specific_params", NoEffect),
    // Applied by transformers while it trains.
    ("attention_dropout", Warned),
    // Code, and variants of the architecture that come with it.
    ("auto_map", Warned),
    ("rope_interleaved", Warned),
    ("use_mrope", Warned),
    // Written into every file by older versions of transformers, mostly with default values.
    ("add_cross_attention", Warned),
    ("bad_words_ids", Warned),
    ("cross_attention_hidden_size", Warned),
    ("do_sample", Warned),
    ("early_stopping", Warned),
    ("encoder_no_repeat_ngram_size", Warned),
    ("is_decoder", Warned),
    ("min_length", Warned),
    ("no_repeat_ngram_size", Warned),
    ("num_beam_groups", Warned),
    ("pruned_heads", Warned),
    ("remove_invalid_values", Warned),
    ("tf_legacy_loss", Warned),
    ("tie_encoder_decoder", Warned),
    ("torchscript", Warned),
    ("use_bfloat16", Warned),
];

/// Keys of any architecture, after its name and a dot.
pub(super) const GGUF_MODEL: &[(&str, KeySupport)] = &[
    ("embedding_length", Applied),
    ("block_count", Applied),
    ("context_length", Applied),
    ("feed_forward_length", Applied),
    ("attention.head_count", Applied),
    ("attention.head_count_kv", Applied),
    ("attention.key_length", Applied),
    ("attention.layer_norm_rms_epsilon", Applied),
    ("attention.causal", Applied),
    ("rope.dimension_count", Applied),
    ("rope.freq_base", Applied),
    ("rope.scale_linear", Applied),
    ("rope.scaling.type", Applied),
    ("rope.scaling.factor", Applied),
    // Also known from the tensors.
    ("vocab_size", NoEffect),
    ("attention.value_length", NoEffect),
    // Notes on how the file was made; scalings other than linear are refused.
    ("rope.scaling.original_context_length", NoEffect),
    ("rope.scaling.finetuned", NoEffect),
];

pub(super) const GGUF_FILE: &[(&str, KeySupport)] = &[
    ("general.architecture", Applied),
    ("general.type", Applied),
    ("split.count", Applied),
    ("tokenizer.ggml.model", Applied),
    ("tokenizer.ggml.pre", Applied),
    ("tokenizer.ggml.tokens", Applied),
    ("tokenizer.ggml.token_type", Applied),
    ("tokenizer.ggml.merges", Applied),
    ("tokenizer.ggml.bos_token_id", Applied),
    ("tokenizer.ggml.eos_token_id", Applied),
    ("tokenizer.ggml.add_bos_token", Applied),
    ("tokenizer.chat_template", Applied),
    ("general.alignment", Applied),
    ("tokenizer.ggml.scores", NoEffect),
    ("tokenizer.ggml.padding_token_id", NoEffect),
    ("tokenizer.ggml.unknown_token_id", NoEffect),
    ("tokenizer.ggml.seperator_token_id", NoEffect),
    ("tokenizer.ggml.cls_token_id", NoEffect),
    ("tokenizer.ggml.mask_token_id", NoEffect),
    ("tokenizer.huggingface.json", NoEffect),
    // For tokenizers that are not supported.
    ("tokenizer.ggml.add_space_prefix", NoEffect),
    ("tokenizer.ggml.remove_extra_whitespaces", NoEffect),
    ("tokenizer.ggml.precompiled_charsmap", NoEffect),
];

/// Keys that lead to a warning unless they are off.
const GGUF_OFF: [&str; 3] = [
    "tokenizer.ggml.add_eos_token",
    "tokenizer.ggml.add_sep_token",
    "tokenizer.ggml.remove_extra_whitespaces",
];

/// Groups of keys that only describe a file.
const GGUF_NOTES: [&str; 3] = ["general.", "quantize.", "split."];

/// Values that are equivalent to a missing key.
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
/// If it cannot be read.
pub(super) fn not_applied_of_config(path: &Path) -> Result<Vec<String>, Error> {
    let object = Object::read(path)?;
    let warned = object.keys().filter(|(key, value)| {
        match CONFIG.iter().find(|(known, _)| known == key) {
            Some((_, treatment)) => *treatment == Warned && !is_default(value),
            // The meaning of `false` is unknown for an unknown key.
            None => !value.is_null(),
        }
    });
    Ok(warned.map(|(key, _)| key.clone()).collect())
}

/// Keys of a GGUF file's metadata that are not applied.
pub(super) fn not_applied_of_gguf(header: &Header) -> Vec<String> {
    let prefix = match header.metadata.get("general.architecture") {
        Some(gguf::Value::String(name)) => format!("{name}."),
        _ => String::new(),
    };
    let warned = header.metadata.iter().filter(|(key, value)| {
        let (table, rest) = match key.strip_prefix(&prefix) {
            Some(rest) if !prefix.is_empty() => (GGUF_MODEL, rest),
            _ => (GGUF_FILE, key.as_str()),
        };
        let known = table.iter().find(|(known, _)| *known == rest);
        let note = GGUF_NOTES.iter().any(|group| key.starts_with(group));
        let off = GGUF_OFF.contains(&key.as_str()) && matches!(value, gguf::Value::Bool(false));
        known.is_none() && !note && !off
    });
    let mut warned: Vec<_> = warned.map(|(key, _)| key.clone()).collect();
    warned.sort();
    warned
}

/// Warns about `keys`.
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

    /// The config and the keys warned about, or the reason why it is refused.
    fn read(config: &Value) -> Result<(DecoderConfig, Vec<String>), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let read = DecoderConfig::read(&path).map_err(|error| error.to_string())?;
        Ok((read, not_applied_of_config(&path).unwrap()))
    }

    /// A value that changes the result, or must be refused.
    fn effective_value(key: &str) -> Value {
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
        let (base, warned) = read(&plain).unwrap();
        assert_eq!(warned, [""; 0]);
        for (key, treatment) in CONFIG {
            let mut config = plain.clone();
            config[*key] = match treatment {
                Applied => effective_value(key),
                _ => json!("something"),
            };
            match (treatment, read(&config)) {
                // The base of YaRN's ramp and the sliding windows of Qwen's layers, which are read with other
                // keys.
                (Applied, Ok((_, warned)))
                    if [
                        "original_max_position_embeddings",
                        "sliding_window",
                        "max_window_layers",
                        "use_sliding_window",
                    ]
                    .contains(key) =>
                {
                    assert_eq!(warned, [""; 0]);
                }
                (Applied, Ok((found, warned))) => {
                    assert!(found != base, "{key} changes nothing");
                    assert_eq!(warned, [""; 0]);
                }
                (Applied, Err(reason)) => assert!(reason.contains(key), "{key}: {reason}"),
                (NoEffect, found) => {
                    assert_eq!(found, Ok((base.clone(), Vec::new())), "{key}")
                }
                (Warned, found) => assert_eq!(found.unwrap().1, [*key]),
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
