//! The queue of runs to train, one after another or several at a time.
//!
//! ```text
//! <runs>/.surefoot/queue/job-000007.json   one job; always replaced as a whole, under `lock`
//!                        job-000007.log    its output, until the folder of its run exists
//!                        paused            while this exists, no job is started
//!                        settings.json     how many runs train at the same time
//!                        worker            locked by the one process that starts jobs
//! ```
//!
//! The [worker](work) is a process of its own, so that jobs run without an open page or terminal. It ends when
//! there is nothing left to do. A job is recorded as started before its process is, and a process by its id, its
//! start time and the boot id of the machine: so the next worker recognises a run that is still training, and
//! one that a reboot interrupted.

mod check;
mod fault;
mod generate;
mod job;
mod log;
mod runner;
mod scheduler;
mod store;
mod verdict;
mod worker;

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::runs::{Cached, Error, Runs, is_locked};

pub use check::{Asked, Question};
pub use generate::{Generation, Prompt, Role, Turn};
pub use job::{Ended, Job, JobId, NewJob, State, Work, name_of, output_elsewhere};
pub use log::{LogPart, plain};
pub use scheduler::Concurrency;
pub use worker::{Callbacks, InterruptedRun, WorkerExit, work};

/// The queue of a folder of runs.
#[derive(Debug, Clone)]
pub struct Queue {
    runs: Runs,
    folder: PathBuf,
    /// The jobs that were read; a job's file is always replaced as a whole.
    jobs: Arc<Cached<JobId, Job>>,
    /// All of them, as long as nothing changes.
    known: Arc<Mutex<store::Known>>,
}

/// The state of the queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listing {
    /// Whether the queue is paused: no more jobs are started.
    pub paused: bool,
    /// Whether a worker process is running.
    pub working: bool,
    /// How many runs train at the same time.
    pub at_once: Concurrency,
    /// Running jobs, then waiting ones in their order, then ended ones, newest first.
    pub jobs: Vec<Job>,
    /// Files that are not readable jobs, each with the reason.
    pub unreadable: Vec<String>,
}

/// Keeps a Ctrl-C in the terminal of this process, and on Windows its end, from a command that this process starts.
fn set_apart(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(windows)]
    std::os::windows::process::CommandExt::creation_flags(command, CREATE_NO_WINDOW);
}

/// A console of its own, which is not shown.
#[cfg(windows)]
const CREATE_NO_WINDOW: u32 = 0x0800_0000;

impl Queue {
    /// The queue of these runs. Nothing is written until a job is added.
    pub fn new(runs: Runs) -> Self {
        let folder = runs.state_folder().join("queue");
        Self {
            runs,
            folder,
            jobs: Arc::default(),
            known: Arc::default(),
        }
    }

    /// The folder of runs.
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Whether a worker process is running.
    pub fn is_working(&self) -> bool {
        is_locked(&self.folder.join("worker"))
    }

    /// Whether a job that was added waits for a worker to be started.
    pub(crate) fn waits_for_worker(&self) -> bool {
        !self.is_paused() && !self.is_working()
    }

    /// Whether there is work to do and no worker.
    ///
    /// # Errors
    /// If the folder exists but cannot be read.
    pub fn needs_worker(&self) -> Result<bool, Error> {
        if self.is_working() {
            return Ok(false);
        }
        let is_paused = self.is_paused();
        self.any(|job| match job.state {
            State::Waiting => !is_paused,
            State::Checking { .. } | State::Running { .. } => true,
            State::Ended { .. } => false,
        })
    }

    /// Starts `program runs --runs FOLDER queue work`, which ends at once if a worker is already running.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_worker(&self, program: &Path) -> Result<(), Error> {
        let io = |error| Error::io("start", program, error);
        let log = self.folder.join("worker.log");
        std::fs::create_dir_all(&self.folder)
            .map_err(|error| Error::io("create", &self.folder, error))?;
        let log = File::create(&log).map_err(|error| Error::io("write", &log, error))?;
        let root = std::path::absolute(self.runs.root()).map_err(io)?;
        let mut command = Command::new(program);
        #[cfg(windows)]
        {
            // On Linux it makes a session of its own.
            set_apart(&mut command);
            crate::runs::keep_streams();
        }
        let mut child = command
            .args(["runs", "--runs"])
            .arg(root)
            .args(["queue", "work"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(io)?;
        // Reaps the child; the worker goes on if this process ends first.
        std::thread::spawn(move || child.wait());
        Ok(())
    }

    /// Takes the worker's lock; `None` if another process has it.
    fn try_work_lock(&self) -> Result<Option<File>, Error> {
        let path = self.folder.join("worker");
        let io = |error: io::Error| Error::io("lock", &path, error);
        std::fs::create_dir_all(&self.folder).map_err(io)?;
        let file = File::create(&path).map_err(io)?;
        match platform::files::try_lock(&file) {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(io(error)),
        }
    }
}
