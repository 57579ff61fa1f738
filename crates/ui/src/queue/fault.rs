//! A job whose run died of a page fault on the GPU goes on from its checkpoint.

use std::fs::File;
use std::io::Write as _;

use doctor::restart::{announced, is_page_fault};

use super::job::{Ended, Job, State, Work};
use super::runner::{JobRunner, last_output};
use crate::runs::{RunName, newest_checkpoint};

impl JobRunner<'_> {
    /// The state of a job after its run ended as `end`: it waits again if that was a page fault and going on is of use.
    /// What is done is said in the log.
    pub(super) fn after_fault(
        &self,
        job: &mut Job,
        run: &RunName,
        end: State,
        (mut log, log_start): (&File, u64),
    ) -> State {
        let has_failed = matches!(
            end,
            State::Ended {
                how: Ended::Failed,
                ..
            }
        );
        if !has_failed || !is_page_fault(&last_output(log, log_start)) {
            return end;
        }
        let step = newest_checkpoint(&self.queue.runs().root().join(run.as_str()));
        let (said, state) = match job.restarts.next(format!("{step:?}")) {
            Ok(count) => (announced(step, count), State::Waiting),
            Err(refusal) => (format!("it is not started again: {refusal}"), end),
        };
        let said = format!("a page fault on the GPU ended the run; {said}");
        // The page says so too if the log cannot be written.
        let _ = writeln!(log, "surefoot: {said}");
        match state {
            State::Waiting => {
                if step.is_some() {
                    job.what.work = Work::Resume { run: run.clone() };
                    job.what.set.clear();
                }
                // It was not this start that failed.
                job.attempts = job.attempts.saturating_sub(1);
                State::Waiting
            }
            State::Ended { how, at, run, .. } => State::Ended {
                how,
                error: Some(said),
                at,
                run,
            },
            other => other,
        }
    }
}
