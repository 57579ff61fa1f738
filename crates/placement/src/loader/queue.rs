//! Results produced by several workers and taken in order, a bounded number ahead.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a dropped queue waits for its workers, which exit after their current sample. One of them may be
/// stuck in a file system, which must not keep a run from ending.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Workers that produce the results `n`, `n + 1`, … ahead of the consumer.
pub(super) struct Queue<R> {
    shared: Arc<Shared<R>>,
    workers: Vec<JoinHandle<()>>,
}

/// The outcome of waiting for a result.
pub(super) enum TakeResult<R> {
    /// The result.
    Ready(R),
    /// It will never arrive: the worker that was producing it has died, or all have.
    Lost,
    /// It is still being produced.
    Pending,
}

struct Shared<R> {
    state: Mutex<State<R>>,
    /// Signalled when the consumer takes a result, which makes room for another.
    room: Condvar,
    /// Signalled when a worker has produced a result or exited.
    made: Condvar,
    depth: u64,
    /// Checked by workers between samples.
    stop: AtomicBool,
}

struct State<R> {
    /// The next number that no worker has claimed.
    unclaimed: u64,
    /// The next number that the consumer takes.
    wanted: u64,
    /// `None` for a result whose worker has died.
    ready: BTreeMap<u64, Option<R>>,
    /// Number of workers that have not exited.
    alive: usize,
}

impl<R: Send + 'static> Queue<R> {
    /// Starts `workers` threads that call `make` for `first` and all following numbers, at most `depth` ahead
    /// of the consumer. A panic in `make` costs its worker and that one result. `make` may return `None` once
    /// the flag that it gets is set.
    pub(super) fn new(
        workers: usize,
        depth: usize,
        first: u64,
        make: impl Fn(u64, &AtomicBool) -> Option<R> + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let state = State {
            unclaimed: first,
            wanted: first,
            ready: BTreeMap::new(),
            alive: 0,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            room: Condvar::new(),
            made: Condvar::new(),
            depth: depth as u64,
            stop: AtomicBool::new(false),
        });
        // Created first: if a thread cannot be started, dropping it stops the others.
        let mut queue = Self {
            shared: Arc::clone(&shared),
            workers: Vec::new(),
        };
        let make = Arc::new(make);
        for number in 0..workers {
            let (shared, make) = (Arc::clone(&shared), Arc::clone(&make));
            shared.lock().alive += 1;
            let ending = ExitGuard(Arc::clone(&shared));
            let worker = std::thread::Builder::new()
                .name(format!("surefoot-loader-{number}"))
                .spawn(move || {
                    let ending = ending;
                    ending.0.work(&*make);
                    // The source's resources are released before the thread counts as exited.
                    drop(make);
                })?;
            queue.workers.push(worker);
        }
        Ok(queue)
    }

    /// The next result in order, within `timeout`.
    pub(super) fn take(&mut self, timeout: Duration) -> TakeResult<R> {
        let until = Instant::now() + timeout;
        let mut state = self.shared.lock();
        let number = state.wanted;
        loop {
            let made = state.ready.remove(&number);
            // Without workers there is nothing to wait for.
            if made.is_some() || state.alive == 0 {
                state.wanted += 1;
                self.shared.room.notify_all();
                return made.flatten().map_or(TakeResult::Lost, TakeResult::Ready);
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return TakeResult::Pending;
            };
            (state, _) = self
                .shared
                .made
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<R> Drop for Queue<R> {
    /// Tells the workers to exit and waits until they have, but not forever: one may be waiting for a lock
    /// that the caller holds.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Under the lock, so that a worker that has just read the flag does not miss the signal.
        let state = self.shared.lock();
        self.shared.room.notify_all();
        let waited = self
            .shared
            .made
            .wait_timeout_while(state, SHUTDOWN_TIMEOUT, |state| state.alive > 0);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (stuck, workers) = (state.alive, std::mem::take(&mut self.workers));
        // An abandoned worker must not keep batches that nobody will take.
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        drop(ready);
        if stuck > 0 {
            tracing::warn!(stuck, "data loader threads do not exit and are abandoned");
            return;
        }
        for worker in workers {
            // Its exit value is empty; workers report through their results.
            let _ = worker.join();
        }
    }
}

impl<R> Shared<R> {
    fn work(&self, make: &dyn Fn(u64, &AtomicBool) -> Option<R>) {
        while let Some(number) = self.claim() {
            let mut claimed = ClaimGuard {
                shared: self,
                number,
                result: None,
            };
            claimed.result = make(number, &self.stop);
            if claimed.result.is_none() {
                return;
            }
        }
    }

    /// The next number to produce, once there is room for it; `None` when stopping.
    fn claim(&self) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            if state.unclaimed < state.wanted.saturating_add(self.depth) {
                state.unclaimed += 1;
                return Some(state.unclaimed - 1);
            }
            state = self
                .room
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number claimed by a worker; however that ends, nobody waits for it afterwards.
struct ClaimGuard<'a, R> {
    shared: &'a Shared<R>,
    number: u64,
    result: Option<R>,
}

impl<R> Drop for ClaimGuard<'_, R> {
    fn drop(&mut self) {
        let result = self.result.take();
        self.shared.lock().ready.insert(self.number, result);
        self.shared.made.notify_all();
    }
}

/// Decrements the number of live workers, however the worker ends.
struct ExitGuard<R>(Arc<Shared<R>>);

impl<R> Drop for ExitGuard<R> {
    fn drop(&mut self) {
        self.0.lock().alive -= 1;
        self.0.made.notify_all();
    }
}
