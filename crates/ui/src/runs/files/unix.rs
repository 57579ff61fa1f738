//! Folders as descriptors, which stay what they are whatever becomes of their names.

use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder(OwnedFd);

impl Folder {
    /// Opens a folder that the user named; links in that name are the user's own.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// A folder right below this one.
    pub(crate) fn folder(&self, name: &str) -> io::Result<Self> {
        Ok(Self(self.below(name, OFlags::DIRECTORY)?))
    }

    /// A regular file right below this folder, to read.
    pub(crate) fn file(&self, name: &str) -> io::Result<File> {
        // A pipe would wait for a writer.
        let file = File::from(self.below(name, OFlags::NONBLOCK)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is not a regular file",
            )),
        }
    }

    /// Puts `text` in the place of the file `name`, or makes it: whoever reads it sees the old one or the new one.
    pub(crate) fn replace(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let mode = self.file(name).and_then(|file| file.metadata());
        let mode = mode.map_or(0o644, |metadata| metadata.mode() & 0o777);
        let draft = format!(".{name}.{}.surefoot", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = match self.below_with(&draft, flags, Mode::from_raw_mode(mode)) {
            Ok(file) => File::from(file),
            Err(error) => return Err(error),
        };
        let written = file
            .write_all(text)
            .and_then(|()| file.sync_all())
            .and_then(|()| Ok(rustix::fs::renameat(&self.0, &draft, &self.0, name)?));
        if written.is_err() {
            // A full disk is not to be made fuller.
            let _ = rustix::fs::unlinkat(&self.0, &draft, rustix::fs::AtFlags::empty());
        }
        written
    }

    fn below(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        self.below_with(name, flags | OFlags::RDONLY, Mode::empty())
    }

    fn below_with(&self, name: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, name, flags, mode)?)
    }

    /// Locks the folder for as long as this is open, as the trainer does.
    pub(crate) fn try_lock(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(
            &self.0,
            FlockOperation::NonBlockingLockExclusive,
        )?)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What tells a file from the one that takes its place.
pub(crate) fn identity(metadata: &Metadata) -> u64 {
    metadata.ino()
}
