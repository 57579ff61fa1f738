//! Host memory: anonymous mappings, for PyTorch's CPU allocator and for tests.
//!
//! The available memory is what the kernel reports as available, less a reserve,
//! and no more than the control group allows: a request beyond that fails here,
//! where it can be handled, rather than in the kernel's out-of-memory killer.

use super::{Driver, DriverCost, DriverError, EventId, MemoryInfo, WorkingTime, measured};
use crate::system;
use crate::units::StreamId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Returns how much memory the machine can still provide, in bytes.
pub trait HostMemory: Send {
    /// What may be allocated now, and the total for this process, given that
    /// `untouched` bytes of what it holds are not in memory yet, so that the
    /// kernel still counts them as available.
    fn read(&mut self, untouched: u64) -> MemoryInfo;
}

/// Memory of this machine.
pub struct HostDriver {
    memory: Box<dyn HostMemory>,
    held: u64,
    time: WorkingTime,
    /// The size of each mapping, by address.
    mappings: BTreeMap<u64, u64>,
}

impl HostDriver {
    /// A driver that never provides more than `memory` reports.
    pub fn new(memory: Box<dyn HostMemory>) -> Self {
        HostDriver {
            memory,
            held: 0,
            time: WorkingTime::default(),
            mappings: BTreeMap::new(),
        }
    }

    /// Whether there is room for `bytes` more.
    fn has_room(&mut self, bytes: u64) -> bool {
        // Assuming that nothing was touched is the safe choice; counting takes time.
        bytes <= self.memory.read(self.held).free
            || bytes <= self.memory.read(self.held - self.touched()).free
    }

    /// Bytes of ours that are in memory.
    fn touched(&self) -> u64 {
        let mappings = self.mappings.iter();
        let touched: u64 = mappings
            .map(|(start, bytes)| system::bytes_in_use(*start, *bytes))
            .sum();
        touched.min(self.held)
    }

    fn failed(call: &'static str, error: &std::io::Error) -> DriverError {
        match error.kind() {
            std::io::ErrorKind::OutOfMemory => DriverError::OutOfMemory,
            _ => DriverError::Failed {
                call,
                code: error.raw_os_error().unwrap_or_default().unsigned_abs(),
                message: error.to_string(),
            },
        }
    }
}

impl Driver for HostDriver {
    fn allocate(&mut self, bytes: u64) -> Result<u64, DriverError> {
        if !self.has_room(bytes) {
            return Err(DriverError::OutOfMemory);
        }
        let length = usize::try_from(bytes).map_err(|_| DriverError::OutOfMemory)?;
        let address = system::map_memory(length).map_err(|error| Self::failed("mmap", &error))?;
        self.held += bytes;
        self.mappings.insert(address, bytes);
        Ok(address)
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the pool releases exactly what `allocate` gave, once, when nothing
        // uses it any more (the contract of `Driver::release`).
        let unmapped = unsafe { system::unmap_memory(address, bytes) };
        unmapped.map_err(|error| Self::failed("munmap", &error))?;
        self.mappings.remove(&address);
        self.held -= bytes;
        Ok(())
    }

    fn record(&mut self, _stream: StreamId) -> Result<Option<EventId>, DriverError> {
        Ok(None)
    }

    fn reached(&mut self, _event: EventId) -> Result<bool, DriverError> {
        Ok(true)
    }

    fn wait(&mut self, _event: EventId) -> Result<(), DriverError> {
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        Ok(())
    }

    fn is_capturing(&mut self, _stream: StreamId) -> Result<bool, DriverError> {
        Ok(false)
    }

    fn enter_capture(&mut self) {}

    fn leave_capture(&mut self) {}

    fn runtime(&self) -> &'static str {
        "Host"
    }

    fn survives_fork(&self) -> bool {
        true
    }

    fn survives_exit(&self) -> bool {
        true
    }

    fn needs_guard(&self) -> bool {
        false
    }

    fn cheap_memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        Ok(self.memory.read(0))
    }

    fn measure(&mut self) -> Option<DriverCost> {
        let mut time = WorkingTime::default();
        let now = || time.now();
        measured(now, |bytes| {
            let address = self.allocate(bytes).ok()?;
            // SAFETY: a mapping of this size that was just made, and that nothing else knows of.
            unsafe { std::ptr::write_bytes(address as *mut u8, 1, bytes as usize) };
            self.release(address, bytes).ok()
        })
    }

    fn now(&mut self) -> Duration {
        self.time.now()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        let untouched = self.held - self.touched();
        Ok(self.memory.read(untouched))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MIB;
    #[cfg(unix)]
    use platform::memory::{MemoryBudget, Reserve};

    struct Plenty;

    impl HostMemory for Plenty {
        fn read(&mut self, untouched: u64) -> MemoryInfo {
            let total = 1024 * MIB;
            MemoryInfo {
                free: total - untouched,
                total,
                ..MemoryInfo::default()
            }
        }
    }

    #[cfg(unix)]
    /// Under a control group's limit, a request is refused before the kernel would
    /// have to kill the program, whether it has touched its memory or not.
    #[test]
    fn a_control_group_is_never_promised_more_than_its_limit() {
        const BLOCK: u64 = 16 * MIB;
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("sys/fs/cgroup");
        let usage = group.join("memory.current");
        let others = 40 * MIB;
        std::fs::create_dir_all(&group).unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        std::fs::write(root.path().join("proc/self/cgroup"), "0::/").unwrap();
        std::fs::write(group.join("memory.max"), (200 * MIB).to_string()).unwrap();
        std::fs::write(group.join("memory.stat"), "").unwrap();
        std::fs::write(&usage, others.to_string()).unwrap();
        let reserve = Reserve::Fixed(platform::Bytes(0));
        let memory = MemoryBudget::host_below(root.path(), reserve);
        let mut driver = HostDriver::new(Box::new(memory));
        let mut blocks = Vec::new();
        while let Ok(block) = driver.allocate(BLOCK) {
            blocks.push(block);
        }
        assert_eq!(
            blocks.len() as u64,
            (200 * MIB - others) / BLOCK,
            "untouched"
        );
        for block in &blocks[..5] {
            // SAFETY: a mapping of this size that was just made.
            unsafe { std::ptr::write_bytes(*block as *mut u8, 1, BLOCK as usize) };
        }
        // As the kernel would count. A huge page may extend into the next block.
        let touched = driver.touched();
        assert!((5 * BLOCK..6 * BLOCK).contains(&touched), "{touched}");
        std::fs::write(&usage, (others + touched).to_string()).unwrap();
        assert_eq!(
            driver.allocate(BLOCK),
            Err(DriverError::OutOfMemory),
            "half touched"
        );
        driver.release(blocks[9], BLOCK).unwrap();
        assert!(driver.allocate(BLOCK).is_ok(), "one went back");
        let info = driver.memory_info().unwrap();
        assert_eq!((info.free, info.total), (0, 200 * MIB));
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let mut driver = HostDriver::new(Box::new(Plenty));
        assert_eq!(driver.allocate(2048 * MIB), Err(DriverError::OutOfMemory));
        assert_eq!(driver.held, 0);
    }
}
