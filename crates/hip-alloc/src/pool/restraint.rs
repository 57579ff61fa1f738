//! What the owner of a pool sets besides requests: what the pool must not do for a while (return
//! memory, or query the device).

use super::Pool;
use crate::driver::DriverError;
use crate::units::StreamId;

/// What must not be done at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restraint {
    /// No memory is returned to the driver, whatever is free.
    pub(crate) holds: bool,
    /// Work is being captured for a graph: no event may be recorded or queried, nothing waited for,
    /// and nothing returned. Only allocations are allowed.
    pub(crate) captured: bool,
}

impl Restraint {
    /// Whether memory may be returned to the driver.
    pub(crate) fn may_release(self) -> bool {
        !self.holds && !self.captured
    }
}

impl Pool {
    /// Sets whether all memory from the driver stays.
    pub(crate) fn set_holding(&mut self, holds: bool) {
        self.memory.restraint.holds = holds;
    }

    /// Sets whether work is being captured for a graph, on any stream of the device.
    pub(crate) fn set_captured(&mut self, captured: bool) {
        self.memory.restraint.captured = captured;
    }

    /// Whether a live request begins at the address.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.memory.heap.span_at(address).is_some()
    }

    /// Bytes of its blocks.
    pub(crate) fn held(&self) -> u64 {
        self.memory.heap.held()
    }

    /// Adds errors to the result of the next [`take_deferred_errors`](Pool::take_deferred_errors).
    pub(crate) fn defer_errors(&mut self, errors: impl IntoIterator<Item = DriverError>) {
        self.memory.fences.errors.extend(errors);
    }

    /// Like [`allocate`](Pool::allocate), but only from held memory, without the driver.
    pub(crate) fn allocate_from_held(&mut self, requested: u64, stream: StreamId) -> Option<u64> {
        let limit = std::mem::replace(&mut self.memory.device.lock().limit, 0);
        let served = self.allocate(requested, stream);
        self.memory.device.lock().limit = limit;
        if served.is_err() {
            // The request was not made to this pool.
            self.ask_again();
        }
        served.ok()
    }
}
