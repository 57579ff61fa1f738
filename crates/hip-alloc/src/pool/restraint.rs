//! What a pool must leave undone for a while: give memory back, or ask the device anything.

use super::Pool;
use super::policy::Policy;
use crate::driver::{Driver, DriverError};
use crate::units::StreamId;

/// What is not done at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restraint {
    /// No memory goes back to the driver, whatever is free.
    pub(crate) holds: bool,
    /// Work is captured for a graph: no event can be recorded or asked for, nothing waited for,
    /// and nothing given back. Taking memory is all that may be done.
    pub(crate) captured: bool,
}

impl Restraint {
    /// Whether memory may go back to the driver.
    pub(crate) fn may_give_back(self) -> bool {
        !self.holds && !self.captured
    }
}

impl<P: Policy> Pool<P> {
    /// Whether all that the driver gave stays, as long as `holds` is true.
    pub(crate) fn set_holding(&mut self, holds: bool) {
        self.memory.restraint.holds = holds;
    }

    /// Whether work is captured for a graph, on any stream of the device.
    pub(crate) fn set_captured(&mut self, captured: bool) {
        self.memory.restraint.captured = captured;
    }

    /// Takes whole blocks from now on, and none in handles.
    pub(crate) fn map_nothing(&mut self) {
        self.memory.most_mapped = 0;
    }

    /// Whether a live request begins at the address.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.memory.heap.span_at(address).is_some()
    }

    /// Has errors told with the next of [`take_deferred_errors`](Pool::take_deferred_errors).
    pub(crate) fn defer_errors(&mut self, errors: impl IntoIterator<Item = DriverError>) {
        self.memory.errors.extend(errors);
    }

    /// As [`allocate`](Pool::allocate), from what is held already: the driver gives nothing.
    pub(crate) fn allocate_from_held(
        &mut self,
        driver: &mut dyn Driver,
        requested: u64,
        stream: StreamId,
    ) -> Option<u64> {
        let limit = std::mem::replace(&mut self.memory.device.limit, 0);
        let served = self.allocate(driver, requested, stream);
        self.memory.device.limit = limit;
        if served.is_err() {
            // Nobody asked this pool.
            self.ask_again();
        }
        served.ok()
    }
}
