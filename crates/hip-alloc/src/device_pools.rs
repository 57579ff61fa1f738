//! The pools of a device: its own, and private ones for PyTorch's `MemPool` and for
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

#[cfg(test)]
mod tests;

use crate::driver::{DriverError, MemoryInfo};
use crate::limit::within;
use crate::pool::{
    AllocateError, BlockLayout, Device, FreeError, Keep, Policy, Pool, PoolConfig, PoolStats,
};
use crate::units::{PoolId, StreamId};
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

/// One of the pools.
struct Listed {
    /// `None` for the device's.
    id: Option<PoolId>,
    /// The number of users: objects of the program, graphs, and routes.
    users: u32,
    /// Whether its free memory serves other requests before they are refused.
    use_on_oom: bool,
    pool: Pool,
}

/// The pools of a device.
pub(crate) struct Pools {
    device: Device,
    /// The device's pool is the first.
    list: Vec<Listed>,
    /// Whether there is no other, and none of the following.
    alone: bool,
    /// Oldest first.
    routes: Vec<Route>,
    /// Captures on other devices.
    elsewhere: Vec<Captured>,
    /// Statistics of deleted pools.
    gone: PoolStats,
    /// The peaks of all pools together since the last reset.
    peaks: PoolStats,
    /// The pool whose request was refused last.
    refused: Option<PoolId>,
}

impl Pools {
    /// The pool of a device, which allocates its floor, while graphs are `captured` on others.
    pub(crate) fn new(config: PoolConfig, device: Device, captured: Vec<Captured>) -> Self {
        let mut pools = Pools {
            device,
            list: Vec::new(),
            alone: true,
            routes: Vec::new(),
            elsewhere: captured,
            gone: PoolStats::default(),
            peaks: PoolStats::default(),
            refused: None,
        };
        let device = pools.device.clone();
        pools.beside_captures(|pools| pools.add(Pool::new(config, device), None));
        pools
    }

    fn add(&mut self, mut pool: Pool, id: Option<PoolId>) {
        pool.set_holding(id.is_some());
        self.list.push(Listed {
            id,
            users: 1,
            use_on_oom: false,
            pool,
        });
    }

    /// The device, with its driver.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// The device's pool.
    pub(crate) fn main(&mut self) -> &mut Pool {
        &mut self.list[0].pool
    }

    fn private(&mut self) -> impl Iterator<Item = &mut Listed> {
        self.list.iter_mut().skip(1)
    }

    fn find(&mut self, id: PoolId) -> Option<&mut Listed> {
        self.private().find(|private| private.id == Some(id))
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
        self.look_around();
    }

    /// Calls `act`, whose calls of the driver would otherwise invalidate captures.
    fn beside_captures<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let captured = self.captured();
        if captured {
            self.device.lock().driver.enter_capture();
        }
        let result = act(self);
        if captured {
            self.device.lock().driver.leave_capture();
        }
        self.find_out_whether_alone();
        result
    }

    /// Tells all pools whether a graph is being captured. To be called before they are used.
    pub(crate) fn look_around(&mut self) {
        (self.elsewhere).retain(|captured| captured.load(Ordering::SeqCst));
        let captured = self.captured();
        for listed in &mut self.list {
            listed.pool.set_captured(captured);
        }
        self.find_out_whether_alone();
    }

    fn find_out_whether_alone(&mut self) {
        self.alone = self.list.len() == 1 && self.routes.is_empty() && self.elsewhere.is_empty();
    }

    /// The driver's memory.
    pub(crate) fn memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        self.beside_captures(|pools| pools.device.lock().info())
    }

    /// What of the driver's memory the limit leaves.
    pub(crate) fn within_limit(&self, memory: MemoryInfo) -> MemoryInfo {
        let device = self.device.lock();
        within(device.limit, device.stats().held_bytes, memory)
    }

    /// Adds a user to a pool, which is created for the first.
    pub(crate) fn retain(&mut self, id: PoolId) {
        if let Some(private) = self.find(id) {
            private.users += 1;
            private.pool.set_holding(true);
            return;
        }
        let config = config(self.list[0].pool.config());
        let device = self.device.clone();
        self.beside_captures(|pools| {
            pools.add(
                Pool::with_policy(config, device, Policy::InOnePool),
                Some(id),
            )
        });
    }

    /// Lets a pool's free memory serve other requests before they are refused.
    pub(crate) fn use_on_oom(&mut self, id: PoolId) {
        if let Some(private) = self.find(id) {
            private.use_on_oom = true;
        }
    }

    /// The number of users of the pool.
    pub(crate) fn users(&self, id: PoolId) -> u32 {
        let found = self.list.iter().find(|private| private.id == Some(id));
        found.map_or(0, |private| private.users)
    }

    /// Directs requests that the filter accepts to a pool, which gets one more user.
    ///
    /// # Errors
    /// If requests already go there.
    pub(crate) fn begin(
        &mut self,
        id: PoolId,
        filter: Box<dyn Filter>,
    ) -> Result<Captured, AlreadyBegun> {
        if self.routes.iter().any(|route| route.id == id) {
            return Err(AlreadyBegun(filter));
        }
        self.retain(id);
        let captured = Captured::new(AtomicBool::new(true));
        self.routes.push(Route {
            id,
            filter,
            captured: captured.clone(),
        });
        Ok(captured)
    }

    /// Stops directing requests to the pool; returns the filter, if there was one.
    pub(crate) fn end(&mut self, id: PoolId) -> Option<Box<dyn Filter>> {
        self.beside_captures(|pools| {
            let at = pools.routes.iter().position(|route| route.id == id)?;
            let route = pools.routes.remove(at);
            route.captured.store(false, Ordering::SeqCst);
            pools.look_around();
            pools.clear();
            Some(route.filter)
        })
    }

    /// Removes a user. After the last one the pool's memory is returned to the driver, live memory
    /// as soon as it is freed. Returns whether the pool existed.
    pub(crate) fn release(&mut self, id: PoolId) -> bool {
        let Some(private) = self.find(id).filter(|private| private.users > 0) else {
            return false;
        };
        private.users -= 1;
        private.pool.set_holding(private.users > 0);
        self.beside_captures(|pools| {
            pools.look_around();
            pools.clear();
        });
        true
    }

    /// Serves a request from the pool that it belongs to.
    #[inline]
    pub(crate) fn allocate(&mut self, bytes: u64, stream: StreamId) -> Result<u64, AllocateError> {
        match self.alone {
            true => self.list[0].pool.allocate(bytes, stream),
            false => self.allocate_among(bytes, stream),
        }
    }

    #[cold]
    fn allocate_among(&mut self, bytes: u64, stream: StreamId) -> Result<u64, AllocateError> {
        self.beside_captures(|pools| {
            pools.refused = None;
            let chosen = pools.choose(stream)?;
            pools.look_around();
            let served = match chosen {
                0 => pools.allocate_outside(bytes, stream),
                at => pools.allocate_in(at, bytes, stream),
            };
            pools.note_peaks();
            served
        })
    }

    /// The last request was refused, and will be repeated.
    pub(crate) fn ask_again(&mut self) {
        match self.refused.and_then(|id| self.find(id)) {
            Some(private) => private.pool.ask_again(),
            None => self.main().ask_again(),
        }
    }

    /// The index of the pool that a request belongs to.
    fn choose(&mut self, stream: StreamId) -> Result<usize, AllocateError> {
        for route in &mut self.routes {
            let takes = route.filter.takes(stream).map_err(not_known)?;
            if !takes {
                continue;
            }
            // A route for a thread or a stream is not necessarily for a capture.
            if route.captured.load(Ordering::SeqCst)
                && self.device.lock().driver.is_capturing(stream) == Ok(false)
            {
                route.captured.store(false, Ordering::SeqCst);
            }
            let id = Some(route.id);
            let at = self.list.iter().position(|listed| listed.id == id);
            return Ok(at.unwrap_or(0));
        }
        Ok(0)
    }

    fn allocate_in(
        &mut self,
        at: usize,
        bytes: u64,
        stream: StreamId,
    ) -> Result<u64, AllocateError> {
        let captured = self.captured();
        let private = &mut self.list[at];
        let served = private.pool.allocate(bytes, stream);
        if served != Err(AllocateError::OutOfMemory) {
            return served;
        }
        self.refused = private.id;
        let before = self.main().held();
        if !captured {
            self.main().trim(0);
        }
        if self.main().held() == before {
            return served;
        }
        let pool = &mut self.list[at].pool;
        pool.ask_again();
        pool.allocate(bytes, stream)
    }

    fn allocate_outside(&mut self, bytes: u64, stream: StreamId) -> Result<u64, AllocateError> {
        let served = self.main().allocate(bytes, stream);
        if served != Err(AllocateError::OutOfMemory) {
            return served;
        }
        let found = self
            .private()
            .filter(|private| private.use_on_oom)
            .find_map(|private| private.pool.allocate_from_held(bytes, stream));
        if let Some(address) = found {
            self.main().ask_again();
            return Ok(address);
        }
        served
    }

    /// Frees memory of any pool.
    #[inline]
    pub(crate) fn free(&mut self, address: u64) -> Result<u64, FreeError> {
        match self.alone {
            true => self.list[0].pool.free(address),
            false => self.free_among(address),
        }
    }

    #[cold]
    fn free_among(&mut self, address: u64) -> Result<u64, FreeError> {
        self.beside_captures(|pools| {
            pools.look_around();
            let freed = pools.pool_of(address).free(address);
            pools.clear();
            freed
        })
    }

    /// Work on `stream` uses the memory at `address` too.
    pub(crate) fn record_stream(
        &mut self,
        address: u64,
        stream: StreamId,
    ) -> Result<(), FreeError> {
        self.pool_of(address).record_stream(address, stream)
    }

    /// The pool whose request got an address; the device's if there is none.
    fn pool_of(&mut self, address: u64) -> &mut Pool {
        let mut private = self.list.iter().skip(1);
        let at = private.position(|private| private.pool.has(address));
        &mut self.list[at.map_or(0, |at| at + 1)].pool
    }

    /// Returns the memory of deleted pools, if that is possible now.
    fn clear(&mut self) {
        let captured = self.captured();
        for private in self.list.iter_mut().skip(1) {
            let pool = &mut private.pool;
            let left = private.users == 0 && pool.own_stats().live_allocations == 0;
            if !captured && left && pool.held() > 0 {
                // A graph may have run on any stream.
                let synchronized = self.device.lock().driver.synchronize();
                match synchronized {
                    Ok(()) => pool.trim(0),
                    Err(error) => pool.defer_errors([error]),
                }
            }
        }
        self.note_peaks();
        let (main, private) = self.list.split_at_mut(1);
        for private in private {
            main[0]
                .pool
                .defer_errors(private.pool.take_deferred_errors());
        }
        let goes = |listed: &mut Listed| listed.users == 0 && listed.pool.held() == 0;
        for gone in self.list.extract_if(1.., goes) {
            self.gone = self.gone.plus(gone.pool.own_stats());
        }
    }

    fn note_peaks(&mut self) {
        self.peaks = self.sum().at_this_moment().with_peaks_of(&self.peaks);
    }

    fn sum(&self) -> PoolStats {
        let pools = self.list.iter().map(|listed| listed.pool.own_stats());
        pools.fold(self.gone, PoolStats::plus)
    }

    /// Statistics of all pools of the device.
    pub(crate) fn stats(&self) -> PoolStats {
        let now = self.sum().at_this_moment().with_peaks_of(&self.peaks);
        let now = now.with_peaks_of(&self.list[0].pool.own_stats());
        let device = self.device.lock();
        PoolStats {
            capacity_bytes: device.total.min(device.limit),
            ..now.plus(*device.stats())
        }
    }

    /// Resets the peaks.
    pub(crate) fn reset_peaks(&mut self) {
        self.main().reset_peaks();
        self.device.lock().reset_peaks();
        self.peaks = self.sum().at_this_moment();
    }

    /// Returns all free memory, except in pools with users: the device's until at most `keep` bytes are held
    /// there beyond live memory.
    pub(crate) fn trim(&mut self, keep: u64) {
        self.beside_captures(|pools| {
            pools.look_around();
            pools.main().trim(keep);
            for private in pools.private().filter(|private| private.users == 0) {
                private.pool.trim(0);
            }
            pools.clear();
        });
    }

    /// Whether a graph is, or may be, being captured, which the pools then know.
    pub(crate) fn captures(&mut self) -> bool {
        if !self.alone {
            self.look_around();
        }
        self.captured()
    }

    /// Whether work in flight uses freed memory.
    pub(crate) fn work(&mut self) -> bool {
        self.list.iter_mut().any(|listed| listed.pool.works())
    }

    /// Addresses that were freed while another stream may still use them.
    pub(crate) fn pending(&self) -> impl Iterator<Item = u64> {
        self.list.iter().flat_map(|listed| listed.pool.pending())
    }

    /// The layout of all pools.
    pub(crate) fn layout(&self) -> Vec<(Option<PoolId>, BlockLayout)> {
        let layout = |listed: &Listed| {
            let id = listed.id;
            let blocks = listed.pool.layout().into_iter();
            blocks.map(move |block| (id, block))
        };
        self.list.iter().flat_map(layout).collect()
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
