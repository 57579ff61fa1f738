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

    /// The same with a last step that is noise alone (zero terminal SNR): roots of the squared signal rates are moved and
    /// scaled so that the first stays and the last is 0.
    pub fn ending_in_noise(mut self) -> Self {
        if let Noise::Steps(signals) = &mut self.noise
            && let (Some(first), Some(last)) = (signals.first().copied(), signals.last().copied())
        {
            let (first, last) = (first.sqrt(), last.sqrt());
            for signal in signals.iter_mut() {
                *signal = ((signal.sqrt() - last) * first / (first - last)).powi(2);
            }
        }
        self
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

    /// The same at levels between two steps, from one noise-to-signal ratio to the next on a straight line; the signal
    /// never vanishes, so that whatever is predicted says something of it. This is what samplers in diffusers do.
    pub(crate) fn rates_between(&self, level: f64) -> (f64, f64) {
        /// The smallest squared signal rate.
        const LEAST: f64 = 1.0 / (1 << 24) as f64;
        let Noise::Steps(signals) = &self.noise else {
            return self.rates(level);
        };
        if level <= 0.0 {
            return (1.0, 0.0);
        }
        let ratio = |step: usize| {
            let signal = signals.get(step).or(signals.last());
            let signal = signal.copied().unwrap_or(1.0).max(LEAST);
            ((1.0 - signal) / signal).sqrt()
        };
        let step = (level * signals.len() as f64 - 1.0).max(0.0);
        // Levels are single precision.
        let (below, part) = match (step - step.round()).abs() {
            ..1e-3 => (step.round(), 0.0),
            _ => (step.floor(), step.fract()),
        };
        let below = below as usize;
        let ratio = ratio(below) * (1.0 - part) + ratio(below + 1) * part;
        let length = ratio.hypot(1.0);
        (1.0 / length, ratio / length)
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
        self.split_at(prediction, sample, self.rates(level))
    }

    /// The same at these rates.
    pub(crate) fn split_at(
        &self,
        prediction: &Tensor,
        sample: &Tensor,
        (signal, rate): (f64, f64),
    ) -> Result<(Tensor, Tensor), Error> {
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

    #[test]
    fn the_last_step_may_be_noise_alone() {
        let plain = Objective::scaled_linear(0.00085, 0.012, Prediction::V);
        let objective = plain.clone().ending_in_noise();
        assert_eq!(objective.rates(1.0), (0.0, 1.0));
        let apart = objective.rates(0.001).0 - plain.rates(0.001).0;
        assert!(apart.abs() < 1e-12, "{apart}");
        let rates = |level: f64| (objective.rates(level).0, objective.rates_between(level).0);
        // On the steps they are alike; only the last one keeps a trace of signal.
        let (exact, between) = rates(0.5);
        assert!(
            (exact - between).abs() < 1e-9 && exact > 0.0,
            "{exact}, {between}"
        );
        assert!(rates(1.0).1 > 0.0 && rates(1.0).1 < 3e-4);
        let [low, middle, high] = [0.5, 0.5005, 0.501].map(|level| rates(level).1);
        assert!(low > middle && middle > high, "{low}, {middle}, {high}");
        assert_eq!(objective.rates_between(0.0), (1.0, 0.0));
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
