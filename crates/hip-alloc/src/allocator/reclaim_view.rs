//! The view of an allocator for background reclaim.

use super::{Allocator, Inner};
use crate::driver::{DriverError, MemoryInfo};
use crate::history::StackId;
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
        if inner.pools.captures() {
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
            inner.pools.main().set_keeping(!lost);
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
        let stats = self.inner.pools.stats();
        stats.allocations + stats.frees
    }

    /// Memory available from the machine, in addition to what is held.
    pub(crate) fn free_memory(&mut self) -> Result<MemoryInfo, DriverError> {
        let memory = self
            .inner
            .pools
            .device()
            .lock()
            .driver
            .cheap_memory_info()?;
        Ok(self.inner.pools.within_limit(memory))
    }

    /// How many bytes are missing to the highest usage so far.
    pub(crate) fn growth(&mut self) -> u64 {
        self.inner.pools.main().growth()
    }

    /// Bytes held beyond the floor and those in use.
    pub(crate) fn kept(&mut self) -> u64 {
        self.inner.pools.main().kept()
    }

    /// The other processes that share the memory.
    pub(crate) fn other_processes(&mut self) -> Option<&mut OtherProcesses> {
        self.inner.other_processes.as_mut()
    }

    /// Whether work in flight uses freed memory.
    pub(crate) fn works(&mut self) -> bool {
        self.inner.pools.work()
    }

    /// Sets whether memory is kept.
    pub(crate) fn keep(&mut self, keep: bool) {
        self.inner.pools.main().set_keeping(keep);
    }

    /// Returns kept memory that no work uses; returns whether there was any.
    pub(crate) fn trim_to_floor(&mut self) -> bool {
        let pool = self.inner.pools.main();
        let before = pool.held();
        pool.trim_to_floor();
        pool.held() < before
    }
}
