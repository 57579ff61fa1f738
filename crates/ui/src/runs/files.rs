//! Opens files below a folder, and no others.
//!
//! Each component of a path is opened relative to the one before it, and symbolic links are never followed: so
//! nothing in the folders leads out of them, even if it is put there while they are read.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::fs::File;
use std::io;
use std::path::Path;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

pub(crate) use system::{Folder, identity};

/// What a file is called until it takes the place of `name`: never the same twice, as a crash may leave one behind.
fn draft_of(name: &str) -> io::Result<String> {
    let number = getrandom::u32().map_err(io::Error::other)?;
    Ok(format!(".{name}.{number:08x}.surefoot"))
}

impl Folder {
    /// A regular file anywhere below this folder; each component of its path is checked.
    pub(crate) fn file_below(&self, path: &Path) -> io::Result<File> {
        let (folder, name) = self.way_to(path)?;
        match &folder {
            Some(folder) => folder.file(&name),
            None => self.file(&name),
        }
    }

    /// The folder that contains `path`, unless it is this one, and the last component of the path.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn links_pipes_and_other_folders_are_not_opened() {
        use std::os::unix::fs::symlink;

        use rustix::fs::Mode;

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
    fn a_draft_takes_the_place_of_nothing() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        std::fs::write(place.path().join("taken.png"), "old").unwrap();
        for (name, is_kept) in [("new.png", true), ("taken.png", false), ("../x.png", false)] {
            let mut draft = folder.draft(".draft").unwrap();
            std::io::Write::write_all(&mut draft, b"new").unwrap();
            drop(draft);
            assert_eq!(folder.keep(".draft", name).is_ok(), is_kept, "{name}");
            if !is_kept {
                folder.remove(".draft").unwrap();
            }
        }
        let text = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap();
        assert_eq!([text("new.png"), text("taken.png")], ["new", "old"]);
        assert!(folder.make_folder("../out").is_err() && folder.make_folder("in").is_ok());
        for name in ["in", "missing", "..", "../x.png"] {
            assert!(folder.remove(name).is_err(), "{name}");
        }
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_draft_that_a_crash_left_is_in_the_way_of_none() {
        let place = tempfile::tempdir().unwrap();
        let left = format!(".a.txt.{}.surefoot", std::process::id());
        std::fs::write(place.path().join(left), "half").unwrap();
        let folder = Folder::open(place.path()).unwrap();
        folder.replace("a.txt", b"whole").unwrap();
    }

    #[test]
    fn a_file_is_replaced_atomically_and_leaves_no_other() {
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
