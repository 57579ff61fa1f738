//! A Hugging Face model folder: `config.json`, one or more safetensors files,
//! `tokenizer.json`, and a chat template.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::{Kind, Tensor};

use super::{Pretrained, SpecialTokens};
use crate::Error;
use crate::formats::{Shards, TensorSource};
use crate::json::Object;
use crate::model::{DecoderConfig, end_tokens};

/// An open model folder.
#[derive(Debug)]
pub struct HfFolder {
    path: PathBuf,
    config: DecoderConfig,
    weights: Shards,
}

impl HfFolder {
    /// Opens a folder: reads its config and the headers of its weights.
    ///
    /// # Errors
    /// When a file is missing or damaged, or the model is not known here.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut config = DecoderConfig::read(&path.join("config.json"))?;
        // A chat model ends its turns with tokens that only this file may know.
        let generation = path.join("generation_config.json");
        if generation.is_file() {
            let ends = end_tokens(&Object::read(&generation)?)?;
            if !ends.is_empty() {
                config.eos_token_ids = ends;
            }
        }
        Ok(Self {
            path: path.to_owned(),
            config,
            weights: Shards::open(path, "model")?,
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Number of safetensors files.
    pub fn files(&self) -> usize {
        self.weights.files()
    }

    pub(crate) fn into_pretrained(self) -> Result<Pretrained, Error> {
        let path = self.path.join("tokenizer.json");
        let tokenizer = tokenizers::Tokenizer::from_file(&path)
            .map_err(|error| Error::file(&path, format!("not a usable tokenizer: {error}")))?;
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

    fn weight_files(&self) -> Vec<PathBuf> {
        self.weights.weight_files()
    }

    fn names(&self) -> Vec<String> {
        self.weights.names()
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        self.weights.shape(name)
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, Error> {
        self.weights.read(name, kind)
    }
}

/// What `tokenizer_config.json` calls the first and the last token of a text; or, where that has
/// no `added_tokens_decoder`, `special_tokens_map.json` beside it, as in transformers.
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
fn chat_template(folder: &Path) -> Result<Option<String>, Error> {
    let path = folder.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(text) => return Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(Error::io("read", &path, error)),
    }
    let path = folder.join("tokenizer_config.json");
    if !path.is_file() {
        return Ok(None);
    }
    let config = Object::read(&path)?;
    match config.get("chat_template") {
        // Several named templates: the one called default.
        Some(Value::Array(templates)) => {
            let mut default = None;
            let mut others = Vec::new();
            for template in templates {
                let text = |key: &str| template.get(key).and_then(Value::as_str);
                match (text("name"), text("template")) {
                    (Some("default"), Some(text)) => default = Some(text.to_owned()),
                    (Some(name), Some(_)) => others.push(format!("`{name}`")),
                    _ => {
                        let reason =
                            "must be a text, or a list of objects of `name` and `template`";
                        return Err(config.error("chat_template", reason));
                    }
                }
            }
            if default.is_none() && !others.is_empty() {
                let reason = format!(
                    "has {}, and none is called `default`: call the one that is meant so",
                    others.join(", ")
                );
                return Err(config.error("chat_template", reason));
            }
            if !others.is_empty() {
                tracing::warn!(
                    "`{}` has chat templates beside the one called `default` that are not applied: {}",
                    path.display(),
                    others.join(", ")
                );
            }
            Ok(default)
        }
        _ => Ok(config.text("chat_template")?.map(str::to_owned)),
    }
}
