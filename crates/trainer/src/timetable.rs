//! How long a run is, in steps: what the config says, or what its passes over the data come to.

use crate::Error;
use crate::checkpoint::PlannedSteps;
use crate::config::{Config, ConfigError, TrainConfig};
use crate::task::{Epochs, Task, steps_left, steps_of};

/// Passes over the data by default, as by transformers' Trainer.
const PASSES: f64 = 3.0;

/// The steps of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Timetable {
    /// Optimizer steps of the whole run.
    pub(crate) max_steps: u64,
    /// What they follow from, if the config does not say them.
    pub(crate) planned: Option<PlannedSteps>,
    /// The passes over the data that the steps are, by the length of the first.
    pub(crate) passes: Option<f64>,
}

impl Timetable {
    /// The steps of a run on `ranks` processes. `at` is the step that it goes on after, the task's data
    /// standing there, and what was planned then.
    ///
    /// # Errors
    /// When passes over the data are asked for, and the task has none; when the learning rate's shape
    /// does not fit.
    pub(crate) fn new(
        config: &Config,
        task: &dyn Task,
        ranks: usize,
        at: Option<(u64, Option<PlannedSteps>)>,
    ) -> Result<Self, Error> {
        let train = &config.train;
        if train.by_epoch() && task.epochs().is_none() {
            let reason = "what is trained here has no passes over its data: set `train.max_steps`, and \
                          the strategies to `steps`";
            return Err(ConfigError::of(&config.name, reason.to_owned()).into());
        }
        let planned = Self::planned(train, task, ranks, at);
        let by_data = Self::by_data(train, task, ranks);
        let max_steps = planned.map(|planned| planned.max_steps);
        let max_steps = max_steps.or(by_data).or_else(|| train.steps());
        let max_steps = max_steps.unwrap_or_default();
        train.expect_to_fit(max_steps)?;
        let in_step = train.batches_in_step(ranks);
        let passes = task
            .epochs()
            .map(|epochs| max_steps as f64 / steps_in_pass(epochs, in_step, train.by_epoch()));
        Ok(Self {
            max_steps,
            planned,
            passes,
        })
    }

    /// The steps where the config sets no length: [`PASSES`] over the data, if those are fewer than the default and
    /// the learning rate's shape fits into them.
    fn by_data(train: &TrainConfig, task: &dyn Task, ranks: usize) -> Option<u64> {
        if train.max_steps.is_some() || train.num_train_epochs.is_some() {
            return None;
        }
        let steps = PASSES * steps_in_pass(task.epochs()?, train.batches_in_step(ranks), false);
        let steps = steps.ceil() as u64;
        let is_shorter = train.steps().is_some_and(|default| steps < default);
        (is_shorter && train.expect_to_fit(steps).is_ok()).then_some(steps)
    }

    fn planned(
        train: &TrainConfig,
        task: &dyn Task,
        ranks: usize,
        at: Option<(u64, Option<PlannedSteps>)>,
    ) -> Option<PlannedSteps> {
        let epochs = task.epochs()?;
        let num_train_epochs = match train.steps() {
            None => train.num_train_epochs?,
            Some(_) => return None,
        };
        let batches = train.batches_in_step(ranks);
        let samples = train.samples_in_step(ranks);
        let same = |before: &PlannedSteps| {
            (before.num_train_epochs, before.samples) == (num_train_epochs, samples)
        };
        let max_steps = match at {
            None => steps_of(epochs, num_train_epochs, batches),
            Some((_, Some(before))) if same(&before) => before.max_steps,
            Some((step, _)) => step + steps_left(epochs, num_train_epochs, batches),
        };
        Some(PlannedSteps {
            num_train_epochs,
            samples,
            max_steps,
        })
    }
}

/// The steps of a pass over the data, as long as the first. If steps end with the pass, its last one may be smaller.
fn steps_in_pass(epochs: &dyn Epochs, batches_in_step: u64, end_with_it: bool) -> f64 {
    let steps = epochs.batches_in(0).max(1) as f64 / batches_in_step as f64;
    if end_with_it { steps.ceil() } else { steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_is_larger_than_the_data_is_a_pass_only_if_it_ends_with_it() {
        struct Two;
        impl Epochs for Two {
            fn batches_in(&self, _: u64) -> u64 {
                2
            }

            fn position(&self) -> (u64, u64) {
                (0, 0)
            }
        }
        assert_eq!(steps_in_pass(&Two, 4, true), 1.0);
        assert_eq!(steps_in_pass(&Two, 4, false), 0.5);
    }
}
