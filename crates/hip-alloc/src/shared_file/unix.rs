//! The shared file on Linux: in memory, so that it disappears at a restart, with locks that belong to the open file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The folder of the file.
const FOLDER: &str = "/dev/shm";
/// The byte whose lock shows that a process is there.
const PRESENCE: u32 = 0;
/// The byte whose lock a process holds in its turn.
const TURN: u32 = 1;

pub(super) fn path_of(memory: &str) -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    Some(Path::new(FOLDER).join(format!("hip-alloc.{user}.{memory}")))
}

pub(super) fn open(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    // Neither another user's symbolic link nor anything that blocks.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    let about = file.metadata().ok()?;
    let ours = about.uid() == rustix::process::geteuid().as_raw() && about.is_file();
    ours.then_some(file)
}

pub(super) fn join(file: &File) -> Option<u32> {
    lock(file, libc::F_OFD_SETLK, libc::F_RDLCK, PRESENCE).map(|_| PRESENCE)
}

pub(super) fn has_others(file: &File, _presence: Option<u32>) -> bool {
    let blocking = lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, PRESENCE);
    blocking.is_some_and(|kind| kind != libc::F_UNLCK)
}

pub(super) fn take_turn(file: &File) -> bool {
    lock(file, libc::F_OFD_SETLK, libc::F_WRLCK, TURN).is_some()
}

pub(super) fn end_turn(file: &File) {
    let _ = lock(file, libc::F_OFD_SETLK, libc::F_UNLCK, TURN);
}

pub(super) fn claim(file: &File) -> bool {
    // Not every file system has locks.
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

pub(super) fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    file.read_exact_at(bytes, at)
}

pub(super) fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    file.write_all_at(bytes, at)
}

/// Sets or queries a lock on one byte of an open file; returns the kind of the existing or conflicting lock.
fn lock(file: &File, command: i32, kind: i32, byte: u32) -> Option<i32> {
    // SAFETY: all bytes zero are a valid `flock`, which is plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = byte as _;
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and these commands take a `flock` to read and write,
    // which lives through the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) };
    (result == 0).then_some(i32::from(lock.l_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shared");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path).unwrap();
        assert!(open(&path).is_none());
    }
}
