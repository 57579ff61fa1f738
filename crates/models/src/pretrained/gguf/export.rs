//! Writes a model as a GGUF file, which llama.cpp, Ollama and LM Studio run.
//!
//! What is written is read back before the weights are: a config or a tokenizer that would come out as another one,
//! because the format or llama.cpp has no word for something, is refused by name.

mod adapter;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;
use tch::{Kind, Tensor};

use super::delta::Change;
use super::export_tokenizer::{self, Texts};
use super::{ROPE_FREQUENCIES, config_json, gguf_name, permuted_heads, rope};
use crate::Error;
use crate::formats::gguf::{Array, Format, GgufTensor, GgufWriter, Value};
use crate::formats::{LazyTensor, TensorSource};
use crate::language::{self, DecoderConfig};
use crate::model::RopeScaling;
use crate::pretrained::slices::expert;
use crate::pretrained::{Pretrained, names_used};

pub use adapter::export_adapter;

/// How the matrices of a file are stored, by llama.cpp's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufType {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// 16-bit brain floats: what most models were trained in.
    BF16,
    /// 8 bits per element.
    Q8_0,
    /// 6 bits per element.
    Q6K,
    /// 5 bits per element, 6 for the matrices that suffer most.
    Q5KM,
    /// 4 bits per element, 6 for the matrices that suffer most.
    Q4KM,
}

impl GgufType {
    /// `general.file_type` (llama.cpp's enumeration of file types).
    fn code(self) -> u64 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Q4KM => 15,
            Self::Q5KM => 17,
            Self::Q6K => 18,
            Self::BF16 => 32,
        }
    }

    /// The format of the matrix `name` with rows of `row` numbers, in a model with `layers` blocks.
    fn format(self, name: &str, row: i64, layers: i64, is_head: bool) -> Format {
        let wanted = match self {
            Self::F32 => Format::F32,
            Self::F16 => Format::F16,
            Self::BF16 => Format::BF16,
            Self::Q8_0 => Format::Q8_0,
            Self::Q6K => Format::Q6K,
            Self::Q5KM | Self::Q4KM => {
                let plain = match self {
                    Self::Q5KM => Format::Q5K,
                    _ => Format::Q4K,
                };
                let block = name
                    .strip_prefix("blk.")
                    .and_then(|rest| rest.split_once('.'));
                match block {
                    None if is_head => Format::Q6K,
                    None => plain,
                    Some((layer, part)) => {
                        let layer: i64 = layer.parse().unwrap_or(0);
                        let eighth = layers / 8;
                        // The first and last eighth, and a third of the others.
                        let more =
                            layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
                        match part {
                            "attn_v.weight"
                            | "ffn_down.weight"
                            | "ffn_down_exps.weight"
                            | "ffn_down_shexp.weight"
                                if more =>
                            {
                                Format::Q6K
                            }
                            "attn_qkv.weight" => Format::Q5K,
                            _ => plain,
                        }
                    }
                }
            }
        };
        // Rows that are not whole blocks.
        let mut fitting = [wanted, Format::Q8_0, Format::F16].into_iter();
        let fits = |format: &Format| row % format.block_elements() as i64 == 0;
        fitting.find(fits).unwrap_or(Format::F32)
    }
}

/// A model that is to be written as a GGUF file.
pub struct Export<'a> {
    /// The template, and what the config says beside `config`.
    pub model: &'a Pretrained,
    /// The tokenizer, with the tokens that other files add.
    pub tokenizer: &'a tokenizers::Tokenizer,
    /// The weights, possibly with an adapter.
    pub tensors: &'a dyn TensorSource,
    /// Their config.
    pub config: &'a DecoderConfig,
    /// `general.name`.
    pub name: String,
    /// How matrices are stored.
    pub stored: GgufType,
}

impl Export<'_> {
    /// Writes the file at `path`, where it appears once it is complete. `on_tensor(done, total)` reports progress.
    ///
    /// # Errors
    /// If the family, its config or the tokenizer has no form in such a file; if a weight cannot be read or written.
    pub fn write(&self, path: &Path, on_tensor: &dyn Fn(usize, usize)) -> Result<(), Error> {
        let refuse = |reason: String| Error::file(self.tensors.path(), reason);
        let family = self.config.family;
        let rules = family.gguf.as_ref().ok_or_else(|| {
            let known: Vec<_> = language::Family::in_gguf()
                .map(|(family, _)| family.model_type)
                .collect();
            refuse(format!(
                "models of the type `{}` are not written as GGUF; supported: {}. llama.cpp's own \
                 `convert_hf_to_gguf.py` may know it, and reads a merged model (`adapter.save_merged: true`)",
                family.model_type,
                known.join(", ")
            ))
        })?;
        let mut metadata = self.metadata(rules).map_err(refuse)?;
        let names = self.names(rules).map_err(refuse)?;
        let texts = Texts {
            model: self.model,
            tokenizer: self.tokenizer,
            rows: self.config.vocab_size,
            rules,
        };
        let all = names.len();
        let done = std::cell::Cell::new(0);
        let told = || {
            done.set(done.get() + 1);
            on_tensor(done.get(), all);
        };
        let tensors = || -> Result<Vec<GgufTensor<'_>>, Error> {
            let mut tensors = names
                .iter()
                .map(|(theirs, ours)| self.tensor(rules, theirs, ours, &told))
                .collect::<Result<Vec<_>, Error>>()?;
            tensors.extend(self.frequencies()?);
            Ok(tensors)
        };
        metadata.extend(texts.metadata().map_err(refuse)?);
        // Which division of text into words: the first that gives the tokens of the original.
        let mut refusal = String::new();
        for more in texts.variants() {
            let metadata = [&metadata[..], &more].concat();
            let writer = GgufWriter::new(&metadata, tensors()?)?;
            let header = writer.read_back().map_err(refuse)?;
            match export_tokenizer::check(&header, self.tokenizer) {
                Ok(()) => {
                    self.check(&header).map_err(refuse)?;
                    return writer.write(path);
                }
                Err(reason) => refusal = reason,
            }
        }
        Err(refuse(refusal))
    }

    fn metadata(&self, rules: &language::Gguf) -> Result<Vec<(String, Value)>, String> {
        let config = self.config;
        let whole = |number: i64| Value::Unsigned(number.max(0) as u64);
        let text = |text: &str| Value::String(text.to_owned());
        // Of the blocks that see the whole text.
        let (_, head_dim) = config.heads(false);
        let rotated = head_dim as f64 * config.rope.partial_rotary_factor;
        let mut own = vec![
            ("block_count".to_owned(), whole(config.num_hidden_layers)),
            (
                "context_length".into(),
                whole(config.max_position_embeddings),
            ),
            ("embedding_length".into(), whole(config.hidden_size)),
            (
                "feed_forward_length".into(),
                whole(config.intermediate_size),
            ),
            (
                "attention.head_count".into(),
                whole(config.num_attention_heads),
            ),
            (
                "attention.head_count_kv".into(),
                whole(config.num_key_value_heads),
            ),
            ("attention.key_length".into(), whole(head_dim)),
            ("attention.value_length".into(), whole(head_dim)),
            (
                "attention.layer_norm_rms_epsilon".into(),
                Value::Float(config.rms_norm_eps),
            ),
            ("rope.freq_base".into(), Value::Float(config.rope.theta)),
            ("rope.dimension_count".into(), whole(rotated.round() as i64)),
            ("vocab_size".into(), whole(config.vocab_size)),
        ];
        let mut keys = config.to_json();
        if let Some(keys) = keys.as_object_mut() {
            (rules.more)(config, keys);
        }
        match config.rope.scaling {
            // Written as a tensor.
            RopeScaling::None
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Proportional { factor: 1.0, .. } => {}
            RopeScaling::Linear { factor } => {
                own.push(("rope.scaling.type".into(), text("linear")));
                own.push(("rope.scaling.factor".into(), Value::Float(factor)));
            }
            RopeScaling::Yarn(ref yarn) if rules.yarn.is_some() => {
                own.push(("rope.scaling.type".into(), text("yarn")));
                let original = yarn.original_max_position_embeddings as i64;
                own.push((
                    "rope.scaling.original_context_length".into(),
                    whole(original),
                ));
                for (key, number) in [
                    ("factor", yarn.factor),
                    ("yarn_beta_fast", yarn.beta_fast),
                    ("yarn_beta_slow", yarn.beta_slow),
                ] {
                    own.push((format!("rope.scaling.{key}"), Value::Float(number)));
                }
            }
            _ => {
                return Err(format!(
                    "its rotary embedding is scaled by {}, and that is not written as GGUF for models of the type `{}`. \
                     llama.cpp's own converter knows others",
                    config.rope.to_json().0["rope_type"],
                    config.family.model_type
                ));
            }
        }
        own.retain(|(key, _)| !rules.keys.iter().any(|(theirs, _)| theirs == key));
        for (theirs, ours) in rules.keys {
            let number = |key: &str| keys.get(key).filter(|value| !value.is_null());
            let Some(number) = number(ours) else { continue };
            let is_float = ["scale", "freq_base_swa", "softcapping", "multiplier"];
            let value = match number {
                Json::Array(list) => list_of_blocks(list).map(Value::Array),
                _ if is_float.iter().any(|end| theirs.ends_with(end)) => {
                    number.as_f64().map(Value::Float)
                }
                _ => number.as_u64().map(Value::Unsigned),
            };
            let value = value.ok_or_else(|| format!("`{ours}` is {number}"))?;
            own.push(((*theirs).to_owned(), value));
        }
        let arrays = rules.arrays.iter();
        own.extend(arrays.map(|(key, numbers)| {
            (
                (*key).to_owned(),
                Value::Array(Array::Signed(numbers.to_vec())),
            )
        }));
        let own = own
            .into_iter()
            .map(|(key, value)| (format!("{}.{key}", rules.architecture), value));
        let mut metadata = vec![
            ("general.architecture".to_owned(), text(rules.architecture)),
            ("general.type".into(), text("model")),
            ("general.name".into(), text(&self.name)),
            (
                "general.file_type".into(),
                Value::Unsigned(self.stored.code()),
            ),
            ("general.quantization_version".into(), Value::Unsigned(2)),
        ];
        metadata.extend(own);
        Ok(metadata)
    }

    /// llama.cpp's names of the tensors, with ours. Experts are one tensor there.
    fn names(&self, rules: &language::Gguf) -> Result<BTreeMap<String, Vec<String>>, String> {
        let mut named: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
        // Not what else a file has: llama.cpp would apply a bias that the config leaves out.
        let used = names_used(self.config).map_err(|error| error.to_string())?;
        for name in used {
            if self.tensors.shape(&name).is_none() {
                return Err(format!("it has no `{name}`"));
            }
            if name.ends_with(".bias")
                && !rules.interleaved
                && !rules.biases
                && !name.contains(".self_attn.q_proj")
                && !name.contains(".self_attn.k_proj")
                && !name.contains(".self_attn.v_proj")
            {
                return Err(format!(
                    "llama.cpp has no bias for `{name}` in models of the type `{}`",
                    self.config.family.model_type
                ));
            }
            let (place, theirs) = match expert(&name) {
                None => (0, gguf_name(rules, &name)),
                Some((all, number, part)) => {
                    let number = usize::try_from(number).unwrap_or(0);
                    // Gate and up may be one.
                    let half = usize::from(part.starts_with("up_proj"));
                    match gguf_name(rules, &format!("{all}.gate_up_proj.weight")) {
                        Some(theirs) if !part.starts_with("down_proj") => {
                            (2 * number + half, Some(theirs))
                        }
                        _ => (number, gguf_name(rules, &format!("{all}.{part}"))),
                    }
                }
            };
            let theirs = theirs.ok_or_else(|| format!("`{name}` has no name in a GGUF file"))?;
            named.entry(theirs).or_default().insert(place, name);
        }
        let each = named.into_iter();
        Ok(each
            .map(|(theirs, ours)| (theirs, ours.into_values().collect()))
            .collect())
    }

    fn tensor<'s>(
        &'s self,
        rules: &language::Gguf,
        theirs: &str,
        ours: &[String],
        told: &'s dyn Fn(),
    ) -> Result<GgufTensor<'s>, Error> {
        let mut shape = match ours {
            [first, ..] => self.tensors.shape(first).unwrap_or_default(),
            [] => Vec::new(),
        };
        let is_stack = ours.first().is_some_and(|name| expert(name).is_some());
        if is_stack {
            let each = if theirs.contains("gate_up") { 2 } else { 1 };
            shape.iter_mut().take(1).for_each(|rows| *rows *= each);
            shape.insert(0, ours.len() as i64 / each);
        }
        let is_head = match self.config.tie_word_embeddings {
            true => theirs == "token_embd.weight",
            false => theirs == "output.weight",
        };
        let layers = self.config.num_hidden_layers;
        let format = match shape[..] {
            // The choice of experts is as exact as norms are.
            _ if theirs.contains(".ffn_gate_inp") => Format::F32,
            _ if theirs.ends_with("ssm_conv1d.weight") => Format::F32,
            [_, row] | [_, _, row] if theirs.ends_with(".weight") => {
                self.stored.format(theirs, row, layers, is_head)
            }
            _ => Format::F32,
        };
        let heads = match rules.interleaved {
            true => permuted_heads(self.config, theirs),
            false => None,
        };
        let plus_one = rules.is_plus_one(theirs);
        let change = ours
            .first()
            .map_or_else(Change::default, |name| Change::of(self.config, name));
        let stacked = shape.clone();
        let shape = change.stored_shape(shape);
        let (source, names) = (self.tensors, ours.to_owned());
        // Experts that were published in MXFP4 stay so, as in llama.cpp's converter.
        if is_stack && names.iter().all(|name| source.is_mxfp4(name)) {
            let make = move || {
                let parts = names.iter().map(|name| source.read_mxfp4(name)?.to_ggml());
                let parts = parts.collect::<Result<Vec<_>, Error>>()?;
                Ok(Tensor::f_stack(&parts, 0)?)
            };
            return Ok(GgufTensor {
                name: theirs.to_owned(),
                format: Format::Mxfp4,
                tensor: LazyTensor::made(&shape, Kind::Uint8, make).on_made(told),
            });
        }
        let make = move || -> Result<Tensor, Error> {
            let parts = names.iter().map(|name| source.read(name, Kind::Float));
            let mut parts = parts.collect::<Result<Vec<_>, Error>>()?;
            let tensor = match is_stack {
                true => Tensor::f_stack(&parts, 0)?.f_view(stacked.as_slice())?,
                false => parts.swap_remove(0),
            };
            let tensor = match heads {
                Some(heads) => interleaved(&tensor, heads)?,
                None => tensor,
            };
            change.apply(match plus_one {
                true => tensor.f_add_scalar(1.0)?,
                false => tensor,
            })
        };
        Ok(GgufTensor {
            name: theirs.to_owned(),
            format,
            tensor: LazyTensor::made(&shape, Kind::Float, make).on_made(told),
        })
    }

    /// What the frequencies of the rotary embedding are divided by, where that is scaled as in Llama 3.1 or some are zero.
    fn frequencies(&self) -> Result<Option<GgufTensor<'static>>, Error> {
        let rope = &self.config.rope;
        let is_tensor = matches!(
            rope.scaling,
            RopeScaling::Llama3 { .. } | RopeScaling::Proportional { .. }
        );
        if !is_tensor {
            return Ok(None);
        }
        let divisors = rope::divisors(rope.theta, &rope.scaling, self.config.heads(false).1);
        let divisors = Tensor::f_from_slice(&divisors)?.f_to_kind(Kind::Float)?;
        Ok(Some(GgufTensor {
            name: ROPE_FREQUENCIES.into(),
            format: Format::F32,
            tensor: LazyTensor::ready(&divisors),
        }))
    }

    /// Fails if the config is read back as another one.
    fn check(&self, header: &crate::formats::gguf::Header) -> Result<(), String> {
        let (keys, _) = config_json(header)?;
        let read = DecoderConfig::from_json(self.tensors.path(), keys);
        let read = read.map_err(|error| error.to_string())?.to_json();
        let mut written = self.config.clone();
        // Read beside the tensors, when a file is opened.
        if matches!(written.rope.scaling, RopeScaling::Llama3 { .. }) {
            written.rope.scaling = RopeScaling::None;
        }
        let written = written.to_json();
        let keys = written.as_object().into_iter().flatten();
        let changed = keys.filter(|(key, value)| {
            !same(&read[key.as_str()], value) && !ELSEWHERE.contains(&key.as_str())
        });
        let changed: Vec<_> = changed
            .map(|(key, value)| format!("`{key}: {value}` ({} there)", read[key.as_str()]))
            .collect();
        match changed.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "llama.cpp would run it as another model, since a GGUF file of `{}` cannot say {}",
                self.config.family.model_type,
                changed.join(", ")
            )),
        }
    }
}

/// Keys of a `config.json` that a file tells otherwise: by its tensors and by its tokenizer; and families that it stores
/// as one.
const ELSEWHERE: [&str; 10] = [
    "architectures",
    "model_type",
    "attention_bias",
    "mlp_bias",
    "use_sliding_window",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    // Only for training.
    "output_router_logits",
    "router_aux_loss_coef",
];

/// Whether two values are the same, numbers as fp32.
fn same(left: &Json, right: &Json) -> bool {
    match (left, right) {
        (Json::Number(left), Json::Number(right)) => {
            left.as_f64().map(|left| left as f32) == right.as_f64().map(|right| right as f32)
        }
        (Json::Object(left), Json::Object(right)) => {
            let found = |(key, value): (&String, &Json)| {
                right.get(key).is_some_and(|other| same(value, other))
            };
            left.len() == right.len() && left.iter().all(found)
        }
        _ => left == right,
    }
}

/// What is said of each block.
fn list_of_blocks(list: &[Json]) -> Option<Array> {
    let flags: Option<Vec<bool>> = list.iter().map(Json::as_bool).collect();
    let numbers = || list.iter().map(Json::as_i64).collect::<Option<Vec<i64>>>();
    flags
        .map(Array::Bool)
        .or_else(|| numbers().map(Array::Signed))
}

/// The opposite of [`undo_permutation`](super::undo_permutation).
fn interleaved(tensor: &Tensor, heads: i64) -> Result<Tensor, tch::TchError> {
    let shape = tensor.size();
    let rest: i64 = shape.iter().skip(1).product();
    tensor
        .f_reshape([heads, 2, -1, rest])?
        .f_transpose(1, 2)?
        .f_reshape(&shape)
}
