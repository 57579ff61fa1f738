//! Opening files below a folder, and nothing else.
//!
//! Each part of a path is opened by itself, relative to the part before it, and never through a link: so
//! nothing that stands in the folders, or is put there while they are read, leads out of them.

use std::fs::File;
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

    /// A regular file anywhere below this folder; every part of its path is looked at by itself.
    pub(crate) fn file_below(&self, path: &Path) -> io::Result<File> {
        let (folder, name) = self.way_to(path)?;
        match &folder {
            Some(folder) => folder.file(&name),
            None => self.file(&name),
        }
    }

    /// The folder that holds `path`, unless it is this one, and the last part of the path.
    pub(crate) fn way_to(&self, path: &Path) -> io::Result<(Option<Self>, String)> {
        let parts = path.components().map(|part| match part {
            std::path::Component::Normal(part) => part.to_str(),
            _ => None,
        });
        let mut parts: Vec<&str> = parts
            .collect::<Option<_>>()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let name = parts.pop().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let mut folder = None::<Self>;
        for part in parts {
            folder = Some(folder.as_ref().unwrap_or(self).folder(part)?);
        }
        Ok((folder, name))
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
        assert!(root.file_below(Path::new("a/file")).is_ok());
        for path in [
            "a/link",
            "in/file",
            "out/secret",
            "../secret",
            "a/../a/file",
            "/etc/passwd",
            "",
            "a",
        ] {
            assert!(root.file_below(Path::new(path)).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_else_is_left() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        for text in ["one", "two"] {
            folder.replace("a.txt", text.as_bytes()).unwrap();
            assert_eq!(
                std::fs::read_to_string(place.path().join("a.txt")).unwrap(),
                text
            );
        }
        assert!(folder.replace("../b.txt", b"x").is_err());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
