//! What the loop does when a step does not fit: it carries out placement's plan.
//!
//! [`placement::shortage`] decides; here its remedies become deeds. Caches are handed back, what
//! is idle leaves the device (`idle.rs`), and batches go through the model in pieces. A step is repeated from its beginning, with the same
//! samples and the same seed, and each piece counts by what there is to learn in it, so that
//! what is learned stays the same. Not repeated is what ran out of memory inside the optimizer:
//! part of the weights may have moved.

use std::fmt;
use std::num::NonZeroU32;

use placement::shortage::{BatchShape, Exhausted, MemoryNumbers, Remedy, Shortage};

use crate::Error;
use crate::config::TrainConfig;
use crate::text::bytes;

/// A step that ran out of memory, and is repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortOfMemory {
    /// The step, counted from 1.
    pub step: u64,
    /// What the allocator said.
    pub said: String,
    /// Bytes of what is idle that left the device; unset when that was not what was done.
    pub offloaded: Option<u64>,
    /// Samples in one pass from now on; unset when something else is tried first.
    pub micro_batch: Option<u32>,
}

/// The plan of a run, and how often it was needed.
#[derive(Debug)]
pub(super) struct Relief {
    plan: Shortage,
    configured: NonZeroU32,
    /// Steps repeated for lack of memory.
    pub(super) times: u64,
}

impl Relief {
    /// The plan at the start of a run, or of its rest: then with the size of passes that a
    /// checkpoint remembers, so that sums are rounded as they would have been.
    pub(super) fn new(config: &TrainConfig, remembered: Option<u32>) -> Self {
        let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let configured = at_least_one(config.per_device_train_batch_size);
        let mut shape = BatchShape {
            micro_batch: configured,
            accumulation: at_least_one(config.gradient_accumulation_steps),
        };
        let smaller = std::iter::successors(Some(shape), |shape| shape.smaller());
        if let Some(found) = smaller
            .skip(1)
            .find(|shape| Some(shape.micro_batch.get()) == remembered)
        {
            shape = found;
        }
        Self {
            plan: Shortage::new(shape, false),
            configured,
            times: 0,
        }
    }

    /// Whether anything on the device is idle while a step is made.
    pub(super) fn may_offload(&mut self, anything: bool) {
        self.plan = Shortage::new(self.plan.shape(), anything);
    }

    /// Samples in one pass at most.
    pub(super) fn rows(&self) -> i64 {
        i64::from(self.plan.shape().micro_batch.get())
    }

    /// Samples in one pass, where they are fewer than the config says.
    pub(super) fn micro_batch(&self) -> Option<u32> {
        let micro_batch = self.plan.shape().micro_batch;
        (micro_batch < self.configured).then_some(micro_batch.get())
    }

    /// A step went well.
    pub(super) fn stepped(&mut self) {
        self.plan.step_done();
    }

    /// What comes next after `error` in `step`: a report when the step is to be repeated.
    ///
    /// # Errors
    /// `error` itself when it is about something else, or that nothing is left to try.
    pub(super) fn next(
        &mut self,
        step: u64,
        error: Error,
        (free, total): (Option<u64>, Option<u64>),
    ) -> Result<ShortOfMemory, Error> {
        if !error.is_out_of_memory() {
            return Err(error);
        }
        let said = error.to_string();
        let mut numbers = MemoryNumbers::from_message(&said);
        numbers.free = numbers.free.or(free.map(placement::Bytes));
        numbers.total = numbers.total.or(total.map(placement::Bytes));
        let (offloaded, micro_batch) = match self.plan.out_of_memory(numbers) {
            Remedy::Trim => (None, None),
            // The caller knows how much there is.
            Remedy::OffloadIdle => (Some(0), None),
            Remedy::Smaller(shape) => (None, Some(shape.micro_batch.get())),
            Remedy::GiveUp(exhausted) => return Err(exhausted.into()),
        };
        self.times += 1;
        Ok(ShortOfMemory {
            step,
            said,
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

impl fmt::Display for ShortOfMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "step {:>6}  {}; ", self.step, self.said)?;
        match (self.offloaded, self.micro_batch) {
            (None, None) => formatter.write_str("freed what was cached, and trying it again"),
            (Some(offloaded), None) => write!(
                formatter,
                "offloaded what is idle in a step ({}), and trying it again",
                bytes(offloaded)
            ),
            (_, Some(rows)) => write!(
                formatter,
                "trying it again with {rows} samples at a time, which learns the same"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(micro_batch: u32, accumulation: u32) -> TrainConfig {
        TrainConfig {
            per_device_train_batch_size: micro_batch,
            gradient_accumulation_steps: accumulation,
            ..TrainConfig::default()
        }
    }

    fn full() -> Error {
        Error::Torch(tch::TchError::Torch(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes".into(),
        ))
    }

    #[test]
    fn caches_go_first_then_what_is_idle_and_then_passes_shrink_until_nothing_is_left() {
        let mut relief = Relief::new(&config(6, 2), None);
        relief.may_offload(true);
        let mut tried = Vec::new();
        let end = loop {
            match relief.next(1, full(), (Some(5), Some(9))) {
                Ok(short) => tried.push((short.offloaded, short.micro_batch)),
                Err(error) => break error,
            }
        };
        let smaller = [4, 3, 2, 1].map(|rows| (None, Some(rows)));
        assert_eq!(tried[..2], [(None, None), (Some(0), None)]);
        assert_eq!(tried[2..], smaller);
        assert_eq!(relief.times, 6);
        assert!(matches!(&end, Error::OutOfMemory(_)), "{end}");
        assert!(end.to_string().contains("free 5 B"), "{end}");
    }

    #[test]
    fn other_errors_are_not_repeated() {
        let mut relief = Relief::new(&config(4, 1), None);
        let error = Error::Internal("no gradient".into());
        let result = relief.next(1, error, (None, None));
        assert!(matches!(result, Err(Error::Internal(_))));
        assert_eq!(relief.rows(), 4);
    }

    #[test]
    fn a_resumed_run_remembers_what_fitted() {
        let relief = Relief::new(&config(8, 1), Some(2));
        assert_eq!((relief.rows(), relief.micro_batch()), (2, Some(2)));
        // Of a run with another batch, it says nothing.
        let relief = Relief::new(&config(9, 1), Some(2));
        assert_eq!((relief.rows(), relief.micro_batch()), (9, None));
    }
}
