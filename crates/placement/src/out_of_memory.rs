//! Out of memory as a plan instead of a crash.
//!
//! A step that does not fit is tried again with more room, in this order, until it
//! fits or nothing is left to give:
//!
//! ```text
//!   trim what the allocator holds ─▶ offload what is idle, one by one ─▶ halve the micro-batch ─▶ error
//! ```
//!
//! Halving keeps the effective batch: the same samples in more, smaller passes. What
//! helped is remembered, so that the next step does not fail first.

use crate::bytes::Bytes;
use crate::placer::PlaceError;

/// An error that can say whether memory was exhausted, and whether the device can
/// still be used.
pub trait MemoryError {
    /// More free memory would have helped.
    fn is_out_of_memory(&self) -> bool;
    /// The device context is sane: trying again makes sense.
    fn context_is_usable(&self) -> bool;
}

impl MemoryError for torch_ext::Error {
    fn is_out_of_memory(&self) -> bool {
        torch_ext::Error::is_out_of_memory(self)
    }

    fn context_is_usable(&self) -> bool {
        torch_ext::Error::context_is_usable(self)
    }
}

impl MemoryError for PlaceError {
    fn is_out_of_memory(&self) -> bool {
        PlaceError::is_out_of_memory(self)
    }

    fn context_is_usable(&self) -> bool {
        PlaceError::context_is_usable(self)
    }
}

/// How the samples of one optimizer step are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBatches {
    /// Samples that go through the model at once.
    pub size: usize,
    /// Samples of the whole step.
    pub effective: usize,
}

impl MicroBatches {
    /// The ranges of samples, in order; only the last may be shorter. Weigh each pass
    /// by its share of the samples, and the gradient is that of the whole.
    pub fn ranges(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let size = self.size.max(1);
        (0..self.effective)
            .step_by(size)
            .map(move |at| at..(at + size).min(self.effective))
    }

    /// Half as many at once; `None` when it is one already.
    fn halved(self) -> Option<Self> {
        (self.size > 1).then_some(Self {
            size: self.size.div_ceil(2),
            ..self
        })
    }
}

/// What can be done for more room. Every method may do nothing.
pub trait Relief {
    /// Hands cached memory back; the bytes that were given back.
    fn trim(&mut self) -> Bytes;

    /// Moves one idle component off the device: its name and size; `None` when nothing
    /// idle is left. On unified memory offloading to the same RAM frees nothing, so
    /// there is nothing to offer.
    fn offload_idle(&mut self) -> Option<(String, Bytes)>;

    /// Free and total bytes, for the error message.
    fn memory(&self) -> Option<(Bytes, Bytes)>;
}

/// Why a step ended.
#[derive(Debug, thiserror::Error)]
pub enum StepError<E: std::error::Error + 'static> {
    /// It is not about memory, or the device is lost: passed on at once.
    #[error(transparent)]
    Other(E),
    /// Nothing was left to give.
    #[error(
        "out of memory with one sample at a time ({attempts} attempts: {}). {}{source}",
        tried.join(", "), memory_sentence(.memory)
    )]
    OutOfMemory {
        /// How often the step was tried.
        attempts: usize,
        /// What was done between the attempts.
        tried: Vec<String>,
        /// Free and total bytes at the end.
        memory: Option<(Bytes, Bytes)>,
        /// The last error.
        source: E,
    },
}

fn memory_sentence(memory: &Option<(Bytes, Bytes)>) -> String {
    match memory {
        Some((free, total)) => format!("{free} of {total} are free. "),
        None => String::new(),
    }
}

/// Runs steps so that they fit, and remembers what that took.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    batches: MicroBatches,
}

impl MemoryPlan {
    /// A plan that begins with these micro-batches.
    pub fn new(batches: MicroBatches) -> Self {
        Self { batches }
    }

    /// The micro-batches that the last step fitted with.
    pub fn batches(&self) -> MicroBatches {
        self.batches
    }

    /// Runs one optimizer step: forward and backward over all micro-batches.
    ///
    /// `step` may be called again after it failed, with the same samples: it must begin
    /// with gradients at zero, must not have changed parameters when it fails, and must
    /// put its random generators back if the draws are to be the same.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn run<T, E: MemoryError + std::error::Error + 'static>(
        &mut self,
        relief: &mut dyn Relief,
        mut step: impl FnMut(MicroBatches) -> Result<T, E>,
    ) -> Result<T, StepError<E>> {
        let mut tried: Vec<String> = Vec::new();
        let mut attempts = 0;
        let mut trimmed = false;
        loop {
            attempts += 1;
            let error = match step(self.batches) {
                Ok(done) => return Ok(done),
                Err(error) if !error.is_out_of_memory() || !error.context_is_usable() => {
                    return Err(StepError::Other(error));
                }
                Err(error) => error,
            };
            let measure = if !trimmed {
                trimmed = true;
                Some(format!("trimmed {}", relief.trim()))
            } else if let Some((name, bytes)) = relief.offload_idle() {
                Some(format!("offloaded {name} ({bytes})"))
            } else if let Some(halved) = self.batches.halved() {
                self.batches = halved;
                trimmed = false; // a smaller step leaves other holes to give back
                Some(format!("{} samples at a time", halved.size))
            } else {
                None
            };
            match measure {
                Some(measure) => {
                    tracing::warn!(%error, measure, "out of memory; trying again");
                    tried.push(measure);
                }
                None => {
                    let memory = relief.memory();
                    return Err(StepError::OutOfMemory {
                        attempts,
                        tried,
                        memory,
                        source: error,
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use torch_ext::Error;

    use super::*;

    /// A device on which a step of `n` samples needs `n` bytes and some more.
    struct Device {
        free: u64,
        cached: u64,
        idle: Vec<(&'static str, u64)>,
    }

    impl Relief for Device {
        fn trim(&mut self) -> Bytes {
            let cached = std::mem::take(&mut self.cached);
            self.free += cached;
            Bytes(cached)
        }

        fn offload_idle(&mut self) -> Option<(String, Bytes)> {
            let (name, bytes) = self.idle.pop()?;
            self.free += bytes;
            Some((name.to_owned(), Bytes(bytes)))
        }

        fn memory(&self) -> Option<(Bytes, Bytes)> {
            Some((Bytes(self.free), Bytes(100)))
        }
    }

    fn full() -> Error {
        Error::from_message("HIP out of memory. Tried to allocate 20.00 MiB".into())
    }

    /// Runs a step of 8 samples and returns the sizes it was tried with.
    fn run(device: Device, plan: &mut MemoryPlan) -> (Result<usize, StepError<Error>>, Vec<usize>) {
        let device = std::cell::RefCell::new(device);
        let mut sizes = Vec::new();
        struct Shared<'a>(&'a std::cell::RefCell<Device>);
        impl Relief for Shared<'_> {
            fn trim(&mut self) -> Bytes {
                self.0.borrow_mut().trim()
            }
            fn offload_idle(&mut self) -> Option<(String, Bytes)> {
                self.0.borrow_mut().offload_idle()
            }
            fn memory(&self) -> Option<(Bytes, Bytes)> {
                self.0.borrow().memory()
            }
        }
        let result = plan.run(&mut Shared(&device), |batches| {
            sizes.push(batches.size);
            if batches.size as u64 <= device.borrow().free {
                Ok(batches.size)
            } else {
                Err(full())
            }
        });
        (result, sizes)
    }

    fn plan() -> MemoryPlan {
        MemoryPlan::new(MicroBatches {
            size: 8,
            effective: 8,
        })
    }

    #[test]
    fn cheap_measures_come_first() {
        let device = Device {
            free: 1,
            cached: 4,
            idle: vec![("vae", 2), ("text encoder", 1)],
        };
        let mut plan = plan();
        let (result, sizes) = run(device, &mut plan);
        assert_eq!(
            (result.unwrap(), sizes),
            (8, vec![8, 8, 8, 8]),
            "trim, encoder, vae"
        );
        assert_eq!(plan.batches().size, 8);
    }

    #[test]
    fn a_smaller_micro_batch_is_remembered_and_covers_the_same_samples() {
        let mut plan = plan();
        let (result, sizes) = run(
            Device {
                free: 3,
                cached: 0,
                idle: vec![],
            },
            &mut plan,
        );
        assert_eq!((result.unwrap(), sizes), (2, vec![8, 8, 4, 4, 2]));
        assert!(plan.batches().ranges().eq([0..2, 2..4, 4..6, 6..8]));
    }

    #[test]
    fn at_the_end_the_error_says_what_was_tried_and_how_much_there_is() {
        let (result, _) = run(
            Device {
                free: 0,
                cached: 0,
                idle: vec![("vae", 0)],
            },
            &mut plan(),
        );
        let message = result.unwrap_err().to_string();
        assert!(
            message.starts_with("out of memory with one sample at a time (9 attempts"),
            "{message}"
        );
        assert!(message.contains("offloaded vae (0 B)"), "{message}");
        assert!(
            message.contains("0 B of 100 B are free. HIP out of memory."),
            "{message}"
        );
    }

    #[test]
    fn other_errors_and_lost_devices_are_not_tried_again() {
        for message in [
            "shapes differ",
            "HIP error: an illegal memory access, out of memory",
        ] {
            let mut calls = 0;
            let mut device = Device {
                free: 0,
                cached: 0,
                idle: vec![],
            };
            let result: Result<(), _> = plan().run(&mut device, |_| {
                calls += 1;
                Err(Error::from_message(message.to_owned()))
            });
            assert!(matches!(result, Err(StepError::Other(_))));
            assert_eq!(calls, 1, "{message}");
        }
    }

    #[test]
    fn uneven_batches_are_covered_too() {
        let ranges: Vec<_> = MicroBatches {
            size: 3,
            effective: 7,
        }
        .ranges()
        .collect();
        assert_eq!(ranges, [0..3, 3..6, 6..7]);
    }
}
