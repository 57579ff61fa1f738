//! A Hugging Face model folder: `config.json`, one or more safetensors files,
//! `tokenizer.json`, and a chat template.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::{Kind, Tensor};

use super::packed::Packed;
use super::slices::{self, BLOCKS, SCALES, Slice};
use super::{Pretrained, SpecialTokens};
use crate::Error;
use crate::formats::{Shards, TensorSource};
use crate::json::Object;
use crate::language::{DecoderConfig, Saved, end_tokens};
use crate::quant::Mxfp4;

/// The name of the default chat template.
const DEFAULT: &str = "default";

/// The name of the template for chats with tools.
const TOOL_USE: &str = "tool_use";

/// An open model folder.
#[derive(Debug)]
pub struct HfFolder {
    path: PathBuf,
    config: DecoderConfig,
    weights: Shards,
    /// If they were saved quantised.
    packed: Option<Packed>,
    /// The names of the model's tensors, and where they are in the files.
    names: BTreeMap<String, Stored>,
}

/// A tensor in a file.
#[derive(Debug)]
struct Stored {
    name: String,
    /// If it is only a part of it.
    slice: Option<Slice>,
}

impl HfFolder {
    /// Opens a folder: reads its config and the headers of its weights.
    ///
    /// # Errors
    /// If a file is missing or damaged, or the model is not supported.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let adapter = path.join("adapter_config.json");
        if adapter.is_file() && !path.join("config.json").exists() {
            let base = Object::read(&adapter)?;
            let base = base.text("base_model_name_or_path")?.unwrap_or_default();
            return Err(Error::file(
                path,
                format!(
                    "is an adapter of PEFT, not a model: name its base model (`{base}`) as \
                     `model.name_or_path`, and this folder as `adapter.resume_from` to continue it"
                ),
            ));
        }
        let mut keys = Object::read(&path.join("config.json"))?;
        let saved = Saved::take(&mut keys)?;
        let mut config = DecoderConfig::from_object(&keys)?;
        if adapter.is_file() {
            tracing::warn!(
                "`{}` has an adapter beside the model (`adapter_config.json`), which transformers would load, \
                 and which is not applied here: give the folder as adapter too, or move the file away",
                path.display()
            );
        }
        // A chat model's end-of-turn tokens may only be in this file.
        let generation = path.join("generation_config.json");
        if generation.is_file() {
            let ends = end_tokens(&Object::read(&generation)?)?;
            if !ends.is_empty() {
                config.eos_token_ids = ends;
            }
        }
        let weights = Shards::open(path, "model")?;
        let packed = saved
            .map(|saved| Packed::open(saved, &weights))
            .transpose()?;
        let mut names = BTreeMap::new();
        let experts = config.experts.as_ref();
        let alternating = experts.is_some_and(|experts| experts.alternating);
        for name in weights.names() {
            // They are read with their numbers.
            let is_beside = packed
                .as_ref()
                .is_some_and(|packed| packed.is_beside(&name));
            if is_beside || alternating && name.ends_with(SCALES) {
                continue;
            }
            let ours = config.family.tensor_name(&name);
            let Some(ours) = ours.filter(|ours| !config.is_dead(ours)) else {
                continue;
            };
            let slices = Slice::all_of(
                &ours,
                &weights.shape(&name).unwrap_or_default(),
                alternating,
            );
            if slices.is_empty() {
                names.insert(ours, Stored { name, slice: None });
                continue;
            }
            for (ours, slice) in slices {
                let (name, slice) = (name.clone(), Some(slice));
                names.insert(ours, Stored { name, slice });
            }
        }
        let mut folder = Self {
            path: path.to_owned(),
            names,
            config,
            weights,
            packed,
        };
        // Their configs often do not say it, and transformers shares no weight that is there twice.
        if folder.is_part() && folder.names.contains_key("lm_head.weight") {
            folder.config.tie_word_embeddings = false;
        }
        Ok(folder)
    }

    /// Whether it has the text part of a larger model.
    fn is_part(&self) -> bool {
        let mut names = self.names.iter();
        names.any(|(ours, stored)| stored.slice.is_none() && *ours != stored.name)
    }

    /// The model's dimensions.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Number of safetensors files.
    pub fn files(&self) -> usize {
        self.weights.files()
    }

    pub(crate) fn into_pretrained(self) -> Result<Pretrained, Error> {
        let text = TextFiles::read(&self.path)?;
        Ok(Pretrained {
            config: self.config.clone(),
            tokenizer: text.tokenizer,
            chat_template: text.chat_template,
            tool_template: text.tool_template,
            special_tokens: text.special_tokens,
            is_part: self.is_part(),
            tensors: Box::new(self),
        })
    }
}

/// The tokenizer of a folder, and what other files say about it.
pub(crate) struct TextFiles {
    pub(crate) tokenizer: tokenizers::Tokenizer,
    pub(crate) chat_template: Option<String>,
    pub(crate) tool_template: Option<String>,
    pub(crate) special_tokens: SpecialTokens,
}

impl TextFiles {
    /// # Errors
    /// If a file is missing or damaged.
    pub(crate) fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("tokenizer.json");
        let tokenizer = tokenizers::Tokenizer::from_file(&path)
            .map_err(|error| Error::file(&path, format!("not a usable tokenizer: {error}")))?;
        let (chat_template, tool_template) = select_templates(folder)?;
        Ok(Self {
            tokenizer,
            chat_template,
            tool_template,
            special_tokens: special_tokens(folder)?,
        })
    }
}

impl TensorSource for HfFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn weight_files(&self) -> Vec<PathBuf> {
        self.weights.weight_files()
    }

    fn names(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        let Stored { name, slice } = self.names.get(name)?;
        let packed = self.packed.as_ref().and_then(|packed| packed.shape(name));
        let shape = packed
            .map(<[i64]>::to_vec)
            .or_else(|| self.weights.shape(name))?;
        Some(slice.map_or_else(|| shape.clone(), |slice| slice.shape(&shape)))
    }

    fn is_mxfp4(&self, name: &str) -> bool {
        let stored = self.names.get(name);
        stored.is_some_and(|stored| stored.slice.is_some() && stored.name.ends_with(BLOCKS))
    }

    fn read_mxfp4(&self, name: &str) -> Result<Mxfp4, Error> {
        let Some(Stored {
            name: blocks,
            slice: Some(slice),
        }) = self.names.get(name)
        else {
            return Err(Error::Internal(format!("`{name}` is not in MXFP4")));
        };
        let scales = format!("{}{SCALES}", blocks.strip_suffix(BLOCKS).unwrap_or(blocks));
        let read = |name: &str| self.weights.read_element(name, slice.expert, Kind::Uint8);
        let matrix = slices::mxfp4(&read(blocks)?, read(&scales)?);
        slice.of_mxfp4(
            matrix.map_err(|reason| Error::file(&self.path, format!("`{blocks}` {reason}")))?,
        )
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        if self.is_mxfp4(name) {
            return self.read_mxfp4(name)?.dequantize(kind);
        }
        let stored = self.names.get(name);
        let name = stored.map_or(name, |stored| &stored.name);
        let slice = stored.and_then(|stored| stored.slice);
        let element = slice.map(|slice| slice.expert);
        let tensor = match (&self.packed, element) {
            (Some(packed), element) => packed.read(&self.weights, name, element, kind)?,
            (None, Some(index)) => self.weights.read_element(name, index, kind)?,
            (None, None) => self.weights.read(name, kind)?,
        };
        match slice {
            Some(slice) => slice.of(tensor),
            None => Ok(tensor),
        }
    }
}

/// The start and end tokens of `tokenizer_config.json`; or, if that has no `added_tokens_decoder`, of
/// `special_tokens_map.json` beside it, as in transformers.
fn special_tokens(folder: &Path) -> Result<SpecialTokens, Error> {
    let read = |name: &str| -> Result<Option<Object>, Error> {
        let path = folder.join(name);
        path.is_file().then(|| Object::read(&path)).transpose()
    };
    let config = read("tokenizer_config.json")?;
    let newer = config
        .as_ref()
        .is_some_and(|config| config.has("added_tokens_decoder"));
    let map = match newer {
        true => None,
        false => read("special_tokens_map.json")?,
    };
    let token = |key| -> Result<Option<String>, Error> {
        let files = [&map, &config].into_iter().flatten();
        let Some(config) = files.into_iter().find(|file| file.has(key)) else {
            return Ok(None);
        };
        let text = match config.get(key) {
            // An object with the token's properties, as in older files.
            Some(Value::Object(_)) => match config.object(key)? {
                Some(token) => token.text("content")?.map(str::to_owned),
                None => None,
            },
            _ => config.text(key)?.map(str::to_owned),
        };
        Ok(text)
    };
    Ok(SpecialTokens {
        bos: token("bos_token")?,
        eos: token("eos_token")?,
    })
}

/// The chat templates of a folder by name, as in transformers: `chat_template.jinja` is `default`, and files
/// in `additional_chat_templates` go by their names; without any, the key in `tokenizer_config.json` counts.
fn chat_templates(folder: &Path) -> Result<BTreeMap<String, String>, Error> {
    let files = template_files(folder)?;
    if !files.is_empty() {
        return Ok(files);
    }
    let path = folder.join("tokenizer_config.json");
    if !path.is_file() {
        return Ok(BTreeMap::new());
    }
    let config = Object::read(&path)?;
    let Some(Value::Array(templates)) = config.get("chat_template") else {
        let text = config.text("chat_template")?.map(str::to_owned);
        return Ok(text
            .map(|text| (DEFAULT.to_owned(), text))
            .into_iter()
            .collect());
    };
    let named = templates.iter().map(|template| {
        let text = |key: &str| Some(template.get(key)?.as_str()?.to_owned());
        text("name").zip(text("template")).ok_or_else(|| {
            let reason = "must be a string, or a list of objects with `name` and `template`";
            config.error("chat_template", reason)
        })
    });
    named.collect()
}

fn template_files(folder: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut found = BTreeMap::new();
    let mut read = |name: &str, path: &Path| match std::fs::read_to_string(path) {
        Ok(text) => {
            found.insert(name.to_owned(), text);
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("read", path, error)),
    };
    read(DEFAULT, &folder.join("chat_template.jinja"))?;
    let others = folder.join("additional_chat_templates");
    let entries = match std::fs::read_dir(&others) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(Error::io("read", &others, error)),
    };
    for entry in entries {
        let path = entry
            .map_err(|error| Error::io("read", &others, error))?
            .path();
        let name = path.file_stem().and_then(std::ffi::OsStr::to_str);
        if let Some(name) = name.filter(|_| path.extension().is_some_and(|end| end == "jinja")) {
            read(name, &path)?;
        }
    }
    Ok(found)
}

/// The default template and the one for chats with tools; a warning names the others.
fn select_templates(folder: &Path) -> Result<(Option<String>, Option<String>), Error> {
    let mut named = chat_templates(folder)?;
    let quoted = |names: &BTreeMap<String, String>| {
        let names: Vec<_> = names.keys().map(|name| format!("`{name}`")).collect();
        names.join(", ")
    };
    if !named.is_empty() && !named.contains_key(DEFAULT) {
        let reason = format!(
            "the chat templates are named {}, but none is named `{DEFAULT}`: rename the one to use",
            quoted(&named)
        );
        return Err(Error::file(folder, reason));
    }
    let default = named.remove(DEFAULT);
    let tool_use = named.remove(TOOL_USE);
    if !named.is_empty() {
        tracing::warn!(
            "`{}` has chat templates that are not used: {}",
            folder.display(),
            quoted(&named)
        );
    }
    Ok((default, tool_use))
}
