//! What a run does after a failed step: repeat it in smaller pieces, skip it, or return to the last
//! checkpoint.

use super::{Recorder, Run};
use crate::Error;
use crate::checkpoint;
use crate::events::SkippedStep;
use crate::observer::Observer;
use crate::optim::Gradients;

impl Run<'_> {
    /// After running out of memory: restores the state before the step and takes the next action. Any other
    /// error is returned.
    pub(super) fn recover_from_oom(
        &mut self,
        error: Error,
        position: &serde_json::Value,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let memory = self.machine.free_and_total();
        let mut retry = self.oom.next(self.step + 1, error, memory)?;
        Gradients::discard(self.task.parameters())?;
        self.task.restore_data(position)?;
        if retry.offloaded.is_some() {
            retry.offloaded = Some(self.offload_idle()?.0);
        }
        self.machine.trim()?;
        self.recorder.out_of_memory(&retry)?;
        observer.oom_retry(&retry);
        Ok(())
    }

    /// Reports a skipped step, and returns to a checkpoint after too many of them.
    pub(super) fn skip(
        &mut self,
        skipped: SkippedStep,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        self.recorder.skipped(&skipped)?;
        observer.skipped(&skipped);
        if !self.guard.skipped(skipped) {
            return Ok(());
        }
        let folder = self.folder.checkpoints();
        let last = self
            .ranks
            .broadcast_value(|| Ok(checkpoint::list(&folder)?.pop()))?;
        let rollback = self.guard.roll_back(last.as_ref().map(|(step, _)| *step))?;
        if let Some((_, path)) = last {
            let state = self.restore(&path)?;
            // The data position is not reset: the same batches would diverge again.
            self.step = state.step;
            self.last_saved = Some(state.step);
            self.waited = state.waited;
            self.units = state.recorded_units();
            // Time spent on lost steps still counts.
            self.train_seconds += self.window.seconds - state.window.seconds;
            self.window = state.window;
            self.last_evaluation = None;
            let trackers = std::mem::take(&mut self.recorder.trackers);
            self.recorder = Recorder::open(&self.folder, state.step, u64::MAX)?;
            self.recorder.trackers = trackers;
        }
        self.recorder.rolled_back(&rollback)?;
        observer.rolled_back(&rollback);
        Ok(())
    }
}
