//! Prepares one batch: reads its samples, collates them and pins the result.
//!
//! All of this calls user code, so a panic becomes an error that names the samples, and the current activity
//! can be queried from outside.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::Device;

use super::{BatchSampler, BoxError, LoadError, Source};
use crate::tensor_tree::{FieldPath, TensorTree};

/// Prepares a batch from its index. Shared by the workers.
pub(super) struct BatchWorker<S, O> {
    source: S,
    pub(super) order: O,
    pin_for: Device,
    /// The current activity for each batch in preparation.
    activities: Mutex<BTreeMap<u64, WorkerActivity>>,
}

/// What a worker is doing for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerActivity {
    /// Nothing yet, or finished.
    Idle,
    /// Reading a sample.
    Reading { sample: usize, epoch: u64 },
    /// Collating samples.
    Collating { batch: u64, epoch: u64 },
}

impl fmt::Display for WorkerActivity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerActivity::Idle => write!(formatter, "no worker has got to it"),
            WorkerActivity::Reading { sample, epoch } => {
                write!(
                    formatter,
                    "sample {sample} (epoch {epoch}) is still being read"
                )
            }
            WorkerActivity::Collating { batch, epoch } => {
                write!(
                    formatter,
                    "batch {batch} of epoch {epoch} is still being collated"
                )
            }
        }
    }
}

impl<S: Source, O: BatchSampler> BatchWorker<S, O> {
    pub(super) fn new(source: S, order: O, pin_for: Device) -> Self {
        Self {
            source,
            order,
            pin_for,
            activities: Mutex::new(BTreeMap::new()),
        }
    }

    /// The current activity for a batch.
    pub(super) fn activity(&self, number: u64) -> WorkerActivity {
        self.lock()
            .get(&number)
            .copied()
            .unwrap_or(WorkerActivity::Idle)
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
            self.lock()
                .insert(number, WorkerActivity::Reading { sample, epoch });
            match self.read(epoch, sample) {
                Ok(read) => samples.push(read),
                Err(error) => return Some(Err(error)),
            }
        }
        self.lock()
            .insert(number, WorkerActivity::Collating { batch, epoch });
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, WorkerActivity>> {
        self.activities
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The message of a panic. A payload that is not text is leaked: dropping it could panic again, with nothing
/// to catch it.
fn message_of(panic: Box<dyn Any + Send>) -> String {
    let panic = match panic.downcast::<String>() {
        Ok(text) => return *text,
        Err(panic) => panic,
    };
    match panic.downcast::<&'static str>() {
        Ok(text) => (*text).to_owned(),
        Err(panic) => {
            std::mem::forget(panic);
            "with a payload that is not text".to_owned()
        }
    }
}
