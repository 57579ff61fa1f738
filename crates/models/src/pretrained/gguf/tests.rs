//! Every key of a file's metadata, by what is done about it.

use super::keys::{GGUF_FILE, GGUF_MODEL, KeySupport};
use super::*;
use crate::golden::golden;
use crate::model::RopeScaling;

/// What is made of metadata.
#[derive(Debug, PartialEq)]
struct Read {
    config: DecoderConfig,
    /// As `tokenizer.json` would have it.
    tokenizer: String,
    chat_template: Option<String>,
}

/// What `header` says and which of its keys are warned, or why it is refused.
fn read(header: &Header) -> Result<(Read, Vec<String>), String> {
    let read = Read {
        config: (config(Path::new("model.gguf"), header).map_err(|error| error.to_string())?).0,
        tokenizer: tokenizer::from_metadata(header)?
            .to_string(false)
            .map_err(|error| error.to_string())?,
        chat_template: chat_template(header)?,
    };
    Ok((read, keys_without_effect(header)))
}

/// The header of a file of llama.cpp's converter, with optional keys at what holds without them.
fn plain() -> Header {
    let file = Gguf::open(&golden("models/llama-grouped.gguf")).unwrap();
    let mut header = file.header().clone();
    let vocabulary = strings(&header, "tokenizer.ggml.tokens").len();
    for (key, value) in [
        ("tokenizer.ggml.bos_token_id", Value::Unsigned(1)),
        ("tokenizer.ggml.eos_token_id", Value::Unsigned(2)),
        (
            "tokenizer.ggml.token_type",
            Value::Array(Array::Signed(vec![1; vocabulary])),
        ),
    ] {
        header.metadata.insert(key.to_owned(), value);
    }
    header.metadata.remove("tokenizer.ggml.add_bos_token");
    // Read beside the tensors, when the file is opened.
    header.tensors.remove("token_embd.weight");
    header
}

fn strings(header: &Header, key: &str) -> Vec<String> {
    match &header.metadata[key] {
        Value::Array(Array::String(texts)) => texts.clone(),
        other => panic!("{key} is {other:?}"),
    }
}

/// A value that changes what is read, or must be refused.
fn effective_value(header: &Header, key: &str) -> Value {
    let shorter = |key: &str| {
        let mut texts = strings(header, key);
        texts.pop();
        Value::Array(Array::String(texts))
    };
    match key {
        "general.architecture" => Value::String("gpt2".into()),
        "general.type" => Value::String("adapter".into()),
        "attention.causal" => Value::Bool(false),
        "attention.layer_norm_rms_epsilon"
        | "rope.freq_base"
        | "rope.scale_linear"
        | "rope.scaling.factor" => Value::Float(0.25),
        "rope.scaling.type" => Value::String("longrope".into()),
        "tokenizer.ggml.model" | "tokenizer.ggml.pre" => Value::String("unigram".into()),
        "tokenizer.chat_template" => Value::String("{{ 1 }}".into()),
        "tokenizer.ggml.add_bos_token" => Value::Bool(true),
        "tokenizer.ggml.merges" => shorter(key),
        "tokenizer.ggml.tokens" => {
            let mut texts = strings(header, key);
            texts.push("<new>".into());
            Value::Array(Array::String(texts))
        }
        "tokenizer.ggml.token_type" => {
            let vocabulary = strings(header, "tokenizer.ggml.tokens").len();
            Value::Array(Array::Signed(vec![4; vocabulary]))
        }
        // Sizes that fit the others.
        "embedding_length" => Value::Unsigned(32),
        "attention.head_count" => Value::Unsigned(8),
        "attention.head_count_kv" => Value::Unsigned(4),
        _ => Value::Unsigned(6),
    }
}

fn with(key: &str, value: Value) -> Header {
    let mut header = plain();
    header.metadata.insert(key.to_owned(), value);
    header
}

/// Each key of the tables as it stands in a file, and what is done about it.
fn all_keys() -> impl Iterator<Item = (String, &'static str, KeySupport)> {
    let model = GGUF_MODEL.iter();
    let model = model.map(|(key, treatment)| (format!("llama.{key}"), *key, *treatment));
    let file = GGUF_FILE.iter();
    model.chain(file.map(|(key, treatment)| ((*key).to_owned(), *key, *treatment)))
}

#[test]
fn each_key_of_a_gguf_file_is_obeyed_or_refused_or_without_effect() {
    let base = read(&plain()).unwrap().0;
    for (whole, key, treatment) in all_keys() {
        // Where tensors lie: held against a file with another one where headers are read.
        if key == "general.alignment" {
            continue;
        }
        let found = read(&with(&whole, effective_value(&plain(), key)));
        match (treatment, found) {
            (KeySupport::Applied, Ok((found, warned))) => {
                assert!(found != base, "{whole} changes nothing");
                assert!(!warned.contains(&whole), "{warned:?}");
            }
            (KeySupport::Applied, Err(reason)) => {
                // More tokens than there are types: both are named.
                assert!(
                    reason.contains(&format!("`{whole}`")) || key == "tokenizer.ggml.tokens",
                    "{whole}: {reason}"
                );
            }
            (KeySupport::NoEffect, found) => {
                let (found, warned) = found.unwrap();
                assert_eq!(found, base, "{whole}");
                assert!(!warned.contains(&whole), "{warned:?}");
            }
        }
    }
}

#[test]
fn a_key_of_the_wrong_kind_is_refused_by_name() {
    for (whole, key, treatment) in all_keys() {
        if treatment != KeySupport::Applied || key == "general.alignment" {
            continue;
        }
        let wrong = Value::Array(Array::Bool(vec![true]));
        let reason = read(&with(&whole, wrong)).map(|_| ()).unwrap_err();
        assert!(reason.contains(&format!("`{whole}`")), "{whole}: {reason}");
    }
}

#[test]
fn what_is_in_no_table_is_told_unless_it_describes_the_file() {
    let mut header = plain();
    for key in [
        "general.name",
        "general.quantized_by",
        "quantize.imatrix.file",
        "split.no",
        "llama.attention.sliding_window",
        "llama.logit_scale",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.chat_template.tool_use",
    ] {
        let seven = Value::Unsigned(7);
        header.metadata.insert(key.to_owned(), seven);
    }
    let off = Value::Bool(false);
    let key = "tokenizer.ggml.add_eos_token".to_owned();
    header.metadata.insert(key, off);
    let expected = [
        "llama.attention.sliding_window",
        "llama.logit_scale",
        "tokenizer.chat_template.tool_use",
        "tokenizer.ggml.eot_token_id",
    ];
    assert_eq!(read(&header).unwrap().1, expected);
}

#[test]
fn a_rotary_factor_without_a_kind_is_linear_as_in_llama_cpp() {
    let scaling = |entries: &[(&str, Value)]| {
        let mut header = plain();
        for (key, value) in entries {
            let key = format!("llama.rope.{key}");
            header.metadata.insert(key, value.clone());
        }
        read(&header).unwrap().0.config.rope.scaling
    };
    let factor = |number| ("scaling.factor", Value::Float(number));
    let kind = |name: &str| ("scaling.type", Value::String(name.into()));
    let linear = |factor| RopeScaling::Linear { factor };
    assert_eq!(scaling(&[factor(4.0)]), linear(4.0));
    assert_eq!(scaling(&[factor(4.0), kind("linear")]), linear(4.0));
    assert_eq!(scaling(&[("scale_linear", Value::Float(2.0))]), linear(2.0));
    for off in [factor(0.0), factor(1.0)] {
        assert_eq!(scaling(&[off]), RopeScaling::None);
    }
    assert_eq!(scaling(&[factor(4.0), kind("none")]), RopeScaling::None);
}

#[test]
fn one_of_several_files_says_how_they_become_one() {
    let reason = read(&with("split.count", Value::Unsigned(3))).unwrap_err();
    assert!(reason.contains("llama-gguf-split --merge"), "{reason}");
}

#[test]
fn no_token_is_none() {
    let none = with("tokenizer.ggml.bos_token_id", Value::Unsigned(0xffff_ffff));
    assert_eq!(read(&none).unwrap().0.config.bos_token_id, None);
}

#[test]
fn a_scalar_in_the_place_of_a_matrix_is_refused() {
    // A file may say that a tensor has no dimensions at all.
    assert!(undo_permutation(&Tensor::from(1f32), 4).is_err());
}
