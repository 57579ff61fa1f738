//! Opening files below a folder, and nothing else.
//!
//! Each part of a path is opened by itself, relative to the part before it, and never through a link: so
//! nothing that stands in the folders, or is put there while they are read, leads out of them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

    fn below(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.0, name, flags, Mode::empty())?)
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_pipes_and_other_folders_are_not_opened() {
        let place = tempfile::tempdir().unwrap();
        let runs = place.path().join("runs");
        std::fs::create_dir_all(runs.join("a")).unwrap();
        std::fs::write(place.path().join("secret"), "x").unwrap();
        std::fs::write(runs.join("a/file"), "y").unwrap();
        symlink("../../secret", runs.join("a/link")).unwrap();
        symlink("..", runs.join("out")).unwrap();
        symlink("a", runs.join("in")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, runs.join("a/pipe"), Mode::RWXU).unwrap();
        let root = Folder::open(&runs).unwrap();
        for name in ["out", "in", "..", ".", "", "a/b", "missing", "a\0"] {
            assert!(root.folder(name).is_err(), "{name:?}");
        }
        let run = root.folder("a").unwrap();
        assert!(run.file("file").is_ok());
        for name in ["link", "pipe", "../a/file", "/etc/passwd", "missing"] {
            assert!(run.file(name).is_err(), "{name:?}");
        }
    }
}
