//! Keeps the best weights of a run: `load_best_model_at_end`, and early stopping.

use super::Run;
use crate::Error;
use crate::checkpoint;
use crate::config::BestMetric;
use crate::events::{Best, Evaluation};
use crate::observer::Observer;

impl Run<'_> {
    /// Records the evaluation of this step, if there was one; returns whether it is the best so far, so that
    /// its weights must be saved.
    pub(super) fn note_evaluation(&mut self) -> bool {
        let train = &self.config.train;
        let Some((step, evaluation)) = self.last_evaluation.as_ref() else {
            return false;
        };
        if !train.judges() || *step != self.step {
            return false;
        }
        let found = value(train.metric_for_best_model, evaluation);
        let found = found.filter(|found| found.is_finite());
        let before = self.best.map_or(f64::INFINITY, |best| best.value);
        let gain = found.map_or(f64::NEG_INFINITY, |value| before - value);
        // As in transformers: an improvement by less than the threshold does not reset the count.
        self.waited = match gain > train.early_stopping_threshold.unwrap_or(0.0) {
            true => 0,
            false => self.waited + 1,
        };
        if let Some(value) = found.filter(|_| gain > 0.0) {
            self.best = Some(Best { step: *step, value });
        }
        gain > 0.0 && train.load_best_model_at_end
    }

    /// Whether early stopping ends the run.
    pub(super) fn ends_early(&mut self, observer: &mut dyn Observer) -> bool {
        let patience = self.config.train.early_stopping_patience;
        let over = patience.is_some_and(|patience| self.waited >= patience);
        if let Some(best) = self.best.as_ref().filter(|_| over) {
            observer.stopped_early(self.step, self.waited, best);
            self.stopped_early = Some(self.waited);
        }
        over
    }

    /// Loads the best weights at the end of a run. The last weights take part, measured like the others.
    pub(super) fn load_best(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        if !self.config.train.load_best_model_at_end {
            return Ok(());
        }
        self.evaluate(self.config.train.max_eval_samples, observer)?;
        if self.note_evaluation() {
            self.save(observer)?;
        }
        let Some(best) = self.best.filter(|best| best.step != self.step) else {
            return Ok(());
        };
        let folder = self.folder.checkpoints();
        let path = self.ranks.broadcast_value(|| {
            let whole = checkpoint::list(&folder)?.into_iter();
            let mut best = whole.filter(|(step, _)| *step == best.step);
            Ok(best.next().map(|(_, path)| path))
        })?;
        let Some(path) = path else {
            let reason = format!("the best checkpoint, of step {}, is gone", best.step);
            return Err(Error::checkpoint(&folder, reason));
        };
        self.restore(&path)?;
        observer.best_loaded(best.step, best.value);
        Ok(())
    }
}

fn value(metric: BestMetric, evaluation: &Evaluation) -> Option<f64> {
    match metric {
        BestMetric::EvalLoss => Some(evaluation.loss),
        BestMetric::EvalNatsPerByte => evaluation.nats_per_byte,
    }
}
