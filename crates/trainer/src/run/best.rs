//! Keeping the best weights of a run: `load_best_model_at_end`.

use super::Run;
use crate::Error;
use crate::checkpoint;
use crate::config::BestMetric;
use crate::events::{Best, Evaluation};
use crate::observer::Observer;

impl Run<'_> {
    /// Whether the evaluation of this step is the best so far and somebody will want it.
    pub(super) fn note_if_best(&mut self) -> bool {
        let Some((step, evaluation)) = self.last_evaluation.as_ref() else {
            return false;
        };
        if !self.config.train.load_best_model_at_end || *step != self.step {
            return false;
        }
        let found = value(self.config.train.metric_for_best_model, evaluation);
        let found = found.filter(|found| found.is_finite());
        let better = found.filter(|value| self.best.is_none_or(|best| *value < best.value));
        if let Some(value) = better {
            self.best = Some(Best { step: *step, value });
        }
        better.is_some()
    }

    /// At the end of a run: the weights become the best ones. The last ones, measured as the
    /// others were, take part.
    pub(super) fn load_best(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        if !self.config.train.load_best_model_at_end {
            return Ok(());
        }
        self.evaluate(self.config.train.max_eval_samples, observer)?;
        if self.note_if_best() {
            self.save(observer)?;
        }
        let Some(best) = self.best.filter(|best| best.step != self.step) else {
            return Ok(());
        };
        let folder = self.folder.checkpoints();
        let path = self.ranks.told_by_first(|| {
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
