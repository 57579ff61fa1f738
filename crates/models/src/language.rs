//! Language models: decoders whose families differ in data.
//!
//! ```text
//! config.json, GGUF ──Family::read──▶ DecoderConfig ──Decoder::new──▶ logits
//! ```
//!
//! A [`Family`] is a file of this folder and a line of [`REGISTRY`]. It says what a `config.json` of its
//! `model_type` means, as a [`DecoderConfig`]: all that the [`Decoder`] computes is described there. It also
//! says what its tensors are called and how llama.cpp stores them. Nothing else knows a family by name.

mod attention;
mod block;
mod config;
mod decoder;
mod delta;
mod feed_forward;
mod gemma2;
mod gemma3;
mod gemma4;
mod gpt_oss;
mod granite;
mod heads;
mod llama;
mod ministral3;
mod mistral;
pub(crate) mod mixture;
mod norm;
mod olmo2;
mod olmo3;
mod per_layer;
mod phi3;
mod quantized;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod smollm3;
#[cfg(test)]
pub(crate) mod tests;
mod windows;

use serde_json::{Map, Value};

pub use attention::attention_path;
pub use config::{Activation, DecoderConfig, EmbeddingScale, QkNorm};
pub(crate) use config::{end_tokens, keys_without_effect};
pub(crate) use decoder::capped;
pub use decoder::{Cache, Decoder, DecoderOptions};
pub use delta::DeltaLayers;
pub use heads::{Sharing, WholeHeads};
pub use mixture::Mixture;
pub use per_layer::PerLayerInputs;
pub(crate) use quantized::Saved;
pub use windows::LocalLayers;

use crate::Error;
use crate::json::Object;

/// The families that are supported.
pub static REGISTRY: [&Family; 17] = [
    &llama::FAMILY,
    &mistral::FAMILY,
    &ministral3::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &qwen3_5::FAMILY,
    &qwen3_5_moe::FAMILY,
    &gpt_oss::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &gemma4::FAMILY,
    &granite::FAMILY,
    &smollm3::FAMILY,
    &olmo2::FAMILY,
    &olmo3::FAMILY,
    &phi3::FAMILY,
];

/// Models with the same `model_type` in their `config.json`.
pub struct Family {
    /// The `model_type`.
    pub model_type: &'static str,
    /// Its class in `transformers`.
    pub class: &'static str,
    /// The larger models that it is the text part of, if there are any.
    part_of: Option<&'static PartOf>,
    /// Keys of its `config.json` that are applied or refused, besides those of every family.
    keys: &'static [&'static [&'static str]],
    /// Reads its `config.json`.
    read: fn(&Object) -> Result<DecoderConfig, Error>,
    /// Adds what only its `config.json` has.
    write: fn(&DecoderConfig, &mut Map<String, Value>),
    /// The names of a block's norms: before and after attention, before and after the feed-forward layer.
    norms: [Option<&'static str>; 4],
    /// How llama.cpp stores it, if such files can be read.
    pub(crate) gguf: Option<Gguf>,
    /// The tokenizer's class that transformers takes for it.
    pub tokenizer_class: TokenizerClass,
}

/// Models of which a family is the part that reads and writes text.
struct PartOf {
    /// Their `model_type`.
    model_type: &'static str,
    /// The section of their `config.json` about the part.
    section: &'static str,
    /// Whether embedding and head share their weight if the file does not say it.
    tied: bool,
    /// How the names of the part's tensors begin, and what stands there in a model of text alone.
    prefixes: &'static [(&'static str, &'static str)],
    /// How the names of other parts' tensors begin.
    others: &'static [&'static str],
}

/// How llama.cpp stores a family.
#[derive(Debug)]
pub(crate) struct Gguf {
    /// `general.architecture`, and the prefix of its keys.
    pub(crate) architecture: &'static str,
    /// The key that its files have, and those of another family with the same architecture have not.
    marked_by: Option<&'static str>,
    /// The norms of a block beside its [`GGUF_PARTS`], and parts that it has instead of those.
    parts: &'static [(&'static str, &'static str)],
    /// Tensors of a block by their whole names.
    whole: &'static [(&'static str, &'static str)],
    /// Tensors of no block, beside those that every family has.
    pub(crate) outside: &'static [(&'static str, &'static str)],
    /// Whether the rows of q and k are interleaved: llama.cpp then rotates adjacent pairs.
    pub(crate) interleaved: bool,
    /// Whether one was added to the weights of norms.
    norms_plus_one: bool,
    /// Whether only a part of a head may be rotated.
    pub(crate) partial: bool,
    /// Whether every layer may have a bias.
    pub(crate) biases: bool,
    /// If rotations may be scaled by YaRN: whether its ramp starts and ends at whole pairs.
    pub(crate) yarn: Option<bool>,
    /// Keys of its own: llama.cpp's name, and that in a `config.json`.
    pub(crate) keys: &'static [(&'static str, &'static str)],
    /// Keys that each file must have and that change nothing.
    pub(crate) arrays: &'static [(&'static str, &'static [i64])],
    /// Keys of files with the same name whose models are not of the family.
    pub(crate) refused: &'static [&'static str],
    /// The key of a `config.json` that says whether keys are values in the blocks that see the whole text: these have no
    /// values in a file.
    pub(crate) keys_are_values: Option<&'static str>,
    /// What its tokenizer is called if it is one of SentencePiece.
    pub(crate) sentencepiece: &'static str,
    /// Special tokens that are shown, since programs look for them in what the model writes.
    pub(crate) shown: &'static [&'static str],
    /// Adds the keys of a `config.json` that follow from others in llama.cpp, or says what a file must not have.
    pub(crate) derive: fn(&mut Map<String, Value>) -> Result<(), String>,
    /// Adds the keys from which it does so, where a file is written.
    pub(crate) more: fn(&DecoderConfig, &mut Map<String, Value>),
}

impl Gguf {
    /// A family with [`PRE_NORMS`], which is stored as it is.
    const fn plain(architecture: &'static str) -> Self {
        Self {
            architecture,
            marked_by: None,
            parts: GGUF_PRE_NORMS,
            whole: &[],
            outside: &[],
            interleaved: false,
            norms_plus_one: false,
            partial: false,
            biases: false,
            yarn: Some(true),
            keys: &[],
            arrays: &[],
            refused: &[],
            keys_are_values: None,
            sentencepiece: "llama",
            shown: &[],
            derive: |_| Ok(()),
            more: |_, _| (),
        }
    }

    /// The name that transformers has for a tensor of a block.
    pub(crate) fn ours(&self, name: &str) -> Option<String> {
        if let Some((_, ours)) = self.whole.iter().find(|(theirs, _)| *theirs == name) {
            return Some((*ours).to_owned());
        }
        let (part, role) = name.split_once('.')?;
        let mut parts = self.parts.iter().chain(GGUF_PARTS);
        let (_, ours) = parts.find(|(theirs, _)| *theirs == part)?;
        matches!(role, "weight" | "bias").then(|| format!("{ours}.{role}"))
    }

    /// The name that llama.cpp has for a tensor of a block.
    pub(crate) fn theirs(&self, name: &str) -> Option<String> {
        if let Some((theirs, _)) = self.whole.iter().find(|(_, ours)| *ours == name) {
            return Some((*theirs).to_owned());
        }
        let (part, role) = name.rsplit_once('.')?;
        let mut parts = self.parts.iter().chain(GGUF_PARTS);
        let (theirs, _) = parts.find(|(_, ours)| *ours == part)?;
        Some(format!("{theirs}.{role}"))
    }

    /// Whether one was added to the tensor `name` of a file.
    pub(crate) fn is_plus_one(&self, name: &str) -> bool {
        // Of a delta rule, as it is.
        let of_delta = name.ends_with("ssm_norm.weight");
        self.norms_plus_one && name.ends_with("norm.weight") && !of_delta
    }
}

/// Which tokenizer's class transformers takes for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerClass {
    /// The one in `tokenizer_config.json`.
    OfFile,
    /// This one if the file names none.
    Default(&'static str),
    /// This one, whatever the file says.
    Always(&'static str),
}

impl Family {
    /// The family of a model with this `config.json`. Of several that are the text part of its `model_type`, its
    /// section says which.
    fn of_config(object: &Object) -> Result<Option<&'static Self>, Error> {
        let model_type = object.text("model_type")?.unwrap_or_default();
        let is_part = |family: &&Self| {
            let whole = family.part_of;
            whole.is_some_and(|whole| whole.model_type == model_type)
        };
        let parts: Vec<_> = REGISTRY.into_iter().filter(is_part).collect();
        let section = match parts.first().and_then(|family| family.part_of) {
            Some(whole) => object.object(whole.section)?,
            None => None,
        };
        let Some(section) = section.filter(|section| section.has("model_type")) else {
            return Ok(Self::of_model_type(model_type));
        };
        let part = section.text("model_type")?.unwrap_or_default();
        match parts.iter().find(|family| family.model_type == part) {
            Some(family) => Ok(Some(family)),
            None => {
                let known: Vec<_> = parts.iter().map(|family| family.model_type).collect();
                let reason = format!("is {part:?}; supported: {}", known.join(", "));
                Err(section.error("model_type", reason))
            }
        }
    }

    /// The family with this `model_type`, or that is the text part of models with it.
    pub fn of_model_type(model_type: &str) -> Option<&'static Self> {
        REGISTRY.into_iter().find(|family| {
            let whole = family.part_of;
            family.model_type == model_type
                || whole.is_some_and(|whole| whole.model_type == model_type)
        })
    }

    /// Whether its models can be trained from scratch: those with experts, a delta rule or embeddings for each block are only
    /// fine-tuned.
    pub fn is_plain(&self) -> bool {
        let parts = [mixture::KEYS, delta::KEYS, per_layer::KEYS];
        !parts.iter().any(|keys| self.keys.contains(keys))
    }

    /// Its keys in this `config.json`.
    fn section(&self, object: &Object) -> Result<Object, Error> {
        const TIED: &str = "tie_word_embeddings";
        match self.part_of {
            Some(whole) if object.text("model_type")? == Some(whole.model_type) => {
                quantized::refuse(object, None)?;
                let section = object.object(whole.section)?;
                let mut section =
                    section.ok_or_else(|| object.error(whole.section, "is missing"))?;
                // What the whole says counts.
                if object.get(TIED).is_some() || section.get(TIED).is_none() {
                    section.set(TIED, object.flag(TIED, whole.tied)?.into());
                }
                Ok(section)
            }
            _ => Ok(object.clone()),
        }
    }

    /// The name of a tensor in a file, in a model of text alone; `None` if it belongs to another part.
    pub(crate) fn tensor_name(&self, name: &str) -> Option<String> {
        let Some(whole) = self.part_of else {
            return Some(name.to_owned());
        };
        for (theirs, ours) in whole.prefixes {
            if let Some(rest) = name.strip_prefix(theirs) {
                return Some(format!("{ours}{rest}"));
            }
        }
        let other = whole.others.iter().any(|other| name.starts_with(other));
        (!other).then(|| name.to_owned())
    }

    /// Whether its models can be written as GGUF files.
    pub fn is_in_gguf(&self) -> bool {
        self.gguf.is_some()
    }

    /// The families that can be read from GGUF files, with how they are stored.
    pub(crate) fn in_gguf() -> impl Iterator<Item = (&'static Self, &'static Gguf)> {
        let stored = |family: &'static Self| Some((family, family.gguf.as_ref()?));
        REGISTRY.into_iter().filter_map(stored)
    }

    /// The family that is stored in GGUF files as `architecture`, if they have the keys of which `has` tells.
    pub(crate) fn of_gguf(
        architecture: &str,
        has: impl Fn(&str) -> bool,
    ) -> Option<(&'static Self, &'static Gguf)> {
        let same = || Self::in_gguf().filter(|(_, gguf)| gguf.architecture == architecture);
        let marked = same().find(|(_, gguf)| gguf.marked_by.is_some_and(&has));
        marked.or_else(|| same().find(|(_, gguf)| gguf.marked_by.is_none()))
    }
}

impl std::fmt::Debug for Family {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.model_type)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

/// The names of a block's norms where it has two, before attention and before the feed-forward layer.
const PRE_NORMS: [Option<&str>; 4] = [
    Some("input_layernorm"),
    None,
    Some("post_attention_layernorm"),
    None,
];

/// [`PRE_NORMS`] as llama.cpp and transformers name them.
const GGUF_PRE_NORMS: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];

/// llama.cpp's key for the width of an expert of all tokens; where it is, no layer has that of `feed_forward_length`.
pub(crate) const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";

/// The parts of every family's blocks as llama.cpp and transformers name them.
const GGUF_PARTS: &[(&str, &str)] = &[
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
