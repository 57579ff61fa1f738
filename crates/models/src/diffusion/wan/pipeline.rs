//! Sampling: from noise, a prompt and optionally an image to latents, like diffusers' `WanPipeline` and
//! `WanImageToVideoPipeline`.
//!
//! ```text
//! noise ─▶ ┌ velocity for the prompt ─▶ guidance away from the negative prompt ─▶ step ┐ × steps ─▶ latents
//!          └ high-noise expert down to the boundary, then the low-noise expert ───────┘
//! ```

#[cfg(test)]
mod tests;

use tch::{Device, Kind, Tensor};

use super::autoencoder::{Autoencoder, FRAMES_PER_LATENT, Tiling};
use super::transformer::{Timesteps, Transformer};
use crate::Error;
use crate::diffusion::lora::Expert;
use crate::diffusion::parts::schedule::{Sampler, Schedule, Scheduler};
use crate::model::Pass;

/// The highest timestep, which boundaries are fractions of.
const TRAIN_STEPS: f64 = 1000.0;

/// Sampling settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// The solver.
    pub scheduler: Scheduler,
    /// Number of steps.
    pub steps: usize,
    /// Shift of the steps towards noise.
    pub flow_shift: f64,
    /// Guidance scale; up to 1, the negative prompt is not evaluated.
    pub guidance_scale: f64,
    /// The same for the low-noise expert; `None` for the same value.
    pub guidance_scale_2: Option<f64>,
    /// The fraction of the highest timestep below which the low-noise expert is used; `None` with a single
    /// transformer.
    pub boundary_ratio: Option<f64>,
}

impl Sampling {
    /// Whether the negative prompt is evaluated.
    pub fn is_guided(&self) -> bool {
        self.guidance_scale > 1.0
    }

    /// The expert for the timestep `time`.
    pub fn expert(&self, time: f32) -> Expert {
        let boundary = self.boundary_ratio.map(|ratio| ratio * TRAIN_STEPS);
        match boundary {
            Some(boundary) if f64::from(time) < boundary => Expert::Low,
            _ => Expert::High,
        }
    }

    fn guidance(&self, expert: Expert) -> f64 {
        match expert {
            Expert::High => self.guidance_scale,
            Expert::Low => self.guidance_scale_2.unwrap_or(self.guidance_scale),
        }
    }
}

/// Inputs of a video besides the noise.
#[derive(Debug)]
pub struct Conditions {
    /// `[1, 512, text width]`
    pub text: Tensor,
    /// `[1, 512, text width]`; may be `None` without guidance.
    pub negative: Option<Tensor>,
    /// The first frame of the video.
    pub image: Option<ImageCondition>,
}

/// An image as input of the models.
#[derive(Debug)]
pub enum ImageCondition {
    /// `[1, 4 + channels, frames, height, width]`: additional channels beside the latents.
    Channels(Tensor),
    /// `[1, channels, 1, height, width]`: replaces the first latent frame (TI2V-5B).
    FirstFrame(Tensor),
}

impl ImageCondition {
    /// A second handle to the same tensor.
    pub fn shallow_clone(&self) -> Self {
        match self {
            Self::Channels(channels) => Self::Channels(channels.shallow_clone()),
            Self::FirstFrame(frame) => Self::FirstFrame(frame.shallow_clone()),
        }
    }

    /// The channels for a video of `frames` frames that starts with `picture` `[3, height, width]`, with
    /// values from −1 to 1: a mask of the known frames, and the latents of a video that is grey after the
    /// first frame.
    ///
    /// # Errors
    /// If the number of frames is not 4 n + 1, the picture size does not fit the autoencoder, or memory runs
    /// out.
    pub fn channels(
        autoencoder: &Autoencoder,
        picture: &Tensor,
        frames: i64,
        tiling: Option<Tiling>,
    ) -> Result<Self, Error> {
        let (channels, height, width) = picture.size3()?;
        let mut encoding = autoencoder.encoding(height, width, tiling)?;
        let mut latents = encoding.push(&picture.f_unsqueeze(0)?)?;
        let mut left = frames - 1;
        while left > 0 {
            let count = left.min(FRAMES_PER_LATENT);
            let grey =
                Tensor::f_zeros([count, channels, height, width], (Kind::Float, Device::Cpu))?;
            latents.extend(encoding.push(&grey)?);
            left -= count;
        }
        encoding.finish()?;
        let latents = Tensor::f_stack(&latents, 1)?.f_unsqueeze(0)?;
        let (_, _, count, height, width) = latents.size5()?;
        let size = [1, FRAMES_PER_LATENT, count, height, width];
        let mut known = Tensor::f_zeros(size, (Kind::Float, latents.device()))?;
        let _ = known.f_narrow(2, 0, 1)?.f_fill_(1.0)?;
        known = Tensor::f_cat(&[known, latents], 1)?;
        Ok(Self::Channels(known))
    }

    /// The first latent frame for a video that starts with `picture` `[3, height, width]`, with values from
    /// −1 to 1.
    ///
    /// # Errors
    /// If the picture size does not fit the autoencoder, or memory runs out.
    pub fn first_frame(
        autoencoder: &Autoencoder,
        picture: &Tensor,
        tiling: Option<Tiling>,
    ) -> Result<Self, Error> {
        let latents = autoencoder.encode(&picture.f_unsqueeze(0)?, tiling)?;
        Ok(Self::FirstFrame(latents.f_unsqueeze(0)?))
    }
}

/// The transformers of a run. One is used at a time: first the high-noise expert, then the low-noise one,
/// once each.
pub trait Experts {
    /// The transformer for `expert`.
    ///
    /// # Errors
    /// If it cannot be read, or memory runs out.
    fn transformer(&mut self, expert: Expert) -> Result<&Transformer, Error>;
}

/// Samples latents `[1, channels, frames, height, width]` fp32 from noise of this shape. `on_step` is called
/// after each step.
///
/// # Errors
/// If settings, conditions and model do not match, the result is not finite, or memory runs out.
pub fn sample(
    experts: &mut dyn Experts,
    noise: &Tensor,
    conditions: &Conditions,
    settings: &Sampling,
    on_step: &mut dyn FnMut(usize),
) -> Result<Tensor, Error> {
    let mut video = SamplingState::new(noise, conditions, settings)?;
    let mut step = 0;
    while let Some(expert) = video.expert() {
        video.step(experts.transformer(expert)?)?;
        step += 1;
        on_step(step);
    }
    video.finish()
}

/// A video between two steps, so that several videos can take an expert's steps before the next expert is
/// loaded.
#[derive(Debug)]
pub struct SamplingState<'a> {
    sampler: Sampler,
    latents: Tensor,
    conditions: &'a Conditions,
    settings: &'a Sampling,
}

impl<'a> SamplingState<'a> {
    /// Starts from noise `[1, channels, frames, height, width]`.
    ///
    /// # Errors
    /// If settings and conditions do not match.
    pub fn new(
        noise: &Tensor,
        conditions: &'a Conditions,
        settings: &'a Sampling,
    ) -> Result<Self, Error> {
        if settings.is_guided() && conditions.negative.is_none() {
            return Err(Error::Invalid(
                "guidance above 1 needs a negative prompt, which may be empty".into(),
            ));
        }
        let schedule = Schedule::new(settings.scheduler, settings.steps, settings.flow_shift)?;
        Ok(Self {
            sampler: Sampler::new(settings.scheduler, schedule),
            latents: noise.f_to_kind(Kind::Float)?,
            conditions,
            settings,
        })
    }

    /// The expert for the next step; `None` after the last.
    pub fn expert(&self) -> Option<Expert> {
        let time = self.sampler.timestep();
        time.map(|time| self.settings.expert(time))
    }

    /// Takes a step; does nothing after the last.
    ///
    /// # Errors
    /// If the conditions do not match the model, or memory runs out.
    pub fn step(&mut self, transformer: &Transformer) -> Result<(), Error> {
        let _guard = tch::no_grad_guard();
        let Some(time) = self.sampler.timestep() else {
            return Ok(());
        };
        let latents = &self.latents;
        let times = Tensor::f_from_slice(&[time])?;
        let (input, times) = match &self.conditions.image {
            None => (latents.shallow_clone(), Timesteps::Uniform(times)),
            Some(ImageCondition::Channels(channels)) => (
                Tensor::f_cat(&[latents, channels], 1)?,
                Timesteps::Uniform(times),
            ),
            Some(ImageCondition::FirstFrame(frame)) => {
                let first = times.f_zeros_like()?;
                let others = times;
                (
                    with_first(latents, frame)?,
                    Timesteps::FirstFrame { first, others },
                )
            }
        };
        let ask = |text| transformer.velocity(&input, &times, text, Pass::Evaluate);
        let mut velocity = ask(&self.conditions.text)?;
        if let Some(negative) = &self.conditions.negative
            && self.settings.is_guided()
        {
            let away = ask(negative)?;
            let guided = velocity.f_sub(&away)?;
            let scale = self.settings.guidance(self.settings.expert(time));
            velocity = away.f_add(&guided.f_mul_scalar(scale)?)?;
        }
        self.latents = self.sampler.step(&velocity, latents)?;
        Ok(())
    }

    /// The latents `[1, channels, frames, height, width]` fp32.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn finish(self) -> Result<Tensor, Error> {
        let latents = match &self.conditions.image {
            Some(ImageCondition::FirstFrame(frame)) => with_first(&self.latents, frame)?,
            _ => self.latents,
        };
        let is_finite = latents.f_isfinite()?.f_all()?.f_int64_value(&[])? == 1;
        match is_finite {
            true => Ok(latents),
            false => Err(Error::Invalid(
                "the latents have NaN or infinite values: with these settings the model diverges"
                    .into(),
            )),
        }
    }
}

/// `latents` with the first frame replaced by `frame`.
fn with_first(latents: &Tensor, frame: &Tensor) -> Result<Tensor, Error> {
    let count = latents.size5()?.2;
    let rest = latents.f_narrow(2, 1, count - 1)?;
    Ok(Tensor::f_cat(&[frame, &rest], 2)?)
}
