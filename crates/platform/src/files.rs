//! Files, where operating systems differ.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Reading and writing at an offset.
#[cfg(unix)]
pub use std::os::unix::fs::FileExt;

/// Reading and writing at an offset. On Windows this moves the position of the file as well.
#[cfg(windows)]
pub trait FileExt {
    /// Fills `buffer` with what the file has from `offset` on.
    ///
    /// # Errors
    /// If the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `buffer`.
    ///
    /// # Errors
    /// If the disk is full, for example.
    fn write_all_at(&self, buffer: &[u8], offset: u64) -> io::Result<()>;
}

#[cfg(windows)]
impl FileExt for File {
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(self, buffer, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => (buffer, offset) = (&mut buffer[read..], offset + read as u64),
            }
        }
        Ok(())
    }

    fn write_all_at(&self, mut buffer: &[u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match std::os::windows::fs::FileExt::seek_write(self, buffer, offset)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => (buffer, offset) = (&buffer[written..], offset + written as u64),
            }
        }
        Ok(())
    }
}

/// Waits until a file, or the names in a folder, are on the disk. Windows writes the names of a folder
/// in the order of the changes, and cannot be waited for.
///
/// # Errors
/// If it cannot be opened or written.
pub fn sync(path: &Path) -> io::Result<()> {
    match cfg!(windows) {
        true if path.is_dir() => Ok(()),
        // Windows only writes what is open for writing.
        windows => File::options()
            .read(true)
            .write(windows)
            .open(path)?
            .sync_all(),
    }
}

/// What is locked where a folder is meant: the folder, or on Windows, which locks files only, one in it.
///
/// # Errors
/// If there is no such folder.
pub fn lock_of(folder: &Path) -> io::Result<File> {
    #[cfg(unix)]
    return File::open(folder);
    #[cfg(windows)]
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join(LOCK))
}

/// Takes the lock of such a file. On Windows, whoever looks whether it is taken has it for a moment, which is waited for.
///
/// # Errors
/// If another process has it, or the file system has no locks.
pub fn try_lock(file: &File) -> Result<(), TryLockError> {
    let looks = if cfg!(windows) { 20 } else { 0 };
    for _ in 0..looks {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
    file.try_lock()
}

/// The file that stands for a folder in locks on Windows.
pub const LOCK: &str = ".lock";

/// Sets the time of a folder's last change to now.
///
/// # Errors
/// If that is not allowed.
pub fn touch(folder: &Path) -> io::Result<()> {
    let mut options = File::options();
    options.read(true);
    #[cfg(windows)]
    {
        use std::os::windows::fs::OpenOptionsExt as _;
        const FILE_WRITE_ATTRIBUTES: u32 = 0x100;
        const FILE_FLAG_BACKUP_SEMANTICS: u32 = 0x0200_0000;
        options
            .access_mode(FILE_WRITE_ATTRIBUTES)
            .custom_flags(FILE_FLAG_BACKUP_SEMANTICS);
    }
    options.open(folder)?.set_modified(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_at_an_offset_is_read_there() {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(b"second", 6).expect("written");
        file.write_all_at(b"first ", 0).expect("written");
        let mut read = [0; 8];
        file.read_exact_at(&mut read, 4).expect("read");
        assert_eq!(&read, b"t second");
        let beyond = file.read_exact_at(&mut read, 5).expect_err("too short");
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_folder_is_locked_once_synced_and_touched() {
        let folder = tempfile::tempdir().expect("a folder");
        let [first, second] = [(); 2].map(|()| lock_of(folder.path()).expect("a file"));
        first.try_lock().expect("nobody has it");
        assert!(second.try_lock().is_err());
        drop(first);
        second.try_lock().expect("it was released");
        std::fs::write(folder.path().join("file"), "text").expect("a file");
        sync(&folder.path().join("file")).expect("a file");
        sync(folder.path()).expect("a folder");
        touch(folder.path()).expect("a folder");
        assert!(lock_of(&folder.path().join("missing")).is_err());
    }
}
