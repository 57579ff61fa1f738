//! diffusers' `EulerDiscreteScheduler`: its config, and which of the steps in training it samples at.

use std::path::Path;

use serde_json::{Value, json};

use super::{Schedule, Scheduler};
use crate::Error;
use crate::diffusion::Prediction;
use crate::diffusion::objective::{Objective, TRAIN_STEPS};
use crate::json::Object;

/// How the steps of a run are spread over those in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// At multiples of a whole number from zero, all moved by so many steps.
    Leading(u16),
    /// At multiples of a fraction, counted from the last step.
    Trailing,
    /// Evenly from the last step to the first.
    Linspace,
}

const CLASS: &str = "EulerDiscreteScheduler";

/// Keys that have one supported value, with the value that diffusers takes without the key.
fn fixed() -> [(&'static str, Value, Value); 9] {
    let same = |key, only: Value| (key, only.clone(), only);
    [
        same("num_train_timesteps", json!(TRAIN_STEPS)),
        ("beta_schedule", json!("scaled_linear"), json!("linear")),
        same("trained_betas", Value::Null),
        same("interpolation_type", json!("linear")),
        same("use_karras_sigmas", json!(false)),
        same("use_exponential_sigmas", json!(false)),
        same("use_beta_sigmas", json!(false)),
        same("timestep_type", json!("discrete")),
        same("final_sigmas_type", json!("zero")),
    ]
}

/// Other keys that are obeyed.
const KEYS: [&str; 6] = [
    "beta_start",
    "beta_end",
    "prediction_type",
    "timestep_spacing",
    "steps_offset",
    "rescale_betas_zero_snr",
];

/// Keys that change nothing while [`fixed`] ones have their values, and those of other schedulers that published configs
/// still have.
const WITHOUT_EFFECT: [&str; 6] = [
    "sigma_min",
    "sigma_max",
    "clip_sample",
    "sample_max_value",
    "set_alpha_to_one",
    "skip_prk_steps",
];

impl Spacing {
    /// The solver that `scheduler_config.json` of diffusers describes, and how the model was noised in training.
    ///
    /// # Errors
    /// If the file cannot be read, or asks for something that is not supported.
    pub fn read(path: &Path) -> Result<(Scheduler, Objective), Error> {
        let object = Object::read(path)?;
        let class = object.text("_class_name")?.unwrap_or("none");
        if class != CLASS {
            let reason = format!("is {class:?}: only {CLASS:?} is supported");
            return Err(object.error("_class_name", reason));
        }
        let fixed = fixed();
        for (key, supported, default) in &fixed {
            object.require(key, supported, default)?;
        }
        let known: Vec<_> = fixed
            .iter()
            .map(|(key, ..)| *key)
            .chain(KEYS)
            .chain(WITHOUT_EFFECT)
            .collect();
        object.warn_about_unknown_keys(&known);
        let prediction = match object.text("prediction_type")?.unwrap_or("epsilon") {
            "epsilon" => Prediction::Epsilon,
            "v_prediction" => Prediction::V,
            other => {
                let reason =
                    format!("is {other:?}: supported are \"epsilon\" and \"v_prediction\"");
                return Err(object.error("prediction_type", reason));
            }
        };
        let offset = object.integer("steps_offset", Some(0), 0..=999)?;
        let spacing = match object.text("timestep_spacing")?.unwrap_or("linspace") {
            "leading" => Self::Leading(offset as u16),
            "trailing" => Self::Trailing,
            "linspace" => Self::Linspace,
            other => {
                let reason = format!(
                    "is {other:?}: supported are \"leading\", \"trailing\" and \"linspace\""
                );
                return Err(object.error("timestep_spacing", reason));
            }
        };
        let (start, end) = (
            object.positive("beta_start", Some(0.0001))?,
            object.positive("beta_end", Some(0.02))?,
        );
        if end >= 1.0 || start > end {
            let reason = format!("is {end}: it must be from `beta_start`, {start}, to below 1");
            return Err(object.error("beta_end", reason));
        }
        let objective = Objective::scaled_linear(start, end, prediction);
        let ends_in_noise = object.flag("rescale_betas_zero_snr", false)?;
        if ends_in_noise && prediction == Prediction::Epsilon {
            let reason = "is true, and `prediction_type` \"epsilon\": nothing can be learned from noise that is given back";
            return Err(object.error("rescale_betas_zero_snr", reason));
        }
        let objective = match ends_in_noise {
            true => objective.ending_in_noise(),
            false => objective,
        };
        Ok((Scheduler::Discrete(spacing), objective))
    }

    /// Whether diffusers scales the noise that sampling starts from to the first level, instead of taking it for a noisy
    /// sample there.
    pub(super) fn scales_noise(self) -> bool {
        !matches!(self, Self::Leading(_))
    }

    /// The levels of a run.
    ///
    /// # Errors
    /// If there are more steps than in training, or they are shifted.
    pub(super) fn schedule(self, steps: usize, shift: f64) -> Result<Schedule, Error> {
        let most = TRAIN_STEPS;
        if steps as f64 > most || shift != 1.0 {
            return Err(Error::Invalid(format!(
                "{steps} steps with a shift of {shift}: this model takes at most {most} steps, and they are not shifted"
            )));
        }
        let count = steps as f64;
        let times = (0..steps).map(|step| {
            let step = step as f64;
            match self {
                Self::Leading(offset) => {
                    (count - 1.0 - step) * (most / count).floor() + f64::from(offset)
                }
                Self::Trailing => (most - step * (most / count)).round_ties_even() - 1.0,
                // diffusers takes the first step if there is one.
                Self::Linspace if steps == 1 => 0.0,
                Self::Linspace => (most - 1.0) * (1.0 - step / (count - 1.0)),
            }
        });
        let times: Vec<f64> = times.map(|time| time.clamp(0.0, most - 1.0)).collect();
        let levels = times.iter().map(|time| ((time + 1.0) / most) as f32);
        Ok(Schedule {
            sigmas: levels.chain([0.0]).collect(),
            timesteps: times.iter().map(|time| *time as f32).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &Value) -> Result<(Scheduler, Objective), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scheduler_config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        Spacing::read(&path).map_err(|error| error.to_string())
    }

    /// All keys of diffusers 0.42.
    #[test]
    fn each_key_of_a_scheduler_is_obeyed_refused_or_without_effect() {
        let config = json!({"_class_name": CLASS, "_diffusers_version": "0.42.1", "beta_end": 0.012,
            "beta_schedule": "scaled_linear", "beta_start": 0.00085, "final_sigmas_type": "zero",
            "interpolation_type": "linear", "num_train_timesteps": 1000, "prediction_type": "v_prediction",
            "rescale_betas_zero_snr": false, "sigma_max": null, "sigma_min": null, "steps_offset": 1,
            "timestep_spacing": "leading", "timestep_type": "discrete", "trained_betas": null,
            "use_beta_sigmas": false, "use_exponential_sigmas": false, "use_karras_sigmas": false});
        let base = read(&config).unwrap();
        assert_eq!(base.0, Scheduler::Discrete(Spacing::Leading(1)));
        let plain = Objective::scaled_linear(0.00085, 0.012, Prediction::V);
        assert_eq!(base.1, plain);
        for (key, value) in config.as_object().unwrap() {
            let other = match (key.as_str(), value) {
                ("prediction_type", _) => json!("epsilon"),
                ("timestep_spacing", _) => json!("trailing"),
                ("beta_start" | "beta_end", _) => json!(0.01),
                (_, Value::Bool(flag)) => json!(!flag),
                (_, Value::Number(_)) => json!(5),
                (_, Value::Null) => json!([0.5]),
                _ => json!("sigma_min"),
            };
            let mut changed = config.clone();
            changed[key] = other;
            match read(&changed) {
                Err(reason) => assert!(reason.contains(key.as_str()), "{key}: {reason}"),
                Ok(found) if found == base => {
                    let none =
                        WITHOUT_EFFECT.contains(&key.as_str()) || key == "_diffusers_version";
                    assert!(none, "{key} changes nothing");
                }
                Ok(_) => assert!(KEYS.contains(&key.as_str()), "{key}"),
            }
        }
        let mut wrong = config.clone();
        wrong["rescale_betas_zero_snr"] = json!(true);
        assert_eq!(read(&wrong).unwrap().1, plain.ending_in_noise());
        wrong["prediction_type"] = json!("epsilon");
        assert!(
            read(&wrong)
                .unwrap_err()
                .contains("`rescale_betas_zero_snr`")
        );
        let short = json!({"_class_name": CLASS});
        assert!(
            read(&short)
                .unwrap_err()
                .contains("`beta_schedule` is missing")
        );
    }

    #[test]
    fn steps_are_spaced_as_by_diffusers() {
        let times = |spacing: Spacing, steps| spacing.schedule(steps, 1.0).unwrap().timesteps;
        assert_eq!(times(Spacing::Leading(1), 3), [667.0, 334.0, 1.0]);
        assert_eq!(times(Spacing::Trailing, 4), [999.0, 749.0, 499.0, 249.0]);
        assert_eq!(times(Spacing::Linspace, 3), [999.0, 499.5, 0.0]);
        let schedule = Spacing::Trailing.schedule(2, 1.0).unwrap();
        assert_eq!(schedule.sigmas, [1.0, 0.5, 0.0]);
        for (steps, shift) in [(1001, 1.0), (4, 3.0)] {
            let error = Spacing::Trailing.schedule(steps, shift).unwrap_err();
            assert!(error.to_string().contains("at most 1000 steps"), "{error}");
        }
    }
}
