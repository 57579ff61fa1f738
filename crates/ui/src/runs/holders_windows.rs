//! Which runs are running on Windows, where a lock does not tell whose it is.

use std::fs::{File, TryLockError};
use std::path::Path;

use platform::files::LOCK;

use super::Process;
use super::files::Folder;

/// The processes that hold locks.
pub(crate) struct Holders;

impl Holders {
    /// Reads the current locks.
    pub(crate) fn read() -> Self {
        Self
    }

    /// `Some(None)` if a process holds the lock on `folder`.
    pub(crate) fn of(&self, folder: &Folder) -> Option<Option<Process>> {
        let folder = folder.path().ok()?;
        is_locked(&folder.join(LOCK)).then_some(None)
    }
}

/// Whether a process, this one included, holds a lock on a file.
pub(crate) fn is_locked(path: &Path) -> bool {
    let tried = File::open(path).map(|file| file.try_lock());
    matches!(tried, Ok(Err(TryLockError::WouldBlock)))
}
