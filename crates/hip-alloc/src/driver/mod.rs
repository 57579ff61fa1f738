//! Where memory comes from: one small trait, and what implements it.
//!
//! The pool asks a [`Driver`] for whole blocks and knows nothing else about the
//! machine. `gpu` speaks to a HIP or CUDA runtime (`runtime` finds it), `host` maps anonymous
//! memory, and `sim` is a device that exists only in
//! arithmetic (for tests and replays).

mod cost;
#[cfg(unix)]
pub mod gpu;
#[cfg(unix)]
pub mod host;
#[cfg(unix)]
mod mapped;
#[cfg(unix)]
mod numbers;
#[cfg(unix)]
pub mod runtime;
pub mod sim;

use crate::units::StreamId;
pub use cost::DriverCost;
#[cfg(unix)]
use cost::{measured, monotonic};
use platform::device_error::ErrorClass;
use platform::memory::Limit;
use std::time::Duration;

/// An event recorded on a stream: done when the work before it is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventId(pub u64);

/// Memory of a device, in bytes, as one number each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryInfo {
    /// What could still be allocated.
    pub free: u64,
    /// What this process could hold in all; never below `free`.
    pub total: u64,
    /// What made it this much, and no more.
    pub limited_by: LimitedBy,
}

/// Where memory ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LimitedBy {
    /// The device has no more.
    #[default]
    Device,
    /// Something of the machine that the device is in.
    Machine(Limit),
    /// The program's own setting.
    Fraction,
}

/// Why a driver call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DriverError {
    /// There is not enough memory; nothing else is wrong.
    #[error("out of memory")]
    OutOfMemory,
    /// The runtime refused the call for another reason.
    #[error("{call} failed with error {code}: {message}")]
    Failed {
        /// The function that was called.
        call: &'static str,
        /// The runtime's error code.
        code: u32,
        /// The runtime's name for it.
        message: String,
    },
    /// The device is out of reach: it belongs to the process that this one was forked from, or the
    /// process ends.
    #[error("{0}")]
    Orphaned(&'static str),
}

impl DriverError {
    /// Whether the device cannot be used again in this process: an asynchronous error that
    /// every later call repeats.
    pub fn loses_device(&self) -> bool {
        matches!(self, DriverError::Failed { code, .. }
            if ErrorClass::of_code(*code) == ErrorClass::ContextLost)
    }
}

/// How a driver maps memory in handles, each of which can go back by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Bytes of a handle; the last one of an allocation may be smaller.
    pub handle: u64,
    /// Every mapped allocation is a multiple of this.
    pub granule: u64,
}

/// Memory of one device, and the order of work on its streams.
///
/// A driver whose memory is not used asynchronously (the host) answers every
/// [`record`](Driver::record) with `None`.
pub trait Driver: Send {
    /// Gets `bytes` of memory; the address is a multiple of 4096 and not zero.
    fn allocate(&mut self, bytes: u64) -> Result<u64, DriverError>;

    /// Gives back what [`allocate`](Driver::allocate) gave, or what is left of what
    /// [`allocate_mapped`](Driver::allocate_mapped) gave; `bytes` is what was asked for.
    /// Nothing in flight may touch it any more.
    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DriverError>;

    /// How memory is mapped in handles; `None` where it cannot be.
    fn mapping(&self) -> Option<Mapping> {
        None
    }

    /// As [`allocate`](Driver::allocate), in handles. `bytes` is a multiple of the granule.
    fn allocate_mapped(&mut self, bytes: u64) -> Result<u64, DriverError> {
        self.allocate(bytes)
    }

    /// Gives back some handles of a mapped allocation: the range begins and ends where
    /// handles do. Nothing in flight may touch it any more. After an error all of them
    /// are still there.
    fn release_part(&mut self, _address: u64, _bytes: u64) -> Result<(), DriverError> {
        Ok(())
    }

    /// Marks this point on the stream. `None`: all work before it is already done.
    fn record(&mut self, stream: StreamId) -> Result<Option<EventId>, DriverError>;

    /// Whether the event has been reached. `true` ends the event: it is not asked
    /// about again.
    fn reached(&mut self, event: EventId) -> Result<bool, DriverError>;

    /// Waits for the event and ends it.
    fn wait(&mut self, event: EventId) -> Result<(), DriverError>;

    /// Waits for all work on the device. Only for when an event cannot be had.
    fn synchronize(&mut self) -> Result<(), DriverError>;

    /// Whether work on the stream is captured for a graph, instead of done.
    fn is_capturing(&mut self, _stream: StreamId) -> Result<bool, DriverError> {
        Ok(false)
    }

    /// While work is captured anywhere in the process, taking memory would end that, unless
    /// this thread says before that it knows ...
    fn enter_capture(&mut self) {}

    /// ... and that it is done, after which it is as careful as before.
    fn leave_capture(&mut self) {}

    /// The name of the runtime, as its errors begin.
    fn runtime(&self) -> &'static str {
        "HIP"
    }

    /// Whether the copy of this driver in a forked child can be used there.
    fn survives_fork(&self) -> bool {
        true
    }

    /// Whether it can be called until the very end of the process. A runtime has destructors of its
    /// own, which may run before those of the program.
    fn survives_exit(&self) -> bool {
        true
    }

    /// As [`memory_info`](Driver::memory_info), at little cost: what was given and not touched yet
    /// may count as free.
    fn cheap_memory_info(&mut self, held: u64) -> Result<MemoryInfo, DriverError> {
        self.memory_info(held)
    }

    /// What this driver costs, tried out in a few milliseconds; `None` where that is not worth it.
    fn measure(&mut self) -> Option<DriverCost> {
        None
    }

    /// The time since some moment, for the cost of calls. Where there is no clock, always zero.
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    /// What the device has, of which `held` bytes are ours.
    fn memory_info(&mut self, held: u64) -> Result<MemoryInfo, DriverError>;
}
