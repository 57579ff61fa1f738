//! The learning rate over the steps of a run.

use std::f64::consts::PI;

use crate::config::{LrSchedulerType, TrainConfig};

/// Linear warm-up from zero, then constant, linear or cosine down to a minimum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    kind: LrSchedulerType,
    peak: f64,
    minimum: f64,
    warmup_steps: u64,
    max_steps: u64,
}

impl Schedule {
    /// The schedule that a config describes.
    pub fn new(config: &TrainConfig) -> Self {
        Self {
            kind: config.lr_scheduler_type,
            peak: config.learning_rate,
            minimum: config.min_lr,
            warmup_steps: config.warmup_steps,
            max_steps: config.max_steps,
        }
    }

    /// The learning rate of the step after `done` steps, as Hugging Face's schedules give it:
    /// `done / warmup_steps` of the peak during the warm-up.
    pub fn at(&self, done: u64) -> f64 {
        if done < self.warmup_steps {
            return self.peak * done as f64 / self.warmup_steps as f64;
        }
        let span = self.max_steps.saturating_sub(self.warmup_steps).max(1);
        let progress = ((done - self.warmup_steps) as f64 / span as f64).min(1.0);
        let height = match self.kind {
            LrSchedulerType::Constant => return self.peak,
            LrSchedulerType::Linear => 1.0 - progress,
            LrSchedulerType::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
        };
        self.minimum + (self.peak - self.minimum) * height
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: LrSchedulerType) -> Schedule {
        Schedule {
            kind,
            peak: 1.0,
            minimum: 0.1,
            warmup_steps: 10,
            max_steps: 110,
        }
    }

    #[test]
    fn warm_up_rises_in_a_line_from_zero() {
        let schedule = schedule(LrSchedulerType::Cosine);
        assert_eq!([0, 5, 10].map(|done| schedule.at(done)), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn each_shape_passes_its_middle_and_ends_at_its_minimum() {
        let at = |kind, done| schedule(kind).at(done);
        assert_eq!(at(LrSchedulerType::Constant, 110), 1.0);
        assert!((at(LrSchedulerType::Linear, 60) - 0.55).abs() < 1e-12);
        assert!((at(LrSchedulerType::Cosine, 60) - 0.55).abs() < 1e-12);
        assert!((at(LrSchedulerType::Cosine, 35) - (0.1 + 0.9 * 0.853_553_39)).abs() < 1e-8);
        assert!((at(LrSchedulerType::Linear, 110) - 0.1).abs() < 1e-12);
        assert!((at(LrSchedulerType::Cosine, 500) - 0.1).abs() < 1e-12);
    }
}
