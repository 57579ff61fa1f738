//! Runs to come, one after another or several at once.
//!
//! ```text
//! <runs>/.surefoot/queue/job-000007.json   one job; replaced as a whole, under `lock`
//!                        job-000007.log    what it printed, until its run has a folder for it
//!                        paused            no job is started while this is there
//!                        settings.json     how many go on at once
//!                        worker            locked by the one process that starts jobs
//! ```
//!
//! The [worker](work) is a process of its own, so that neither a page nor a terminal is needed for a night.
//! It ends when nothing is left to do. Each job is noted as begun before its process is, and a process by its
//! number, its start and the start of the machine: so whoever takes over finds a run that goes on, and tells
//! it from one that a reboot cut off.

mod check;
mod generate;
mod hand;
mod job;
mod log;
mod places;
mod store;
mod verdict;
mod worker;

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;

use crate::runs::{Error, Runs, is_locked};

pub use check::Question;
pub use generate::{Answering, Prompt};
pub use job::{Ended, Job, JobId, NewJob, State, Work, name_of};
pub use log::{LogPart, plain};
pub use places::AtOnce;
pub use worker::{Around, CutOff, Worked, work};

/// The queue of a folder of runs.
#[derive(Debug, Clone)]
pub struct Queue {
    runs: Runs,
    folder: PathBuf,
}

/// The queue as it stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listing {
    /// Whether no further job is started.
    pub paused: bool,
    /// Whether a process takes care of it.
    pub working: bool,
    /// How many runs go on at once.
    pub at_once: AtOnce,
    /// What runs, then what waits, in its order, then what ended, the newest first.
    pub jobs: Vec<Job>,
    /// Files that are no job that can be read, each with the reason.
    pub unreadable: Vec<String>,
}

/// Jobs need the trainer, which is for Linux.
pub(crate) fn refuse_without_trainer() -> Result<(), Error> {
    match cfg!(windows) {
        true => Err(Error::Refused(
            "there is no trainer for Windows: runs are shown here, and started under WSL 2 or Linux".into(),
        )),
        false => Ok(()),
    }
}

impl Queue {
    /// The queue of these runs. Nothing is written before a job is added.
    pub fn new(runs: Runs) -> Self {
        let folder = runs.state_folder().join("queue");
        Self { runs, folder }
    }

    /// The runs.
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Whether a process takes care of the queue.
    pub fn is_working(&self) -> bool {
        is_locked(&self.folder.join("worker"))
    }

    /// Whether there is something to do that nobody does.
    ///
    /// # Errors
    /// When the folder is there and cannot be read.
    pub fn needs_worker(&self) -> Result<bool, Error> {
        let listing = self.list()?;
        let waits = |job: &Job| match job.state {
            State::Waiting => !listing.paused,
            State::Checking { .. } | State::Running { .. } => true,
            State::Ended { .. } => false,
        };
        Ok(!listing.working && listing.jobs.iter().any(waits))
    }

    /// Starts `program runs --runs FOLDER queue work`, which ends at once where another one works already.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_worker(&self, program: &Path) -> Result<(), Error> {
        refuse_without_trainer()?;
        let io = |error| Error::io("start", program, error);
        let log = self.folder.join("worker.log");
        std::fs::create_dir_all(&self.folder)
            .map_err(|error| Error::io("create", &self.folder, error))?;
        let log = File::create(&log).map_err(|error| Error::io("write", &log, error))?;
        let root = std::path::absolute(self.runs.root()).map_err(io)?;
        let mut child = Command::new(program)
            .args(["runs", "--runs"])
            .arg(root)
            .args(["queue", "work"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(io)?;
        // Somebody has to take note of its end; it goes on when we end first.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// The lock of the one that works; `None` when somebody else has it.
    fn try_work_lock(&self) -> Result<Option<File>, Error> {
        let path = self.folder.join("worker");
        let io = |error: io::Error| Error::io("lock", &path, error);
        std::fs::create_dir_all(&self.folder).map_err(io)?;
        let file = File::create(&path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(io(error)),
        }
    }
}
