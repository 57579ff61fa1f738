//! The view of an allocator for background reclaim.

use super::{Allocator, Inner};
use crate::driver::{DriverError, MemoryInfo};
use crate::history::StackId;
use crate::limit::within;
use crate::other_processes::OtherProcesses;
use crate::units::StreamId;

impl Allocator {
    /// Calls `judge`, which returns whether to check again, unless there is nothing to check.
    pub(crate) fn for_reclaim(&self, judge: impl FnOnce(&mut ReclaimView<'_>) -> bool) -> bool {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if inner.out_of_reach().is_some() {
            return false;
        }
        if inner.captures() {
            // Nothing can be returned, and the device must not be queried.
            return true;
        }
        let again = !inner.deferred.device_lost() && judge(&mut ReclaimView { inner });
        inner.report_deferred(self.device);
        if inner.history.is_on() {
            inner.complete_history(StreamId(0), StackId::UNKNOWN);
        }
        let lost = inner.deferred.device_lost();
        let again = again && !lost;
        if !again {
            // Reclaim starts again when more memory is kept.
            inner.pool.set_keeping(!lost);
            inner.looked_after = false;
        }
        again
    }
}

/// What a [`BackgroundReclaim`](crate::background_reclaim::BackgroundReclaim) can see and do.
pub(crate) struct ReclaimView<'a> {
    inner: &'a mut Inner,
}

impl ReclaimView<'_> {
    /// Requests and frees so far.
    pub(crate) fn operations(&self) -> u64 {
        let stats = self.inner.stats();
        stats.allocations + stats.frees
    }

    /// Memory available from the machine, in addition to what is held.
    pub(crate) fn free_memory(&mut self) -> Result<MemoryInfo, DriverError> {
        let held = self.inner.stats().held_bytes;
        let memory = self.inner.driver.cheap_memory_info(held)?;
        Ok(within(
            self.inner.private.limit(&self.inner.pool),
            held,
            memory,
        ))
    }

    /// How many bytes are missing to the highest usage so far.
    pub(crate) fn growth(&self) -> u64 {
        self.inner.pool.growth()
    }

    /// Bytes held beyond the floor and those in use.
    pub(crate) fn kept(&self) -> u64 {
        self.inner.pool.kept()
    }

    /// The other processes that share the memory.
    pub(crate) fn other_processes(&mut self) -> Option<&mut OtherProcesses> {
        self.inner.other_processes.as_mut()
    }

    /// Whether work in flight uses freed memory.
    pub(crate) fn works(&mut self) -> bool {
        let Inner {
            pool,
            private,
            driver,
            ..
        } = &mut *self.inner;
        pool.works(driver.as_mut()) || private.work(driver.as_mut())
    }

    /// Sets whether memory is kept.
    pub(crate) fn keep(&mut self, keep: bool) {
        self.inner.pool.set_keeping(keep);
    }

    /// Returns kept memory that no work uses; returns whether there was any.
    pub(crate) fn trim_to_floor(&mut self) -> bool {
        let Inner { pool, driver, .. } = &mut *self.inner;
        let before = pool.stats().held_bytes;
        pool.trim_to_floor(driver.as_mut());
        pool.stats().held_bytes < before
    }
}
