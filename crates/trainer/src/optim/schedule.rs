//! The learning rate as a function of the step alone, so that a resumed run has the same rates. The formulas
//! are transformers'; a test compares them with its values.

use std::f64::consts::PI;

use crate::config::{LrSchedulerType, Optim, POLYNOMIAL_END, RampType, TrainConfig};

/// Warm-up from zero to the peak, and decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    peak: f64,
    warmup_steps: u64,
    max_steps: u64,
    /// Whether the first step of the warm-up is one, as in schedule-free optimizers, and not zero.
    starts_at_one: bool,
    shape: Shape,
}

/// What follows the warm-up, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Constant,
    Linear {
        minimum: f64,
    },
    Cosine {
        minimum: f64,
        waves: f64,
    },
    Restarts {
        falls: f64,
    },
    Polynomial {
        end: f64,
        power: f64,
    },
    InverseSqrt {
        timescale: f64,
    },
    StableDecay {
        stable_steps: u64,
        decay_steps: u64,
        rise: RampType,
        fall: RampType,
        least: f64,
        waves: f64,
    },
}

impl Schedule {
    /// The schedule in a config, for a run of `max_steps`.
    pub fn new(config: &TrainConfig, max_steps: u64) -> Self {
        let peak = config.learning_rate;
        let warmup_steps = config.warmup_steps_of(max_steps);
        let kwargs = &config.lr_scheduler_kwargs;
        let waves = kwargs.num_cycles.unwrap_or(0.5);
        let minimum = config.min_lr;
        let shape = match config.lr_scheduler_type {
            LrSchedulerType::Constant | LrSchedulerType::ConstantWithWarmup => Shape::Constant,
            LrSchedulerType::Linear => Shape::Linear { minimum },
            LrSchedulerType::Cosine => Shape::Cosine { minimum, waves },
            LrSchedulerType::CosineWithMinLr => {
                let share = kwargs.min_lr_rate.map(|rate| rate * peak);
                Shape::Cosine {
                    minimum: kwargs.min_lr.or(share).unwrap_or(0.0),
                    waves,
                }
            }
            LrSchedulerType::CosineWithRestarts => Shape::Restarts {
                falls: kwargs.num_cycles.unwrap_or(1.0),
            },
            LrSchedulerType::Polynomial => Shape::Polynomial {
                end: kwargs.lr_end.unwrap_or(POLYNOMIAL_END),
                power: kwargs.power.unwrap_or(1.0),
            },
            LrSchedulerType::InverseSqrt => {
                let of_warmup = match warmup_steps {
                    0 => 10_000,
                    steps => steps,
                };
                Shape::InverseSqrt {
                    timescale: kwargs.timescale.unwrap_or(of_warmup) as f64,
                }
            }
            LrSchedulerType::WarmupStableDecay => Shape::StableDecay {
                stable_steps: config.stable_steps_of(max_steps),
                decay_steps: kwargs.num_decay_steps.unwrap_or(0),
                rise: kwargs.warmup_type.unwrap_or(RampType::Linear),
                fall: kwargs.decay_type.unwrap_or(RampType::Cosine),
                least: kwargs.min_lr_ratio.unwrap_or(0.0),
                waves,
            },
        };
        Self {
            peak,
            warmup_steps,
            max_steps,
            starts_at_one: config.optim == Optim::ScheduleFreeAdamw,
            shape,
        }
    }

    /// Number of warm-up steps.
    pub fn warmup_steps(&self) -> u64 {
        self.warmup_steps
    }

    /// The learning rate of the step after `done` steps: `done / warmup_steps` of the peak during the
    /// warm-up.
    pub fn at(&self, done: u64) -> f64 {
        if done < self.warmup_steps {
            let steps = done + u64::from(self.starts_at_one);
            return self.peak * self.rise(steps as f64 / self.warmup_steps as f64);
        }
        let since = done - self.warmup_steps;
        let span = self.max_steps.saturating_sub(self.warmup_steps).max(1);
        let progress = (since as f64 / span as f64).min(1.0);
        match self.shape {
            Shape::Constant => self.peak,
            Shape::Linear { minimum } => between(minimum, self.peak, 1.0 - progress),
            Shape::Cosine { minimum, waves } => {
                between(minimum, self.peak, cosine(2.0 * waves * progress))
            }
            Shape::Restarts { .. } if progress >= 1.0 => 0.0,
            Shape::Restarts { falls } => self.peak * cosine((falls * progress) % 1.0),
            Shape::Polynomial { end, power } => {
                between(end, self.peak, (1.0 - progress).powf(power))
            }
            Shape::InverseSqrt { timescale } => {
                // If the warm-up is longer than that, the rate starts higher, as in transformers.
                self.peak / ((since as f64 + timescale) / timescale).sqrt()
            }
            Shape::StableDecay { stable_steps, .. } if since < stable_steps => self.peak,
            Shape::StableDecay {
                stable_steps,
                decay_steps,
                fall,
                least,
                waves,
                ..
            } => {
                let since = since - stable_steps;
                if since >= decay_steps {
                    return self.peak * least;
                }
                let progress = since as f64 / decay_steps as f64;
                let height = match fall {
                    RampType::Linear => 1.0 - progress,
                    RampType::Cosine => cosine(2.0 * waves * progress),
                    RampType::OneMinusSqrt => 1.0 - progress.sqrt(),
                };
                self.peak * between(least, 1.0, height).max(0.0)
            }
        }
    }

    /// The fraction of the peak at this point of the warm-up.
    fn rise(&self, progress: f64) -> f64 {
        let Shape::StableDecay { rise, least, .. } = self.shape else {
            return progress;
        };
        let height = match rise {
            RampType::Linear => progress,
            RampType::Cosine => 0.5 * (1.0 - (PI * progress).cos()),
            RampType::OneMinusSqrt => 1.0 - (1.0 - progress).sqrt(),
        };
        between(least, 1.0, height)
    }
}

/// A cosine from 1 at 0 to 0 at 1, and back.
fn cosine(halves: f64) -> f64 {
    0.5 * (1.0 + (PI * halves).cos())
}

/// Interpolates from `low` (0) to `high` (1).
fn between(low: f64, high: f64, height: f64) -> f64 {
    low + (high - low) * height
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use safetensors::SafeTensors;

    use super::*;
    use crate::config::Config;

    fn train(keys: &str) -> TrainConfig {
        let text = format!("data: {{dataset: shakespeare}}\ntrain: {{{keys}}}");
        Config::parse("x.yaml", &text, &[]).unwrap().train
    }

    #[test]
    fn warm_up_rises_in_a_line_from_zero() {
        let train = train("learning_rate: 1.0, warmup_steps: 10, max_steps: 110");
        let schedule = Schedule::new(&train, 110);
        assert_eq!([0, 5, 10].map(|done| schedule.at(done)), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn a_warm_up_of_a_share_rounds_up_and_counts_the_steps_of_the_run() {
        let train = train("learning_rate: 1.0, warmup_ratio: 0.03, num_train_epochs: 2");
        let schedule = Schedule::new(&train, 110);
        assert_eq!(schedule.warmup_steps(), 4);
        assert_eq!([2, 4].map(|done| schedule.at(done)), [0.5, 1.0]);
    }

    #[test]
    fn linear_and_cosine_end_at_their_minimum_and_stay_there() {
        for (kind, middle) in [("linear", 0.55), ("cosine", 0.55)] {
            let keys = format!(
                "learning_rate: 1.0, min_lr: 0.1, warmup_steps: 10, max_steps: 110, \
                 lr_scheduler_type: {kind}"
            );
            let schedule = Schedule::new(&train(&keys), 110);
            for (done, rate) in [(60, middle), (110, 0.1), (500, 0.1)] {
                assert!((schedule.at(done) - rate).abs() < 1e-12, "{kind} at {done}");
            }
        }
    }

    #[test]
    fn every_shape_is_that_of_transformers_at_each_step() {
        let folder = std::env::var_os("SUREFOOT_GOLDEN").map(PathBuf::from);
        let folder = folder.unwrap_or_else(|| {
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden")
        });
        let bytes = std::fs::read(folder.join("schedules.safetensors")).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let configs = metadata.metadata().clone().unwrap();
        assert!(configs.len() >= 20);
        for (number, keys) in configs {
            let train = train(&keys[1..keys.len() - 1]);
            let steps = train.steps().unwrap();
            let schedule = Schedule::new(&train, steps);
            let rates = tensors.tensor(&number).unwrap();
            let rates = rates.data().chunks_exact(8);
            assert_eq!(rates.len() as u64, steps + 1, "{keys}");
            for (done, theirs) in rates.enumerate() {
                let theirs = f64::from_le_bytes(theirs.try_into().unwrap());
                let ours = schedule.at(done as u64);
                assert!(
                    (ours - theirs).abs() <= 1e-12 * train.learning_rate,
                    "{keys} after {done} steps: {ours:e}, and {theirs:e} there"
                );
            }
        }
    }
}
