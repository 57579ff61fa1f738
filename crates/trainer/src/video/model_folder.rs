//! A Wan model as diffusers saves it: which parts there are, and how they are used.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Error;
use crate::config::{Config, Experts};
use models::wan::lora::Expert;

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

/// A transformer that is trained.
#[derive(Debug, Clone)]
pub(crate) struct TrainedPart {
    /// Which of two it is, where there are two.
    pub(crate) expert: Option<Expert>,
    /// Its folder.
    pub(crate) path: PathBuf,
    /// The lowest and the highest level of noise that it learns.
    pub(crate) range: (f64, f64),
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

    /// The transformers that are trained, that of high noise first.
    ///
    /// # Errors
    /// When the config names experts that there are not, or leaves one no level.
    pub(crate) fn trained(&self, config: &Config) -> Result<Vec<TrainedPart>, Error> {
        let train = &config.train;
        if !self.has_two() {
            let set = [
                ("train.experts", train.experts.is_some()),
                ("train.steps_per_expert", train.steps_per_expert.is_some()),
                (
                    "model.boundary_ratio",
                    config.model.boundary_ratio.is_some(),
                ),
            ];
            if let Some((key, _)) = set.into_iter().find(|(_, set)| *set) {
                return Err(Error::Data(format!(
                    "`{key}`: `{}` has one transformer; drop the key",
                    self.path.display()
                )));
            }
            return Ok(vec![self.part(config, None, (0.0, 1.0))?]);
        }
        let boundary = self.boundary(config)?;
        let high = || self.part(config, Some(Expert::High), (boundary, 1.0));
        let low = || self.part(config, Some(Expert::Low), (0.0, boundary));
        Ok(match train.experts {
            Some(Experts::High) => vec![high()?],
            Some(Experts::Low) => vec![low()?],
            Some(Experts::Both) | None => vec![high()?, low()?],
        })
    }

    /// The level from which on the first of two transformers is used.
    ///
    /// # Errors
    /// When neither the model nor the config says it.
    pub(crate) fn boundary(&self, config: &Config) -> Result<f64, Error> {
        let boundary = config.model.boundary_ratio.or(self.boundary);
        boundary.ok_or_else(|| {
            Error::Data(format!(
                "`{}` says no `boundary_ratio`: set `model.boundary_ratio` (0.875 for text to \
                 video, 0.9 for image to video)",
                self.path.join("model_index.json").display()
            ))
        })
    }

    /// The folder of a transformer.
    pub(crate) fn transformer(&self, expert: Option<Expert>) -> PathBuf {
        self.path.join(match expert {
            Some(Expert::Low) => "transformer_2",
            _ => "transformer",
        })
    }

    /// A transformer that sees the levels `from` to `to`, as far as the config leaves them to it.
    fn part(
        &self,
        config: &Config,
        expert: Option<Expert>,
        (from, to): (f64, f64),
    ) -> Result<TrainedPart, Error> {
        let low = config.train.min_sigma.unwrap_or(0.0).max(from);
        let high = config.train.max_sigma.unwrap_or(1.0).min(to);
        if low >= high {
            let which = match expert {
                None => "the model",
                Some(Expert::High) => "the expert of high noise",
                Some(Expert::Low) => "the expert of low noise",
            };
            return Err(Error::Data(format!(
                "`train.min_sigma` and `train.max_sigma` leave no level of noise of {which}, which \
                 sees {from} to {to}"
            )));
        }
        Ok(TrainedPart {
            expert,
            path: self.transformer(expert),
            range: (low, high),
        })
    }
}
