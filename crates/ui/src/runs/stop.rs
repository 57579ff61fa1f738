//! Stops a run with the signal that Ctrl-C sends, once.
//!
//! A second signal ends a run without saving, so requests are recorded, and two clicks count as one.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::handle::{Handle, Message};
use super::{Error, Process, RunName, Runs, Status};

/// The result of a request to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stopping {
    /// The run was signalled; it finishes its step, saves and ends.
    Asked,
    /// It had been asked before.
    AlreadyAsked,
}

/// A request to a run that keeps running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Save a checkpoint.
    Save,
    /// Generate samples.
    Sample,
}

impl Runs {
    /// Asks a run to finish its step, save and end. With `again`, a run that was asked before is signalled once
    /// more, which ends it at once without saving.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Refused`] if it is not running, or an I/O error.
    pub fn stop(&self, name: &RunName, again: bool) -> Result<Stopping, Error> {
        let process = match self.overview(name)?.status {
            Status::Running { process, .. } => process,
            _ => return Err(Error::Refused(format!("`{name}` is not running"))),
        };
        let Some(process) = process else {
            return Err(Error::Refused(format!(
                "`{name}` is running, but its process cannot be identified: it may be another user's"
            )));
        };
        self.stop_process(&process, again)
    }

    /// The same for a process that may not have a run folder yet.
    pub(crate) fn stop_process(&self, process: &Process, again: bool) -> Result<Stopping, Error> {
        let path = PathBuf::from(format!("process {}", process.pid));
        let io = |error| Error::io("stop", &path, error);
        let handle = Handle::open(process);
        let handle = handle.ok_or_else(|| Error::Refused("it has just ended".into()))?;
        let is_first = self.note(process).map_err(io)?;
        if !is_first && !again {
            return Ok(Stopping::AlreadyAsked);
        }
        handle.send(Message::Interrupt).map_err(io)?;
        Ok(Stopping::Asked)
    }

    /// Sends a request to a run, which it serves after the current step.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Refused`] if it is not running or does not support such requests, or an I/O
    /// error.
    pub fn ask(&self, name: &RunName, request: Request) -> Result<(), Error> {
        let process = match self.overview(name)?.status {
            Status::Running {
                process: Some(process),
                ..
            } => process,
            Status::Running { process: None, .. } => {
                return Err(Error::Refused(format!(
                    "`{name}` is running, but its process cannot be identified: it may be another user's"
                )));
            }
            _ => return Err(Error::Refused(format!("`{name}` is not running"))),
        };
        let message = match request {
            Request::Save => Message::Save,
            Request::Sample => Message::Sample,
        };
        let handle = Handle::open(&process)
            .ok_or_else(|| Error::Refused(format!("`{name}` has just ended")))?;
        // The signal would end a process without a handler for it.
        if !handle.is_awaited(message) {
            return Err(Error::Refused(format!(
                "`{name}` takes no such requests: it is still starting, or from an older version"
            )));
        }
        let path = self.root().join(name.as_str());
        handle
            .send(message)
            .map_err(|error| Error::io("ask", &path, error))
    }

    /// Records that a process was asked; false if that was recorded before. Of two concurrent calls, one gets true.
    fn note(&self, process: &Process) -> io::Result<bool> {
        let note = note_of(self, process);
        let folder = self.state_folder().join("stopping");
        fs::create_dir_all(&folder)?;
        for old in fs::read_dir(&folder)?.flatten() {
            let name = old.file_name();
            let pid = name.to_str().and_then(|name| name.split('-').next());
            let pid = pid.and_then(|pid| pid.parse().ok());
            let lives = pid
                .and_then(Process::of)
                .is_some_and(|process| note_of(self, &process) == old.path());
            if !lives {
                // Another process may be cleaning up at the same time.
                let _ = fs::remove_file(old.path());
            }
        }
        match File::create_new(note) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether a process was asked to stop.
pub(crate) fn is_asked(runs: &Runs, process: &Process) -> bool {
    note_of(runs, process).exists()
}

fn note_of(runs: &Runs, process: &Process) -> PathBuf {
    let Process { pid, started, boot } = process;
    let name = format!("{pid}-{started}-{boot}");
    runs.state_folder().join("stopping").join(name)
}

/// Asks a process to end.
pub(crate) fn signal_terminate(process: &Process) -> Result<(), Error> {
    let handle = Handle::open(process);
    let handle = handle.ok_or_else(|| Error::Refused("it has just ended".into()))?;
    let path = PathBuf::from(format!("process {}", process.pid));
    handle
        .send(Message::Terminate)
        .map_err(|error| Error::io("stop", &path, error))
}

/// Waits until a process has ended.
///
/// # Errors
/// If the system cannot tell.
pub fn wait(process: &Process) -> io::Result<()> {
    wait_for(process, None).map(drop)
}

/// Waits until a process has ended, or for `at_most`; true if it has ended.
///
/// # Errors
/// If the system cannot tell.
pub fn wait_for(process: &Process, at_most: Option<Duration>) -> io::Result<bool> {
    match Handle::open(process) {
        Some(handle) => handle.wait(at_most),
        None => Ok(true),
    }
}
