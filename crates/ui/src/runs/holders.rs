//! The process that trains in a run's folder.
//!
//! The trainer locks its folder for as long as it lives. The kernel lists who holds a lock, so the
//! process is found without a file that says who it is, and without taking the lock, which a run that
//! is just starting would miss.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Process;
use super::files::Folder;

/// The kernel's list of locks.
const LOCKS: &str = "/proc/locks";

/// How often the list of locks is read.
const READINGS: usize = 3;

/// Bytes asked for at once: more than the page of lines that the kernel gives in one piece.
const AT_ONCE: usize = 64 << 10;

/// Who holds which lock.
pub(crate) struct Holders {
    /// Numbers of processes by the inode that they locked, with the device as the kernel names it.
    by_inode: HashMap<u64, Vec<(u32, String)>>,
}

impl Holders {
    /// As of now. The kernel gives about a page of lines as they stand at one moment; from one call to the next
    /// it counts lines, so a lock that is let go in between hides another. Hence large reads, where
    /// `read_to_string` begins with 32 bytes, and what any of several readings has is taken.
    /// [`of`](Self::of) then asks the process itself.
    pub(crate) fn read() -> Self {
        let readings: String = (0..READINGS).filter_map(|_| read_locks().ok()).collect();
        Self::parse(&readings)
    }

    /// Lines as `2: FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF`.
    fn parse(locks: &str) -> Self {
        let mut by_inode: HashMap<u64, Vec<(u32, String)>> = HashMap::new();
        for line in locks.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // Who waits for a lock has `->` in front, and does not hold it.
            let [_, "FLOCK", _, "WRITE", pid, file, ..] = fields[..] else {
                continue;
            };
            let Some((device, inode)) = file.rsplit_once(':') else {
                continue;
            };
            // 0 is a process that this container does not see.
            if let (Ok(pid), Ok(inode)) = (pid.parse::<u32>(), inode.parse()) {
                let (holders, holder) =
                    (by_inode.entry(inode).or_default(), (pid, device.to_owned()));
                if !holders.contains(&holder) {
                    holders.push(holder);
                }
            }
        }
        Self { by_inode }
    }

    /// `Some(None)`: somebody, but who cannot be told.
    pub(crate) fn of(&self, folder: &Folder) -> Option<Option<Process>> {
        let stat = rustix::fs::fstat(folder.as_fd()).ok()?;
        let (device, inode) = (stat.st_dev, stat.st_ino);
        let name = format!(
            "{:02x}:{:02x}",
            rustix::fs::major(device),
            rustix::fs::minor(device)
        );
        for (pid, its_device) in self.by_inode.get(&inode)? {
            if *pid == std::process::id() {
                continue;
            }
            match has_open(*pid, device, inode) {
                Some(true) => return Some(Process::of(*pid)),
                Some(false) => {}
                // Somebody else's process: btrfs has other device numbers here, so a run there is missed.
                None if *its_device == name => return Some(None),
                None => {}
            }
        }
        None
    }
}

/// Whether a process, this one included, holds a lock on a file.
pub(crate) fn is_locked(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else {
        return false;
    };
    let holders = Holders::read();
    let mut holders = holders.by_inode.get(&metadata.ino()).into_iter().flatten();
    holders.any(|(pid, _)| has_open(*pid, metadata.dev(), metadata.ino()).unwrap_or(true))
}

fn read_locks() -> io::Result<String> {
    let mut file = File::open(LOCKS)?;
    let mut list = Vec::new();
    let mut piece = vec![0; AT_ONCE];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(String::from_utf8_lossy(&list).into_owned()),
            Ok(read) => list.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether a process has this file open; unset when we may not look.
fn has_open(pid: u32, device: u64, inode: u64) -> Option<bool> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut files = files.flatten();
    Some(files.any(|file| {
        let metadata = std::fs::metadata(file.path());
        metadata.is_ok_and(|metadata| metadata.dev() == device && metadata.ino() == inode)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_holds_a_lock_counts() {
        let holders = Holders::parse(
            "1: FLOCK  ADVISORY  WRITE 10 08:02:1234 0 EOF\n\
             1: -> FLOCK  ADVISORY  WRITE 11 08:02:1234 0 EOF\n\
             2: POSIX  ADVISORY  WRITE 12 08:02:1234 0 EOF\n\
             3: FLOCK  ADVISORY  READ 13 08:02:1234 0 EOF\n\
             nonsense\n",
        );
        let found = holders.by_inode.get(&1234).cloned();
        assert_eq!(found, Some(vec![(10, "08:02".to_owned())]));
        assert_eq!(holders.by_inode.len(), 1);
    }

    /// A lock that stays, beside one that comes and goes: each of many readings has the first.
    #[test]
    fn a_lock_is_found_while_others_come_and_go() {
        use std::os::fd::AsFd as _;
        use std::sync::atomic::{AtomicBool, Ordering};

        use rustix::fs::{FlockOperation, flock};

        let folder = tempfile::tempdir().unwrap();
        let kept = File::open(folder.path()).unwrap();
        flock(kept.as_fd(), FlockOperation::LockExclusive).unwrap();
        let inode = kept.metadata().unwrap().ino();
        let other = File::create(folder.path().join("other")).unwrap();
        let is_done = AtomicBool::new(false);
        let missed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    flock(other.as_fd(), FlockOperation::LockExclusive).unwrap();
                    flock(other.as_fd(), FlockOperation::Unlock).unwrap();
                }
            });
            let missed = (0..5_000).filter(|_| !Holders::read().by_inode.contains_key(&inode));
            let missed = missed.count();
            is_done.store(true, Ordering::Relaxed);
            missed
        });
        assert_eq!(missed, 0);
    }
}
