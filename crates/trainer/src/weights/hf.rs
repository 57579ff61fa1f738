//! A Hugging Face model folder: `config.json`, one or more safetensors files,
//! `tokenizer.json`, and a chat template.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::{Kind, Tensor};

use super::json::Object;
use super::safetensors_file::SafetensorsFile;
use super::{Pretrained, SpecialTokens, TensorSource, WeightsError};
use crate::model::{DecoderConfig, end_tokens};

/// An open model folder.
#[derive(Debug)]
pub struct HfFolder {
    path: PathBuf,
    config: DecoderConfig,
    files: Vec<SafetensorsFile>,
    /// Tensor → index into `files`.
    tensors: BTreeMap<String, usize>,
}

impl HfFolder {
    /// Opens a folder: reads its config and the headers of its weights.
    ///
    /// # Errors
    /// When a file is missing or damaged, or the model is not known here.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let mut config = DecoderConfig::read(&path.join("config.json"))?;
        // A chat model ends its turns with tokens that only this file may know.
        let generation = path.join("generation_config.json");
        if generation.is_file() {
            let ends = end_tokens(&Object::read(&generation)?)?;
            if !ends.is_empty() {
                config.eos_token_ids = ends;
            }
        }
        let index = path.join("model.safetensors.index.json");
        let names = if index.is_file() {
            shards(&Object::read(&index)?)?
        } else {
            vec!["model.safetensors".to_owned()]
        };
        let files = names
            .iter()
            .map(|name| SafetensorsFile::open(&path.join(name)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut tensors = BTreeMap::new();
        for (number, file) in files.iter().enumerate() {
            for name in file.names() {
                if let Some(other) = tensors.insert(name.clone(), number) {
                    let other = files[other].path().display();
                    return Err(WeightsError::file(
                        file.path(),
                        format!("`{name}` is in `{other}` too"),
                    ));
                }
            }
        }
        Ok(Self {
            path: path.to_owned(),
            config,
            files,
            tensors,
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Number of safetensors files.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn into_pretrained(self) -> Result<Pretrained, WeightsError> {
        let path = self.path.join("tokenizer.json");
        let tokenizer = tokenizers::Tokenizer::from_file(&path).map_err(|error| {
            WeightsError::file(&path, format!("not a usable tokenizer: {error}"))
        })?;
        Ok(Pretrained {
            config: self.config.clone(),
            tokenizer,
            chat_template: chat_template(&self.path)?,
            special_tokens: special_tokens(&self.path)?,
            tensors: Box::new(self),
        })
    }
}

impl TensorSource for HfFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        self.files[*self.tensors.get(name)?].shape(name)
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, WeightsError> {
        match self.tensors.get(name) {
            Some(file) => self.files[*file].read(name, kind),
            None => Err(WeightsError::file(
                &self.path,
                format!("there is no tensor `{name}`"),
            )),
        }
    }
}

/// The files that an index names, which must lie beside it.
fn shards(index: &Object) -> Result<Vec<String>, WeightsError> {
    let map = index
        .object("weight_map")?
        .ok_or_else(|| index.error("weight_map", "is missing"))?;
    let mut files = Vec::new();
    for (tensor, file) in map.keys() {
        let Value::String(file) = file else {
            return Err(map.error(tensor, "must name a file"));
        };
        // A downloaded index must not reach outside of its folder.
        let plain = Path::new(file).file_name() == Some(file.as_ref());
        if !plain || !file.ends_with(".safetensors") {
            return Err(map.error(
                tensor,
                format!("names {file:?}, which is not a safetensors file of this folder"),
            ));
        }
        files.push(file.clone());
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// What `tokenizer_config.json` calls the first and the last token of a text.
fn special_tokens(folder: &Path) -> Result<SpecialTokens, WeightsError> {
    let path = folder.join("tokenizer_config.json");
    if !path.is_file() {
        return Ok(SpecialTokens::default());
    }
    let config = Object::read(&path)?;
    let token = |key| -> Result<Option<String>, WeightsError> {
        let text = match config.get(key) {
            // With its properties beside it, as older files have it.
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

/// `chat_template.jinja`, or the key of `tokenizer_config.json` that it came from.
fn chat_template(folder: &Path) -> Result<Option<String>, WeightsError> {
    let path = folder.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(text) => return Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(WeightsError::io("read", &path, error)),
    }
    let path = folder.join("tokenizer_config.json");
    if !path.is_file() {
        return Ok(None);
    }
    let config = Object::read(&path)?;
    match config.get("chat_template") {
        // Several named templates: the one called default.
        Some(Value::Array(templates)) => {
            let named: HashMap<_, _> = templates
                .iter()
                .filter_map(|template| {
                    Some((
                        template.get("name")?.as_str()?,
                        template.get("template")?.as_str()?,
                    ))
                })
                .collect();
            Ok(named.get("default").map(|text| (*text).to_owned()))
        }
        _ => Ok(config.text("chat_template")?.map(str::to_owned)),
    }
}
