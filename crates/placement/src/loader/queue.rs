//! Results made by several workers, taken in order, a bounded number ahead.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Workers that make result `n`, `n + 1`, … ahead of the consumer.
pub(super) struct Queue<R> {
    shared: Arc<Shared<R>>,
    workers: usize,
}

struct Shared<R> {
    state: Mutex<State<R>>,
    /// The consumer took one: there is room for another.
    room: Condvar,
    /// A worker made one, or ended.
    made: Condvar,
    depth: u64,
}

struct State<R> {
    /// The next number that no worker has begun.
    unclaimed: u64,
    /// The next number that the consumer takes.
    wanted: u64,
    ready: BTreeMap<u64, R>,
    stopped: bool,
}

impl<R: Send + 'static> Queue<R> {
    /// Starts `workers` threads that call `make` for `first` and all numbers after it,
    /// at most `depth` ahead of the consumer. `make` must not panic.
    pub(super) fn new(
        workers: usize,
        depth: usize,
        first: u64,
        make: impl Fn(u64) -> R + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let state = State {
            unclaimed: first,
            wanted: first,
            ready: BTreeMap::new(),
            stopped: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            room: Condvar::new(),
            made: Condvar::new(),
            depth: depth as u64,
        });
        // Made first: if a thread cannot be started, dropping it stops the others.
        let queue = Self {
            shared: Arc::clone(&shared),
            workers,
        };
        let make = Arc::new(make);
        for number in 0..queue.workers {
            let (shared, make) = (Arc::clone(&shared), Arc::clone(&make));
            std::thread::Builder::new()
                .name(format!("surefoot-loader-{number}"))
                .spawn(move || shared.work(&*make))?;
        }
        Ok(queue)
    }

    /// The next result in order; waits for it.
    pub(super) fn take(&mut self) -> R {
        let mut state = self.shared.lock();
        let number = state.wanted;
        loop {
            if let Some(result) = state.ready.remove(&number) {
                state.wanted += 1;
                self.shared.room.notify_all();
                return result;
            }
            state = self
                .shared
                .made
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<R> Drop for Queue<R> {
    /// Tells the workers to end. Does not wait: one may be stuck in somebody's file
    /// system, and that must not keep a run from ending.
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.room.notify_all();
    }
}

impl<R> Shared<R> {
    fn work(&self, make: &dyn Fn(u64) -> R) {
        while let Some(number) = self.claim() {
            let result = make(number);
            self.lock().ready.insert(number, result);
            self.made.notify_all();
        }
    }

    /// The next number to make, once there is room for it; `None` at the end.
    fn claim(&self) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            if state.unclaimed < state.wanted + self.depth {
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
