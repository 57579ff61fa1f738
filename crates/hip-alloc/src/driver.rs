//! Where memory comes from: a small trait and its implementations.
//!
//! The pool allocates whole blocks from a [`Driver`] and does not depend on the
//! machine otherwise. `gpu` uses a HIP or CUDA runtime (found by `runtime`), `host` maps anonymous
//! memory, and `sim` is a simulated device without memory
//! (for tests and replays).

mod cost;
pub mod gpu;
pub mod host;
mod numbers;
pub mod runtime;
pub mod sim;

use crate::units::StreamId;
pub use cost::DriverCost;
use cost::{WorkingTime, measured, monotonic};
use platform::device_error::ErrorClass;
use platform::memory::Limit;
use std::time::Duration;

/// An event recorded on a stream: complete when the work before it is complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventId(pub u64);

/// Memory of a device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryInfo {
    /// What can still be allocated.
    pub free: u64,
    /// The total for this process; never below `free`.
    pub total: u64,
    /// What limits it to this.
    pub limited_by: LimitedBy,
}

/// What limits memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LimitedBy {
    /// The device's capacity.
    #[default]
    Device,
    /// Another limit of the machine.
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
    /// The device must not be used: it belongs to the process that this one was forked from, or the
    /// process is exiting.
    #[error("{0}")]
    Orphaned(&'static str),
}

impl DriverError {
    /// Whether the device cannot be used again in this process, because of an asynchronous error that
    /// every later call repeats.
    pub fn loses_device(&self) -> bool {
        matches!(self, DriverError::Failed { code, .. }
            if ErrorClass::of_code(*code) == ErrorClass::ContextLost)
    }
}

/// Memory of one device, and the order of work on its streams.
///
/// A driver whose memory is not used asynchronously (the host) answers every
/// [`record`](Driver::record) with `None`.
pub trait Driver: Send {
    /// Gets `bytes` of memory; the address is a multiple of 4096 and not zero.
    fn allocate(&mut self, bytes: u64) -> Result<u64, DriverError>;

    /// Releases memory from [`allocate`](Driver::allocate); `bytes` is the requested size.
    /// No work in flight may use it.
    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DriverError>;

    /// Records an event on the stream, which exists. `None`: all work before it is already complete.
    fn record(&mut self, stream: StreamId) -> Result<Option<EventId>, DriverError>;

    /// Whether the event is complete. `true` ends the event: it must not be queried
    /// again.
    fn reached(&mut self, event: EventId) -> Result<bool, DriverError>;

    /// Waits for the event and ends it.
    fn wait(&mut self, event: EventId) -> Result<(), DriverError>;

    /// Waits for all work on the device. Only for when an event cannot be recorded.
    fn synchronize(&mut self) -> Result<(), DriverError>;

    /// Whether work on the stream is being captured for a graph instead of executed.
    fn is_capturing(&mut self, stream: StreamId) -> Result<bool, DriverError>;

    /// While work is being captured anywhere in the process, an allocation would invalidate the capture, unless
    /// this thread first declares that it may ...
    fn enter_capture(&mut self);

    /// ... and afterwards that it is done, which restores the mode before.
    fn leave_capture(&mut self);

    /// The name of the runtime, at the start of its errors.
    fn runtime(&self) -> &'static str;

    /// Whether the copy of this driver in a forked child can be used there.
    fn survives_fork(&self) -> bool;

    /// Whether it can be called until the very end of the process. A runtime has its own destructors,
    /// which may run before those of the program.
    fn survives_exit(&self) -> bool;

    /// Whether its kernels may read behind an operand, so that something must be mapped there.
    fn needs_guard(&self) -> bool;

    /// Like [`memory_info`](Driver::memory_info), but cheap: memory that was allocated and not touched yet
    /// may count as free.
    fn cheap_memory_info(&mut self) -> Result<MemoryInfo, DriverError>;

    /// Measures the cost of this driver in a few milliseconds; `None` if that is not worthwhile.
    fn measure(&mut self) -> Option<DriverCost>;

    /// A monotonic time, for the cost of calls and for what a program can afford of them; always zero without a
    /// clock.
    fn now(&mut self) -> Duration;

    /// The device's memory.
    fn memory_info(&mut self) -> Result<MemoryInfo, DriverError>;
}
