//! The shared file on Windows: in the user's own folder for programs, with locks on bytes that are never written.
//!
//! Windows' locks are mandatory: a locked byte can be neither read nor written by others. So they are on bytes far
//! behind the records. They cannot be queried either, only taken, and an own lock is in the way of another one on the
//! same byte. So each process locks a byte of its own to show that it is there, and looks for others by taking all
//! bytes beside it, for a moment and shared, so that two who look do not see each other.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::time::Duration;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_OPEN_REPARSE_POINT, LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY, LockFileEx,
    UnlockFileEx,
};
use windows_sys::Win32::System::IO::{OVERLAPPED, OVERLAPPED_0, OVERLAPPED_0_0};

/// The byte whose lock a process holds in its turn.
const TURN: u32 = 0;
/// The bytes of processes that are there.
const PLACES: std::ops::Range<u32> = 1..257;
/// Where the locked bytes begin: this times 4 GiB.
const BEHIND_THE_RECORDS: u32 = 1;
/// How often to look for a free place: somebody may just be looking at all of them.
const ATTEMPTS: u32 = 20;

pub(super) fn path_of(memory: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LOCALAPPDATA").filter(|folder| !folder.is_empty())?;
    let folder = Path::new(&folder).join("surefoot");
    std::fs::create_dir_all(&folder).ok()?;
    // A colon in a name would mean a stream of the file.
    Some(folder.join(format!("hip-alloc.{}", memory.replace(':', "-"))))
}

pub(super) fn open(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    // A link is opened itself, and then refused.
    options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    let file = options.open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

pub(super) fn join(file: &File) -> Option<u32> {
    for _ in 0..ATTEMPTS {
        let free = PLACES
            .into_iter()
            .find(|&place| lock(file, place..place + 1, LOCKFILE_EXCLUSIVE_LOCK));
        if free.is_some() {
            return free;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

pub(super) fn has_others(file: &File, presence: Option<u32>) -> bool {
    let own = presence.unwrap_or(PLACES.end);
    let beside = [PLACES.start..own, (own + 1)..PLACES.end];
    beside
        .into_iter()
        .filter(|places| !places.is_empty())
        .any(|places| {
            let nobody = lock(file, places.clone(), 0);
            if nobody {
                unlock(file, places);
            }
            !nobody
        })
}

pub(super) fn take_turn(file: &File) -> bool {
    lock(file, TURN..TURN + 1, LOCKFILE_EXCLUSIVE_LOCK)
}

pub(super) fn end_turn(file: &File) {
    unlock(file, TURN..TURN + 1);
}

/// With a lock on a byte that is never written: one on the whole file would keep others from reading it.
pub(super) fn claim(file: &File) -> bool {
    take_turn(file)
}

pub(super) fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    match file.seek_read(bytes, at)? {
        read if read == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

pub(super) fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    match file.seek_write(bytes, at)? {
        written if written == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Takes a lock on these bytes if nobody has one that is in its way.
fn lock(file: &File, bytes: std::ops::Range<u32>, how: u32) -> bool {
    let flags = how | LOCKFILE_FAIL_IMMEDIATELY;
    let mut place = place_of(&bytes);
    // SAFETY: the handle is that of an open file, which was opened for synchronous calls, so that `place` is not used
    // after this one.
    let locked = unsafe {
        LockFileEx(
            file.as_raw_handle(),
            flags,
            0,
            bytes.end - bytes.start,
            0,
            &mut place,
        )
    };
    locked != 0
}

fn unlock(file: &File, bytes: std::ops::Range<u32>) {
    let mut place = place_of(&bytes);
    // SAFETY: as in `lock`.
    unsafe {
        UnlockFileEx(
            file.as_raw_handle(),
            0,
            bytes.end - bytes.start,
            0,
            &mut place,
        )
    };
}

fn place_of(bytes: &std::ops::Range<u32>) -> OVERLAPPED {
    OVERLAPPED {
        Anonymous: OVERLAPPED_0 {
            Anonymous: OVERLAPPED_0_0 {
                Offset: bytes.start,
                OffsetHigh: BEHIND_THE_RECORDS,
            },
        },
        ..OVERLAPPED::default()
    }
}
