//! A small file in memory that this user's processes with this library share.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The folder of the file: in memory, so that it disappears at a restart.
const FOLDER: &str = "/dev/shm";
/// The byte whose lock shows that a process is there.
pub(crate) const PRESENCE: i64 = 0;
/// The byte whose lock a process holds in its turn.
pub(crate) const TURN: i64 = 1;

/// The file of the processes that share `memory`: the address of a card, or `host`.
pub(crate) fn path_of(memory: &str) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    Path::new(FOLDER).join(format!("hip-alloc.{user}.{memory}"))
}

/// Opens the shared file, or creates it. `None` if it cannot be used safely.
pub(crate) fn open(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    // Neither another user's symbolic link nor anything that blocks.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    let about = file.metadata().ok()?;
    let ours = about.uid() == rustix::process::geteuid().as_raw() && about.is_file();
    ours.then_some(file)
}

/// Sets or queries a lock on one byte of an open file; returns the kind of the existing or conflicting lock.
pub(crate) fn lock(file: &File, command: i32, kind: i32, byte: i64) -> Option<i32> {
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
