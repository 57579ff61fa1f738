//! Recovering from out of memory.
//!
//! ```text
//!   a step runs out of memory
//!      └▶ trim caches, try again ─▶ offload what is idle, try again
//!           └▶ smaller micro-batch, more accumulation (same effective batch), try again, …
//!                └▶ micro-batch of 1 still does not fit: an error with the numbers
//! ```
//!
//! [`OomPolicy`] only decides; the training loop carries out the action and reports the result.
//! [`IdleOffloader`] tracks what is idle in which phase and where it is; your own loop passes it its tensors
//! as [`OffloadGroup`]s. An action that only helps briefly is not repeated forever: if memory runs out again
//! within [`RELAPSE_STEPS`], the next action follows instead.

mod idle;

use std::fmt;
use std::num::NonZeroU32;

use serde::Serialize;

pub use idle::{IdleOffloader, OffloadGroup};
use platform::oom_message::OomNumbers;

/// An action counts as successful after this many good steps.
pub const RELAPSE_STEPS: u32 = 16;

/// How one optimizer step is split. Micro-batch × accumulation is the effective batch, which determines the
/// training result and never changes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BatchShape {
    /// Samples on the device at a time.
    pub micro_batch: NonZeroU32,
    /// Micro-batches whose gradients are accumulated per step.
    pub accumulation: NonZeroU32,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum OomAction {
    /// Release cached memory to the driver and repeat the step.
    Trim,
    /// Offload everything that is not in use and repeat the step.
    OffloadIdle,
    /// Repeat the step with this smaller shape, and keep it.
    Smaller(BatchShape),
    /// There is nothing left to try.
    GiveUp(Exhausted),
}

/// There was nothing left to try. Displays the numbers and suggestions.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct Exhausted {
    /// The shape that did not fit.
    pub shape: BatchShape,
    /// The numbers of the last error.
    pub numbers: OomNumbers,
    /// The actions tried.
    pub tried: Vec<&'static str>,
}

/// The state of out-of-memory handling during a run.
#[derive(Clone, Debug)]
pub struct OomPolicy {
    shape: BatchShape,
    /// Whether there may be idle tensors on the device.
    may_offload: bool,
    next: Stage,
    good_steps: u32,
    tried: Vec<&'static str>,
}

/// The next action to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Trim,
    OffloadIdle,
    Smaller,
}

impl BatchShape {
    /// Samples per optimizer step.
    pub fn effective(self) -> u64 {
        u64::from(self.micro_batch.get()) * u64::from(self.accumulation.get())
    }

    /// The next smaller micro-batch that divides the effective batch; `None` at 1.
    ///
    /// Not halved: every sample on the device is throughput, and one more failed attempt costs a single step.
    pub fn smaller(self) -> Option<BatchShape> {
        let effective = self.effective();
        let micro = (1..self.micro_batch.get())
            .rev()
            .find(|micro| effective.is_multiple_of(u64::from(*micro)))?;
        let accumulation = u32::try_from(effective / u64::from(micro)).ok()?;
        Some(BatchShape {
            micro_batch: NonZeroU32::new(micro)?,
            accumulation: NonZeroU32::new(accumulation)?,
        })
    }
}

impl OomPolicy {
    /// For the start of a run. `may_offload`: whether anything on the device is not needed for a step.
    pub fn new(shape: BatchShape, may_offload: bool) -> OomPolicy {
        OomPolicy {
            shape,
            may_offload,
            next: Stage::Trim,
            good_steps: 0,
            tried: Vec::new(),
        }
    }

    /// The current shape of steps.
    pub fn shape(&self) -> BatchShape {
        self.shape
    }

    /// A step succeeded.
    pub fn step_done(&mut self) {
        self.good_steps = self.good_steps.saturating_add(1);
        if self.good_steps >= RELAPSE_STEPS {
            self.next = Stage::Trim;
            self.tried.clear();
        }
    }

    /// A step ran out of memory. The caller frees what the step allocated, carries out the action, and
    /// repeats the step.
    pub fn out_of_memory(&mut self, numbers: OomNumbers) -> OomAction {
        self.good_steps = 0;
        if self.next == Stage::Trim {
            self.next = if self.may_offload {
                Stage::OffloadIdle
            } else {
                Stage::Smaller
            };
            self.tried.push("trimming caches");
            return OomAction::Trim;
        }
        if self.next == Stage::OffloadIdle {
            self.next = Stage::Smaller;
            self.may_offload = false; // Everything idle is offloaded now.
            self.tried.push("offloading what is idle");
            return OomAction::OffloadIdle;
        }
        match self.shape.smaller() {
            Some(shape) => {
                self.shape = shape;
                if self.tried.last() != Some(&"a smaller micro-batch") {
                    self.tried.push("a smaller micro-batch");
                }
                OomAction::Smaller(shape)
            }
            None => {
                let tried = std::mem::take(&mut self.tried);
                OomAction::GiveUp(Exhausted {
                    shape: self.shape,
                    numbers,
                    tried,
                })
            }
        }
    }
}

impl fmt::Display for BatchShape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "micro-batch {} × accumulation {} = {}",
            self.micro_batch,
            self.accumulation,
            self.effective()
        )
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "out of memory with a {}", self.shape)?;
        let OomNumbers {
            requested,
            free,
            capacity,
            ..
        } = self.numbers;
        for (what, bytes) in [
            ("asked for", requested),
            ("free", free),
            ("in all", capacity),
        ] {
            if let Some(bytes) = bytes {
                write!(formatter, ", {what} {bytes}")?;
            }
        }
        if !self.tried.is_empty() {
            write!(formatter, "; tried {}", self.tried.join(", then "))?;
        }
        let short = match (requested, free) {
            (Some(requested), Some(free)) if requested > free => {
                format!(" ({} more are needed)", requested - free)
            }
            _ => String::new(),
        };
        write!(
            formatter,
            "{short}. What is left: gradient checkpointing, `blocks_to_swap` or `low_vram`, a smaller \
             resolution or sequence length, an optimizer with smaller state"
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use platform::Bytes;

    fn shape(micro: u32, accumulation: u32) -> BatchShape {
        BatchShape {
            micro_batch: NonZeroU32::new(micro).unwrap(),
            accumulation: NonZeroU32::new(accumulation).unwrap(),
        }
    }

    fn fail(shortage: &mut OomPolicy) -> OomAction {
        shortage.out_of_memory(OomNumbers::default())
    }

    #[test]
    fn each_remedy_follows_the_one_before() {
        let mut shortage = OomPolicy::new(shape(4, 2), true);
        assert_eq!(fail(&mut shortage), OomAction::Trim);
        assert_eq!(fail(&mut shortage), OomAction::OffloadIdle);
        assert_eq!(fail(&mut shortage), OomAction::Smaller(shape(2, 4)));
        assert_eq!(fail(&mut shortage), OomAction::Smaller(shape(1, 8)));
        assert!(matches!(fail(&mut shortage), OomAction::GiveUp(_)));
    }

    #[test]
    fn nothing_idle_is_not_offloaded() {
        let mut shortage = OomPolicy::new(shape(2, 1), false);
        assert_eq!(fail(&mut shortage), OomAction::Trim);
        assert_eq!(fail(&mut shortage), OomAction::Smaller(shape(1, 2)));
    }

    #[test]
    fn a_relapse_goes_on_where_the_last_remedy_was() {
        let mut shortage = OomPolicy::new(shape(4, 1), false);
        assert_eq!(fail(&mut shortage), OomAction::Trim);
        (1..RELAPSE_STEPS).for_each(|_| shortage.step_done());
        assert_eq!(fail(&mut shortage), OomAction::Smaller(shape(2, 2)));
    }

    #[test]
    fn a_remedy_that_held_may_be_tried_again() {
        let mut shortage = OomPolicy::new(shape(4, 1), false);
        assert_eq!(fail(&mut shortage), OomAction::Trim);
        (0..RELAPSE_STEPS).for_each(|_| shortage.step_done());
        assert_eq!(fail(&mut shortage), OomAction::Trim);
    }

    #[test]
    fn the_error_has_the_numbers_and_what_was_tried() {
        let mut shortage = OomPolicy::new(shape(1, 8), true);
        let numbers = OomNumbers {
            requested: Some(Bytes::gib(3)),
            free: Some(Bytes::gib(1)),
            capacity: Some(Bytes::gib(16)),
            ..OomNumbers::default()
        };
        let end = std::iter::repeat_with(|| shortage.out_of_memory(numbers))
            .find_map(|remedy| match remedy {
                OomAction::GiveUp(error) => Some(error.to_string()),
                _ => None,
            })
            .unwrap();
        assert_eq!(
            end,
            "out of memory with a micro-batch 1 × accumulation 8 = 8, asked for 3 GiB, free \
             1 GiB, in all 16 GiB; tried trimming caches, then offloading what is idle \
             (2 GiB more are needed). What is left: gradient checkpointing, `blocks_to_swap` or \
             `low_vram`, a smaller resolution or sequence length, an optimizer with smaller state"
        );
    }

    proptest! {
        /// The effective batch stays the same, and the sequence of actions ends.
        #[test]
        fn the_effective_batch_never_changes_and_the_plan_ends(
            micro in 1..512_u32,
            accumulation in 1..64_u32,
            may_offload: bool,
            good_steps in prop::collection::vec(0..RELAPSE_STEPS, 600),
        ) {
            let start = shape(micro, accumulation);
            let mut shortage = OomPolicy::new(start, may_offload);
            let mut last = start.micro_batch;
            for good in good_steps {
                (0..good).for_each(|_| shortage.step_done());
                let remedy = fail(&mut shortage);
                prop_assert_eq!(shortage.shape().effective(), start.effective());
                match remedy {
                    OomAction::Smaller(shape) => {
                        prop_assert!(shape.micro_batch < last);
                        last = shape.micro_batch;
                    }
                    OomAction::GiveUp(error) => {
                        prop_assert_eq!(error.shape.micro_batch.get(), 1);
                        return Ok(());
                    }
                    _ => {}
                }
            }
            prop_assert!(false, "no end after 600 shortages");
        }
    }
}
