//! Private pools and captures of graphs in an allocator.

use super::Allocator;
use crate::device_pools::{AlreadyBegun, Captured, Filter};
use crate::units::PoolId;

/// Why requests cannot be directed to a pool.
pub(crate) enum CannotBegin {
    /// They already are.
    AlreadyBegun,
    /// The device must not be used.
    OutOfReach(&'static str),
}

impl Allocator {
    /// Directs requests that the filter accepts to a pool, which is created if necessary and gets one more
    /// user, until [`end_pool`](Self::end_pool). The result tells, as long as it is true, that a graph may
    /// be being captured.
    ///
    /// # Errors
    /// If requests already go to that pool, or the device must not be used.
    pub(crate) fn begin_pool(
        &self,
        id: PoolId,
        filter: Box<dyn Filter>,
    ) -> Result<Captured, CannotBegin> {
        let begun = {
            let mut inner = self.inner.lock();
            if let Some(reason) = inner.out_of_reach() {
                return Err(CannotBegin::OutOfReach(reason));
            }
            inner.pools.begin(id, filter)
        };
        // Only now, without the lock: a filter may own memory of this allocator.
        begun.map_err(|AlreadyBegun(filter)| {
            drop(filter);
            CannotBegin::AlreadyBegun
        })
    }

    /// Stops directing requests to the pool; returns whether they were. Changes nothing if the device must not
    /// be used.
    pub(crate) fn end_pool(&self, id: PoolId) -> bool {
        let filter = {
            let mut inner = self.inner.lock();
            if inner.out_of_reach().is_some() {
                return true;
            }
            let filter = inner.pools.end(id);
            inner.report_deferred(self.device);
            filter
        };
        // Dropped here, without the lock.
        filter.is_some()
    }

    /// Adds a user to a pool, which is created for the first. With `use_on_oom`, its free memory
    /// serves other requests before they are refused.
    ///
    /// # Errors
    /// Why the device must not be used.
    pub(crate) fn retain_pool(&self, id: PoolId, use_on_oom: bool) -> Result<(), &'static str> {
        let mut inner = self.inner.lock();
        if let Some(reason) = inner.out_of_reach() {
            return Err(reason);
        }
        inner.pools.retain(id);
        if use_on_oom {
            inner.pools.use_on_oom(id);
        }
        Ok(())
    }

    /// Removes a user; with the last, the pool's memory is returned as soon as none of it is live.
    /// Returns whether the pool existed. Changes nothing if the device must not be used.
    pub(crate) fn release_pool(&self, id: PoolId) -> bool {
        let mut inner = self.inner.lock();
        if inner.out_of_reach().is_some() {
            return true;
        }
        let released = inner.pools.release(id);
        inner.report_deferred(self.device);
        released
    }

    /// The number of users of a pool; 0 if it does not exist.
    pub(crate) fn pool_users(&self, id: PoolId) -> u32 {
        self.inner.lock().pools.users(id)
    }

    /// For each capture that began here, the flag that tells whether it is still running.
    pub(crate) fn captures_begun(&self) -> Vec<Captured> {
        self.inner.lock().pools.begun()
    }

    /// A graph may be being captured on another device, as long as `captured` is true.
    pub(crate) fn heed_capture(&self, captured: Captured) {
        let mut inner = self.inner.lock();
        if inner.out_of_reach().is_none() {
            inner.pools.heed(captured);
        }
    }
}
