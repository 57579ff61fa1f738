//! A data loader that prepares batches ahead of the training step.
//!
//! ```text
//!   order (seed, epoch) ──▶ workers: sample … sample ─▶ collate ─▶ pin ──▶ ready, in order ──▶ next()
//!                              at most `depth` batches ahead of the consumer
//! ```
//!
//! The order of batches depends only on the seed, not on the number of workers or on which of them is faster.
//! The whole state is the index of the next batch ([`LoaderState`]), so a resumed run sees the same batches
//! as an uninterrupted one. A sample that fails or panics is reported with its index, in place of its batch;
//! later batches still follow. A sample that never arrives is named too, in the log or, after
//! [`LoaderOptions::timeout`], as an error.

mod batch_worker;
mod order;
mod queue;

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::Device;

use self::batch_worker::{BatchWorker, WorkerActivity};
pub use self::order::{BatchSampler, Shuffle};
use self::queue::{Queue, TakeResult};
use crate::tensor_tree::TensorTree;

/// How long to wait for a batch before a warning says what it is waiting for.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// Any error of reading or collating samples.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A data set. Several workers read it at once.
pub trait Source: Send + Sync + 'static {
    /// One sample, in host memory.
    type Sample;
    /// Several collated samples, in host memory.
    type Batch: TensorTree + Send + 'static;

    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads one sample. `draw` seeds random augmentation: it depends on the loader's seed, the epoch and the
    /// sample, so a repeated run draws the same.
    ///
    /// # Errors
    /// Any; reported with the sample's index.
    fn sample(&self, index: usize, draw: u64) -> Result<Self::Sample, BoxError>;

    /// Combines samples into a batch.
    ///
    /// # Errors
    /// Any; reported with the indices of the samples.
    fn collate(&self, samples: Vec<Self::Sample>) -> Result<Self::Batch, BoxError>;
}

/// How batches are made. The first three options configure [`Shuffle`]; a loader with its own
/// [`BatchSampler`] ignores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Samples per batch.
    pub batch_size: usize,
    /// Drop the last batch of an epoch if it is short. Usual in training, where its few samples would weigh
    /// more than others.
    pub drop_last: bool,
    /// Seed of the order; `None` keeps the order of the source.
    pub shuffle: Option<u64>,
    /// Threads that read samples; 0 reads them in `next()`.
    pub workers: usize,
    /// Batches to prepare ahead of the consumer; 0 counts as 1.
    pub depth: usize,
    /// How long `next()` waits for a batch before it fails with [`LoadError::TimedOut`], which names the
    /// missing sample. `None` waits forever, with a warning every ten seconds. Without workers, `next()`
    /// reads samples itself and never waits.
    pub timeout: Option<Duration>,
    /// Copy batches to pinned memory for this device, so that transfers are faster and need no CPU. No effect
    /// for the CPU.
    pub pin_for: Device,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self {
            batch_size: 1,
            drop_last: true,
            shuffle: None,
            workers: 1,
            depth: 2,
            timeout: None,
            pin_for: Device::Cpu,
        }
    }
}

/// A loader's position, and the settings that must match to resume from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderState {
    /// Batches returned since the start of the first epoch.
    pub batches: u64,
    /// Seed of the order.
    pub shuffle: Option<u64>,
    /// Samples per batch.
    pub batch_size: usize,
    /// Whether a short last batch is dropped.
    #[serde(default = "yes")]
    pub drop_last: bool,
    /// Number of samples in the source.
    pub samples: usize,
}

/// The default for states that were saved before the field existed.
fn yes() -> bool {
    true
}

/// Why there is no batch, or no loader.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A sample could not be read.
    #[error("sample {sample} (epoch {epoch}) cannot be read: {source}")]
    Sample {
        /// Its index in the source.
        sample: usize,
        /// The epoch, from zero.
        epoch: u64,
        /// What the source said.
        source: BoxError,
    },
    /// Reading a sample panicked.
    #[error("reading sample {sample} (epoch {epoch}) panicked: {message}")]
    SamplePanicked {
        /// Its index in the source.
        sample: usize,
        /// The epoch, from zero.
        epoch: u64,
        /// The panic's message.
        message: String,
    },
    /// Samples could not be collated.
    #[error("samples {samples:?} (epoch {epoch}) cannot be collated: {source}")]
    Collate {
        /// Their indices in the source.
        samples: Vec<usize>,
        /// The epoch, from zero.
        epoch: u64,
        /// What the source said.
        source: BoxError,
    },
    /// Collating samples, or copying them to pinned memory, panicked.
    #[error("making a batch of samples {samples:?} (epoch {epoch}) panicked: {message}")]
    CollatePanicked {
        /// Their indices in the source.
        samples: Vec<usize>,
        /// The epoch, from zero.
        epoch: u64,
        /// The panic's message.
        message: String,
    },
    /// A worker panicked outside of any handler, for example while dropping samples.
    #[error(
        "batch {batch} of epoch {epoch} is lost: the worker thread that was preparing it has died"
    )]
    WorkerDied {
        /// The batch, counted within its epoch from zero.
        batch: u64,
        /// The epoch, from zero.
        epoch: u64,
    },
    /// A batch did not arrive in time. It is still being prepared; `next()` waits for the same one again.
    #[error("no batch came within {waited:?}: {what}")]
    TimedOut {
        /// [`LoaderOptions::timeout`].
        waited: Duration,
        /// What its worker is doing, with the sample and the epoch.
        what: String,
        /// The sample that is being read, if any.
        sample: Option<usize>,
    },
    /// The source is smaller than one batch.
    #[error("{samples} samples do not fill one batch of {batch_size}")]
    TooFewSamples {
        /// Samples in the source.
        samples: usize,
        /// Samples in a batch.
        batch_size: usize,
    },
    /// The batch size is 0.
    #[error("`batch_size: 0`: a batch needs at least one sample")]
    EmptyBatches,
    /// The state belongs to a different loader.
    #[error(
        "the saved state belongs to a different loader: its {what} was {saved} and is now {now}"
    )]
    OtherLoader {
        /// The property that differs.
        what: &'static str,
        /// Its value in the state.
        saved: String,
        /// Its value in this loader.
        now: String,
    },
    /// Worker threads could not be started.
    #[error("cannot start the loader's worker threads: {0}")]
    Workers(#[from] std::io::Error),
}

/// A batch and its position.
#[derive(Debug)]
pub struct Loaded<B> {
    /// The epoch, from zero.
    pub epoch: u64,
    /// Index of the batch within the epoch.
    pub number: u64,
    /// The batch, in host memory.
    pub batch: B,
}

/// Yields batches forever, epoch after epoch.
pub struct Loader<S: Source, O: BatchSampler = Shuffle> {
    maker: Arc<BatchWorker<S, O>>,
    options: LoaderOptions,
    next: u64,
    queue: Option<Queue<Result<S::Batch, LoadError>>>,
}

/// The stop flag of loaders without workers, which never stop.
static NEVER: AtomicBool = AtomicBool::new(false);

impl<S: Source> Loader<S> {
    /// A loader that starts with the first epoch.
    pub fn new(source: S, options: LoaderOptions) -> Result<Self, LoadError> {
        Self::starting_at(source, options, 0)
    }

    /// A loader that continues from `state`.
    ///
    /// # Errors
    /// [`LoadError::OtherLoader`] if the order would differ.
    pub fn resume(
        source: S,
        options: LoaderOptions,
        state: &LoaderState,
    ) -> Result<Self, LoadError> {
        let differs = |what, saved: String, now: String| match saved == now {
            true => Ok(()),
            false => Err(LoadError::OtherLoader { what, saved, now }),
        };
        let seed = |seed: Option<u64>| seed.map_or("none".to_owned(), |seed| seed.to_string());
        differs("seed", seed(state.shuffle), seed(options.shuffle))?;
        differs(
            "batch size",
            state.batch_size.to_string(),
            options.batch_size.to_string(),
        )?;
        let last = |dropped| if dropped { "left out" } else { "kept" };
        differs(
            "short last batch",
            last(state.drop_last).to_owned(),
            last(options.drop_last).to_owned(),
        )?;
        differs(
            "number of samples",
            state.samples.to_string(),
            source.len().to_string(),
        )?;
        Self::starting_at(source, options, state.batches)
    }

    fn starting_at(source: S, options: LoaderOptions, next: u64) -> Result<Self, LoadError> {
        let samples = source.len();
        let least = if options.drop_last {
            options.batch_size
        } else {
            1
        };
        if options.batch_size == 0 {
            return Err(LoadError::EmptyBatches);
        }
        if samples < least {
            return Err(LoadError::TooFewSamples {
                samples,
                batch_size: options.batch_size,
            });
        }
        let order = Shuffle::new(samples, &options);
        Self::with_order(source, order, options, next)
    }

    /// The position: before the batch that `next` returns next. Batches that are prepared ahead do not count.
    pub fn state(&self) -> LoaderState {
        LoaderState {
            batches: self.next,
            shuffle: self.options.shuffle,
            batch_size: self.options.batch_size,
            drop_last: self.options.drop_last,
            samples: self.maker.order.samples(),
        }
    }
}

impl<S: Source, O: BatchSampler> Loader<S, O> {
    /// A loader for the batches of `order`, starting with the batch `next`.
    pub fn with_order(
        source: S,
        order: O,
        options: LoaderOptions,
        next: u64,
    ) -> Result<Self, LoadError> {
        let maker = Arc::new(BatchWorker::new(source, order, options.pin_for));
        let queue = match options.workers {
            0 => None,
            workers => {
                let maker = Arc::clone(&maker);
                let make = move |number, stop: &AtomicBool| maker.make(number, stop);
                Some(Queue::new(workers, options.depth.max(1), next, make)?)
            }
        };
        Ok(Self {
            maker,
            options,
            next,
            queue,
        })
    }

    /// Batches in one epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        self.maker.order.batches_per_epoch()
    }

    /// The batch sampler.
    pub fn order(&self) -> &O {
        &self.maker.order
    }

    /// Number of batches taken over all epochs, which is the index of the next one.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The batch with this index; `None` after the timeout.
    fn wait_for(&mut self, number: u64) -> Option<Result<S::Batch, LoadError>> {
        let Some(queue) = &mut self.queue else {
            return self.maker.make(number, &NEVER);
        };
        let since = Instant::now();
        loop {
            let timeout = self.options.timeout;
            let left = timeout.map_or(WARN_AFTER, |timeout| {
                timeout.saturating_sub(since.elapsed())
            });
            match queue.take(left.min(WARN_AFTER)) {
                TakeResult::Ready(batch) => return Some(batch),
                TakeResult::Lost => {
                    let (epoch, batch) = self.maker.order.place_of(number);
                    return Some(Err(LoadError::WorkerDied { batch, epoch }));
                }
                TakeResult::Pending => {}
            }
            if timeout.is_some_and(|timeout| since.elapsed() >= timeout) {
                return None;
            }
            let what = self.maker.activity(number);
            tracing::warn!(
                seconds = since.elapsed().as_secs(),
                "the loader waits: {what}"
            );
        }
    }
}

impl<S: Source, O: BatchSampler> Iterator for Loader<S, O> {
    type Item = Result<Loaded<S::Batch>, LoadError>;

    /// The next batch; never `None`. After an error, the batch after the failed one (after
    /// [`LoadError::TimedOut`], the same one).
    fn next(&mut self) -> Option<Self::Item> {
        let number = self.next;
        let Some(batch) = self.wait_for(number) else {
            let doing = self.maker.activity(number);
            return Some(Err(LoadError::TimedOut {
                waited: self.options.timeout.unwrap_or_default(),
                sample: match doing {
                    WorkerActivity::Reading { sample, .. } => Some(sample),
                    _ => None,
                },
                what: doing.to_string(),
            }));
        };
        self.next += 1;
        let (epoch, number) = self.maker.order.place_of(number);
        Some(batch.map(|batch| Loaded {
            epoch,
            number,
            batch,
        }))
    }
}
