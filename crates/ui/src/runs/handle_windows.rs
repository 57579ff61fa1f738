//! Stand-in for Windows, where the process of a run is not known.

use std::io;
use std::time::Duration;

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

/// A training process; none is known on Windows.
pub(super) enum Handle {}

impl Handle {
    /// Always `None`.
    pub(super) fn open(_: &Process) -> Option<Self> {
        None
    }

    /// Sends a message.
    pub(super) fn send(&self, _: Message) -> io::Result<()> {
        match *self {}
    }

    /// Whether the process has a handler for this signal.
    pub(super) fn is_awaited(&self, _: Message) -> bool {
        match *self {}
    }

    /// Waits until the process ends.
    pub(super) fn wait(&self, _: Option<Duration>) -> io::Result<bool> {
        match *self {}
    }
}
