//! The process that trains in a run's folder.
//!
//! The trainer holds a lock on its run folder. The kernel lists the holders of all locks, so the process is
//! found without a file that names it, and without taking the lock, which could make a starting run
//! fail.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Process;
use super::files::Folder;

/// The kernel's list of locks.
const PROC_LOCKS: &str = "/proc/locks";

/// How often the list of locks is read for one answer.
const READINGS: usize = 3;

/// Size of one read in bytes: more than the page of lines that the kernel returns at a time.
const READ_BYTES: usize = 64 << 10;

/// The processes that hold locks.
pub(crate) struct Holders {
    /// Process ids by the locked inode and its device, as the kernel writes them.
    by_inode: HashMap<u64, Vec<(u32, String)>>,
}

impl Holders {
    /// Reads the current locks. Only about a page of lines is consistent: between reads the kernel counts lines, so
    /// a lock that is released in between hides another. Hence the reads are large (`read_to_string` begins with 32
    /// bytes), and the results of several are merged. [`of`](Self::of) then checks the process itself.
    pub(crate) fn read() -> Self {
        let readings: String = (0..READINGS).filter_map(|_| read_locks().ok()).collect();
        Self::parse(&readings)
    }

    /// Parses lines such as `2: FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF`.
    fn parse(locks: &str) -> Self {
        let mut by_inode: HashMap<u64, Vec<(u32, String)>> = HashMap::new();
        for line in locks.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // A process that waits for a lock is marked `->` and does not hold it.
            let [_, "FLOCK", _, "WRITE", pid, file, ..] = fields[..] else {
                continue;
            };
            let Some((device, inode)) = file.rsplit_once(':') else {
                continue;
            };
            // 0 is a process outside this container.
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

    /// The holder of the lock on `folder`; `Some(None)` if it is unknown who holds it.
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
                // Another file's lock. On btrfs the device numbers here differ, so a run there is missed.
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
    let mut file = File::open(PROC_LOCKS)?;
    let mut list = Vec::new();
    let mut piece = vec![0; READ_BYTES];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(String::from_utf8_lossy(&list).into_owned()),
            Ok(read) => list.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether a process has this file open; `None` without permission to look.
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
    fn only_the_holder_of_a_lock_counts() {
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

    /// A lock that stays, beside one that is taken and released: every reading finds the former.
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
