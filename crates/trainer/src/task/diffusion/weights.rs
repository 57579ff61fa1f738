//! Weights of the loss by the signal-to-noise ratio, for models that are noised by steps: `train.min_snr_gamma` (Hang et al.,
//! 2023) and `train.debiased_estimation_loss` (Yu et al., 2023), as in kohya's sd-scripts; and the errors that they weigh.

use std::path::Path;

use models::diffusion::{
    Conditions, Denoiser, Diffusion, FIRST_FRAME, GUIDANCE, Noise, Objective, Prediction,
};
use models::model::Pass;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::config::{Config, TrainConfig};

/// The largest ratio for debiased weights.
const LARGEST: f64 = 1000.0;

/// The key that asks for weights.
fn asked(train: &TrainConfig) -> Option<&'static str> {
    let debiased = train
        .debiased_estimation_loss
        .then_some("debiased_estimation_loss");
    train.min_snr_gamma.map(|_| "min_snr_gamma").or(debiased)
}

/// Refuses weights for a model that has no such steps.
pub(super) fn check(train: &TrainConfig, model: &dyn Diffusion, path: &Path) -> Result<(), Error> {
    match (asked(train), model.objective().noise) {
        (Some(key), Noise::Line) => Err(Error::Data(format!(
            "`train.{key}` weighs the loss of models that are noised by steps, such as Stable Diffusion; `{}` is trained by flow \
             matching: remove the key",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// The weight of each of the noise levels `[rows]`, beside them; `None` without weights.
pub(super) fn weights(
    train: &TrainConfig,
    objective: &Objective,
    levels: &Tensor,
) -> Result<Option<Tensor>, Error> {
    if asked(train).is_none() {
        return Ok(None);
    }
    let list = Vec::<f32>::try_from(&levels.f_to_kind(Kind::Float)?.f_to_device(Device::Cpu)?)?;
    let list = list
        .into_iter()
        .map(|level| weight(train, objective, level.into()) as f32);
    let list = Tensor::f_from_slice(&list.collect::<Vec<_>>())?;
    Ok(Some(list.f_to_device(levels.device())?))
}

fn weight(train: &TrainConfig, objective: &Objective, level: f64) -> f64 {
    let (signal, noise) = objective.rates(level);
    let ratio = (signal / noise).powi(2);
    let is_v = objective.prediction == Prediction::V;
    let mut weight = 1.0;
    if let Some(gamma) = train.min_snr_gamma {
        // Of a step that is noise alone, noise is predicted with the weight 1.
        weight *= match is_v {
            true => ratio.min(gamma) / (ratio + 1.0),
            false => (gamma / ratio).min(1.0),
        };
    }
    if train.debiased_estimation_loss {
        let ratio = ratio.min(LARGEST);
        weight /= if is_v { ratio + 1.0 } else { ratio.sqrt() };
    }
    weight
}

/// The squared errors, `[rows, channels, frames, height, width]`, of what `denoiser` makes of clean latents, noise and noise levels.
pub(super) fn squares(
    config: &Config,
    (model, denoiser): (&dyn Diffusion, &dyn Denoiser),
    [clean, noise, sigma]: [&Tensor; 3],
    mut conditions: Conditions,
    pass: Pass,
) -> Result<Tensor, Error> {
    let frames = clean.size5()?.2;
    let given = config.data.image_to_video == Some(true) && frames > 1;
    if given {
        conditions.insert(FIRST_FRAME, clean.f_narrow(2, 0, 1)?);
    }
    if let Some(scale) = config.train.guidance_scale {
        conditions.insert(GUIDANCE, Tensor::f_full_like(sigma, scale)?);
    }
    let objective = model.objective();
    let noisy = objective.noisy(clean, noise, sigma)?;
    let times = objective.times(sigma)?;
    let prediction = denoiser.predict(&noisy, &times, &conditions, pass)?;
    let mut apart = prediction.f_sub(&objective.target(clean, noise, sigma)?)?;
    if given {
        apart = apart.f_narrow(2, 1, frames - 1)?;
    }
    Ok(apart.f_square()?)
}

/// The mean of each clip, `[rows]`.
pub(super) fn means(squares: &Tensor) -> Result<Tensor, Error> {
    Ok(squares.f_mean_dim([1, 2, 3, 4].as_slice(), false, Kind::Float)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ratios of diffusers' `compute_snr` for the schedule of SDXL, and sd-scripts' formulas.
    #[test]
    fn weights_are_those_of_sd_scripts() {
        let steps = [0, 99, 499, 999];
        for (prediction, min_snr, debiased) in [
            (
                Prediction::Epsilon,
                [0.004_253_7, 0.583_707_0, 1.0, 1.0],
                [0.031_622_8, 0.341_674_4, 1.612_887_1, 14.614_648_2],
            ),
            (
                Prediction::V,
                [0.004_250_1, 0.522_687_7, 0.277_669_4, 0.004_660_1],
                [0.000_999_0, 0.104_537_5, 0.722_330_6, 0.995_339_9],
            ),
        ] {
            let objective = Objective::scaled_linear(0.00085, 0.012, prediction);
            let levels = steps.map(|step| (f64::from(step + 1) / 1000.0) as f32);
            let levels = Tensor::from_slice(&levels);
            let mut train = TrainConfig::default();
            assert!(weights(&train, &objective, &levels).unwrap().is_none());
            train.min_snr_gamma = Some(5.0);
            let both = |train: &TrainConfig| {
                let found = weights(train, &objective, &levels).unwrap().unwrap();
                Vec::<f64>::try_from(&found.to_kind(Kind::Double)).unwrap()
            };
            let near = |found: &[f64], wanted: &[f64]| {
                let mut pairs = found.iter().zip(wanted);
                pairs.all(|(found, wanted)| (found / wanted - 1.0).abs() < 1e-3)
            };
            assert!(near(&both(&train), &min_snr), "{prediction:?}");
            train.min_snr_gamma = None;
            train.debiased_estimation_loss = true;
            assert!(near(&both(&train), &debiased), "{prediction:?}");
            train.min_snr_gamma = Some(5.0);
            let products: Vec<f64> = min_snr
                .iter()
                .zip(debiased)
                .map(|(one, other)| one * other)
                .collect();
            assert!(near(&both(&train), &products), "{prediction:?}");
        }
    }
}
