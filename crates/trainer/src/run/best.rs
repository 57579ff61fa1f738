//! Keeping the best weights of a run: `load_best_model_at_end`.

use super::Run;
use crate::Error;
use crate::checkpoint::{self, Best};
use crate::config::BestMetric;
use crate::observer::Observer;
use crate::task::Evaluation;

impl Run<'_> {
    /// Saves, when the last evaluation is the best so far and somebody will want it.
    pub(super) fn keep_if_best(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        if !self.config.train.load_best_model_at_end {
            return Ok(());
        }
        let Some((step, evaluation)) = self.last_evaluation else {
            return Ok(());
        };
        let Some(value) = value(self.config.train.metric_for_best_model, &evaluation) else {
            return Ok(());
        };
        if value.is_finite() && self.best.is_none_or(|best| value < best.value) {
            self.best = Some(Best { step, value });
            self.save(observer)?;
        }
        Ok(())
    }

    /// At the end of a run: the weights become the best ones. The last ones, measured as the
    /// others were, take part.
    pub(super) fn load_best(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        if !self.config.train.load_best_model_at_end {
            return Ok(());
        }
        self.evaluate(self.config.train.max_eval_samples, observer)?;
        self.keep_if_best(observer)?;
        let Some(best) = self.best.filter(|best| best.step != self.step) else {
            return Ok(());
        };
        let whole = checkpoint::list(&self.folder.checkpoints())?;
        let Some((step, path)) = whole.into_iter().find(|(step, _)| *step == best.step) else {
            let folder = self.folder.checkpoints();
            let reason = format!("the best checkpoint, of step {}, is gone", best.step);
            return Err(Error::checkpoint(&folder, reason));
        };
        self.enter(super::Moment::Update)?;
        checkpoint::load(&path, self.trained())?;
        observer.best_loaded(step, best.value);
        Ok(())
    }
}

fn value(metric: BestMetric, evaluation: &Evaluation) -> Option<f64> {
    match metric {
        BestMetric::EvalLoss => Some(evaluation.loss),
        BestMetric::EvalNatsPerByte => evaluation.nats_per_byte,
    }
}
