//! On Windows no run goes on: the trainer is for Linux, and under WSL its locks are its own.

use std::fs::{File, TryLockError};
use std::path::Path;

use super::Process;
use super::files::Folder;

/// Who holds which lock.
pub(crate) struct Holders;

impl Holders {
    /// As of now.
    pub(crate) fn read() -> Self {
        Self
    }

    /// Nobody that this system knows of.
    pub(crate) fn of(&self, _: &Folder) -> Option<Option<Process>> {
        None
    }
}

/// Whether a process, this one included, holds a lock on a file.
pub(crate) fn is_locked(path: &Path) -> bool {
    let tried = File::open(path).map(|file| file.try_lock());
    matches!(tried, Ok(Err(TryLockError::WouldBlock)))
}
