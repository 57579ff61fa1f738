//! Converts a GGUF file to a Hugging Face folder that `transformers` can load.

use std::fs::File;
use std::path::Path;

use serde_json::{Map, Value, json};
use tch::Kind;

use super::{Pretrained, write_weights};
use crate::Error;
use crate::formats::LazyTensor;
use crate::json::Object;
use crate::language::DecoderConfig;

/// The note about its origin in a converted folder.
pub const CONVERSION_NOTE: &str =
    "converted from a GGUF file; quantised weights are those of that file";

/// Converts a GGUF file into the folder `target`: `config.json`, `model.safetensors`, `tokenizer.json` and
/// the chat template. `on_tensor(done, total)` reports progress.
///
/// The folder appears only once it is complete, and an existing one is not changed. Weights are written as
/// `kind`; fp32 preserves the file's values exactly.
///
/// # Errors
/// If the file cannot be read or the folder cannot be written.
pub fn convert_gguf(
    source: &Path,
    target: &Path,
    kind: Kind,
    on_tensor: &dyn Fn(usize, usize),
) -> Result<(), Error> {
    if target.join("config.json").is_file() {
        return Ok(());
    }
    let model = Pretrained::open(source)?;
    let mut draft = target.as_os_str().to_owned();
    draft.push(".part");
    let draft = Path::new(&draft);
    let io = |error| Error::io("write", draft, error);
    if draft.exists() {
        std::fs::remove_dir_all(draft).map_err(io)?;
    }
    std::fs::create_dir_all(draft).map_err(io)?;

    let names = model.tensors.names();
    let all = names.len();
    let done = std::cell::Cell::new(0);
    let tensors = names
        .into_iter()
        .map(|name| {
            let tensor = LazyTensor::of(model.tensors.as_ref(), &name, kind)?.on_made(|| {
                done.set(done.get() + 1);
                on_tensor(done.get(), all);
            });
            Ok((name, tensor))
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let file = draft.join("model.safetensors");
    write_weights(&file, &model.config, tensors, Some(CONVERSION_NOTE))?;

    model.write_companions(&model.config, draft, kind)?;

    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent).map_err(io)?;
    }
    std::fs::rename(draft, target).map_err(|error| Error::io("write", target, error))
}

impl Pretrained {
    /// Writes the files that accompany weights of type `kind`. Those of a folder are kept as they are: only what
    /// `config` changes is changed in its `config.json`.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn write_companions(
        &self,
        config: &DecoderConfig,
        folder: &Path,
        kind: Kind,
    ) -> Result<(), Error> {
        let source = self.tensors.path();
        let mut written = config.to_json();
        if source.is_dir() {
            written = kept(
                &Object::read(&source.join("config.json"))?,
                &self.config,
                written,
            );
        }
        let dtype = match kind {
            Kind::BFloat16 => "bfloat16",
            Kind::Half => "float16",
            _ => "float32",
        };
        // Older files have the other name.
        let old = written.get("torch_dtype").is_some();
        written[if old { "torch_dtype" } else { "dtype" }] = json!(dtype);
        write_json(&folder.join("config.json"), &written)?;
        if source.is_dir() {
            return COMPANIONS
                .iter()
                .try_for_each(|name| copy(&source.join(name), &folder.join(name)));
        }
        let path = folder.join("tokenizer.json");
        self.tokenizer
            .save(&path, true)
            .map_err(|error| Error::file(&path, format!("cannot be written: {error}")))?;
        write_json(
            &folder.join("tokenizer_config.json"),
            &tokenizer_config(self),
        )
    }
}

/// What a published folder has besides config and weights, and programs read from it.
const COMPANIONS: [&str; 12] = [
    "additional_chat_templates",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

/// The config of a published folder with what is `written` differently for a config that was read as `read`. One with
/// a section for each kind of input is written for the language model alone.
fn kept(source: &Object, read: &DecoderConfig, written: Value) -> Value {
    let before = read.to_json();
    if source.get("model_type") != written.get("model_type") {
        return written;
    }
    // What is written is not quantised.
    let keys = source
        .keys()
        .filter(|(key, _)| *key != "quantization_config");
    let mut kept: Map<String, Value> = keys
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    for (key, value) in written.as_object().into_iter().flatten() {
        if before.get(key) != Some(value) || key == "architectures" {
            kept.insert(key.clone(), value.clone());
        }
    }
    kept.into()
}

/// Copies a file, or a folder with all that is in it, if there is one. The copy can be replaced also if the original is
/// read-only.
///
/// # Errors
/// If a file cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let io = |error| Error::io("copy", from, error);
    if from.is_dir() {
        std::fs::create_dir_all(to).map_err(|error| Error::io("create", to, error))?;
        for entry in std::fs::read_dir(from).map_err(io)? {
            let entry = entry.map_err(io)?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    } else if from.is_file() {
        let mut source = File::open(from).map_err(io)?;
        let mut target = File::create(to).map_err(|error| Error::io("create", to, error))?;
        std::io::copy(&mut source, &mut target).map_err(|error| Error::io("write", to, error))?;
    }
    Ok(())
}

fn tokenizer_config(model: &Pretrained) -> serde_json::Value {
    let special = &model.special_tokens;
    let token = |id: Option<i64>| {
        id.and_then(|id| u32::try_from(id).ok())
            .and_then(|id| model.tokenizer.id_to_token(id))
    };
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special.bos.clone().or_else(|| token(model.config.bos_token_id)),
        "eos_token": special.eos.clone().or_else(|| token(model.config.eos_token_ids.first().copied())),
        "model_max_length": model.config.max_position_embeddings,
        "clean_up_tokenization_spaces": false,
        "chat_template": model.chat_template,
    })
}

fn write_json(path: &Path, value: &serde_json::Value) -> Result<(), Error> {
    std::fs::write(path, format!("{value:#}\n")).map_err(|error| Error::io("write", path, error))
}
