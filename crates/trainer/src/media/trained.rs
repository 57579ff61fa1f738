//! Which denoisers of a model a run trains, and on which noise levels.

use models::diffusion::{Diffusion, Expert};

use crate::Error;
use crate::config::{Config, Experts};

/// A denoiser that is trained.
#[derive(Debug, Clone)]
pub(crate) struct TrainedPart {
    /// Which of two experts it is; `None` if there is only one.
    pub(crate) expert: Option<Expert>,
    /// The lowest and the highest noise level that it is trained on.
    pub(crate) range: (f64, f64),
}

impl TrainedPart {
    /// The denoiser; the only one counts as that for high noise.
    pub(crate) fn which(&self) -> Expert {
        self.expert.unwrap_or(Expert::High)
    }
}

/// The trained denoisers, the high-noise expert first.
///
/// # Errors
/// If the config names experts that do not exist, or leaves one without levels.
pub(crate) fn trained_parts(
    model: &dyn Diffusion,
    config: &Config,
) -> Result<Vec<TrainedPart>, Error> {
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
                model.path().display()
            )));
        }
        if model.is_distilled() && config.model.training_adapter.is_none() {
            tracing::warn!(
                "`{}` is distilled, which training wears off: train on the model that it was made of, and use the LoRA on \
                 either, or name a LoRA that takes it out by `model.training_adapter`",
                model.path().display()
            );
        }
        let levels = train.min_sigma.is_some() || train.max_sigma.is_some();
        if let Some(doubt) = model.doubt().filter(|_| !levels) {
            return Err(Error::Data(doubt.training));
        }
        return Ok(vec![part(config, None, (0.0, 1.0))?]);
    }
    let boundary = boundary(model, config)?;
    let high = || part(config, Some(Expert::High), (boundary, 1.0));
    let low = || part(config, Some(Expert::Low), (0.0, boundary));
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
pub(crate) fn boundary(model: &dyn Diffusion, config: &Config) -> Result<f64, Error> {
    let boundary = config.model.boundary_ratio.or(model.boundary());
    boundary.ok_or_else(|| {
        Error::Data(format!(
            "`{}` says no `boundary_ratio`: set `model.boundary_ratio` (0.875 for text to video, 0.9 for image \
             to video)",
            model.path().join("model_index.json").display()
        ))
    })
}

/// A transformer for the levels `from` to `to`, within the limits in the config.
fn part(
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
        range: (low, high),
    })
}
