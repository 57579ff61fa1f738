//! The process that starts the jobs: one after another, or several at once.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::hand::Hand;
use super::job::JobId;
use super::store::Next;
use super::{AtOnce, Queue, refuse_without_trainer};
use crate::runs::{Error, RunName};

/// Between two looks whether something else can begin.
const LOOK: Duration = Duration::from_secs(1);

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worked {
    /// Nothing is left to do.
    Done,
    /// Another process does it.
    Elsewhere,
}

/// A run that ended without a word, so that it could tell nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutOff {
    /// The run.
    pub run: RunName,
    /// The last step that it logged.
    pub step: u64,
    /// `notify.url` of its config.
    pub notify_url: Option<String>,
}

/// What who works off a queue asks, and tells.
pub struct Around<'a> {
    /// Diagnoses this machine, without a look at Python.
    pub diagnose: &'a (dyn Fn() -> doctor::Report + Sync),
    /// Called with each run that ended without a word and is not resumed.
    pub tell: &'a (dyn Fn(&CutOff) + Sync),
}

/// Does what the queue has, until that is nothing. `program` is `surefoot`.
///
/// # Errors
/// When a file of the queue cannot be read or written. What was begun goes on, and is found by the next one.
pub fn work(queue: &Queue, program: &Path, around: &Around<'_>) -> Result<Worked, Error> {
    refuse_without_trainer()?;
    let mut lock = queue.try_work_lock()?;
    if lock.is_none() {
        return Ok(Worked::Elsewhere);
    }
    let hand = Hand::new(queue, program, around);
    let in_hand = InHand::default();
    // Ends when all threads have: also after an error, which keeps further jobs from being started.
    std::thread::scope(|scope| {
        loop {
            let (jobs, seen) = in_hand.jobs();
            let at_once = queue.at_once();
            let next = queue.next(&mut lock, &jobs, |all| {
                match at_once == AtOnce::One && !jobs.is_empty() {
                    // Nothing begins before that has ended.
                    true => Ok(None),
                    false => hand.choose(at_once, all),
                }
            })?;
            let (job, is_new) = match next {
                Next::Start(job) => (job, true),
                Next::TakeOver(job) => (job, false),
                Next::Later => {
                    in_hand.wait(seen)?;
                    continue;
                }
                Next::Nothing => return Ok(Worked::Done),
            };
            let held = in_hand.take(job.id);
            let hand = &hand;
            scope.spawn(move || {
                let done = match is_new {
                    true => hand.start(job),
                    false => hand.take_over(job),
                };
                held.done(done);
            });
        }
    })
}

/// The jobs at which threads of this process work.
#[derive(Default)]
struct InHand {
    state: Mutex<InHandState>,
    changed: Condvar,
}

#[derive(Default)]
struct InHandState {
    jobs: HashSet<JobId>,
    /// Counts the jobs that were let go of.
    ended: u64,
    error: Option<Error>,
}

impl InHand {
    fn state(&self) -> MutexGuard<'_, InHandState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jobs(&self) -> (HashSet<JobId>, u64) {
        let state = self.state();
        (state.jobs.clone(), state.ended)
    }

    fn take(&self, id: JobId) -> Held<'_> {
        self.state().jobs.insert(id);
        Held { of: self, id }
    }

    /// Waits for a while, or until a job ended since `seen`.
    ///
    /// # Errors
    /// That with which one ended.
    fn wait(&self, seen: u64) -> Result<(), Error> {
        let is_same = |state: &mut InHandState| state.ended == seen;
        let waited = self.changed.wait_timeout_while(self.state(), LOOK, is_same);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.error.take().map_or(Ok(()), Err)
    }
}

/// A job in hand, until this is dropped.
struct Held<'a> {
    of: &'a InHand,
    id: JobId,
}

impl Held<'_> {
    fn done(self, result: Result<(), Error>) {
        if let Err(error) = result {
            self.of.state().error = Some(error);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        if std::thread::panicking() {
            let error = format!("what worked at job {} broke", self.id);
            state.error = Some(Error::Refused(error));
        }
        state.jobs.remove(&self.id);
        state.ended += 1;
        drop(state);
        self.of.changed.notify_all();
    }
}
