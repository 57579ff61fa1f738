//! What the loop does when a step runs out of memory: carries out the actions of [`placement::oom`].
//!
//! Caches are released, idle tensors are offloaded (`idle.rs`), and batches are split into smaller
//! micro-batches. A step is repeated from the start, with the same samples and the same seed, and
//! micro-batches are weighted by their number of targets, so the result is the same. Running out of memory
//! inside the optimizer ends the run, because part of the weights may already have changed.

use std::num::NonZeroU32;

use placement::oom::{Exhausted, OomAction, OomPolicy};
use platform::Bytes;
use platform::oom_message::OomNumbers;

use crate::Error;
use crate::config::TrainConfig;
use crate::events::OomRetry;
use crate::pass_size::{shapes, whole};

/// The out-of-memory policy of a run, and how often it was needed.
#[derive(Debug)]
pub(super) struct OomRecovery {
    plan: OomPolicy,
    /// What the config says of passes, unless it leaves their size to memory.
    configured: Option<NonZeroU32>,
    /// Number of steps repeated after running out of memory.
    pub(super) repeated_steps: u64,
}

impl OomRecovery {
    /// For the start of a run, with the size of passes if memory decided it; or for a resumed one, with the micro-batch size
    /// from the checkpoint, so that sums are rounded the same.
    pub(super) fn new(config: &TrainConfig, rows: Option<u32>) -> Self {
        let whole = whole(config);
        let found = shapes(config).find(|shape| Some(shape.micro_batch.get()) == rows);
        Self {
            plan: OomPolicy::new(found.unwrap_or(whole), false),
            configured: (!config.has_auto_batch()).then_some(whole.micro_batch),
            repeated_steps: 0,
        }
    }

    /// Sets whether anything on the device is idle during a step.
    pub(super) fn may_offload(&mut self, anything: bool) {
        self.plan = OomPolicy::new(self.plan.shape(), anything);
    }

    /// Maximum number of samples per pass.
    pub(super) fn rows(&self) -> i64 {
        i64::from(self.plan.shape().micro_batch.get())
    }

    /// Samples per pass, if they are not those of the config.
    pub(super) fn micro_batch(&self) -> Option<u32> {
        let micro_batch = self.plan.shape().micro_batch;
        (Some(micro_batch) != self.configured).then_some(micro_batch.get())
    }

    /// A step succeeded.
    pub(super) fn stepped(&mut self) {
        self.plan.step_done();
    }

    /// The next action after `error` in `step`, as a report, if the step is to be repeated.
    ///
    /// # Errors
    /// `error` itself if it has another cause; or that there is nothing left to try.
    pub(super) fn next(
        &mut self,
        step: u64,
        error: Error,
        (free, total): (Option<u64>, Option<u64>),
    ) -> Result<OomRetry, Error> {
        if !error.is_out_of_memory() {
            return Err(error);
        }
        let message = error.to_string();
        let mut numbers = OomNumbers::from_message(&message);
        numbers.free = numbers.free.or(free.map(Bytes));
        numbers.capacity = numbers.capacity.or(total.map(Bytes));
        let (offloaded, micro_batch) = match self.plan.out_of_memory(numbers) {
            OomAction::Trim => (None, None),
            // The caller fills in the amount.
            OomAction::OffloadIdle => (Some(0), None),
            OomAction::Smaller(shape) => (None, Some(shape.micro_batch.get())),
            OomAction::GiveUp(exhausted) => return Err(exhausted.into()),
        };
        self.repeated_steps += 1;
        Ok(OomRetry {
            step,
            message,
            offloaded,
            micro_batch,
        })
    }
}

impl From<Exhausted> for Error {
    fn from(exhausted: Exhausted) -> Self {
        Self::OutOfMemory(Box::new(exhausted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BatchSize;

    fn config(micro_batch: u32, accumulation: u32) -> TrainConfig {
        TrainConfig {
            per_device_train_batch_size: BatchSize::Rows(micro_batch),
            gradient_accumulation_steps: accumulation,
            ..TrainConfig::default()
        }
    }

    fn full() -> Error {
        tch::TchError::Torch(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes".into(),
        )
        .into()
    }

    #[test]
    fn caches_go_first_then_what_is_idle_and_then_passes_shrink_until_nothing_is_left() {
        let mut recovery = OomRecovery::new(&config(6, 2), None);
        recovery.may_offload(true);
        let mut tried = Vec::new();
        let end = loop {
            match recovery.next(1, full(), (Some(5), Some(9))) {
                Ok(short) => tried.push((short.offloaded, short.micro_batch)),
                Err(error) => break error,
            }
        };
        let smaller = [4, 3, 2, 1].map(|rows| (None, Some(rows)));
        assert_eq!(tried[..2], [(None, None), (Some(0), None)]);
        assert_eq!(tried[2..], smaller);
        assert_eq!(recovery.repeated_steps, 6);
        assert!(matches!(&end, Error::OutOfMemory(_)), "{end}");
        assert!(end.to_string().contains("free 5 bytes"), "{end}");
    }

    #[test]
    fn other_errors_are_not_repeated() {
        let mut recovery = OomRecovery::new(&config(4, 1), None);
        let error = Error::Internal("no gradient".into());
        let result = recovery.next(1, error, (None, None));
        assert!(matches!(result, Err(Error::Internal(_))));
        assert_eq!(recovery.rows(), 4);
    }

    #[test]
    fn a_resumed_run_remembers_what_fitted() {
        let recovery = OomRecovery::new(&config(8, 1), Some(2));
        assert_eq!((recovery.rows(), recovery.micro_batch()), (2, Some(2)));
        // It does not apply to a run with another batch size.
        let recovery = OomRecovery::new(&config(9, 1), Some(2));
        assert_eq!((recovery.rows(), recovery.micro_batch()), (9, None));
        // Where memory decides, a checkpoint has it even if it is the whole batch.
        let mut left = config(1, 8);
        left.per_device_train_batch_size = BatchSize::Auto(None);
        for rows in [8, 4] {
            let recovery = OomRecovery::new(&left, Some(rows));
            assert_eq!(recovery.micro_batch(), Some(rows));
        }
    }
}
