//! Stand-in for Windows: the trainer is for Linux, and locks under WSL are not visible here.

use std::fs::{File, TryLockError};
use std::path::Path;

use super::Process;
use super::files::Folder;

/// The processes that hold locks.
pub(crate) struct Holders;

impl Holders {
    /// Reads the current locks.
    pub(crate) fn read() -> Self {
        Self
    }

    /// The holder of the lock on `folder`; none is visible here.
    pub(crate) fn of(&self, _: &Folder) -> Option<Option<Process>> {
        None
    }
}

/// Whether a process, this one included, holds a lock on a file.
pub(crate) fn is_locked(path: &Path) -> bool {
    let tried = File::open(path).map(|file| file.try_lock());
    matches!(tried, Ok(Err(TryLockError::WouldBlock)))
}
