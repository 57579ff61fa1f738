//! Results made by several workers, taken in order, a bounded number ahead.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a queue that is dropped waits for its workers: each ends after the sample
/// that it is reading. One may be stuck in somebody's file system, and that must not
/// keep a run from ending.
const FAREWELL: Duration = Duration::from_secs(5);

/// Workers that make result `n`, `n + 1`, … ahead of the consumer.
pub(super) struct Queue<R> {
    shared: Arc<Shared<R>>,
    workers: Vec<JoinHandle<()>>,
}

/// What came of waiting for a result.
pub(super) enum Taken<R> {
    /// It is here.
    Made(R),
    /// It will never come: the worker that was to make it has died, or all have.
    Lost,
    /// It is still in the making.
    NotYet,
}

struct Shared<R> {
    state: Mutex<State<R>>,
    /// The consumer took one: there is room for another.
    room: Condvar,
    /// A worker made one, or ended.
    made: Condvar,
    depth: u64,
    /// Workers look at it between two samples.
    stop: AtomicBool,
}

struct State<R> {
    /// The next number that no worker has begun.
    unclaimed: u64,
    /// The next number that the consumer takes.
    wanted: u64,
    /// `None` for one whose worker has died of it.
    ready: BTreeMap<u64, Option<R>>,
    /// Workers that have not ended.
    alive: usize,
}

impl<R: Send + 'static> Queue<R> {
    /// Starts `workers` threads that call `make` for `first` and all numbers after it,
    /// at most `depth` ahead of the consumer. A `make` that panics costs its worker and
    /// that one result; it may return `None` once the flag that it is given is set.
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
        // Made first: if a thread cannot be started, dropping it stops the others.
        let mut queue = Self {
            shared: Arc::clone(&shared),
            workers: Vec::new(),
        };
        let make = Arc::new(make);
        for number in 0..workers {
            let (shared, make) = (Arc::clone(&shared), Arc::clone(&make));
            shared.lock().alive += 1;
            let ending = Ending(Arc::clone(&shared));
            let worker = std::thread::Builder::new()
                .name(format!("surefoot-loader-{number}"))
                .spawn(move || {
                    let ending = ending;
                    ending.0.work(&*make);
                    // What the source holds is gone before the thread counts as gone.
                    drop(make);
                })?;
            queue.workers.push(worker);
        }
        Ok(queue)
    }

    /// The next result in order, within `patience`.
    pub(super) fn take(&mut self, patience: Duration) -> Taken<R> {
        let until = Instant::now() + patience;
        let mut state = self.shared.lock();
        let number = state.wanted;
        loop {
            let made = state.ready.remove(&number);
            // Without workers, there is none to wait for either.
            if made.is_some() || state.alive == 0 {
                state.wanted += 1;
                self.shared.room.notify_all();
                return made.flatten().map_or(Taken::Lost, Taken::Made);
            }
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return Taken::NotYet;
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
    /// Tells the workers to end, and waits until they have, but not for ever: one may wait for
    /// a lock that the caller holds.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Under the lock: a worker that just looked at the flag must hear the call.
        let state = self.shared.lock();
        self.shared.room.notify_all();
        let waited = self
            .shared
            .made
            .wait_timeout_while(state, FAREWELL, |state| state.alive > 0);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let (stuck, workers) = (state.alive, std::mem::take(&mut self.workers));
        // A worker that is left behind keeps no batches that nobody will take.
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        drop(ready);
        if stuck > 0 {
            tracing::warn!(stuck, "threads of a loader do not end, and are left behind");
            return;
        }
        for worker in workers {
            // It has nothing to say: a worker reports by its results.
            let _ = worker.join();
        }
    }
}

impl<R> Shared<R> {
    fn work(&self, make: &dyn Fn(u64, &AtomicBool) -> Option<R>) {
        while let Some(number) = self.claim() {
            let mut claimed = Claimed {
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

    /// The next number to make, once there is room for it; `None` at the end.
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

/// A number that a worker has begun: however that ends, nobody waits for it any more.
struct Claimed<'a, R> {
    shared: &'a Shared<R>,
    number: u64,
    result: Option<R>,
}

impl<R> Drop for Claimed<'_, R> {
    fn drop(&mut self) {
        let result = self.result.take();
        self.shared.lock().ready.insert(self.number, result);
        self.shared.made.notify_all();
    }
}

/// Counts a worker out, however it ends.
struct Ending<R>(Arc<Shared<R>>);

impl<R> Drop for Ending<R> {
    fn drop(&mut self) {
        self.0.lock().alive -= 1;
        self.0.made.notify_all();
    }
}
