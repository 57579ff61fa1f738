//! The worker: the process that starts the jobs.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::job::JobId;
use super::runner::JobRunner;
use super::store::Next;
use super::{Concurrency, Queue};
use crate::runs::{Error, RunName};

/// How often to look whether another job can start.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Why the worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerExit {
    /// There is nothing left to do.
    Done,
    /// Another process is the worker.
    Elsewhere,
}

/// A run that ended without reporting its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterruptedRun {
    /// The run.
    pub run: RunName,
    /// The last step that it recorded.
    pub step: u64,
    /// `notify.url` of its config.
    pub notify_url: Option<String>,
}

/// What the worker needs from its caller.
pub struct Callbacks<'a> {
    /// Diagnoses this machine, without Python.
    pub diagnose: &'a (dyn Fn() -> doctor::Report + Sync),
    /// Called for each run that ended without reporting its end and is not resumed.
    pub on_interrupted: &'a (dyn Fn(&InterruptedRun) + Sync),
}

/// Works through the queue until nothing is left to do. `program` is `surefoot`.
///
/// # Errors
/// If a file of the queue cannot be read or written. Started runs go on, and the next worker takes them over.
pub fn work(queue: &Queue, program: &Path, callbacks: &Callbacks<'_>) -> Result<WorkerExit, Error> {
    let mut lock = queue.try_work_lock()?;
    if lock.is_none() {
        return Ok(WorkerExit::Elsewhere);
    }
    let runner = JobRunner::new(queue, program, callbacks);
    let active = ActiveJobs::default();
    // Ends when all threads have ended; an error keeps further jobs from being started.
    std::thread::scope(|scope| {
        loop {
            let (jobs, seen) = active.jobs();
            let at_once = queue.at_once();
            let next = queue.next(&mut lock, &jobs, |all| {
                match at_once == Concurrency::One && !jobs.is_empty() {
                    // Wait until that one has ended.
                    true => Ok(None),
                    false => runner.choose(at_once, all),
                }
            })?;
            let (job, is_new) = match next {
                Next::Start(job) => (job, true),
                Next::TakeOver(job) => (job, false),
                Next::Wait => {
                    active.wait(seen)?;
                    continue;
                }
                Next::Nothing => return Ok(WorkerExit::Done),
            };
            let guard = active.take(job.id);
            let runner = &runner;
            scope.spawn(move || {
                let done = match is_new {
                    true => runner.start(job),
                    false => runner.take_over(job),
                };
                guard.done(done);
            });
        }
    })
}

/// The jobs that threads of this process work on.
#[derive(Default)]
struct ActiveJobs {
    state: Mutex<ActiveJobsState>,
    changed: Condvar,
}

#[derive(Default)]
struct ActiveJobsState {
    jobs: HashSet<JobId>,
    /// How many jobs have been finished or given up.
    ended: u64,
    error: Option<Error>,
}

impl ActiveJobs {
    fn state(&self) -> MutexGuard<'_, ActiveJobsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jobs(&self) -> (HashSet<JobId>, u64) {
        let state = self.state();
        (state.jobs.clone(), state.ended)
    }

    fn take(&self, id: JobId) -> ActiveJob<'_> {
        self.state().jobs.insert(id);
        ActiveJob { jobs: self, id }
    }

    /// Waits until a job ends after `seen`, or for `POLL_INTERVAL`.
    fn wait(&self, seen: u64) -> Result<(), Error> {
        let is_same = |state: &mut ActiveJobsState| state.ended == seen;
        let waited = self
            .changed
            .wait_timeout_while(self.state(), POLL_INTERVAL, is_same);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.error.take().map_or(Ok(()), Err)
    }
}

/// An active job, until this is dropped.
struct ActiveJob<'a> {
    jobs: &'a ActiveJobs,
    id: JobId,
}

impl ActiveJob<'_> {
    fn done(self, result: Result<(), Error>) {
        if let Err(error) = result {
            self.jobs.state().error = Some(error);
        }
    }
}

impl Drop for ActiveJob<'_> {
    fn drop(&mut self) {
        let mut state = self.jobs.state();
        if std::thread::panicking() {
            let error = format!("the thread of job {} panicked", self.id);
            state.error = Some(Error::Refused(error));
        }
        state.jobs.remove(&self.id);
        state.ended += 1;
        drop(state);
        self.jobs.changed.notify_all();
    }
}
