//! The process that trains in a run's folder: on Windows, which does not tell who holds a lock, a file does.

use std::fs::{File, TryLockError};
use std::path::Path;

use platform::files::LOCK;
use platform::requests::HOLDER;

use super::Process;
use super::files::Folder;

/// The processes that hold locks.
pub(crate) struct Holders;

impl Holders {
    /// Reads the current locks.
    pub(crate) fn read() -> Self {
        Self
    }

    /// The holder of the lock on `folder`; `Some(None)` if it is unknown who holds it.
    pub(crate) fn of(&self, folder: &Folder) -> Option<Option<Process>> {
        let folder = folder.path().ok()?;
        is_locked(&folder.join(LOCK)).then(|| {
            let noted = std::fs::read_to_string(folder.join(HOLDER)).ok()?;
            Process::of(noted.parse().ok()?)
        })
    }
}

/// Whether a process, this one included, holds a lock on a file.
pub(crate) fn is_locked(path: &Path) -> bool {
    let tried = File::open(path).map(|file| file.try_lock());
    matches!(tried, Ok(Err(TryLockError::WouldBlock)))
}
