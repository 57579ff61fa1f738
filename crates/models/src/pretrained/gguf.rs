//! Presents a GGUF file as the Hugging Face model it was converted from, with the original names, shapes,
//! config and tokenizer.

mod delta;
mod export;
mod export_tokenizer;
mod keys;
mod rope;
mod sentencepiece;
#[cfg(test)]
mod tests;
mod tokenizer;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use tch::{Kind, Tensor};

use delta::Change;
pub use export::{Export, GgufType, export_adapter};
pub(super) use keys::keys_without_effect;

use super::slices::Slice;
use super::{Pretrained, SpecialTokens};
use crate::Error;
use crate::formats::TensorSource;
use crate::formats::gguf::{Array, Format, Gguf, Header, TensorEntry, Value};
use crate::language::{self, DecoderConfig, Family, SHARED_WIDTH};
use crate::quant::Mxfp4;

/// A divisor for each dimension pair of a head, in files of Llama 3.1 and later.
const ROPE_FREQUENCIES: &str = "rope_freqs.weight";

/// A GGUF file under Hugging Face's names.
#[derive(Debug)]
pub struct GgufModel {
    gguf: Gguf,
    config: DecoderConfig,
    /// Hugging Face's name → where the tensor is.
    tensors: BTreeMap<String, Source>,
}

/// Where a tensor is, and how the converter changed it.
#[derive(Debug)]
struct Source {
    name: String,
    /// Whether one was added.
    plus_one: bool,
    /// Number of heads whose rows were interleaved.
    permuted_heads: Option<i64>,
    /// What is different about those of a delta rule.
    change: Change,
    /// If it is only a part of the tensor.
    slice: Option<Slice>,
}

impl GgufModel {
    /// Opens a GGUF file.
    ///
    /// # Errors
    /// If the file is damaged or the model is not supported.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let gguf = Gguf::open(path)?;
        let (config, rules) = config(path, gguf.header())?;
        let extra = extra_layers(gguf.header(), &config, rules);
        let mut tensors = BTreeMap::new();
        for (name, entry) in &gguf.header().tensors {
            // Computed from the config's rope scaling, which is recovered below.
            if name == ROPE_FREQUENCIES {
                continue;
            }
            if layer_of(name).is_some_and(|layer| extra.contains(&layer)) {
                continue;
            }
            let ours = hugging_face_name(rules, name).ok_or_else(|| {
                let class = config.family.class;
                Error::file(
                    path,
                    format!("tensor `{name}` does not belong to a {class}"),
                )
            })?;
            let permuted_heads = match rules.interleaved {
                true => permuted_heads(&config, name),
                false => None,
            };
            let change = Change::of(&config, &ours);
            let source = |slice: Option<Slice>| Source {
                name: name.clone(),
                plus_one: rules.is_plus_one(name),
                permuted_heads,
                change,
                slice,
            };
            let shape: Vec<i64> = entry.shape.iter().map(|size| *size as i64).collect();
            let slices = Slice::all_of(&ours, &shape, false);
            if slices.is_empty() {
                tensors.insert(ours, source(None));
            }
            let slices = slices.into_iter();
            tensors.extend(slices.map(|(ours, slice)| (ours, source(Some(slice)))));
        }
        let mut config = config;
        if gguf.header().tensors.contains_key(ROPE_FREQUENCIES) {
            let pairs = (config.heads(false).1 / 2) as usize;
            let found = rope_divisors(&gguf, pairs)?;
            config.rope.scaling = rope::scaling(config.rope.theta, &found)
                .map_err(|reason| Error::file(path, reason))?;
        }
        let mut model = Self {
            gguf,
            config,
            tensors,
        };
        // Not all blocks have attention.
        let has = |suffix: &str| {
            let end = format!(".{suffix}.bias");
            model.tensors.keys().any(|name| name.ends_with(&end))
        };
        model.config.qkv_bias = has("self_attn.q_proj");
        model.config.output_bias = has("self_attn.o_proj");
        model.config.mlp_bias = has("mlp.gate_proj");
        Ok(model)
    }

    /// The model's dimensions.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// The underlying file.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    pub(crate) fn into_pretrained(self) -> Result<Pretrained, Error> {
        let error = |reason| Error::file(self.gguf.path(), reason);
        let tokenizer = tokenizer::from_metadata(self.gguf.header()).map_err(error)?;
        let chat_template = chat_template(self.gguf.header()).map_err(error)?;
        Ok(Pretrained {
            config: self.config.clone(),
            tokenizer,
            chat_template,
            tool_template: None,
            special_tokens: SpecialTokens::default(),
            is_part: false,
            tensors: Box::new(self),
        })
    }
}

impl TensorSource for GgufModel {
    fn path(&self) -> &Path {
        self.gguf.path()
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        let source = self.tensors.get(name)?;
        let entry = self.gguf.header().tensors.get(&source.name)?;
        let shape: Vec<i64> = entry.shape.iter().map(|size| *size as i64).collect();
        match source.slice {
            None => Some(source.change.shape(shape)),
            Some(slice) => Some(slice.shape(&shape)),
        }
    }

    fn is_mxfp4(&self, name: &str) -> bool {
        let source = self.tensors.get(name);
        source.is_some_and(|source| {
            let entry = self.gguf.header().tensors.get(&source.name);
            let format = entry.and_then(TensorEntry::format);
            source.slice.is_some() && format == Some(Format::Mxfp4)
        })
    }

    fn read_mxfp4(&self, name: &str) -> Result<Mxfp4, Error> {
        let source = self.tensors.get(name).filter(|_| self.is_mxfp4(name));
        match source.and_then(|source| Some((source, source.slice?))) {
            Some((source, slice)) => {
                Mxfp4::from_ggml(&self.gguf.read_bytes(&source.name, slice.expert)?)
            }
            None => Err(Error::Internal(format!("`{name}` is not in MXFP4"))),
        }
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        let source = self
            .tensors
            .get(name)
            .ok_or_else(|| Error::file(self.path(), format!("there is no tensor for `{name}`")))?;
        let tensor = match source.slice {
            None => self.gguf.read(&source.name)?,
            Some(slice) => slice.of(self.gguf.read_element(&source.name, slice.expert)?)?,
        };
        let tensor = match source.permuted_heads {
            None => tensor,
            Some(heads) => undo_permutation(&tensor, heads).map_err(|error| {
                Error::file(
                    self.path(),
                    format!("tensor `{}` of {:?}: {error}", source.name, tensor.size()),
                )
            })?,
        };
        let tensor = match source.plus_one {
            true => tensor.f_to_kind(Kind::Float)?.f_sub_scalar(1.0)?,
            false => tensor,
        };
        Ok(source.change.undo(tensor)?.f_to_kind(kind)?)
    }
}

/// llama.cpp rotates adjacent pairs, Hugging Face the two halves of a head, so the converter interleaves the
/// rows of q and k. This restores the halves.
fn undo_permutation(tensor: &Tensor, heads: i64) -> Result<Tensor, tch::TchError> {
    let shape = tensor.size();
    let rest: i64 = shape.iter().skip(1).product();
    tensor
        .f_reshape([heads, -1, 2, rest])?
        .f_transpose(1, 2)?
        .f_reshape(&shape)
}

fn permuted_heads(config: &DecoderConfig, name: &str) -> Option<i64> {
    let part = name.rsplit('.').nth(1)?;
    match part {
        "attn_q" => Some(config.num_attention_heads),
        "attn_k" => Some(config.num_key_value_heads),
        _ => None,
    }
}

/// Tensors of no block that every family has.
const OUTSIDE: [(&str, &str); 3] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// `blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`.
fn hugging_face_name(rules: &language::Gguf, name: &str) -> Option<String> {
    let mut outside = OUTSIDE.iter().chain(rules.outside);
    if let Some((_, ours)) = outside.find(|(theirs, _)| *theirs == name) {
        return Some((*ours).to_owned());
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: u32 = layer.parse().ok()?;
    Some(format!("model.layers.{layer}.{}", rules.ours(rest)?))
}

/// `model.layers.3.self_attn.q_proj.weight` → `blk.3.attn_q.weight`.
fn gguf_name(rules: &language::Gguf, name: &str) -> Option<String> {
    let mut outside = OUTSIDE.iter().chain(rules.outside);
    if let Some((theirs, _)) = outside.find(|(_, ours)| *ours == name) {
        return Some((*theirs).to_owned());
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    Some(format!("blk.{layer}.{}", rules.theirs(rest)?))
}

/// The layers behind the model's own, which predict the token after the next and are not used.
fn extra_layers(
    header: &Header,
    config: &DecoderConfig,
    rules: &language::Gguf,
) -> std::ops::Range<i64> {
    let key = format!("{}.nextn_predict_layers", rules.architecture);
    let count = match header.metadata.get(&key) {
        Some(Value::Unsigned(count)) => i64::try_from(*count).unwrap_or(0),
        _ => 0,
    };
    let own = config.num_hidden_layers;
    own..own.saturating_add(count)
}

/// The layer that the tensor `name` belongs to.
fn layer_of(name: &str) -> Option<i64> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// What the metadata says, read as the `config.json` that it was made from.
fn config(path: &Path, header: &Header) -> Result<(DecoderConfig, &'static language::Gguf), Error> {
    let (keys, rules) = config_json(header).map_err(|reason| Error::file(path, reason))?;
    Ok((DecoderConfig::from_json(path, keys)?, rules))
}

fn config_json(header: &Header) -> Result<(serde_json::Value, &'static language::Gguf), String> {
    let name = match header.metadata.get("general.architecture") {
        Some(Value::String(name)) => name,
        Some(other) => {
            return Err(format!(
                "`general.architecture` must be a name, not {other:?}"
            ));
        }
        None => return Err("`general.architecture` is missing".into()),
    };
    refuse_incomplete_models(header)?;
    let keys = Keys {
        header,
        prefix: name,
    };
    let (family, rules) = Family::of_gguf(name, |key| keys.is_set(key)).ok_or_else(|| {
        let known: std::collections::BTreeSet<_> =
            (Family::in_gguf().map(|(_, gguf)| gguf.architecture)).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        format!("`general.architecture` is {name:?}; supported: {known}")
    })?;
    if let Some(key) = rules.refused.iter().find(|key| keys.get(key).is_some()) {
        return Err(format!(
            "`{name}.{key}` is set: as a GGUF file, such a model is not supported; take its Hugging Face \
             folder"
        ));
    }
    // Such a model also attends to later tokens.
    match keys.get("attention.causal") {
        None | Some(Value::Bool(true)) => {}
        Some(other) => {
            return Err(format!(
                "`{name}.attention.causal` is {other:?}; only causal models \
                 are supported"
            ));
        }
    }
    let hidden_size = keys.integer("embedding_length", None, 1 << 20)?;
    let heads = keys.integer("attention.head_count", None, 4096)?;
    let head_dim = keys.integer("attention.key_length", Some(hidden_size / heads), 4096)?;
    let rotated = keys.integer("rope.dimension_count", Some(head_dim), 4096)?;
    if rotated != head_dim && !rules.partial {
        return Err(format!(
            "`{name}.rope.dimension_count` is {rotated}; only full heads of {head_dim} are supported"
        ));
    }
    let vocabulary = match header.metadata.get("tokenizer.ggml.tokens") {
        Some(Value::Array(Array::String(tokens))) => Some(tokens.len() as i64),
        _ => None,
    };
    let embedding = header
        .tensors
        .get("token_embd.weight")
        .and_then(|entry| entry.shape.first());
    // The tensor decides, because vocabularies may be padded.
    let vocabulary = embedding
        .and_then(|rows| i64::try_from(*rows).ok())
        .or(vocabulary)
        .filter(|size| (1..=1 << 24).contains(size))
        .ok_or("neither a usable `token_embd.weight` nor `tokenizer.ggml.tokens`")?;
    let shared = match keys.get(SHARED_WIDTH) {
        Some(_) => Some(keys.integer(SHARED_WIDTH, None, 1 << 20)?),
        None => None,
    };
    // Of some families, blocks differ.
    let of_all = |key: &str, default| match rules.keys.iter().any(|(own, _)| *own == key) {
        true => Ok(serde_json::Value::Null),
        false => keys.integer(key, default, 1 << 20).map(Into::into),
    };
    // Numbers are stored as fp32: 1e-5 is read as 9.999999747378752e-6, but people expect 1e-5.
    let mut config = json!({
        "model_type": family.model_type,
        "vocab_size": vocabulary,
        "hidden_size": hidden_size,
        "intermediate_size": of_all("feed_forward_length", shared)?,
        "num_hidden_layers": keys.integer("block_count", None, 4096)?,
        "num_attention_heads": heads,
        "num_key_value_heads": of_all("attention.head_count_kv", Some(heads))?,
        "head_dim": head_dim,
        "max_position_embeddings": keys.integer("context_length", Some(2048), 1 << 30)?,
        "rms_norm_eps": shortest(keys.positive("attention.layer_norm_rms_epsilon", 1e-6)?),
        "rope_theta": shortest(keys.positive("rope.freq_base", 10_000.0)?),
        "rope_scaling": rope_scaling(&keys, rules.yarn)?,
        "tie_word_embeddings": !header.tensors.contains_key("output.weight"),
        "bos_token_id": token(header, "tokenizer.ggml.bos_token_id")?,
        "eos_token_id": token(header, "tokenizer.ggml.eos_token_id")?,
    });
    if rules.partial {
        config["partial_rotary_factor"] = json!(rotated as f64 / head_dim as f64);
    }
    const PADDING: &str = "tokenizer.ggml.padding_token_id";
    if header.metadata.contains_key(PADDING) {
        config["pad_token_id"] = json!(token(header, PADDING)?);
    }
    for (theirs, ours) in rules.keys {
        config[*ours] = keys.value(theirs)?;
    }
    if let Some(key) = rules.keys_are_values {
        let tensors = &header.tensors;
        let mut blocks = tensors
            .keys()
            .filter_map(|name| name.strip_suffix(".attn_k.weight"));
        config[key] = blocks
            .any(|block| !tensors.contains_key(&format!("{block}.attn_v.weight")))
            .into();
    }
    if let Some(config) = config.as_object_mut() {
        (rules.derive)(config)?;
    }
    Ok((config, rules))
}

/// Refuses files that contain only part of a model.
fn refuse_incomplete_models(header: &Header) -> Result<(), String> {
    match header.metadata.get("general.type") {
        None => {}
        Some(Value::String(kind)) if kind == "model" => {}
        Some(other) => {
            return Err(format!(
                "`general.type` is {other:?}; only a `model` can be opened here"
            ));
        }
    }
    match header.metadata.get("split.count") {
        None | Some(Value::Unsigned(0 | 1)) => Ok(()),
        Some(Value::Unsigned(count)) => Err(format!(
            "`split.count` is {count}: this is one of {count} files that are one model; put them \
             together with llama.cpp's `llama-gguf-split --merge`"
        )),
        Some(other) => Err(format!("`split.count` must be a number, not {other:?}")),
    }
}

/// A token id; llama.cpp writes an unsigned −1 if there is none.
fn token(header: &Header, key: &str) -> Result<Option<i64>, String> {
    match header.metadata.get(key) {
        None | Some(Value::Unsigned(0xffff_ffff) | Value::Signed(-1)) => Ok(None),
        Some(Value::Unsigned(id)) if *id < 1 << 24 => Ok(i64::try_from(*id).ok()),
        Some(Value::Signed(id)) if (0..1 << 24).contains(id) => Ok(Some(*id)),
        Some(other) => Err(format!("`{key}` must be a token id, not {other:?}")),
    }
}

fn chat_template(header: &Header) -> Result<Option<String>, String> {
    const KEY: &str = "tokenizer.chat_template";
    match header.metadata.get(KEY) {
        None => Ok(None),
        Some(Value::String(template)) => Ok(Some(template.clone())),
        Some(other) => Err(format!("`{KEY}` must be a string, not {other:?}")),
    }
}

/// Frequency divisors of Llama 3.1 and later, one for each of the `pairs` of a head.
fn rope_divisors(gguf: &Gguf, pairs: usize) -> Result<Vec<f64>, Error> {
    let tensor = gguf.read(ROPE_FREQUENCIES)?;
    if tensor.size() != [pairs as i64] {
        let reason = format!(
            "`{ROPE_FREQUENCIES}` has the shape {:?}, but a head has {pairs} pairs",
            tensor.size()
        );
        return Err(Error::file(gguf.path(), reason));
    }
    let numbers = tensor
        .f_to_kind(Kind::Double)
        .and_then(|t| Vec::try_from(&t));
    numbers.map_err(|error| Error::file(gguf.path(), error.to_string()))
}

/// The `rope_scaling` of a `config.json`, null without any; `yarn` as in [`language::Gguf`].
fn rope_scaling(keys: &Keys, yarn: Option<bool>) -> Result<serde_json::Value, String> {
    let linear = |factor: f64| json!({"rope_type": "linear", "factor": factor});
    let key = format!("{}.rope.scaling.type", keys.prefix);
    match keys.header.metadata.get(&key) {
        // Without a type it is linear, from a key that had another name before there were several types.
        None => {
            let mut given = ["rope.scaling.factor", "rope.scale_linear"].into_iter();
            let Some(key) = given.find(|key| keys.get(key).is_some()) else {
                return Ok(serde_json::Value::Null);
            };
            let is_off = keys.get(key) == Some(&Value::Float(0.0));
            let factor = match is_off {
                true => 1.0,
                false => shortest(keys.positive(key, 1.0)?),
            };
            Ok(match factor == 1.0 {
                true => serde_json::Value::Null,
                false => linear(factor),
            })
        }
        Some(Value::String(kind)) if kind == "none" => Ok(serde_json::Value::Null),
        Some(Value::String(kind)) if kind == "linear" => {
            let factor = shortest(keys.positive("rope.scaling.factor", 1.0)?);
            Ok(linear(factor))
        }
        Some(Value::String(kind)) if kind == "yarn" && yarn.is_some() => Ok(json!({
            "rope_type": "yarn",
            "factor": shortest(keys.positive("rope.scaling.factor", 1.0)?),
            "original_max_position_embeddings":
                keys.integer("rope.scaling.original_context_length", None, 1 << 30)?,
            "beta_fast": shortest(keys.positive("rope.scaling.yarn_beta_fast", 32.0)?),
            "beta_slow": shortest(keys.positive("rope.scaling.yarn_beta_slow", 1.0)?),
            "truncate": yarn,
        })),
        Some(other) => {
            let yarn = if yarn.is_some() { ", yarn" } else { "" };
            Err(format!(
                "`{key}` is {other:?}; supported: none, linear{yarn}"
            ))
        }
    }
}

/// The shortest decimal number that is stored as the same fp32 value.
fn shortest(number: f64) -> f64 {
    (number as f32).to_string().parse().unwrap_or(number)
}

/// Metadata with the architecture's prefix.
struct Keys<'a> {
    header: &'a Header,
    prefix: &'a str,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.header.metadata.get(&format!("{}.{key}", self.prefix))
    }

    /// Whether the file has the key with a value other than zero.
    fn is_set(&self, key: &str) -> bool {
        let is_zero = |value: &Value| matches!(value, Value::Unsigned(0) | Value::Signed(0));
        self.get(key).is_some_and(|value| !is_zero(value))
    }

    fn integer(&self, key: &str, default: Option<i64>, most: i64) -> Result<i64, String> {
        let number = match self.get(key) {
            None => default.ok_or_else(|| format!("`{}.{key}` is missing", self.prefix))?,
            Some(Value::Unsigned(number)) => i64::try_from(*number).unwrap_or(i64::MAX),
            Some(Value::Signed(number)) => *number,
            Some(other) => {
                return Err(format!(
                    "`{}.{key}` must be a whole number, not {other:?}",
                    self.prefix
                ));
            }
        };
        if (1..=most).contains(&number) {
            return Ok(number);
        }
        Err(format!(
            "`{}.{key}` must be from 1 to {most}, not {number}",
            self.prefix
        ))
    }

    /// A number or a list with something for each block, null without the key.
    fn value(&self, key: &str) -> Result<serde_json::Value, String> {
        match self.get(key) {
            None => Ok(serde_json::Value::Null),
            Some(Value::Float(0.0)) => Ok(serde_json::Value::Null),
            Some(Value::Float(_)) => Ok(shortest(self.positive(key, 1.0)?).into()),
            // Of a window: there is none.
            Some(Value::Unsigned(0) | Value::Signed(0)) => Ok(0.into()),
            Some(Value::Array(Array::Bool(list))) => Ok(json!(list)),
            Some(Value::Array(Array::Signed(list))) => Ok(json!(list)),
            Some(Value::Array(Array::Unsigned(list))) => Ok(json!(list)),
            Some(_) => Ok(self.integer(key, None, i64::MAX)?.into()),
        }
    }

    fn positive(&self, key: &str, default: f64) -> Result<f64, String> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Float(number)) if number.is_finite() && *number > 0.0 => Ok(*number),
            Some(other) => Err(format!(
                "`{}.{key}` must be a number greater than zero, not {other:?}",
                self.prefix
            )),
        }
    }
}
