//! Runs calls that may never return on a separate thread, and stops waiting for them after a deadline.
//!
//! A copy from pageable memory blocks inside the driver; if the device hangs, so does the caller, forever,
//! and nothing can interrupt it. But it can be detected: the call runs on a worker, and the caller waits with
//! a deadline. A worker that misses its deadline is abandoned together with everything it holds (the device
//! may still write there), and the next call gets a new one.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

type Task = Box<dyn FnOnce() + Send>;

/// A worker thread with a deadline for each call.
#[derive(Default)]
pub(crate) struct Watchdog {
    worker: Option<Sender<Task>>,
}

/// The call did not return in time, or its thread failed.
#[derive(Debug, PartialEq)]
pub(crate) enum CallError {
    /// It may still be running.
    TimedOut(Duration),
    /// It panicked, or no thread could be started.
    Lost,
}

impl Watchdog {
    /// Runs `call` on the worker and waits for its result, at most until the deadline.
    pub(crate) fn run<R: Send + 'static>(
        &mut self,
        deadline: Duration,
        call: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, CallError> {
        let (answer, result): (Sender<R>, Receiver<R>) = channel();
        let task: Task = Box::new(move || {
            // The caller may no longer be waiting.
            let _ = answer.send(call());
        });
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => spawn().ok_or(CallError::Lost)?,
        };
        worker.send(task).map_err(|_| CallError::Lost)?;
        match result.recv_timeout(deadline) {
            Ok(result) => {
                self.worker = Some(worker);
                Ok(result)
            }
            Err(RecvTimeoutError::Timeout) => Err(CallError::TimedOut(deadline)),
            Err(RecvTimeoutError::Disconnected) => Err(CallError::Lost),
        }
    }
}

/// A thread that runs tasks until all senders are dropped. A panic ends it.
fn spawn() -> Option<Sender<Task>> {
    let (tasks, queue) = channel::<Task>();
    std::thread::Builder::new()
        .name("surefoot-transfer".into())
        .spawn(move || queue.into_iter().for_each(|task| task()))
        .ok()
        .map(|_| tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_call_that_returns_gives_its_result_and_keeps_its_thread() {
        let mut watch = Watchdog::default();
        let first = watch.run(LONG, || std::thread::current().id()).unwrap();
        let second = watch.run(LONG, || std::thread::current().id()).unwrap();
        assert_eq!(first, second);
    }

    #[test]
    fn a_call_that_never_returns_is_left_behind() {
        let (mut watch, short) = (Watchdog::default(), Duration::from_millis(10));
        let (_never, wait) = channel::<()>();
        let missed = watch.run(short, move || wait.recv().is_ok()).unwrap_err();
        assert_eq!(missed, CallError::TimedOut(short));
        let next = watch.run(LONG, || 5);
        assert_eq!(next, Ok(5), "the next call gets a new thread");
    }

    #[test]
    fn a_panic_is_no_hang() {
        let mut watch = Watchdog::default();
        assert_eq!(
            watch.run(LONG, || panic!("on purpose")),
            Err::<(), _>(CallError::Lost)
        );
        assert_eq!(watch.run(LONG, || 5), Ok(5));
    }
}
