//! Pools besides that of the device: for PyTorch's `MemPool`, and for
//! the memory of captured graphs.
//!
//! ```text
//!  request ──▶ checks the routes, oldest first ──▶ none accepts it ──▶ the device's pool
//!                        │ one accepts it
//!                        ▼
//!                  a private pool: serves it from its own blocks, or allocates more of them, and
//!                  returns none until it has no more users
//! ```
//!
//! A graph repeats the captured work with the same addresses: so memory that a request got
//! in a private pool is only reused for requests in the same pool. The program guarantees that
//! graphs which share a pool run in the order in which they were captured.
//!
//! While a graph is captured no pool returns memory to the driver, and no event is
//! recorded or queried: both would invalidate the capture ([`Pool::set_captured`]). A route is assumed to be for
//! a capture until the first request that it accepts shows the kind of stream.

mod policy;
#[cfg(test)]
mod tests;

use crate::driver::{Driver, DriverError};
use crate::pool::{
    AllocateError, BlockLayout, FreeError, Keep, Moved, Pool, PoolConfig, PoolStats,
};
use crate::units::{PoolId, StreamId};
use policy::InOnePool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Which requests go to a pool. It is called under the allocator's lock, but dropped without: it may
/// own memory of this allocator, but must not allocate.
pub(crate) trait Filter: Send {
    /// Whether a request of this thread for work on the stream does; the error says why that is
    /// unknown.
    fn takes(&mut self, stream: StreamId) -> Result<bool, String>;
}

/// Whether a graph is, or may be, being captured.
pub(crate) type Captured = Arc<AtomicBool>;

/// Directs requests that the filter accepts to a pool.
struct Route {
    id: PoolId,
    filter: Box<dyn Filter>,
    captured: Captured,
}

struct PrivatePool {
    id: PoolId,
    /// The number of users: objects of the program, graphs, and routes.
    users: u32,
    /// Whether its free memory serves other requests before they are refused.
    use_on_oom: bool,
    pool: Pool<InOnePool>,
}

/// The private pools of a device.
#[derive(Default)]
pub(crate) struct PrivatePools {
    pools: Vec<PrivatePool>,
    /// Oldest first.
    routes: Vec<Route>,
    /// Captures on other devices.
    elsewhere: Vec<Captured>,
    /// Statistics of deleted pools.
    gone: PoolStats,
    /// The peak of all pools together since the last reset.
    peaks: PoolStats,
    /// The limit on the bytes of all pools together, if there is one.
    limit: Option<u64>,
    /// The pool whose request was refused last; `None` for the device's.
    refused: Option<PoolId>,
    /// Whether what moves between the driver and the pools is recorded.
    recorded: bool,
    /// What deleted pools moved.
    moved: Vec<Moved>,
}

impl PrivatePools {
    /// Whether requests and frees have to be handled here.
    pub(crate) fn are_used(&self) -> bool {
        !(self.pools.is_empty() && self.routes.is_empty() && self.elsewhere.is_empty())
    }

    /// Whether a graph is, or may be, being captured now, here or on another device.
    pub(crate) fn captured(&self) -> bool {
        let here = self.routes.iter().map(|route| &route.captured);
        let mut all = here.chain(&self.elsewhere);
        all.any(|captured| captured.load(Ordering::SeqCst))
    }

    /// The captures that have begun here and may be running.
    pub(crate) fn begun(&self) -> Vec<Captured> {
        let captured = self.routes.iter().map(|route| &route.captured);
        let going_on = captured.filter(|captured| captured.load(Ordering::SeqCst));
        going_on.cloned().collect()
    }

    /// A graph may be being captured on another device, as long as `captured` is true.
    pub(crate) fn heed(&mut self, captured: Captured) {
        self.elsewhere.push(captured);
    }

    /// Adds a user to a pool, which is created for the first.
    pub(crate) fn retain(&mut self, main: &Pool, driver: &mut dyn Driver, id: PoolId) {
        if let Some(private) = self.find(id) {
            private.users += 1;
            private.pool.set_holding(true);
            return;
        }
        let mut pool = Pool::with_policy(config(main.config()), InOnePool);
        pool.record_moves(self.recorded);
        pool.set_holding(true);
        pool.warm_up(driver);
        self.pools.push(PrivatePool {
            id,
            users: 1,
            use_on_oom: false,
            pool,
        });
    }

    /// Sets whether what moves between the driver and the pools is recorded.
    pub(crate) fn record_moves(&mut self, on: bool) {
        self.recorded = on;
        self.moved.clear();
        let pools = self.pools.iter_mut();
        pools.for_each(|private| private.pool.record_moves(on));
    }

    /// What moved since the last call.
    pub(crate) fn take_moved(&mut self) -> Vec<Moved> {
        let mut moved = std::mem::take(&mut self.moved);
        for private in &mut self.pools {
            moved.extend(private.pool.take_moved());
        }
        moved
    }

    /// Lets a pool's free memory serve other requests before they are refused.
    pub(crate) fn use_on_oom(&mut self, id: PoolId) {
        if let Some(private) = self.find(id) {
            private.use_on_oom = true;
        }
    }

    /// The number of users of the pool.
    pub(crate) fn users(&self, id: PoolId) -> u32 {
        let found = self.pools.iter().find(|private| private.id == id);
        found.map_or(0, |private| private.users)
    }

    /// Directs requests that the filter accepts to a pool, which gets one more user.
    ///
    /// # Errors
    /// If requests already go there.
    pub(crate) fn begin(
        &mut self,
        main: &Pool,
        driver: &mut dyn Driver,
        id: PoolId,
        filter: Box<dyn Filter>,
    ) -> Result<Captured, AlreadyBegun> {
        if self.routes.iter().any(|route| route.id == id) {
            return Err(AlreadyBegun(filter));
        }
        self.retain(main, driver, id);
        let captured = Captured::new(AtomicBool::new(true));
        self.routes.push(Route {
            id,
            filter,
            captured: captured.clone(),
        });
        Ok(captured)
    }

    /// Stops directing requests to the pool; returns the filter, if there was one.
    pub(crate) fn end(
        &mut self,
        main: &mut Pool,
        driver: &mut dyn Driver,
        id: PoolId,
    ) -> Option<Box<dyn Filter>> {
        let at = self.routes.iter().position(|route| route.id == id)?;
        let route = self.routes.remove(at);
        route.captured.store(false, Ordering::SeqCst);
        self.look_around(main);
        self.clear(main, driver);
        Some(route.filter)
    }

    /// Removes a user. After the last one the pool's memory is returned to the driver, live memory
    /// as soon as it is freed. Returns whether the pool existed.
    pub(crate) fn release(&mut self, main: &mut Pool, driver: &mut dyn Driver, id: PoolId) -> bool {
        let Some(private) = self.find(id).filter(|private| private.users > 0) else {
            return false;
        };
        private.users -= 1;
        private.pool.set_holding(private.users > 0);
        self.look_around(main);
        self.clear(main, driver);
        true
    }

    /// Serves a request from the pool that it belongs to.
    pub(crate) fn allocate(
        &mut self,
        main: &mut Pool,
        driver: &mut dyn Driver,
        bytes: u64,
        stream: StreamId,
    ) -> Result<u64, AllocateError> {
        self.refused = None;
        let chosen = self.choose(driver, stream)?;
        self.look_around(main);
        let served = match chosen {
            Some(at) => self.allocate_in(at, main, driver, bytes, stream),
            None => self.allocate_outside(main, driver, bytes, stream),
        };
        self.finish(main);
        served
    }

    /// The last request was refused, and will be repeated.
    pub(crate) fn ask_again(&mut self, main: &mut Pool) {
        match self.refused.and_then(|id| self.find(id)) {
            Some(private) => private.pool.ask_again(),
            None => main.ask_again(),
        }
    }

    /// The index of the pool that a request belongs to.
    fn choose(
        &mut self,
        driver: &mut dyn Driver,
        stream: StreamId,
    ) -> Result<Option<usize>, AllocateError> {
        for route in &mut self.routes {
            let takes = route.filter.takes(stream).map_err(not_known)?;
            if !takes {
                continue;
            }
            // A route for a thread or a stream is not necessarily for a capture.
            if route.captured.load(Ordering::SeqCst) && driver.is_capturing(stream) == Ok(false) {
                route.captured.store(false, Ordering::SeqCst);
            }
            let id = route.id;
            return Ok(self.pools.iter().position(|private| private.id == id));
        }
        Ok(None)
    }

    fn allocate_in(
        &mut self,
        at: usize,
        main: &mut Pool,
        driver: &mut dyn Driver,
        bytes: u64,
        stream: StreamId,
    ) -> Result<u64, AllocateError> {
        let captured = self.captured();
        if let Some(limit) = self.limit {
            let held = |private: &PrivatePool| private.pool.stats().held_bytes;
            let others: u64 = self.pools.iter().map(held).sum::<u64>() + main.stats().held_bytes;
            let others = others - held(&self.pools[at]);
            let pool = &mut self.pools[at].pool;
            pool.set_limit(limit.saturating_sub(others));
        }
        let private = &mut self.pools[at];
        let served = private.pool.allocate(driver, bytes, stream);
        if served != Err(AllocateError::OutOfMemory) {
            return served;
        }
        self.refused = Some(private.id);
        if captured {
            return served;
        }
        let before = main.stats().held_bytes;
        main.trim(driver, 0);
        if main.stats().held_bytes == before {
            return served;
        }
        private.pool.ask_again();
        if self.limit.is_some() {
            let room = before - main.stats().held_bytes;
            private.pool.set_limit(private.pool.limit() + room);
        }
        private.pool.allocate(driver, bytes, stream)
    }

    fn allocate_outside(
        &mut self,
        main: &mut Pool,
        driver: &mut dyn Driver,
        bytes: u64,
        stream: StreamId,
    ) -> Result<u64, AllocateError> {
        let served = main.allocate(driver, bytes, stream);
        if served != Err(AllocateError::OutOfMemory) {
            return served;
        }
        let mut willing = self.pools.iter_mut().filter(|private| private.use_on_oom);
        let found =
            willing.find_map(|private| private.pool.allocate_from_held(driver, bytes, stream));
        if let Some(address) = found {
            main.ask_again();
            return Ok(address);
        }
        served
    }

    /// Frees memory of any pool.
    pub(crate) fn free(
        &mut self,
        main: &mut Pool,
        driver: &mut dyn Driver,
        address: u64,
    ) -> Result<u64, FreeError> {
        self.look_around(main);
        let mut pools = self.pools.iter_mut().map(|private| &mut private.pool);
        let freed = match pools.find(|pool| pool.has(address)) {
            Some(pool) => pool.free(driver, address),
            None => main.free(driver, address),
        };
        self.clear(main, driver);
        freed
    }

    /// Work on `stream` uses the memory at `address` too.
    pub(crate) fn record_stream(
        &mut self,
        main: &mut Pool,
        address: u64,
        stream: StreamId,
    ) -> Result<(), FreeError> {
        let mut pools = self.pools.iter_mut().map(|private| &mut private.pool);
        match pools.find(|pool| pool.has(address)) {
            Some(pool) => pool.record_stream(address, stream),
            None => main.record_stream(address, stream),
        }
    }

    /// Tells all pools whether a graph is being captured. To be called before they are used.
    pub(crate) fn look_around(&mut self, main: &mut Pool) {
        (self.elsewhere).retain(|captured| captured.load(Ordering::SeqCst));
        let captured = self.captured();
        main.set_captured(captured);
        for private in &mut self.pools {
            private.pool.set_captured(captured);
        }
    }

    /// Returns the memory of deleted pools, if that is possible now.
    fn clear(&mut self, main: &mut Pool, driver: &mut dyn Driver) {
        let captured = self.captured();
        for private in &mut self.pools {
            let pool = &mut private.pool;
            let stats = pool.stats();
            let left = private.users == 0 && stats.live_allocations == 0;
            if !captured && left && stats.held_bytes > 0 {
                // A graph may have run on any stream.
                match driver.synchronize() {
                    Ok(()) => pool.trim(driver, 0),
                    Err(error) => pool.defer_errors([error]),
                }
            }
        }
        self.finish(main);
        let Self { gone, moved, .. } = self;
        self.pools.retain_mut(|private| {
            let stats = private.pool.stats();
            let stays = private.users > 0 || stats.held_bytes > 0;
            if !stays {
                *gone = gone.plus(stats);
                moved.extend(private.pool.take_moved());
            }
            stays
        });
    }

    /// To be called after anything that may have changed what is held.
    fn finish(&mut self, main: &mut Pool) {
        for private in &mut self.pools {
            if private.pool.has_deferred_errors() {
                main.defer_errors(private.pool.take_deferred_errors());
            }
        }
        if let Some(limit) = self.limit {
            main.set_limit(limit.saturating_sub(self.held()));
        }
        let now = self.sum(main).at_this_moment();
        self.peaks = now.with_peaks_of(&self.peaks);
    }

    fn held(&self) -> u64 {
        let held = self
            .pools
            .iter()
            .map(|private| private.pool.stats().held_bytes);
        held.sum()
    }

    fn sum(&self, main: &Pool) -> PoolStats {
        let pools = self.pools.iter().map(|private| private.pool.stats());
        let private = pools.fold(self.gone, PoolStats::plus);
        private.plus(main.stats())
    }

    /// Statistics of all pools of the device.
    pub(crate) fn stats(&self, main: &Pool) -> PoolStats {
        let main_alone = main.stats();
        let now = self.sum(main).at_this_moment();
        now.with_peaks_of(&self.peaks).with_peaks_of(&main_alone)
    }

    /// Resets the peaks.
    pub(crate) fn reset_peaks(&mut self, main: &mut Pool) {
        main.reset_peaks();
        self.peaks = self.sum(main).at_this_moment();
    }

    /// Limits the bytes that all pools hold; `u64::MAX` for no limit.
    pub(crate) fn set_limit(&mut self, main: &mut Pool, bytes: u64) {
        self.limit = (bytes < u64::MAX).then_some(bytes);
        for private in &mut self.pools {
            private.pool.set_limit(u64::MAX);
        }
        main.set_limit(bytes.saturating_sub(match self.limit {
            Some(_) => self.held(),
            None => 0,
        }));
    }

    /// That limit.
    pub(crate) fn limit(&self, main: &Pool) -> u64 {
        self.limit.unwrap_or(main.limit())
    }

    /// Returns all free memory, except in pools with users.
    pub(crate) fn trim(&mut self, main: &mut Pool, driver: &mut dyn Driver, keep: u64) {
        self.look_around(main);
        main.trim(driver, keep);
        for private in &mut self.pools {
            if private.users == 0 {
                private.pool.trim(driver, 0);
            }
        }
        self.clear(main, driver);
    }

    /// Whether work in flight uses freed memory of a private pool.
    pub(crate) fn work(&mut self, driver: &mut dyn Driver) -> bool {
        let mut pools = self.pools.iter_mut();
        pools.any(|private| private.pool.works(driver))
    }

    /// Addresses that were freed in private pools while another stream may still use them.
    pub(crate) fn pending(&self) -> impl Iterator<Item = u64> {
        self.pools.iter().flat_map(|private| private.pool.pending())
    }

    /// The layout of the private pools.
    pub(crate) fn layout(&self) -> Vec<(PoolId, BlockLayout)> {
        let layout = |private: &PrivatePool| {
            let id = private.id;
            private
                .pool
                .layout()
                .into_iter()
                .map(move |block| (id, block))
        };
        self.pools.iter().flat_map(layout).collect()
    }

    fn find(&mut self, id: PoolId) -> Option<&mut PrivatePool> {
        self.pools.iter_mut().find(|private| private.id == id)
    }
}

/// Requests already go to this pool. The unused filter must be dropped without the
/// allocator's lock.
pub(crate) struct AlreadyBegun(pub(crate) Box<dyn Filter>);

fn not_known(message: String) -> AllocateError {
    AllocateError::Driver(DriverError::Failed {
        call: "the question which memory pool a request is for",
        code: 0,
        message,
    })
}

/// Blocks serve several requests of any size, since none is returned; nothing
/// remains after the last user is gone.
fn config(main: &PoolConfig) -> PoolConfig {
    PoolConfig {
        granule: main.granule,
        guard: main.guard,
        warmup_bytes: u64::MAX,
        max_split_bytes: u64::MAX,
        keep: Keep::Off,
        floor_part: u64::MAX,
    }
}
