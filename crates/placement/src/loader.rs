//! A loader that prepares batches ahead of the training step.
//!
//! ```text
//!   order (seed, epoch) ──▶ workers: sample … sample ─▶ collate ─▶ pin ──▶ ready, in order ──▶ next()
//!                              at most `depth` batches ahead of the consumer
//! ```
//!
//! The order of batches depends on the seed and nothing else: not on how many workers
//! there are, nor on which is faster. Its whole state is the number of the next batch
//! ([`LoaderState`]), so a resumed run sees what the interrupted one would have seen.
//! A sample that fails or panics is reported with its index, at the place in the order
//! where its batch belongs; the batches after it still come. One that does not come at
//! all is named too, in the log or, after [`LoaderOptions::patience`], as an error.

mod batch_worker;
mod order;
mod queue;

use std::error::Error as StdError;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::Device;

use self::batch_worker::{BatchWorker, Doing};
pub use self::order::{BatchOrder, Shuffle};
use self::queue::{Queue, Taken};
use crate::tensor_tree::TensorTree;

/// How long a batch may be waited for before the log says what it waits for.
const SILENCE: Duration = Duration::from_secs(10);

/// What samples and collating may fail with.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Where samples come from. Read by several workers at once.
pub trait Source: Send + Sync + 'static {
    /// One sample, on the host.
    type Sample;
    /// Several samples in one, on the host.
    type Batch: TensorTree + Send + 'static;

    /// How many samples there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads one sample. `draw` is for random augmentation: it depends on the loader's
    /// seed, the epoch and the sample, so that the same run draws the same.
    ///
    /// # Errors
    /// Anything; reported with the sample's index.
    fn sample(&self, index: usize, draw: u64) -> Result<Self::Sample, BoxError>;

    /// Puts samples together.
    ///
    /// # Errors
    /// Anything; reported with the indices of the samples.
    fn collate(&self, samples: Vec<Self::Sample>) -> Result<Self::Batch, BoxError>;
}

/// How batches are made. The first three are for [`Shuffle`], and say nothing to a loader with an
/// order of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Samples in a batch.
    pub batch_size: usize,
    /// Leave the last batch of an epoch out when it is short, as it usually is in
    /// training: its few samples would weigh more than the others.
    pub drop_last: bool,
    /// Decides the order; `None` keeps the order of the source.
    pub shuffle: Option<u64>,
    /// Threads that read samples; 0 reads them in `next()`.
    pub workers: usize,
    /// Batches that may be ready or in the making, ahead of the consumer; 0 is taken for 1.
    pub depth: usize,
    /// How long `next()` waits for a batch before it says which sample does not come
    /// ([`LoadError::Stuck`]). `None` waits for ever, and says it in the log every ten
    /// seconds. Without workers the sample is read by `next()` itself, and nobody waits.
    pub patience: Option<Duration>,
    /// Put batches into pinned memory for this device, from which it copies faster
    /// and without the CPU. Does nothing for the CPU.
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
            patience: None,
            pin_for: Device::Cpu,
        }
    }
}

/// Where a loader is, and what it must agree with to go on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderState {
    /// Batches given out since the first epoch began.
    pub batches: u64,
    /// The seed of the order.
    pub shuffle: Option<u64>,
    /// Samples in a batch.
    pub batch_size: usize,
    /// Whether a short last batch is left out.
    #[serde(default = "yes")]
    pub drop_last: bool,
    /// Samples in the source.
    pub samples: usize,
}

/// What states meant that were saved before they said so.
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
    /// Samples could not be put together.
    #[error("samples {samples:?} (epoch {epoch}) make no batch: {source}")]
    Collate {
        /// Their indices in the source.
        samples: Vec<usize>,
        /// The epoch, from zero.
        epoch: u64,
        /// What the source said.
        source: BoxError,
    },
    /// Putting samples together, or into pinned memory, panicked.
    #[error("making a batch of samples {samples:?} (epoch {epoch}) panicked: {message}")]
    CollatePanicked {
        /// Their indices in the source.
        samples: Vec<usize>,
        /// The epoch, from zero.
        epoch: u64,
        /// The panic's message.
        message: String,
    },
    /// A worker panicked where nothing catches it, as when samples are dropped.
    #[error(
        "batch {batch} of epoch {epoch} is lost: the loader's worker that was to make it has died"
    )]
    WorkerDied {
        /// The batch, counted within its epoch from zero.
        batch: u64,
        /// The epoch, from zero.
        epoch: u64,
    },
    /// A batch does not come. It is still in the making: `next()` waits for the same one again.
    #[error("no batch came within {waited:?}: {what}")]
    Stuck {
        /// [`LoaderOptions::patience`].
        waited: Duration,
        /// What its worker is doing since, with the sample and the epoch.
        what: String,
        /// The sample that is being read, if it is one.
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
    /// Batches of no samples.
    #[error("`batch_size: 0`: a batch needs at least one sample")]
    EmptyBatches,
    /// A state of another loader.
    #[error("the saved state is of another loader: its {what} is {saved}, and now it is {now}")]
    OtherLoader {
        /// The property that differs.
        what: &'static str,
        /// In the state.
        saved: String,
        /// In this loader.
        now: String,
    },
    /// The operating system gave no worker threads.
    #[error("the loader's workers cannot be started: {0}")]
    Workers(#[from] std::io::Error),
}

/// A batch and its place in the order.
#[derive(Debug)]
pub struct Loaded<B> {
    /// The epoch, from zero.
    pub epoch: u64,
    /// The batch's number in the epoch, from zero.
    pub number: u64,
    /// The batch, on the host.
    pub batch: B,
}

/// Gives batches without end, epoch after epoch.
pub struct Loader<S: Source, O: BatchOrder = Shuffle> {
    maker: Arc<BatchWorker<S, O>>,
    options: LoaderOptions,
    next: u64,
    queue: Option<Queue<Result<S::Batch, LoadError>>>,
}

/// For loaders without workers, which nobody can stop.
static NEVER: AtomicBool = AtomicBool::new(false);

impl<S: Source> Loader<S> {
    /// A loader that begins with the first epoch.
    ///
    /// # Errors
    /// [`LoadError::EmptyBatches`]; [`LoadError::TooFewSamples`]; [`LoadError::Workers`].
    pub fn new(source: S, options: LoaderOptions) -> Result<Self, LoadError> {
        Self::starting_at(source, options, 0)
    }

    /// A loader that goes on where another one was.
    ///
    /// # Errors
    /// [`LoadError::OtherLoader`] when the order would not be the same.
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

    /// Where the loader is: before the batch that `next` gives next. Batches that are
    /// ready ahead do not count.
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

impl<S: Source, O: BatchOrder> Loader<S, O> {
    /// A loader of the batches that `order` says, from the batch `next` on.
    ///
    /// # Errors
    /// [`LoadError::Workers`].
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

    /// The order of the batches.
    pub fn order(&self) -> &O {
        &self.maker.order
    }

    /// Batches that were taken, over all epochs: the number of the one that `next` gives next.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// The batch of this number; `None` after the patience that the options have.
    fn wait_for(&mut self, number: u64) -> Option<Result<S::Batch, LoadError>> {
        let Some(queue) = &mut self.queue else {
            return self.maker.make(number, &NEVER);
        };
        let since = Instant::now();
        loop {
            let patience = self.options.patience;
            let left =
                patience.map_or(SILENCE, |patience| patience.saturating_sub(since.elapsed()));
            match queue.take(left.min(SILENCE)) {
                Taken::Made(batch) => return Some(batch),
                Taken::Lost => {
                    let (epoch, batch) = self.maker.order.place_of(number);
                    return Some(Err(LoadError::WorkerDied { batch, epoch }));
                }
                Taken::NotYet => {}
            }
            if patience.is_some_and(|patience| since.elapsed() >= patience) {
                return None;
            }
            let what = self.maker.doing(number);
            tracing::warn!(
                seconds = since.elapsed().as_secs(),
                "the loader waits: {what}"
            );
        }
    }
}

impl<S: Source, O: BatchOrder> Iterator for Loader<S, O> {
    type Item = Result<Loaded<S::Batch>, LoadError>;

    /// The next batch; never `None`. After an error, the batch after the bad one
    /// (after [`LoadError::Stuck`], the same).
    fn next(&mut self) -> Option<Self::Item> {
        let number = self.next;
        let Some(batch) = self.wait_for(number) else {
            let doing = self.maker.doing(number);
            return Some(Err(LoadError::Stuck {
                waited: self.options.patience.unwrap_or_default(),
                sample: match doing {
                    Doing::Reading { sample, .. } => Some(sample),
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
