//! A driver wrapper that records allocations and releases for the history's segment events: the pool
//! does not know about histories, and all memory passes through the driver.

use super::Action;
use crate::driver::{Driver, DriverError, EventId, Mapping, MemoryInfo};
use crate::units::StreamId;
use std::time::Duration;

/// Memory that was allocated from or returned to the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pub(super) action: Action,
    pub(super) address: u64,
    pub(super) bytes: u64,
}

/// Forwards every call.
pub(crate) struct RecordingDriver<'a> {
    pub(super) driver: &'a mut dyn Driver,
    pub(super) moved: &'a mut Vec<Moved>,
}

impl RecordingDriver<'_> {
    fn note(&mut self, action: Action, address: u64, bytes: u64) {
        self.moved.push(Moved {
            action,
            address,
            bytes,
        });
    }
}

impl Driver for RecordingDriver<'_> {
    fn allocate(&mut self, bytes: u64) -> Result<u64, DriverError> {
        let address = self.driver.allocate(bytes)?;
        self.note(Action::SegmentAllocate, address, bytes);
        Ok(address)
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.driver.release(address, bytes)?;
        self.note(Action::SegmentFree, address, bytes);
        Ok(())
    }

    fn mapping(&self) -> Option<Mapping> {
        self.driver.mapping()
    }

    fn allocate_mapped(&mut self, bytes: u64) -> Result<u64, DriverError> {
        let address = self.driver.allocate_mapped(bytes)?;
        self.note(Action::SegmentAllocate, address, bytes);
        Ok(address)
    }

    fn release_part(&mut self, address: u64, bytes: u64) -> Result<(), DriverError> {
        self.driver.release_part(address, bytes)?;
        self.note(Action::SegmentUnmap, address, bytes);
        Ok(())
    }

    fn cheap_memory_info(&mut self, held: u64) -> Result<MemoryInfo, DriverError> {
        self.driver.cheap_memory_info(held)
    }

    fn now(&self) -> Duration {
        self.driver.now()
    }

    fn record(&mut self, stream: StreamId) -> Result<Option<EventId>, DriverError> {
        self.driver.record(stream)
    }

    fn reached(&mut self, event: EventId) -> Result<bool, DriverError> {
        self.driver.reached(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        self.driver.wait(event)
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        self.driver.synchronize()
    }

    fn is_capturing(&mut self, stream: StreamId) -> Result<bool, DriverError> {
        self.driver.is_capturing(stream)
    }

    fn enter_capture(&mut self) {
        self.driver.enter_capture();
    }

    fn leave_capture(&mut self) {
        self.driver.leave_capture();
    }

    fn runtime(&self) -> &'static str {
        self.driver.runtime()
    }

    fn survives_fork(&self) -> bool {
        self.driver.survives_fork()
    }

    fn memory_info(&mut self, held: u64) -> Result<MemoryInfo, DriverError> {
        self.driver.memory_info(held)
    }
}
