//! Makes one batch: reads its samples, puts them together, pins what comes of it.
//!
//! All of that is code of others, so that a panic in any of it becomes an error that
//! names the samples, and what is being done can be asked from outside.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::Device;

use super::{BatchOrder, BoxError, LoadError, Source};
use crate::tensor_tree::{FieldPath, TensorTree};

/// Makes a batch from its number. Shared by the workers.
pub(super) struct BatchWorker<S, O> {
    source: S,
    pub(super) order: O,
    pin_for: Device,
    /// What is being done for each batch that is in the making.
    doing: Mutex<BTreeMap<u64, Doing>>,
}

/// What a worker is doing for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nothing yet, or nothing any more.
    Nothing,
    /// Reading a sample.
    Reading { sample: usize, epoch: u64 },
    /// Putting samples together.
    Collating { batch: u64, epoch: u64 },
}

impl fmt::Display for Doing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doing::Nothing => write!(formatter, "no worker has got to it"),
            Doing::Reading { sample, epoch } => {
                write!(
                    formatter,
                    "sample {sample} (epoch {epoch}) is still being read"
                )
            }
            Doing::Collating { batch, epoch } => {
                write!(
                    formatter,
                    "batch {batch} of epoch {epoch} is still being put together"
                )
            }
        }
    }
}

impl<S: Source, O: BatchOrder> BatchWorker<S, O> {
    pub(super) fn new(source: S, order: O, pin_for: Device) -> Self {
        Self {
            source,
            order,
            pin_for,
            doing: Mutex::new(BTreeMap::new()),
        }
    }

    /// What is being done for a batch.
    pub(super) fn doing(&self, number: u64) -> Doing {
        self.lock().get(&number).copied().unwrap_or(Doing::Nothing)
    }

    /// The batch, or why there is none; `None` once `stop` is set. Never panics.
    pub(super) fn make(
        &self,
        number: u64,
        stop: &AtomicBool,
    ) -> Option<Result<S::Batch, LoadError>> {
        let made = self.batch(number, stop);
        self.lock().remove(&number);
        made
    }

    fn batch(&self, number: u64, stop: &AtomicBool) -> Option<Result<S::Batch, LoadError>> {
        let (epoch, batch) = self.order.place_of(number);
        let indices = self.order.samples_of(number);
        let mut samples = Vec::with_capacity(indices.len());
        for &sample in &indices {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            self.lock().insert(number, Doing::Reading { sample, epoch });
            match self.read(epoch, sample) {
                Ok(read) => samples.push(read),
                Err(error) => return Some(Err(error)),
            }
        }
        self.lock()
            .insert(number, Doing::Collating { batch, epoch });
        let made = catch_unwind(AssertUnwindSafe(|| self.pin(self.source.collate(samples)?)));
        Some(match made {
            Ok(made) => made.map_err(|source| LoadError::Collate {
                samples: indices,
                epoch,
                source,
            }),
            Err(panic) => Err(LoadError::CollatePanicked {
                samples: indices,
                epoch,
                message: message_of(panic),
            }),
        })
    }

    fn read(&self, epoch: u64, sample: usize) -> Result<S::Sample, LoadError> {
        let draw = self.order.draw(epoch, sample);
        match catch_unwind(AssertUnwindSafe(|| self.source.sample(sample, draw))) {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(source)) => Err(LoadError::Sample {
                sample,
                epoch,
                source,
            }),
            Err(panic) => Err(LoadError::SamplePanicked {
                sample,
                epoch,
                message: message_of(panic),
            }),
        }
    }

    fn pin(&self, batch: S::Batch) -> Result<S::Batch, BoxError> {
        if self.pin_for == Device::Cpu {
            return Ok(batch);
        }
        batch.try_map(&FieldPath::root("batch"), &mut |_, tensor| {
            torch_ext::accelerator::pin_memory(&tensor).map_err(BoxError::from)
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Doing>> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a panic says. A payload that is no text is not even dropped: it could panic again,
/// outside of everything that catches it.
fn message_of(panic: Box<dyn Any + Send>) -> String {
    let panic = match panic.downcast::<String>() {
        Ok(text) => return *text,
        Err(panic) => panic,
    };
    match panic.downcast::<&'static str>() {
        Ok(text) => (*text).to_owned(),
        Err(panic) => {
            std::mem::forget(panic);
            "with something that is no text".to_owned()
        }
    }
}
