//! Other processes with this library that use the same memory: they learn of each other's needs.
//!
//! They share a small file of the user, one for each device (a single one for everything that uses the
//! machine's own memory), which on Linux lasts until the machine is restarted:
//!
//! ```text
//!  0   process that needs memory    16  seconds of a driver call, as measured
//!  8   when, on the machine's clock 24  seconds for a byte to be cleared and mapped
//!                                   32  when the machine was started, in seconds since 1970
//! ```
//!
//! The file is read and written, but never mapped: truncating it does no harm. A lock that each
//! process holds shows whether there are others; [`turns`](crate::turns) have another one.

use crate::driver::DriverCost;
use crate::shared_file::{SharedFile, path_of};
use crate::system::machine_time;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The offset of a need in the file.
const NEED_AT: u64 = 0;
/// The offset of the driver's cost in the file.
const COST_AT: u64 = 16;

/// The offset of the start of the machine at which that was measured: after another one, a driver may be a different one.
const STARTED_AT: u64 = 32;
/// By this many seconds the start may differ, since the clock is set now and then.
const CLOCK_STEP: f64 = 60.0;

/// The processes of this user that share a memory with this one.
pub(crate) struct OtherProcesses {
    file: SharedFile,
    /// The last need that was seen.
    seen: Option<[u8; 16]>,
}

impl OtherProcesses {
    /// The processes that share `memory`: the address of a card, or `host`. `None` if the file
    /// cannot be created, or belongs to another user.
    pub(crate) fn of(memory: &str) -> Option<Self> {
        Self::at(&path_of(memory)?)
    }

    fn at(path: &Path) -> Option<Self> {
        let mut file = SharedFile::open(path)?;
        file.join()?;
        let mut other_processes = OtherProcesses { file, seen: None };
        // Earlier needs no longer matter.
        other_processes.need();
        Some(other_processes)
    }

    /// Whether there are other processes.
    pub(crate) fn any(&self) -> bool {
        self.file.has_others()
    }

    /// Announces to the others that this process lacks memory.
    pub(crate) fn announce(&mut self) {
        let now = machine_time().as_nanos() as u64;
        let process = u64::from(std::process::id());
        let mut record = [0; 16];
        record[..8].copy_from_slice(&process.to_le_bytes());
        record[8..].copy_from_slice(&now.to_le_bytes());
        // If this fails, the others still see how little memory is free.
        self.file.write(&record, NEED_AT);
        self.seen = Some(record);
    }

    /// Whether another process has needed memory since the last call.
    pub(crate) fn need(&mut self) -> bool {
        let Some(record) = self.file.read(NEED_AT) else {
            return false;
        };
        let ours = u64::from(std::process::id()).to_le_bytes();
        let is_new = self.seen.replace(record) != Some(record);
        is_new && record[..8] != ours
    }

    /// The cost of the driver, as measured by an earlier process.
    pub(crate) fn remembered(&self) -> Option<DriverCost> {
        let record = self.file.read(COST_AT)?;
        let number = |at: usize| {
            let bytes = record[at..at + 8].try_into().ok()?;
            let number = f64::from_le_bytes(bytes);
            // No call takes an hour, and no machine clears a byte a second.
            (number > 0.0 && number < 3600.0).then_some(number)
        };
        let (latency, per_byte) = (number(0)?, number(8)?);
        let started = self.file.read(STARTED_AT)?[..8].try_into().ok()?;
        let apart = (f64::from_le_bytes(started) - machine_started()).abs();
        (per_byte < 1.0 && apart < CLOCK_STEP).then_some(DriverCost { latency, per_byte })
    }

    /// Saves the cost of the driver for later processes.
    pub(crate) fn remember(&self, cost: DriverCost) {
        let mut record = [0; 16];
        record[..8].copy_from_slice(&cost.latency.to_le_bytes());
        record[8..].copy_from_slice(&cost.per_byte.to_le_bytes());
        // If this fails, the next process measures again.
        self.file.write(&record, COST_AT);
        record[..8].copy_from_slice(&machine_started().to_le_bytes());
        self.file.write(&record, STARTED_AT);
    }
}

/// When the machine was started, in seconds since 1970, as far as its clock is right.
fn machine_started() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64() - machine_time().as_secs_f64()
}

/// How long a request waits for memory that others may return.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// How often it retries meanwhile.
pub(crate) const INTERVAL: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::Turns;

    #[test]
    fn two_see_each_other_until_one_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shared");
        let first = OtherProcesses::at(&path).unwrap();
        assert!(!first.any());
        let second = OtherProcesses::at(&path).unwrap();
        assert!(first.any() && second.any());
        drop(second);
        assert!(!first.any());
    }

    #[test]
    fn a_need_is_seen_once_by_others_and_not_by_who_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shared");
        let mut first = OtherProcesses::at(&path).unwrap();
        assert!(!first.need());
        let mut record = [0; 16];
        record[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        record[8..].copy_from_slice(&7u64.to_le_bytes());
        first.file.write(&record, NEED_AT);
        // A process that starts later does not see it.
        assert!(!OtherProcesses::at(&path).unwrap().need());
        assert!(first.need() && !first.need());
        let mut second = OtherProcesses::at(&path).unwrap();
        first.announce();
        assert!(!first.need() && !second.need(), "the same process");
    }

    #[test]
    fn what_was_measured_is_remembered_and_nonsense_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let other_processes = OtherProcesses::at(&folder.path().join("shared")).unwrap();
        assert_eq!(other_processes.remembered(), None);
        let cost = DriverCost {
            latency: 5e-5,
            per_byte: 2e-10,
        };
        other_processes.remember(cost);
        assert_eq!(other_processes.remembered(), Some(cost));
        for (latency, per_byte) in [(f64::NAN, 1e-9), (-1.0, 1e-9), (1e-5, 2.0), (0.0, 0.0)] {
            other_processes.remember(DriverCost { latency, per_byte });
            assert_eq!(other_processes.remembered(), None, "{latency} {per_byte}");
        }
    }

    #[test]
    fn what_was_measured_before_a_restart_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let other_processes = OtherProcesses::at(&folder.path().join("shared")).unwrap();
        let cost = DriverCost {
            latency: 5e-5,
            per_byte: 2e-10,
        };
        other_processes.remember(cost);
        let mut record = other_processes.file.read(STARTED_AT).unwrap();
        let earlier = machine_started() - 3600.0;
        record[..8].copy_from_slice(&earlier.to_le_bytes());
        other_processes.file.write(&record, STARTED_AT);
        assert_eq!(other_processes.remembered(), None);
    }

    #[test]
    fn a_turn_is_no_presence() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shared");
        let there = OtherProcesses::at(&path).unwrap();
        let mut turns = Turns::in_file(&path).unwrap();
        turns.begin();
        assert!(!there.any());
    }
}
