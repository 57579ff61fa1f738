//! Records of training and evaluations, and when they are due.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Run, StepPhase};
use crate::Error;
use crate::config::Strategy;
use crate::events::Metrics;
use crate::observer::Observer;
use crate::summary::Ending;

/// How often the report page of an active run is rewritten.
const PAGE_EVERY: Duration = Duration::from_secs(20);

impl Run<'_> {
    /// Whether this strategy says that something happens after this step.
    pub(super) fn is_due(&self, strategy: Strategy, steps: u64) -> bool {
        match strategy {
            Strategy::No => false,
            Strategy::Steps => due(self.step, steps),
            Strategy::Epoch => self.epoch_is_over(),
        }
    }

    /// Whether the last batch was the last of its epoch.
    pub(super) fn epoch_is_over(&self) -> bool {
        let epochs = self.task.epochs();
        epochs.is_some_and(|epochs| epochs.position().1 == 0)
    }

    pub(super) fn log(
        &mut self,
        learning_rate: f64,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let window = std::mem::take(&mut self.window);
        self.units += window.units;
        self.train_seconds += window.seconds;
        let metrics = Metrics {
            step: self.step,
            loss: window.loss / window.steps as f64,
            learning_rate,
            gradient_norm: window.norm,
            units_per_second: window.units as f64 / window.seconds,
            memory: self.machine.memory(),
            turns: window.turns(),
            measures: match self.task.measures() {
                Some(measures) => measures.named(&window.measured),
                None => BTreeMap::new(),
            },
        };
        self.recorder.train(&metrics)?;
        self.record_problems()?;
        observer.logged(&metrics);
        let first = self.recorder.training_losses().len() == 1;
        if first || self.page_written.elapsed() > PAGE_EVERY {
            self.write_page(Ending::Running, None);
        }
        Ok(())
    }

    /// Measures the held-out loss, if anything is held out.
    pub(super) fn evaluate(
        &mut self,
        limit: Option<u64>,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        if !self.task.evaluates() {
            return Ok(());
        }
        let what = format!("the evaluation after step {}", self.step);
        self.ranks.doing(&what)?;
        let evaluation = self.with_averages(|run| run.evaluate_by_all(limit))?;
        self.recorder.evaluation(self.step, &evaluation)?;
        observer.evaluated(self.step, &evaluation);
        self.last_evaluation = Some((self.step, evaluation));
        self.recorder.draw(self.config.loss_unit())
    }

    /// Whether other weights than the trained ones are evaluated and exported.
    pub(super) fn has_averages(&self) -> bool {
        self.ema.is_some() || self.optimizer.evaluates_others()
    }

    /// Runs `work` with the averaged weights, if the run or its optimizer keeps them.
    pub(super) fn with_averages<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // The optimizer computes them from its state.
        if self.optimizer.evaluates_others() {
            self.enter(StepPhase::Update)?;
        }
        let trained = self.optimizer.show_evaluated()?;
        self.enter(StepPhase::Evaluation)?;
        let Some(mut ema) = self.ema.take() else {
            let result = work(self);
            trained.put_back()?;
            return result;
        };
        ema.swap(self.task.parameters())?;
        let result = work(self);
        ema.swap(self.task.parameters())?;
        self.ema = Some(ema);
        result
    }
}

/// Whether something that happens every `every` steps (0: never) is due after `step`.
pub(super) fn due(step: u64, every: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}
