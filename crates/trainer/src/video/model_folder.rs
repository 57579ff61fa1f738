//! A Wan model as diffusers saves it: which parts there are, and how they are used.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Error;
use crate::config::{Config, Experts};

/// A folder with a `model_index.json`.
#[derive(Debug, Clone)]
pub(crate) struct ModelFolder {
    pub(crate) path: PathBuf,
    pub(crate) pipeline: Pipeline,
    /// Whether the first frame's tokens may have a time of their own (Wan 2.2 5B).
    pub(crate) expand_timesteps: bool,
    /// The level from which on the first of two transformers is used.
    pub(crate) boundary: Option<f64>,
}

/// What is made from what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pipeline {
    /// Text to video.
    Text,
    /// Text and a first frame to video.
    Image,
}

impl ModelFolder {
    /// Whether `path` is one.
    pub(crate) fn is_at(path: &Path) -> bool {
        path.join("model_index.json").is_file()
    }

    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// When a file is missing or damaged, or the model is none of Wan's.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let index = path.join("model_index.json");
        let wrong = |reason: String| Error::Data(format!("`{}` {reason}", index.display()));
        let text = std::fs::read_to_string(&index).map_err(|error| {
            wrong(format!(
                "cannot be read ({error}): `model.name_or_path` must be a folder of Wan as diffusers saves \
                 it, with `transformer`, `vae`, `text_encoder` and `tokenizer`"
            ))
        })?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| wrong(format!("is no JSON: {error}")))?;
        let pipeline = match value["_class_name"].as_str() {
            Some("WanPipeline") => Pipeline::Text,
            Some("WanImageToVideoPipeline") => Pipeline::Image,
            other => {
                return Err(wrong(format!(
                    "is of {}: only `WanPipeline` and `WanImageToVideoPipeline` are trained here",
                    other.unwrap_or("no class")
                )));
            }
        };
        let two = path.join("transformer_2").is_dir();
        let boundary = value["boundary_ratio"].as_f64();
        Ok(Self {
            path: path.to_owned(),
            pipeline,
            expand_timesteps: value["expand_timesteps"].as_bool().unwrap_or(false),
            boundary: boundary.filter(|_| two),
        })
    }

    /// Whether there are two transformers.
    pub(crate) fn has_two(&self) -> bool {
        self.path.join("transformer_2").is_dir()
    }

    /// The transformer that is trained: its folder, and the lowest and highest level that it sees.
    ///
    /// # Errors
    /// When the config names an expert that there is not, names none of two, or leaves no level.
    pub(crate) fn trained(&self, config: &Config) -> Result<(PathBuf, f64, f64), Error> {
        let wrong = |reason: String| Err(Error::Data(reason));
        let train = &config.train;
        let (part, from, to) = match (self.has_two(), train.experts) {
            (false, None) => ("transformer", 0.0, 1.0),
            (false, Some(_)) => {
                return wrong(format!(
                    "`train.experts`: `{}` has one transformer; drop the key",
                    self.path.display()
                ));
            }
            (true, None) => {
                return wrong(format!(
                    "`{}` has two experts, each of which gets a LoRA of its own: set `train.experts` to \
                     `high` (layout and motion) or `low` (details), and train the other in another run",
                    self.path.display()
                ));
            }
            (true, Some(expert)) => {
                let boundary = config.model.boundary_ratio.or(self.boundary);
                let Some(boundary) = boundary else {
                    return wrong(format!(
                        "`{}` says no `boundary_ratio`: set `model.boundary_ratio` (0.875 for text to \
                         video, 0.9 for image to video)",
                        self.path.join("model_index.json").display()
                    ));
                };
                match expert {
                    Experts::High => ("transformer", boundary, 1.0),
                    Experts::Low => ("transformer_2", 0.0, boundary),
                }
            }
        };
        if config.model.boundary_ratio.is_some() && !self.has_two() {
            return wrong(
                "`model.boundary_ratio`: this model has one transformer; drop the key".into(),
            );
        }
        let low = train.min_sigma.unwrap_or(0.0).max(from);
        let high = train.max_sigma.unwrap_or(1.0).min(to);
        if low >= high {
            return wrong(format!(
                "`train.min_sigma` and `train.max_sigma` leave no level of noise of this expert, which \
                 sees {from} to {to}"
            ));
        }
        Ok((self.path.join(part), low, high))
    }
}
