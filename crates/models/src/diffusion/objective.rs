//! How latents are noised, and what a denoiser predicts.
//!
//! At noise level σ, from 0 (clean) to 1, a sample is `signal(σ) · clean + rate(σ) · noise`.

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::tensor::to_kind;

/// Number of noise levels that models were trained with.
pub(crate) const TRAIN_STEPS: f64 = 1000.0;

/// How much of a sample is noise.
#[derive(Debug, Clone, PartialEq)]
pub enum Noise {
    /// On a straight line: `(1 − σ) · clean + σ · noise`, at time 1000 σ.
    Line,
    /// By steps as in DDPM: at step t = ⌈1000 σ⌉ − 1 the squared signal rate is the t-th of these numbers. The time
    /// is t.
    Steps(Vec<f64>),
}

/// What a denoiser predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prediction {
    /// The noise less the clean sample.
    Flow,
    /// The noise.
    Epsilon,
    /// `signal · noise − rate · clean`.
    V,
}

/// How a model is noised, and what it predicts.
#[derive(Debug, Clone, PartialEq)]
pub struct Objective {
    /// How much of a sample is noise.
    pub noise: Noise,
    /// What the denoiser predicts.
    pub prediction: Prediction,
}

impl Objective {
    /// Flow matching.
    pub const FLOW: Self = Self {
        noise: Noise::Line,
        prediction: Prediction::Flow,
    };

    /// DDPM with betas whose roots are evenly spaced from `start` to `end`, as in Stable Diffusion.
    pub fn scaled_linear(start: f64, end: f64, prediction: Prediction) -> Self {
        let (start, end) = (start.sqrt(), end.sqrt());
        let mut signal = 1.0;
        let steps = (0..TRAIN_STEPS as usize).map(|step| {
            let root = start + (end - start) * step as f64 / (TRAIN_STEPS - 1.0);
            signal *= 1.0 - root * root;
            signal
        });
        Self {
            noise: Noise::Steps(steps.collect()),
            prediction,
        }
    }

    /// The step of a DDPM level; `None` for a clean sample.
    fn step(level: f64, count: usize) -> Option<usize> {
        // Levels are single precision: 0.333 · 1000 must not be in the step after.
        let step = (level * count as f64 - 1e-3).ceil() as i64 - 1;
        (level > 0.0).then(|| step.clamp(0, count as i64 - 1) as usize)
    }

    /// The signal rate and the noise rate at level `level`.
    pub fn rates(&self, level: f64) -> (f64, f64) {
        match &self.noise {
            Noise::Line => (1.0 - level, level),
            Noise::Steps(signals) => {
                let signal = Self::step(level, signals.len()).map_or(1.0, |step| signals[step]);
                (signal.sqrt(), (1.0 - signal).sqrt())
            }
        }
    }

    /// The time that a denoiser is told at each of the levels `[batch]`.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn times(&self, levels: &Tensor) -> Result<Tensor, Error> {
        let levels = to_kind(levels, Kind::Float)?;
        match &self.noise {
            Noise::Line => Ok(levels.f_mul_scalar(TRAIN_STEPS)?),
            Noise::Steps(signals) => {
                let count = signals.len();
                each(&levels, |level| {
                    Self::step(level, count).unwrap_or(0) as f64
                })
            }
        }
    }

    /// The rates of each row of a batch like `latents`, in its dimensions.
    fn rows(&self, levels: &Tensor, latents: &Tensor) -> Result<(Tensor, Tensor), Error> {
        let levels = to_kind(levels, Kind::Float)?;
        let mut shape = vec![1; latents.dim()];
        shape[0] = -1;
        let (signal, noise) = match &self.noise {
            Noise::Line => (levels.f_neg()?.f_add_scalar(1.0)?, levels),
            Noise::Steps(_) => (
                each(&levels, |level| self.rates(level).0)?,
                each(&levels, |level| self.rates(level).1)?,
            ),
        };
        Ok((signal.f_view(&*shape)?, noise.f_view(&*shape)?))
    }

    /// `clean` with `noise` at the levels `[batch]`.
    ///
    /// # Errors
    /// If shapes do not match, or memory runs out.
    pub fn noisy(&self, clean: &Tensor, noise: &Tensor, levels: &Tensor) -> Result<Tensor, Error> {
        let (signal, rate) = self.rows(levels, clean)?;
        Ok(clean.f_mul(&signal)?.f_add(&noise.f_mul(&rate)?)?)
    }

    /// What a denoiser should predict.
    ///
    /// # Errors
    /// If shapes do not match, or memory runs out.
    pub fn target(&self, clean: &Tensor, noise: &Tensor, levels: &Tensor) -> Result<Tensor, Error> {
        match self.prediction {
            Prediction::Flow => Ok(noise.f_sub(clean)?),
            Prediction::Epsilon => Ok(noise.shallow_clone()),
            Prediction::V => {
                let (signal, rate) = self.rows(levels, clean)?;
                Ok(noise.f_mul(&signal)?.f_sub(&clean.f_mul(&rate)?)?)
            }
        }
    }

    /// The clean sample and the noise that `prediction` says are in `sample` at `level`.
    ///
    /// # Errors
    /// If shapes do not match, or memory runs out.
    pub fn split(
        &self,
        prediction: &Tensor,
        sample: &Tensor,
        level: f64,
    ) -> Result<(Tensor, Tensor), Error> {
        let (signal, rate) = self.rates(level);
        let sum = |a: (&Tensor, f64), b: (&Tensor, f64)| -> Result<Tensor, Error> {
            Ok(a.0.f_mul_scalar(a.1)?.f_add(&b.0.f_mul_scalar(b.1)?)?)
        };
        let total = signal + rate;
        Ok(match self.prediction {
            Prediction::Flow => (
                sum((sample, 1.0 / total), (prediction, -rate / total))?,
                sum((sample, 1.0 / total), (prediction, signal / total))?,
            ),
            Prediction::Epsilon => (
                sum((sample, 1.0 / signal), (prediction, -rate / signal))?,
                prediction.shallow_clone(),
            ),
            Prediction::V => (
                sum((sample, signal), (prediction, -rate))?,
                sum((sample, rate), (prediction, signal))?,
            ),
        })
    }
}

/// `map` of each level, `[batch]` in fp32 on the same device.
fn each(levels: &Tensor, map: impl Fn(f64) -> f64) -> Result<Tensor, Error> {
    let list = Vec::<f32>::try_from(&levels.f_to_device(Device::Cpu)?)?;
    let list: Vec<f32> = list
        .into_iter()
        .map(|level| map(level.into()) as f32)
        .collect();
    Ok(Tensor::f_from_slice(&list)?.f_to_device(levels.device())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(a: &Tensor, b: &Tensor) -> f64 {
        f64::try_from((a - b).abs().max()).unwrap()
    }

    /// What is noised and predicted exactly is split into what it was.
    #[test]
    fn a_target_tells_the_clean_sample_and_the_noise() {
        let options = (Kind::Float, Device::Cpu);
        let (clean, noise) = (
            Tensor::randn([2, 3, 1, 4, 4], options),
            Tensor::randn([2, 3, 1, 4, 4], options),
        );
        let objectives = [
            Objective::FLOW,
            Objective::scaled_linear(0.00085, 0.012, Prediction::Epsilon),
            Objective::scaled_linear(0.00085, 0.012, Prediction::V),
        ];
        for objective in objectives {
            for level in [0.1, 0.5, 0.9] {
                let levels = Tensor::from_slice(&[level as f32; 2]);
                let noisy = objective.noisy(&clean, &noise, &levels).unwrap();
                let target = objective.target(&clean, &noise, &levels).unwrap();
                let (found, left) = objective.split(&target, &noisy, level).unwrap();
                let most = apart(&found, &clean).max(apart(&left, &noise));
                assert!(most < 1e-4, "{:?} at {level}: {most}", objective.prediction);
            }
        }
    }

    /// Stable Diffusion's numbers: √ᾱ of the first and the last step.
    #[test]
    fn steps_of_ddpm_are_those_of_stable_diffusion() {
        let objective = Objective::scaled_linear(0.00085, 0.012, Prediction::Epsilon);
        let (first, last) = (objective.rates(0.001).0, objective.rates(1.0).0);
        assert!((first.powi(2) - 0.99915).abs() < 1e-9, "{first}");
        assert!((last.powi(2) - 0.004_660).abs() < 1e-5, "{last}");
        let levels = Tensor::from_slice(&[1.0f32, 0.333, 0.0015, 0.001]);
        let times = Vec::<f32>::try_from(objective.times(&levels).unwrap()).unwrap();
        assert_eq!(times, [999.0, 332.0, 1.0, 0.0]);
        assert_eq!(objective.rates(0.0), (1.0, 0.0));
    }
}
