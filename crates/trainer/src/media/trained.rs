//! Which transformers of a Wan model a run trains, and on which noise levels.

use std::path::PathBuf;

use models::diffusion::lora::Expert;
use models::diffusion::wan::model::WanModel;

use crate::Error;
use crate::config::{Config, Experts};

/// A transformer that is trained.
#[derive(Debug, Clone)]
pub(crate) struct TrainedPart {
    /// Which of two experts it is; `None` if there is only one.
    pub(crate) expert: Option<Expert>,
    /// Its folder or file.
    pub(crate) path: PathBuf,
    /// The lowest and the highest noise level that it is trained on.
    pub(crate) range: (f64, f64),
}

/// The trained transformers, the high-noise expert first.
///
/// # Errors
/// If the config names experts that do not exist, or leaves one without levels.
pub(crate) fn trained_parts(model: &WanModel, config: &Config) -> Result<Vec<TrainedPart>, Error> {
    let train = &config.train;
    if !model.has_low_noise() {
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
                "`{key}`: `{}` has one transformer; remove the key",
                model.path.display()
            )));
        }
        if model.may_lack_an_expert() && train.min_sigma.is_none() && train.max_sigma.is_none() {
            return Err(Error::Data(format!(
                "`{}` is the one transformer of Wan 2.1 14B or one of the two of Wan 2.2 A14B, which look alike in a \
                 single file: name the expert of low noise as `model.transformer_2`, or say which levels of noise \
                 this one learns, `train.min_sigma` and `train.max_sigma` (0 and 1 for Wan 2.1; above or below 0.875 \
                 for an expert, 0.9 for image to video)",
                model.path.display()
            )));
        }
        return Ok(vec![part(model, config, None, (0.0, 1.0))?]);
    }
    let boundary = boundary(model, config)?;
    let high = || part(model, config, Some(Expert::High), (boundary, 1.0));
    let low = || part(model, config, Some(Expert::Low), (0.0, boundary));
    Ok(match train.experts {
        Some(Experts::High) => vec![high()?],
        Some(Experts::Low) => vec![low()?],
        Some(Experts::Both) | None => vec![high()?, low()?],
    })
}

/// The noise level above which the first of two transformers is used.
///
/// # Errors
/// If neither the model nor the config sets it.
pub(crate) fn boundary(model: &WanModel, config: &Config) -> Result<f64, Error> {
    let boundary = config.model.boundary_ratio.or(model.boundary_ratio);
    boundary.ok_or_else(|| {
        Error::Data(format!(
            "`{}` says no `boundary_ratio`: set `model.boundary_ratio` (0.875 for text to video, 0.9 for image \
             to video)",
            model.path.join("model_index.json").display()
        ))
    })
}

/// A transformer for the levels `from` to `to`, within the limits in the config.
fn part(
    model: &WanModel,
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
            "`train.min_sigma` and `train.max_sigma` leave no noise level for {which}, which covers {from} to {to}"
        )));
    }
    Ok(TrainedPart {
        expert,
        path: model
            .transformer_path(expert.unwrap_or(Expert::High))
            .to_owned(),
        range: (low, high),
    })
}
