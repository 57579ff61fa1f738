//! Noise levels of pipelines for pictures that are shifted by the size of the picture.

use std::path::Path;

use serde_json::json;

use super::Scheduler;
use crate::Error;
use crate::json::Object;

/// How far levels are shifted towards noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shift {
    /// Always as far.
    Fixed(f64),
    /// By e to the power of a number on the line through these two: tokens of a picture, and the number for it.
    BySize([(f64, f64); 2]),
}

impl Shift {
    /// The shift for a picture of `tokens` tokens.
    pub fn at(self, tokens: i64) -> f64 {
        match self {
            Self::Fixed(shift) => shift,
            Self::BySize([(few, low), (many, high)]) => {
                let slope = (high - low) / (many - few);
                (low + slope * (tokens as f64 - few)).exp()
            }
        }
    }
}

impl Scheduler {
    /// The solver and the shift of a pipeline that passes even levels to the scheduler with this config. By size, the line
    /// is that of `base_shift` and `max_shift`; `shift_terminal` says where levels end, and `use_beta_sigmas` how they are spaced.
    ///
    /// # Errors
    /// If the file cannot be read, or asks for something that is not supported.
    pub fn read_by_size(path: &Path) -> Result<(Self, Shift), Error> {
        let object = Object::read(path)?;
        let end = match object.get("shift_terminal") {
            None => None,
            Some(_) => Some(object.positive("shift_terminal", None)?),
        };
        if end.is_some_and(|end| end >= 1.0) {
            let reason = "must be less than 1, where levels begin";
            return Err(object.error("shift_terminal", reason));
        }
        let obeyed = ["use_dynamic_shifting", "shift_terminal", "use_beta_sigmas"];
        let (_, fixed) = Self::of_config(&object, &obeyed)?;
        let solver = match (end, object.flag("use_beta_sigmas", false)?) {
            (None, false) => Self::EvenEuler,
            (Some(end), false) => Self::EvenEulerTo(end),
            (None, true) => Self::EvenEulerBeta,
            (Some(_), true) => {
                let reason = "is not supported with `shift_terminal`";
                return Err(object.error("use_beta_sigmas", reason));
            }
        };
        if !object.flag("use_dynamic_shifting", false)? {
            return Ok((solver, Shift::Fixed(fixed)));
        }
        let kind = json!("exponential");
        object.require("time_shift_type", &kind, &kind)?;
        let few = object.integer("base_image_seq_len", Some(256), 1..=1 << 30)?;
        let many = object.integer("max_image_seq_len", Some(4096), 1..=1 << 30)?;
        if few >= many {
            let reason = format!("must be more than `base_image_seq_len`, {few}");
            return Err(object.error("max_image_seq_len", reason));
        }
        let low = object.positive("base_shift", Some(0.5))?;
        let high = object.positive("max_shift", Some(1.15))?;
        let line = [(few as f64, low), (many as f64, high)];
        Ok((solver, Shift::BySize(line)))
    }

    /// The levels before each step for evenly spaced ones that are `shifted`.
    pub(super) fn even_levels(self, steps: usize, shifted: impl Fn(f64) -> f64) -> Vec<f32> {
        let even = |step: usize| shifted(1.0 - step as f64 / steps as f64);
        let lowest = even(steps - 1);
        let stretch = match self {
            Self::EvenEulerTo(to) if steps > 1 => (1.0 - to) / (1.0 - lowest),
            _ => 1.0,
        };
        let level = |step: usize| match self {
            Self::EvenEulerBeta => {
                let share = 1.0 - step as f64 / (steps.max(2) - 1) as f64;
                lowest + beta_quantile(share) * (1.0 - lowest)
            }
            _ => 1.0 - (1.0 - even(step)) * stretch,
        };
        (0..steps).map(|step| level(step) as f32).collect()
    }
}

/// The number below which the `share` of a beta distribution with both parameters 0.6 lies, which is symmetric.
fn beta_quantile(share: f64) -> f64 {
    const PARAMETER: f64 = 0.6;
    if share > 0.5 {
        return 1.0 - beta_quantile(1.0 - share);
    }
    // A series for the integral from 0, up to a factor; half of the whole lies below the middle.
    let below = |number: f64| {
        let (mut term, mut sum) = (1.0, 0.0);
        for at in 0..100 {
            let at = f64::from(at);
            sum += term / (PARAMETER + at);
            term *= (at + 1.0 - PARAMETER) / (at + 1.0) * number;
        }
        number.powf(PARAMETER) * sum
    };
    let wanted = 2.0 * share * below(0.5);
    let (mut low, mut high) = (0.0, 0.5);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        match below(middle) < wanted {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn each_key_of_a_shift_is_obeyed_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("scheduler_config.json");
        let read = |changes: &[(&str, Value)]| {
            let mut config = json!({"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0,
                "use_dynamic_shifting": true});
            for (key, value) in changes {
                config[*key] = value.clone();
            }
            std::fs::write(&path, config.to_string()).unwrap();
            Scheduler::read_by_size(&path).map_err(|error| error.to_string())
        };
        let plain = read(&[]).unwrap();
        let line = Shift::BySize([(256.0, 0.5), (4096.0, 1.15)]);
        assert_eq!(plain, (Scheduler::EvenEuler, line));
        assert_eq!(line.at(256), 0.5f64.exp());
        for (key, value) in [
            ("base_shift", json!(0.4)),
            ("max_shift", json!(0.9)),
            ("base_image_seq_len", json!(64)),
            ("max_image_seq_len", json!(8192)),
            ("shift_terminal", json!(0.02)),
            ("use_dynamic_shifting", json!(false)),
            ("use_beta_sigmas", json!(true)),
        ] {
            assert_ne!(read(&[(key, value)]).unwrap(), plain, "{key}");
        }
        let off = ("use_dynamic_shifting", json!(false));
        let ended = read(&[off, ("shift_terminal", json!(0.1))]).unwrap();
        assert_eq!(ended, (Scheduler::EvenEulerTo(0.1), Shift::Fixed(3.0)));
        for (key, value) in [
            ("shift_terminal", json!(1.0)),
            ("max_image_seq_len", json!(256)),
            ("time_shift_type", json!("linear")),
            ("use_karras_sigmas", json!(true)),
            ("base_shift", json!(-1.0)),
        ] {
            let reason = read(&[(key, value)]).unwrap_err();
            assert!(reason.contains(key), "{key}: {reason}");
        }
    }
}
