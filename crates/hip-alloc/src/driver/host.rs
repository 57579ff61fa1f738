//! Host memory: anonymous mappings, for PyTorch's CPU allocator and for tests.
//!
//! How much there is to give is what the kernel says is available, less a reserve,
//! and no more than the control group allows: a request beyond that fails here,
//! where it can be handled, rather than in the kernel's out-of-memory killer.

use super::{Driver, DriverError, EventId, MemoryInfo};
use crate::units::{MIB, StreamId};

/// Reads how much memory the machine can still give, in bytes.
pub trait HostMemory: Send {
    /// What may be allocated now, and what this process may hold in all, given that
    /// it holds `held` bytes.
    fn read(&mut self, held: u64) -> MemoryInfo;
}

/// Memory of this machine.
pub struct HostDriver {
    memory: Box<dyn HostMemory>,
    held: u64,
}

/// Mappings of at least this size ask for huge pages.
const HUGE_PAGE: u64 = 2 * MIB;

impl HostDriver {
    /// A driver that never gives more than `memory` says there is.
    pub fn new(memory: Box<dyn HostMemory>) -> Self {
        HostDriver { memory, held: 0 }
    }

    fn failed(call: &'static str) -> DriverError {
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOMEM) => DriverError::OutOfMemory,
            code => DriverError::Failed {
                call,
                code: code.unwrap_or_default().unsigned_abs(),
                message: error.to_string(),
            },
        }
    }
}

impl Driver for HostDriver {
    fn allocate(&mut self, bytes: u64) -> Result<u64, DriverError> {
        if bytes > self.memory.read(self.held).free {
            return Err(DriverError::OutOfMemory);
        }
        let length = usize::try_from(bytes).map_err(|_| DriverError::OutOfMemory)?;
        // SAFETY: a new private anonymous mapping at an address of the kernel's
        // choice touches no memory that anything else uses; the arguments are
        // those that mmap(2) documents for it.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(Self::failed("mmap"));
        }
        if bytes >= HUGE_PAGE {
            // SAFETY: the range is the mapping made above, which is ours alone.
            // Advice only: a kernel without huge pages refuses it, which is fine.
            unsafe { libc::madvise(address, length, libc::MADV_HUGEPAGE) };
        }
        self.held += bytes;
        Ok(address as u64)
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the pool releases exactly what `allocate` gave, once, when nothing
        // uses it any more (the contract of `Driver::release`).
        let result = unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
        if result != 0 {
            return Err(Self::failed("munmap"));
        }
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

    fn memory_info(&mut self, _held: u64) -> Result<MemoryInfo, DriverError> {
        Ok(self.memory.read(self.held))
    }
}
