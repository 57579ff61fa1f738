//! A handle to one process, to signal it and to wait for its end without mixing it up with a later one.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Process;

/// A message to a process.
#[derive(Clone, Copy)]
pub(super) enum Message {
    /// Stop, as Ctrl-C does.
    Interrupt,
    /// Terminate.
    Terminate,
    /// Save a checkpoint after the current step.
    Save,
    /// Generate samples after the current step.
    Sample,
}

impl Message {
    fn signal(self) -> Signal {
        match self {
            Self::Interrupt => Signal::INT,
            Self::Terminate => Signal::TERM,
            Self::Save => Signal::USR1,
            Self::Sample => Signal::USR2,
        }
    }
}

/// A process that is running or has ended since.
pub(super) struct Handle {
    descriptor: OwnedFd,
    pid: u32,
}

impl Handle {
    /// Opens a handle; `None` if the process has ended.
    pub(super) fn open(process: &Process) -> Option<Self> {
        let pid = process.pid;
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        let descriptor = pidfd_open(number, PidfdFlags::empty()).ok()?;
        process.is_alive().then_some(Self { descriptor, pid })
    }

    /// Sends a message.
    pub(super) fn send(&self, message: Message) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.descriptor, message.signal())?)
    }

    /// Whether the process has a handler for this signal (proc(5), `SigCgt`).
    pub(super) fn is_awaited(&self, message: Message) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (message.signal().as_raw() - 1) & 1 == 1)
    }

    /// Waits until the process ends, or for `at_most`; true if it has ended.
    pub(super) fn wait(&self, at_most: Option<Duration>) -> io::Result<bool> {
        let timeout = at_most.map(|time| Timespec {
            tv_sec: time.as_secs().cast_signed(),
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        loop {
            let mut polled = [PollFd::new(&self.descriptor, PollFlags::IN)];
            match poll(&mut polled, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                ended => return Ok(ended? > 0),
            }
        }
    }
}
