//! Private pools and captures of graphs in an allocator.

use super::{Allocator, Inner, Standing};
use crate::driver::Driver;
use crate::pool::{AllocateError, BlockLayout, FreeError, Pool, PoolStats};
use crate::private_pools::{AlreadyBegun, Captured, Filter, PrivatePools};
use crate::units::{PoolId, StreamId};

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
            inner.among_pools(|private, main, driver| private.begin(main, driver, id, filter))
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
            let filter = inner.among_pools(|private, pool, driver| private.end(pool, driver, id));
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
        inner.among_pools(|private, main, driver| {
            private.retain(main, driver, id);
            if use_on_oom {
                private.use_on_oom(id);
            }
        });
        Ok(())
    }

    /// Removes a user; with the last, the pool's memory is returned as soon as none of it is live.
    /// Returns whether the pool existed. Changes nothing if the device must not be used.
    pub(crate) fn release_pool(&self, id: PoolId) -> bool {
        let mut inner = self.inner.lock();
        if inner.out_of_reach().is_some() {
            return true;
        }
        let released = inner.among_pools(|private, pool, driver| private.release(pool, driver, id));
        inner.report_deferred(self.device);
        released
    }

    /// The number of users of a pool; 0 if it does not exist.
    pub(crate) fn pool_users(&self, id: PoolId) -> u32 {
        self.inner.lock().private.users(id)
    }

    /// For each capture that began here, the flag that tells whether it is still running.
    pub(crate) fn captures_begun(&self) -> Vec<Captured> {
        self.inner.lock().private.begun()
    }

    /// A graph may be being captured on another device, as long as `captured` is true.
    pub(crate) fn heed_capture(&self, captured: Captured) {
        let mut inner = self.inner.lock();
        if inner.out_of_reach().is_some() {
            return;
        }
        inner.among_pools(|private, pool, _| {
            private.heed(captured);
            private.look_around(pool);
        });
    }
}

impl Inner {
    /// Calls `act` with the private pools, and records whether there are any afterwards.
    fn among_pools<T>(
        &mut self,
        act: impl FnOnce(&mut PrivatePools, &mut Pool, &mut dyn Driver) -> T,
    ) -> T {
        let Inner {
            pool,
            driver,
            private,
            ..
        } = self;
        let captures = private.captured();
        if captures {
            driver.enter_capture();
        }
        let result = act(private, pool, driver.as_mut());
        if captures {
            driver.leave_capture();
        }
        let used = private.are_used();
        if self.out_of_reach().is_none() {
            self.standing = match used {
                true => Standing::AmongPools,
                false => Standing::Alone,
            };
        }
        result
    }

    #[cold]
    pub(super) fn allocate_among_pools(
        &mut self,
        bytes: u64,
        stream: StreamId,
    ) -> Result<u64, AllocateError> {
        self.among_pools(|private, pool, driver| private.allocate(pool, driver, bytes, stream))
    }

    /// Repeats a request that was refused.
    pub(super) fn allocate_again(
        &mut self,
        bytes: u64,
        stream: StreamId,
    ) -> Result<u64, AllocateError> {
        self.among_pools(|private, pool, driver| {
            private.ask_again(pool);
            private.allocate(pool, driver, bytes, stream)
        })
    }

    #[cold]
    pub(super) fn free_among_pools(&mut self, address: u64) -> Result<u64, FreeError> {
        self.among_pools(|private, pool, driver| private.free(pool, driver, address))
    }

    #[cold]
    pub(super) fn trim_among_pools(&mut self, keep: u64) {
        self.among_pools(|private, pool, driver| private.trim(pool, driver, keep));
    }

    /// Whether a graph is, or may be, being captured.
    pub(super) fn captures(&mut self) -> bool {
        self.standing == Standing::AmongPools
            && self.among_pools(|private, pool, _| {
                private.look_around(pool);
                private.captured()
            })
    }

    /// Makes a driver call that would otherwise invalidate captures.
    pub(super) fn beside_captures<T>(
        &mut self,
        ask: impl FnOnce(&mut Pool, &mut dyn Driver) -> T,
    ) -> T {
        match self.standing {
            Standing::AmongPools => self.among_pools(|_, pool, driver| ask(pool, driver)),
            _ => ask(&mut self.pool, self.driver.as_mut()),
        }
    }

    /// Statistics of all pools.
    pub(super) fn stats(&self) -> PoolStats {
        self.private.stats(&self.pool)
    }

    /// The layout of all pools.
    pub(super) fn layout(&self) -> Vec<(Option<PoolId>, BlockLayout)> {
        let own = self.pool.layout().into_iter().map(|block| (None, block));
        let private = self.private.layout().into_iter();
        own.chain(private.map(|(id, block)| (Some(id), block)))
            .collect()
    }
}
