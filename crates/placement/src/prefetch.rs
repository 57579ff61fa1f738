//! Batches that a thread prepares ahead of the training step.
//!
//! ```text
//!   number ──▶ thread: make ─▶ pin ──▶ ready, in order ──▶ next()
//!              at most `ahead` batches ahead of the consumer
//! ```
//!
//! A batch depends only on its number, so that a run that goes on from number `n` sees the same batches as one that
//! was never stopped. One that fails or panics is an error in its place; those after it still follow.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tch::Device;

use crate::tensor_tree::{FieldPath, TensorTree};

/// How long to wait for a batch before a warning says what it is waiting for.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// How long a dropped prefetcher waits for its thread, which ends after its current batch. It may be stuck in a file
/// system, which must not keep a run from ending.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Any error of making a batch.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What the thread is doing, as in "reading `a.mp4`", for the warning about a batch that does not come.
#[derive(Clone, Debug, Default)]
pub struct Activity(Arc<Mutex<String>>);

impl Activity {
    /// Begins something else.
    pub fn set(&self, what: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    fn get(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Yields the batches from a number on.
#[derive(Debug)]
pub struct Prefetcher<B> {
    next: u64,
    activity: Activity,
    /// `None` only while it is dropped.
    batches: Option<Receiver<Result<B, BoxError>>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl<B: TensorTree + Send + 'static> Prefetcher<B> {
    /// Starts with the batch `first`, at most `ahead` batches ahead of the consumer (0 counts as 1). Batches for an
    /// accelerator `device` are copied to pinned memory, so that transfers are faster and need no CPU.
    pub fn new(
        first: u64,
        ahead: usize,
        device: Device,
        mut make: impl FnMut(u64, &Activity) -> Result<B, BoxError> + Send + 'static,
    ) -> std::io::Result<Self> {
        // The thread holds one more, for which there is no room yet.
        let (ready, batches) = sync_channel(ahead.saturating_sub(1));
        let (alive, ended) = channel::<()>();
        let activity = Activity::default();
        let doing = activity.clone();
        let work = move || {
            for number in first.. {
                doing.set(format!("batch {number} is still being made"));
                let made = catch_unwind(AssertUnwindSafe(|| pin(make(number, &doing)?, device)));
                let made = made.unwrap_or_else(|panic| {
                    Err(format!("making batch {number} panicked: {}", message_of(panic)).into())
                });
                if ready.send(made).is_err() {
                    break;
                }
            }
            // What the closure owns is released before the thread counts as ended.
            drop(make);
            drop(alive);
        };
        std::thread::Builder::new()
            .name("surefoot-prefetch".to_owned())
            .spawn(work)?;
        Ok(Self {
            next: first,
            activity,
            batches: Some(batches),
            ended,
        })
    }
}

impl<B> Prefetcher<B> {
    /// The number of the next batch.
    pub fn position(&self) -> u64 {
        self.next
    }
}

impl<B> Iterator for Prefetcher<B> {
    type Item = Result<B, BoxError>;

    /// The next batch; never `None`.
    fn next(&mut self) -> Option<Self::Item> {
        let batches = self.batches.as_ref()?;
        let since = Instant::now();
        loop {
            match batches.recv_timeout(WARN_AFTER) {
                Ok(made) => {
                    self.next += 1;
                    return Some(made);
                }
                Err(RecvTimeoutError::Timeout) => tracing::warn!(
                    seconds = since.elapsed().as_secs(),
                    "waiting for the next batch: {}",
                    self.activity.get()
                ),
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Err("the thread that makes batches has died".into()));
                }
            }
        }
    }
}

impl<B> Drop for Prefetcher<B> {
    /// Lets the thread end and waits until it has, but not forever: it may be waiting for a lock that the caller holds.
    fn drop(&mut self) {
        drop(self.batches.take());
        if self.ended.recv_timeout(SHUTDOWN_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("a thread that makes batches does not end and is abandoned");
        }
    }
}

fn pin<B: TensorTree>(batch: B, device: Device) -> Result<B, BoxError> {
    if device == Device::Cpu {
        return Ok(batch);
    }
    batch.try_map(&FieldPath::root("batch"), &mut |_, tensor| {
        torch_ext::accelerator::pin_memory(&tensor).map_err(BoxError::from)
    })
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
