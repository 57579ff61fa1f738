//! On Windows no process trains, so there is none to tell something.

use std::io;
use std::time::Duration;

use super::Process;

/// What a process can be told.
#[derive(Clone, Copy)]
pub(super) enum Message {
    /// As Ctrl-C does.
    Interrupt,
    /// To end.
    Terminate,
    /// To save a checkpoint after its step.
    Save,
    /// To make samples after its step.
    Sample,
}

/// A process that trains: none does.
pub(super) enum Handle {}

impl Handle {
    /// `None`: a process that trains is not one of Windows.
    pub(super) fn open(_: &Process) -> Option<Self> {
        None
    }

    /// Tells it.
    pub(super) fn send(&self, _: Message) -> io::Result<()> {
        match *self {}
    }

    /// Whether it has a handler for that.
    pub(super) fn is_awaited(&self, _: Message) -> bool {
        match *self {}
    }

    /// Waits for its end.
    pub(super) fn wait(&self, _: Option<Duration>) -> io::Result<bool> {
        match *self {}
    }
}
