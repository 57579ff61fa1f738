//! How every key of a GGUF file's metadata is handled: it is applied or refused when the model is read, has no
//! effect on what is computed here, or leads to a warning, as do keys in none of the tables.

use crate::formats::gguf::{Header, Value};
use crate::language::Family;

/// How a key is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeySupport {
    /// It is applied, or refused by name if its value is not supported.
    Applied,
    /// It changes nothing.
    NoEffect,
}

use KeySupport::{Applied, NoEffect};

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
    // How rotated pairs are divided among the axes of pictures.
    ("rope.dimension_sections", NoEffect),
    // Applied with YaRN alone, where a family has it.
    ("rope.scaling.original_context_length", NoEffect),
    ("rope.scaling.yarn_beta_fast", NoEffect),
    ("rope.scaling.yarn_beta_slow", NoEffect),
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
    ("tokenizer.ggml.padding_token_id", Applied),
    ("tokenizer.ggml.add_bos_token", Applied),
    ("tokenizer.chat_template", Applied),
    ("general.alignment", Applied),
    ("tokenizer.ggml.scores", NoEffect),
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

/// Keys of a GGUF file's metadata that are not applied.
pub(crate) fn keys_without_effect(header: &Header) -> Vec<String> {
    let architecture = match header.metadata.get("general.architecture") {
        Some(Value::String(name)) => name.as_str(),
        _ => "",
    };
    let prefix = format!("{architecture}.");
    let has = |key: &str| header.metadata.contains_key(&format!("{prefix}{key}"));
    let own = Family::of_gguf(architecture, has).map_or(&[][..], |(_, gguf)| gguf.keys);
    let warned = header.metadata.iter().filter(|(key, value)| {
        let (table, rest) = match key.strip_prefix(&prefix) {
            Some(rest) if own.iter().any(|(known, _)| *known == rest) => return false,
            Some(rest) if !architecture.is_empty() => (GGUF_MODEL, rest),
            _ => (GGUF_FILE, key.as_str()),
        };
        let known = table.iter().find(|(known, _)| *known == rest);
        let note = GGUF_NOTES.iter().any(|group| key.starts_with(group));
        let off = GGUF_OFF.contains(&key.as_str()) && matches!(value, Value::Bool(false));
        known.is_none() && !note && !off
    });
    let mut warned: Vec<_> = warned.map(|(key, _)| key.clone()).collect();
    warned.sort();
    warned
}
