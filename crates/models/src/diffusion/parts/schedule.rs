//! From noise to latents: solvers.
//!
//! [`Scheduler::UniPc`] is UniPC of order 2 (Zhao et al., 2023), variant B₂(h), predicting clean samples;
//! [`Scheduler::Euler`] and [`Scheduler::EvenEuler`] are Euler's method. They are for flow models: at noise level σ a sample is
//! (1 − σ) · clean + σ · noise, and the model's velocity is noise − clean. [`Scheduler::Ddim`] is DDIM without
//! noise (Song et al., 2020), for every [`Objective`]; [`Scheduler::Discrete`] is the same at the levels of diffusers'
//! `EulerDiscreteScheduler`, which computes it in other units.

mod by_size;
mod discrete;

use std::path::Path;

use serde_json::{Value, json};
use tch::{Kind, Tensor};

pub use by_size::Shift;
pub use discrete::Spacing;

use crate::Error;
use crate::diffusion::objective::{Objective, TRAIN_STEPS};
use crate::json::Object;
use crate::tensor::to_kind;

/// A solver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scheduler {
    /// Predictor and corrector of order 2.
    UniPc,
    /// Euler's method, at the levels that diffusers' scheduler has by itself.
    Euler,
    /// Euler's method at evenly spaced levels from 1 to one step above 0, which pipelines for pictures pass to it.
    EvenEuler,
    /// The same at levels that are stretched so that the last one is this, if there are several.
    EvenEulerTo(f64),
    /// The same at levels of a beta distribution between the first and the last.
    EvenEulerBeta,
    /// DDIM.
    Ddim,
    /// Euler's method for models that were trained at steps of noise, which is DDIM at steps that are spaced so.
    Discrete(Spacing),
}

/// Keys of a scheduler's config that have one supported value, with the value that diffusers takes without the key.
fn fixed(scheduler: Scheduler) -> Vec<(&'static str, Value, Value)> {
    let same = [
        ("num_train_timesteps", json!(TRAIN_STEPS)),
        ("use_dynamic_shifting", json!(false)),
        ("shift_terminal", Value::Null),
        ("use_karras_sigmas", json!(false)),
        ("use_exponential_sigmas", json!(false)),
        ("use_beta_sigmas", json!(false)),
    ];
    let own = match scheduler {
        Scheduler::UniPc => vec![
            ("solver_order", json!(2)),
            ("solver_type", json!("bh2")),
            ("solver_p", Value::Null),
            ("predict_x0", json!(true)),
            ("thresholding", json!(false)),
            ("lower_order_final", json!(true)),
            ("disable_corrector", json!([])),
            ("final_sigmas_type", json!("zero")),
        ],
        _ => vec![
            ("invert_sigmas", json!(false)),
            ("stochastic_sampling", json!(false)),
        ],
    };
    let same = same.into_iter().chain(own);
    let mut fixed: Vec<_> = same.map(|(key, only)| (key, only.clone(), only)).collect();
    if scheduler == Scheduler::UniPc {
        fixed.extend([
            ("use_flow_sigmas", json!(true), json!(false)),
            (
                "prediction_type",
                json!("flow_prediction"),
                json!("epsilon"),
            ),
        ]);
    }
    fixed
}

/// Keys that change nothing while [`fixed`] ones have their values.
const WITHOUT_EFFECT: [&str; 16] = [
    "beta_start",
    "beta_end",
    "beta_schedule",
    "trained_betas",
    "rescale_betas_zero_snr",
    "dynamic_thresholding_ratio",
    "sample_max_value",
    "timestep_spacing",
    "steps_offset",
    "sigma_min",
    "sigma_max",
    "time_shift_type",
    "base_shift",
    "max_shift",
    "base_image_seq_len",
    "max_image_seq_len",
];

impl Scheduler {
    /// The solver for a model whose own is this one: what is `asked` for. Euler's method is meant at the levels of the
    /// model.
    pub fn or_asked(self, asked: Option<Self>) -> Self {
        match asked {
            Some(Self::Euler) if !matches!(self, Self::UniPc | Self::Ddim) => self,
            asked => asked.unwrap_or(self),
        }
    }

    /// The solver that `scheduler_config.json` of diffusers names, and its shift.
    ///
    /// # Errors
    /// If the file cannot be read, or asks for something that is not supported.
    pub fn read(path: &Path) -> Result<(Self, f64), Error> {
        Self::of_config(&Object::read(path)?, &[])
    }

    /// The same for a model that knows how far to shift the levels for a picture: the shift is `None` if the config
    /// leaves it to the model (`use_dynamic_shifting`).
    ///
    /// # Errors
    /// As [`Scheduler::read`].
    pub fn read_dynamic(path: &Path) -> Result<(Self, Option<f64>), Error> {
        let object = Object::read(path)?;
        if !object.flag("use_dynamic_shifting", false)? {
            let (solver, shift) = Self::of_config(&object, &[])?;
            return Ok((solver, Some(shift)));
        }
        object.require(
            "time_shift_type",
            &json!("exponential"),
            &json!("exponential"),
        )?;
        let (solver, _) = Self::of_config(&object, &["use_dynamic_shifting"])?;
        Ok((solver, None))
    }

    /// What a config says, of which the keys `obeyed` may have any value.
    fn of_config(object: &Object, obeyed: &[&str]) -> Result<(Self, f64), Error> {
        let class = object.text("_class_name")?.unwrap_or("none");
        let (solver, shift) = match class {
            "UniPCMultistepScheduler" => (Self::UniPc, "flow_shift"),
            "FlowMatchEulerDiscreteScheduler" => (Self::Euler, "shift"),
            _ => {
                let reason = format!(
                    "is {class:?}: only \"UniPCMultistepScheduler\" and \
                     \"FlowMatchEulerDiscreteScheduler\" are supported"
                );
                return Err(object.error("_class_name", reason));
            }
        };
        let fixed = fixed(solver);
        for (key, supported, default) in &fixed {
            if obeyed.contains(key) {
                continue;
            }
            object.require(key, supported, default)?;
        }
        let known = fixed.iter().map(|(key, ..)| *key);
        let known: Vec<_> = known.chain(WITHOUT_EFFECT).chain([shift]).collect();
        object.warn_about_unknown_keys(&known);
        Ok((solver, object.positive(shift, Some(1.0))?))
    }
}

/// The noise levels of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// σ before each step, and 0 after the last.
    pub sigmas: Vec<f32>,
    /// The time passed to the model before each step, see [`Objective::times`].
    pub timesteps: Vec<f32>,
}

impl Schedule {
    /// The levels for `steps` steps, shifted towards noise by `shift` (1: not shifted).
    ///
    /// # Errors
    /// If there is no step, or the shift is not positive.
    pub fn new(
        scheduler: Scheduler,
        objective: &Objective,
        steps: usize,
        shift: f64,
    ) -> Result<Self, Error> {
        let of_steps = matches!(scheduler, Scheduler::Ddim | Scheduler::Discrete(_));
        if !of_steps && *objective != Objective::FLOW {
            return Err(Error::Invalid(
                "`unipc` and `euler` are for flow models; this one is sampled by `ddim`, or by what its scheduler's config \
                 names"
                    .into(),
            ));
        }
        if steps == 0 || !shift.is_finite() || shift <= 0.0 {
            return Err(Error::Invalid(format!(
                "{steps} steps with a shift of {shift}: there must be a step, and the shift must be \
                 greater than zero"
            )));
        }
        let shifted = |sigma: f64| shift * sigma / (1.0 + (shift - 1.0) * sigma);
        Ok(match scheduler {
            Scheduler::Discrete(spacing) => spacing.schedule(steps, shift)?,
            Scheduler::Ddim
            | Scheduler::EvenEuler
            | Scheduler::EvenEulerTo(_)
            | Scheduler::EvenEulerBeta => {
                let levels = scheduler.even_levels(steps, shifted);
                let times = objective.times(&Tensor::f_from_slice(&levels)?)?;
                Self {
                    timesteps: Vec::<f32>::try_from(&times)?,
                    sigmas: levels.into_iter().chain([0.0]).collect(),
                }
            }
            Scheduler::UniPc => {
                let step = (1.0 / TRAIN_STEPS - 1.0) / steps as f64;
                let levels = (0..steps).map(|index| shifted(1.0 + index as f64 * step));
                let mut levels: Vec<f64> = levels.collect();
                // At σ = 1 the signal is zero and its logarithm undefined.
                if let Some(first) = levels
                    .first_mut()
                    .filter(|first| (**first - 1.0).abs() < 1e-6)
                {
                    *first -= 1e-6;
                }
                Self {
                    // Truncated to integers.
                    timesteps: levels
                        .iter()
                        .map(|s| (s * TRAIN_STEPS).trunc() as f32)
                        .collect(),
                    sigmas: levels.into_iter().map(|s| s as f32).chain([0.0]).collect(),
                }
            }
            Scheduler::Euler => {
                // The lowest level is shifted twice, as in diffusers: when the solver is created, in single
                // precision, and with the others.
                let (single, lowest) = (shift as f32, (1.0f64 / TRAIN_STEPS) as f32);
                let lowest = single * lowest / (1.0 + (shift - 1.0) as f32 * lowest);
                let (highest, lowest) = (TRAIN_STEPS, f64::from(lowest) * TRAIN_STEPS);
                let step = (lowest - highest) / (steps.max(2) - 1) as f64;
                let level = |index: usize| match index > 0 && index + 1 == steps {
                    true => lowest,
                    false => highest + index as f64 * step,
                };
                let levels = (0..steps).map(|index| shifted(level(index) / TRAIN_STEPS) as f32);
                let levels: Vec<f32> = levels.collect();
                Self {
                    timesteps: levels.iter().map(|s| s * TRAIN_STEPS as f32).collect(),
                    sigmas: levels.into_iter().chain([0.0]).collect(),
                }
            }
        })
    }

    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.timesteps.len()
    }

    /// Half the log of the signal-to-noise ratio before step `index`.
    fn lambda(&self, index: usize) -> f64 {
        let sigma = f64::from(self.sigmas[index]);
        (1.0 - sigma).ln() - sigma.ln()
    }
}

/// A solver between steps.
#[derive(Debug)]
pub struct Sampler {
    scheduler: Scheduler,
    objective: Objective,
    schedule: Schedule,
    /// The next step.
    index: usize,
    /// The clean samples predicted at the last steps, the latest last.
    clean: Vec<Tensor>,
    /// The sample before the last step, and that step's order.
    last: Option<(Tensor, usize)>,
}

impl Sampler {
    /// A solver before its first step.
    pub fn new(scheduler: Scheduler, objective: Objective, schedule: Schedule) -> Self {
        Self {
            scheduler,
            objective,
            schedule,
            index: 0,
            clean: Vec::new(),
            last: None,
        }
    }

    /// What sampling starts from: `noise` of variance one as it is, or scaled as diffusers does for some spacings.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn start(&self, noise: &Tensor) -> Result<Tensor, Error> {
        match self.scheduler {
            Scheduler::Discrete(spacing) if spacing.scales_noise() => {
                let first = self.schedule.sigmas.first().copied().unwrap_or(1.0);
                let (_, rate) = self.objective.rates_between(first.into());
                Ok(noise.f_mul_scalar(rate)?)
            }
            _ => Ok(noise.shallow_clone()),
        }
    }

    /// The timestep to pass to the model next; `None` after the last step.
    pub fn timestep(&self) -> Option<f32> {
        self.schedule.timesteps.get(self.index).copied()
    }

    /// The noise level before the next step, from 0 to 1; `None` after the last step.
    pub fn level(&self) -> Option<f32> {
        self.timestep().map(|_| self.schedule.sigmas[self.index])
    }

    /// The sample after this step, from the sample before it and the model's prediction there.
    ///
    /// # Errors
    /// If there is no step left, shapes differ, or memory runs out.
    pub fn step(&mut self, velocity: &Tensor, sample: &Tensor) -> Result<Tensor, Error> {
        if self.index >= self.schedule.steps() {
            return Err(Error::Internal("a step after the last one".into()));
        }
        let velocity = to_kind(velocity, Kind::Float)?;
        let sample = to_kind(sample, Kind::Float)?;
        let [here, next] = [0, 1].map(|after| f64::from(self.schedule.sigmas[self.index + after]));
        let result = match self.scheduler {
            Scheduler::Ddim | Scheduler::Discrete(_) => {
                let [here, next] = [here, next].map(|level| match self.scheduler {
                    Scheduler::Ddim => self.objective.rates(level),
                    _ => self.objective.rates_between(level),
                });
                let (clean, noise) = self.objective.split_at(&velocity, &sample, here)?;
                let (signal, rate) = next;
                clean
                    .f_mul_scalar(signal)?
                    .f_add(&noise.f_mul_scalar(rate)?)?
            }
            Scheduler::Euler
            | Scheduler::EvenEuler
            | Scheduler::EvenEulerTo(_)
            | Scheduler::EvenEulerBeta => sample.f_add(&velocity.f_mul_scalar(next - here)?)?,
            Scheduler::UniPc => {
                let clean = sample.f_sub(&velocity.f_mul_scalar(here)?)?;
                let sample = match self.last.take() {
                    Some((before, order)) => self.corrected(&before, order, &clean)?,
                    None => sample,
                };
                self.clean.push(clean);
                if self.clean.len() > 2 {
                    drop(self.clean.remove(0));
                }
                let left = self.schedule.steps() - self.index;
                let order = self.clean.len().min(left);
                let result = self.predicted(&sample, order)?;
                self.last = Some((sample, order));
                result
            }
        };
        self.index += 1;
        Ok(result)
    }

    /// The predictor: the sample after the step from `sample`, using the clean samples so far.
    fn predicted(&self, sample: &Tensor, order: usize) -> Result<Tensor, Error> {
        let index = self.index;
        let line = self.line(sample, index)?;
        match (order, self.clean.as_slice()) {
            (2, [before, now]) => {
                let ratio = self.ratio(index);
                let bend = before.f_sub(now)?.f_div_scalar(ratio)?;
                let weight = self.signal(index + 1) * self.growth(index) * 0.5;
                Ok(line.f_sub(&bend.f_mul_scalar(weight)?)?)
            }
            _ => Ok(line),
        }
    }

    /// The corrector: recomputes the current sample from the one `before` it, using the model's prediction
    /// `here`.
    fn corrected(&self, before: &Tensor, order: usize, here: &Tensor) -> Result<Tensor, Error> {
        let index = self.index - 1;
        let line = self.line(before, index)?;
        let latest = self.clean.last();
        let latest =
            latest.ok_or_else(|| Error::Internal("a correction before any step".into()))?;
        let change = here.f_sub(latest)?;
        let weight = self.signal(index + 1) * self.growth(index);
        let bends = match (order, self.clean.as_slice()) {
            (2, [earlier, latest]) => {
                let h = self.schedule.lambda(index + 1) - self.schedule.lambda(index);
                let ratio = self.ratio(index);
                let growth = self.growth(index);
                let first = growth / -h - 1.0;
                let second = first / -h - 0.5;
                // Two weights with ρ₁ + ρ₂ = b₁ and r ρ₁ + ρ₂ = b₂.
                let (b1, b2) = (first / growth, 2.0 * second / growth);
                let rho1 = (b2 - b1) / (ratio - 1.0);
                let rho2 = b1 - rho1;
                let bend = earlier.f_sub(latest)?.f_mul_scalar(rho1 / ratio)?;
                bend.f_add(&change.f_mul_scalar(rho2)?)?
            }
            _ => change.f_mul_scalar(0.5)?,
        };
        Ok(line.f_sub(&bends.f_mul_scalar(weight)?)?)
    }

    /// The step `index` from `sample`, assuming a constant clean sample.
    fn line(&self, sample: &Tensor, index: usize) -> Result<Tensor, Error> {
        let [here, next] = [0, 1].map(|after| f64::from(self.schedule.sigmas[index + after]));
        let latest = self.clean.last();
        let clean = latest.ok_or_else(|| Error::Internal("a step without a sample".into()))?;
        let clean = clean.f_mul_scalar(self.signal(index + 1) * self.growth(index))?;
        Ok(sample.f_mul_scalar(next / here)?.f_sub(&clean)?)
    }

    /// The signal rate before step `index`.
    fn signal(&self, index: usize) -> f64 {
        1.0 - f64::from(self.schedule.sigmas[index])
    }

    /// exp(−h) − 1 for step `index`; −1 for the last one, whose h is infinite.
    fn growth(&self, index: usize) -> f64 {
        (self.schedule.lambda(index) - self.schedule.lambda(index + 1)).exp_m1()
    }

    /// The ratio of the length of the step before `index` to that of `index`, negative.
    fn ratio(&self, index: usize) -> f64 {
        let [before, here, next] = [0, 1, 2].map(|after| self.schedule.lambda(index + after - 1));
        (before - here) / (next - here)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::diffusion::Prediction;
    use crate::formats::{SafetensorsFile, TensorSource};
    use crate::golden::golden;

    fn tables() -> Vec<(Scheduler, usize, f64, Value)> {
        let text = std::fs::read_to_string(golden("wan/schedulers/tables.json")).unwrap();
        let tables: Vec<Value> = serde_json::from_str(&text).unwrap();
        let read = |table: Value| {
            let scheduler = match table["scheduler"].as_str() {
                Some("unipc") => Scheduler::UniPc,
                _ => Scheduler::Euler,
            };
            let steps = table["steps"].as_u64().unwrap() as usize;
            (scheduler, steps, table["shift"].as_f64().unwrap(), table)
        };
        tables.into_iter().map(read).collect()
    }

    #[test]
    fn tables_are_those_of_diffusers() {
        for (scheduler, steps, shift, table) in tables() {
            let schedule = Schedule::new(scheduler, &Objective::FLOW, steps, shift).unwrap();
            let theirs = |key: &str| -> Vec<f32> {
                let numbers = table[key].as_array().unwrap().iter();
                numbers.map(|n| n.as_f64().unwrap() as f32).collect()
            };
            let label = format!("{scheduler:?}, {steps} steps, shift {shift}");
            assert_eq!(schedule.sigmas, theirs("sigmas"), "{label}");
            assert_eq!(schedule.timesteps, theirs("timesteps"), "{label}");
        }
    }

    #[test]
    fn samples_are_those_of_diffusers() {
        let file = SafetensorsFile::open(&golden("wan/schedulers/expected.safetensors")).unwrap();
        for (scheduler, steps, shift, table) in tables() {
            let schedule = Schedule::new(scheduler, &Objective::FLOW, steps, shift).unwrap();
            let mut sampler = Sampler::new(scheduler, Objective::FLOW, schedule);
            let mut sample = file.read("start", Kind::Float).unwrap();
            while let Some(time) = sampler.timestep() {
                let wave = (&sample * 3.0 + f64::from(time) / 200.0).cos() * 0.3;
                let velocity = (&sample * 1.7).tanh() + wave;
                sample = sampler.step(&velocity, &sample).unwrap();
            }
            let name = table["scheduler"].as_str().unwrap();
            let label = format!("{name}-{steps}-{shift}");
            let theirs = file.read(&label, Kind::Float).unwrap();
            let apart = f64::try_from((&sample - &theirs).abs().max()).unwrap();
            assert!(apart <= 1e-4, "{label}: {apart}");
            assert!(sampler.step(&sample, &sample).is_err());
        }
    }

    /// A model that knows the clean sample leads there from any noise, in any number of steps.
    #[test]
    fn ddim_ends_at_the_clean_sample_that_is_predicted() {
        let options = (Kind::Float, tch::Device::Cpu);
        let (clean, noise) = (
            Tensor::randn([1, 4], options),
            Tensor::randn([1, 4], options),
        );
        for prediction in [Prediction::Epsilon, Prediction::V] {
            let objective = Objective::scaled_linear(0.00085, 0.012, prediction);
            for steps in [1, 3, 20] {
                let schedule = Schedule::new(Scheduler::Ddim, &objective, steps, 1.0).unwrap();
                assert_eq!(schedule.timesteps[0], 999.0);
                let mut sampler = Sampler::new(Scheduler::Ddim, objective.clone(), schedule);
                let mut sample = noise.shallow_clone();
                while let Some(level) = sampler.level() {
                    let (signal, rate) = objective.rates(level.into());
                    let left = (&sample - &clean * signal) / rate;
                    let levels = Tensor::from_slice(&[level]);
                    let prediction = objective.target(&clean, &left, &levels).unwrap();
                    sample = sampler.step(&prediction, &sample).unwrap();
                }
                let apart = f64::try_from((&sample - &clean).abs().max()).unwrap();
                assert!(apart < 1e-3, "{prediction:?}, {steps} steps: {apart}");
            }
        }
        let objective = Objective::scaled_linear(0.00085, 0.012, Prediction::V);
        let error = Schedule::new(Scheduler::Euler, &objective, 4, 1.0).unwrap_err();
        assert!(error.to_string().contains("sampled by `ddim`"), "{error}");
    }

    fn read(config: &Value) -> Result<(Scheduler, f64), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scheduler_config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        Scheduler::read(&path).map_err(|error| error.to_string())
    }

    /// All keys of diffusers 0.42, with their defaults where those are supported.
    #[test]
    fn each_key_of_a_scheduler_is_obeyed_refused_or_without_effect() {
        let unipc = json!({"_class_name": "UniPCMultistepScheduler", "_diffusers_version": "0.42.1",
            "beta_end": 0.02, "beta_schedule": "linear", "beta_start": 0.0001, "disable_corrector": [],
            "dynamic_thresholding_ratio": 0.995, "final_sigmas_type": "zero", "flow_shift": 3.0,
            "lower_order_final": true, "num_train_timesteps": 1000, "predict_x0": true,
            "prediction_type": "flow_prediction", "rescale_betas_zero_snr": false, "sample_max_value": 1.0,
            "shift_terminal": null, "sigma_max": null, "sigma_min": null, "solver_order": 2,
            "solver_p": null, "solver_type": "bh2", "steps_offset": 0, "thresholding": false,
            "time_shift_type": "exponential", "timestep_spacing": "linspace", "trained_betas": null,
            "use_beta_sigmas": false, "use_dynamic_shifting": false, "use_exponential_sigmas": false,
            "use_flow_sigmas": true, "use_karras_sigmas": false});
        let euler = json!({"_class_name": "FlowMatchEulerDiscreteScheduler", "base_image_seq_len": 256,
            "base_shift": 0.5, "invert_sigmas": false, "max_image_seq_len": 4096, "max_shift": 1.15,
            "num_train_timesteps": 1000, "shift": 3.0, "shift_terminal": null,
            "stochastic_sampling": false, "time_shift_type": "exponential", "use_beta_sigmas": false,
            "use_dynamic_shifting": false, "use_exponential_sigmas": false, "use_karras_sigmas": false});
        for (config, solver) in [(unipc, Scheduler::UniPc), (euler, Scheduler::Euler)] {
            assert_eq!(read(&config), Ok((solver, 3.0)));
            for (key, value) in config.as_object().unwrap() {
                let other = match value {
                    Value::Bool(flag) => json!(!flag),
                    Value::Number(_) => json!(5),
                    Value::Null => json!(0.5),
                    Value::Array(_) => json!([0]),
                    _ => json!("sigma_min"),
                };
                let mut changed = config.clone();
                changed[key] = other;
                match (
                    key.ends_with("shift") && !key.contains('_') || key == "flow_shift",
                    read(&changed),
                ) {
                    (true, found) => assert_eq!(found, Ok((solver, 5.0))),
                    (false, Err(reason)) => {
                        assert!(reason.contains(key.as_str()), "{key}: {reason}")
                    }
                    (false, Ok(found)) => {
                        assert_eq!(found, (solver, 3.0), "{key}");
                        let none =
                            WITHOUT_EFFECT.contains(&key.as_str()) || key == "_diffusers_version";
                        assert!(none, "{key} changes nothing");
                    }
                }
            }
        }
        let short = json!({"_class_name": "UniPCMultistepScheduler", "use_flow_sigmas": true});
        let reason = read(&short).unwrap_err();
        assert!(
            reason.contains("`prediction_type` is missing, which means \"epsilon\""),
            "{reason}"
        );
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for (steps, shift) in [(0, 1.0), (4, 0.0), (4, -1.0), (4, f64::NAN)] {
            assert!(Schedule::new(Scheduler::UniPc, &Objective::FLOW, steps, shift).is_err());
        }
    }
}
