//! Folders as descriptors, which stay what they are whatever becomes of their names.

use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

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

    /// The same folder opened once more, with locks of its own.
    pub(crate) fn again(&self) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(
            &self.0,
            ".",
            flags,
            Mode::empty(),
        )?))
    }

    /// Where it is now, without links.
    pub(crate) fn path(&self) -> io::Result<PathBuf> {
        std::fs::read_link(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
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
        let draft = super::draft_of(name)?;
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

    /// A new file that has no name of its own yet: [`keep`](Self::keep) gives it one.
    pub(crate) fn draft(&self, draft: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(0o644);
        Ok(File::from(self.below_with(draft, flags, mode)?))
    }

    /// Calls the file `draft` `name`, unless something is called so.
    pub(crate) fn keep(&self, draft: &str, name: &str) -> io::Result<()> {
        checked(name)?;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&self.0, draft, &self.0, name, flags) {
            // Not every file system has this flag; a link is as safe there.
            Err(rustix::io::Errno::INVAL) => {
                let none = rustix::fs::AtFlags::empty();
                rustix::fs::linkat(&self.0, draft, &self.0, name, none)?;
                Ok(rustix::fs::unlinkat(&self.0, draft, none)?)
            }
            other => Ok(other?),
        }
    }

    /// Removes a regular file right below this folder.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        self.file(name)?;
        Ok(rustix::fs::unlinkat(
            &self.0,
            name,
            rustix::fs::AtFlags::empty(),
        )?)
    }

    /// Makes a folder right below this one.
    pub(crate) fn make_folder(&self, name: &str) -> io::Result<()> {
        checked(name)?;
        Ok(rustix::fs::mkdirat(
            &self.0,
            name,
            Mode::from_raw_mode(0o755),
        )?)
    }

    fn below(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        self.below_with(name, flags | OFlags::RDONLY, Mode::empty())
    }

    fn below_with(&self, name: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        checked(name)?;
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

/// Refuses what is no name of something right below a folder.
fn checked(name: &str) -> io::Result<()> {
    match name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        true => Err(io::ErrorKind::InvalidInput.into()),
        false => Ok(()),
    }
}

/// What tells a file from the one that takes its place.
pub(crate) fn identity(metadata: &Metadata) -> u64 {
    metadata.ino()
}
