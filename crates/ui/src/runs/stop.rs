//! Asking a run to stop: the signal that Ctrl-C sends, once.
//!
//! A second one ends a run without saving, so who was asked is written down, and two clicks are one.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;

use super::{Error, Process, RunName, Runs, Status};

/// What became of a request to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopping {
    /// The run was told; it finishes its step, saves and leaves.
    Asked,
    /// It had been told before.
    AlreadyAsked,
}

impl Runs {
    /// Asks a run to finish its step, save and leave. With `again`, a run that was asked before is told
    /// once more, which ends it at once without saving.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Refused`] when it does not run, or what the system says.
    pub fn stop(&self, name: &RunName, again: bool) -> Result<Stopping, Error> {
        let process = match self.overview(name)?.status {
            Status::Running { process, .. } => process,
            _ => return Err(Error::Refused(format!("`{name}` is not running"))),
        };
        let Some(process) = process else {
            return Err(Error::Refused(format!(
                "`{name}` is running, in a process of somebody else"
            )));
        };
        let path = self.root().join(name.as_str());
        let io = |error| Error::io("stop", &path, error);
        let number = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| io(io::ErrorKind::InvalidData.into()))?;
        // From here on the handle is of this process, or of none.
        let handle = pidfd_open(number, PidfdFlags::empty()).map_err(|error| io(error.into()))?;
        if !process.is_alive() {
            return Err(Error::Refused(format!("`{name}` has just ended")));
        }
        let is_first = self.note(&process).map_err(io)?;
        if !is_first && !again {
            return Ok(Stopping::AlreadyAsked);
        }
        pidfd_send_signal(&handle, Signal::INT).map_err(|error| io(error.into()))?;
        Ok(Stopping::Asked)
    }

    /// Notes that a process was asked; false when that is noted already. One of two who ask at once is first.
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
                // Somebody else may tidy up at the same time.
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

pub(super) fn is_asked(runs: &Runs, process: &Process) -> bool {
    note_of(runs, process).exists()
}

fn note_of(runs: &Runs, process: &Process) -> PathBuf {
    let Process { pid, started, boot } = process;
    let name = format!("{pid}-{started}-{boot}");
    runs.state_folder().join("stopping").join(name)
}

/// Waits until a process has ended.
///
/// # Errors
/// When the system cannot tell.
pub fn wait(process: &Process) -> io::Result<()> {
    let number = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let Some(number) = number else {
        return Ok(());
    };
    let Ok(handle) = pidfd_open(number, PidfdFlags::empty()) else {
        return Ok(());
    };
    if !process.is_alive() {
        return Ok(());
    }
    loop {
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], None) {
            Err(rustix::io::Errno::INTR) => {}
            ended => return ended.map(|_| ()).map_err(Into::into),
        }
    }
}
