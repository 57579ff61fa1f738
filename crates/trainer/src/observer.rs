//! The callbacks of a run.
//!
//! The trainer draws nothing. It reports facts in the order they happen; the
//! command line turns them into a progress bar and lines of text, and tests into
//! vectors.

use std::path::Path;

use crate::estimate::Estimate;
use crate::events::{Best, Evaluation, Metrics, OomRetry, Rollback, Sample, SkippedStep};
use crate::memory_plan::MemoryPlan;
use crate::resume::Change;
use crate::summary::{Environment, Summary};

/// What is known when training is about to start.
#[derive(Debug, Clone)]
pub struct Start<'a> {
    /// The run's folder.
    pub folder: &'a Path,
    /// Where it runs, on what, and what is trained.
    pub environment: &'a Environment,
    /// The processes that train together and the link between them, if there are several.
    pub ranks: Option<&'a str>,
    /// What a step is expected to take of the memory.
    pub estimate: &'a Estimate,
    /// What lives where, if the config asked for a plan.
    pub plan: Option<&'a MemoryPlan>,
    /// What to change if that is more than is available, otherwise empty.
    pub advice: &'a [&'static str],
    /// Steps already done, when the run is resumed.
    pub resumed_at: Option<u64>,
    /// Config keys that have other values from here on.
    pub changes: &'a [Change],
    /// Steps of the whole run.
    pub max_steps: u64,
    /// The passes over the training data that these are, where there are passes.
    pub passes: Option<f64>,
}

/// Watches a run. Every method does nothing unless it is overridden.
#[expect(unused_variables, reason = "the names document the arguments")]
pub trait Observer {
    /// Something that may take a while begins, as in "tokenising".
    fn preparing(&mut self, what: &str) {}
    /// Called once, before the first step.
    fn started(&mut self, start: &Start<'_>) {}
    /// An optimizer step is done.
    fn stepped(&mut self, step: u64) {}
    /// Metrics were recorded.
    fn logged(&mut self, metrics: &Metrics) {}
    /// The held-out loss was measured.
    fn evaluated(&mut self, step: u64, evaluation: &Evaluation) {}
    /// Text was generated.
    fn sampled(&mut self, step: u64, samples: &[Sample]) {}
    /// A step ran out of memory and is repeated, perhaps in smaller pieces.
    fn oom_retry(&mut self, step: &OomRetry) {}
    /// A step was skipped, its loss or gradient being no number.
    fn skipped(&mut self, step: &SkippedStep) {}
    /// The run went back to a checkpoint after several such steps.
    fn rolled_back(&mut self, rollback: &Rollback) {}
    /// The run ends after `step`, since the last `evaluations` were no better than the best.
    fn stopped_early(&mut self, step: u64, evaluations: u32, best: &Best) {}
    /// The best weights took the place of the last; `value` is what they are best by.
    fn best_loaded(&mut self, step: u64, value: f64) {}
    /// A checkpoint was written.
    fn saved(&mut self, step: u64, checkpoint: &Path) {}
    /// The run is over.
    fn finished(&mut self, summary: &Summary) {}
}

/// An observer that ignores every event.
pub struct NoObserver;

impl Observer for NoObserver {}
