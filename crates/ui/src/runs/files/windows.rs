//! Folders that stay open, so that nothing can take the place of one while files below it are read:
//! Windows neither renames nor removes what somebody has open.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::windows::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

// As the documentation of CreateFileW and of file attributes has them.
const FILE_SHARE_READ: u32 = 1;
const FILE_SHARE_WRITE: u32 = 2;
const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;
const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;
const FILE_ATTRIBUTE_REPARSE_POINT: u32 = 0x400;

/// Names that are devices in every folder, whatever stands behind a dot.
const DEVICES: [&str; 6] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Keeps the folder where it is.
    _open: File,
}

impl Folder {
    /// Opens a folder that the user named; links in that name are the user's own.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        Self::at(path)
    }

    /// The same folder opened once more.
    pub(crate) fn again(&self) -> io::Result<Self> {
        Self::at(self.path.clone())
    }

    /// Where it is, without links.
    pub(crate) fn path(&self) -> io::Result<PathBuf> {
        Ok(self.path.clone())
    }

    /// A folder right below this one.
    pub(crate) fn folder(&self, name: &str) -> io::Result<Self> {
        Self::at(self.below(name)?)
    }

    fn at(path: PathBuf) -> io::Result<Self> {
        let open = OpenOptions::new()
            .read(true)
            .share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE)
            .custom_flags(FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT)
            .open(&path)?;
        let metadata = open.metadata()?;
        match metadata.is_dir() && !is_link(&metadata) {
            true => Ok(Self { path, _open: open }),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// A regular file right below this folder, to read.
    pub(crate) fn file(&self, name: &str) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
            .open(self.below(name)?)?;
        let metadata = file.metadata()?;
        match metadata.is_file() && !is_link(&metadata) {
            true => Ok(file),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is not a regular file",
            )),
        }
    }

    /// Puts `text` in the place of the file `name`, or makes it: whoever reads it sees the old one or the new one.
    pub(crate) fn replace(&self, name: &str, text: &[u8]) -> io::Result<()> {
        let target = self.below(name)?;
        let draft = self.below(&super::draft_of(name)?)?;
        let mut file = File::create_new(&draft)?;
        let written = file.write_all(text).and_then(|()| file.sync_all());
        drop(file);
        let written = written.and_then(|()| fs::rename(&draft, target));
        if written.is_err() {
            // A full disk is not to be made fuller.
            let _ = fs::remove_file(&draft);
        }
        written
    }

    /// A new file that has no name of its own yet: [`keep`](Self::keep) gives it one.
    pub(crate) fn draft(&self, draft: &str) -> io::Result<File> {
        File::create_new(self.below(draft)?)
    }

    /// Calls the file `draft` `name`, unless something is called so.
    pub(crate) fn keep(&self, draft: &str, name: &str) -> io::Result<()> {
        let (draft, target) = (self.below(draft)?, self.below(name)?);
        fs::hard_link(&draft, target)?;
        fs::remove_file(draft)
    }

    /// Removes a regular file right below this folder.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        drop(self.file(name)?);
        fs::remove_file(self.below(name)?)
    }

    /// Makes a folder right below this one.
    pub(crate) fn make_folder(&self, name: &str) -> io::Result<()> {
        fs::create_dir(self.below(name)?)
    }

    /// Fails if a process that trains in it holds its lock.
    pub(crate) fn try_lock(&self) -> io::Result<()> {
        Ok(platform::files::lock_of(&self.path)?.try_lock()?)
    }

    /// The path of a name that means a file or folder of this folder, and nothing else to Windows.
    fn below(&self, name: &str) -> io::Result<PathBuf> {
        let stem = name.split('.').next().unwrap_or_default().trim_end();
        let upper = stem.to_ascii_uppercase();
        let is_port = ["COM", "LPT"].iter().any(|port| {
            let rest = upper.strip_prefix(port);
            rest.is_some_and(|rest| rest.chars().count() == 1)
        });
        // `:` begins the name of a stream within a file.
        let is_strange = |c: char| c.is_control() || r#"/\:*?"<>|"#.contains(c);
        let is_bad = name.is_empty()
            || name.ends_with(['.', ' '])
            || name.contains(is_strange)
            || is_port
            || DEVICES.contains(&upper.as_str());
        match is_bad {
            true => Err(io::ErrorKind::InvalidInput.into()),
            false => Ok(self.path.join(name)),
        }
    }
}

/// Symbolic links, junctions, and whatever else leads elsewhere.
fn is_link(metadata: &Metadata) -> bool {
    metadata.file_attributes() & FILE_ATTRIBUTE_REPARSE_POINT != 0
}

/// What tells a file from the one that takes its place, but for one that does so within seconds of its
/// removal, to which Windows may give the time of the old one; that one is seen to be shorter.
pub(crate) fn identity(metadata: &Metadata) -> u64 {
    metadata.creation_time()
}
