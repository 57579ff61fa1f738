//! Sampling: from noise, a prompt and other conditions to latents, as diffusers' pipelines do.
//!
//! ```text
//! noise ─▶ ┌ prediction for the prompt ─▶ guidance away from the negative prompt ─▶ step ┐ × steps ─▶ latents
//!          └ high-noise expert down to the boundary, then the low-noise expert ───────┘
//! ```

use tch::{Kind, Tensor};

use super::objective::TRAIN_STEPS;
use super::parts::schedule::{Sampler, Schedule, Scheduler};
use super::{Conditions, Denoiser, Expert, FIRST_FRAME, GUIDANCE, Objective};
use crate::Error;
use crate::model::Pass;

/// Sampling settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// How the model is noised, and what it predicts.
    pub objective: Objective,
    /// The solver.
    pub scheduler: Scheduler,
    /// Number of steps.
    pub steps: usize,
    /// Shift of the steps towards noise.
    pub flow_shift: f64,
    /// Guidance scale; up to 1, the negative prompt is not evaluated.
    pub guidance_scale: f64,
    /// Whether the denoiser is told that; the negative prompt is then never evaluated.
    pub is_guidance_told: bool,
    /// The same for the low-noise expert; `None` for the same value.
    pub guidance_scale_2: Option<f64>,
    /// The fraction of the highest timestep below which the low-noise expert is used; `None` with a single
    /// transformer.
    pub boundary_ratio: Option<f64>,
}

impl Sampling {
    /// Whether the negative prompt is evaluated.
    pub fn is_guided(&self) -> bool {
        self.guidance_scale > 1.0 && !self.is_guidance_told
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

/// What a sample is made of besides the noise, with a batch dimension.
#[derive(Debug)]
pub struct Guided {
    /// The prompt and everything else.
    pub positive: Conditions,
    /// The same with the negative prompt; may be `None` without guidance.
    pub negative: Option<Conditions>,
}

/// The denoisers of a run. One is used at a time: first the high-noise expert, then the low-noise one,
/// once each.
pub trait Experts {
    /// The denoiser for `expert`.
    ///
    /// # Errors
    /// If it cannot be read, or memory runs out.
    fn denoiser(&mut self, expert: Expert) -> Result<&dyn Denoiser, Error>;
}

/// Samples latents `[1, channels, frames, height, width]` fp32 from noise of this shape. `on_step` is called
/// after each step.
///
/// # Errors
/// If settings, conditions and model do not match, the result is not finite, or memory runs out.
pub fn sample(
    experts: &mut dyn Experts,
    noise: &Tensor,
    conditions: &Guided,
    settings: &Sampling,
    on_step: &mut dyn FnMut(usize),
) -> Result<Tensor, Error> {
    let mut video = SamplingState::new(noise, conditions, settings)?;
    let mut step = 0;
    while let Some(expert) = video.expert() {
        video.step(experts.denoiser(expert)?)?;
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
    conditions: &'a Guided,
    settings: &'a Sampling,
}

impl<'a> SamplingState<'a> {
    /// Starts from noise `[1, channels, frames, height, width]`.
    ///
    /// # Errors
    /// If settings and conditions do not match.
    pub fn new(
        noise: &Tensor,
        conditions: &'a Guided,
        settings: &'a Sampling,
    ) -> Result<Self, Error> {
        if settings.is_guided() && conditions.negative.is_none() {
            return Err(Error::Invalid(
                "guidance above 1 needs a negative prompt, which may be empty".into(),
            ));
        }
        let objective = &settings.objective;
        let (solver, steps) = (settings.scheduler, settings.steps);
        let schedule = Schedule::new(solver, objective, steps, settings.flow_shift)?;
        let sampler = Sampler::new(solver, objective.clone(), schedule);
        Ok(Self {
            latents: sampler.start(&noise.f_to_kind(Kind::Float)?)?,
            sampler,
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
    pub fn step(&mut self, denoiser: &dyn Denoiser) -> Result<(), Error> {
        let _guard = tch::no_grad_guard();
        let Some(time) = self.sampler.timestep() else {
            return Ok(());
        };
        let latents = &self.latents;
        let times = Tensor::f_from_slice(&[time])?.f_to_device(latents.device())?;
        let ask = |conditions| denoiser.predict(latents, &times, conditions, Pass::Evaluate);
        let mut prompt = self.conditions.positive.shallow_clone();
        if self.settings.is_guidance_told {
            let scale = Tensor::f_full_like(&times, self.settings.guidance_scale)?;
            prompt.insert(GUIDANCE, scale);
        }
        let mut prediction = ask(&prompt)?;
        if let Some(negative) = &self.conditions.negative
            && self.settings.is_guided()
        {
            let away = ask(negative)?;
            let scale = self.settings.guidance(self.settings.expert(time));
            prediction = denoiser.guided(&prediction, &away, scale)?;
        }
        self.latents = self.sampler.step(&prediction, latents)?;
        Ok(())
    }

    /// The latents `[1, channels, frames, height, width]` fp32.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn finish(self) -> Result<Tensor, Error> {
        let latents = match self.conditions.positive.find(FIRST_FRAME) {
            Some(frame) => {
                let (given, all) = (frame.size5()?.2, self.latents.size5()?.2);
                let rest = self.latents.f_narrow(2, given, all - given)?;
                Tensor::f_cat(&[frame, &rest], 2)?
            }
            None => self.latents,
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
