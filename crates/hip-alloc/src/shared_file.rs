//! A small file that this user's processes with this library share, and the locks on it.
//!
//! A lock goes away with its process, however that ends. One shows that the process is there, another that it is its
//! turn ([`turns`](crate::turns)).

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

use std::fs::File;
use std::path::{Path, PathBuf};

/// The open file.
pub(crate) struct SharedFile {
    file: File,
    /// The byte whose lock shows that this process is there.
    presence: Option<u32>,
}

impl SharedFile {
    /// Opens the file, or creates it. `None` if it cannot be used safely.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        Some(SharedFile {
            file: system::open(path)?,
            presence: None,
        })
    }

    /// Shows the others that this process is there, until the file is closed.
    pub(crate) fn join(&mut self) -> Option<()> {
        self.presence = Some(system::join(&self.file)?);
        Some(())
    }

    /// Whether others have joined.
    pub(crate) fn has_others(&self) -> bool {
        system::has_others(&self.file, self.presence)
    }

    /// Takes the turn; `false` if another process has it.
    pub(crate) fn take_turn(&self) -> bool {
        system::take_turn(&self.file)
    }

    /// Ends the turn.
    pub(crate) fn end_turn(&self) {
        system::end_turn(&self.file);
    }

    /// The record at this offset, if it was ever written.
    pub(crate) fn read(&self, at: u64) -> Option<[u8; 16]> {
        let mut record = [0; 16];
        system::read_exact_at(&self.file, &mut record, at).ok()?;
        Some(record)
    }

    /// Writes a record. A failure is none of the program's business: the others then know less.
    pub(crate) fn write(&self, record: &[u8; 16], at: u64) {
        let _ = system::write_all_at(&self.file, record, at);
    }
}

/// Takes an open file for this process alone, which others may still read; `false` if another one has taken it.
pub(crate) fn claim(file: &File) -> bool {
    system::claim(file)
}

/// The file of the processes that share `memory`: the address of a card, or `host`. `None` if there is no place for it.
pub(crate) fn path_of(memory: &str) -> Option<PathBuf> {
    system::path_of(memory)
}
