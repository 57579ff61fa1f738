//! One device's pool, its driver, and the lock around them.

use crate::driver::{Driver, DriverError, MemoryInfo};
use crate::history::{Entry, History, StackId};
use crate::limit::Limit;
use crate::lock::{Guard, Lock};
use crate::pool::{AllocateError, BlockLayout, FreeError, Pool, PoolConfig, PoolStats};
use crate::refusal::{Refusal, Situation};
use crate::report::{self, Repeated, Troubles};
use crate::trace::record::Recorder;
use crate::units::{DeviceIndex, StreamId};
use std::collections::HashMap;

/// The allocator of one device, for any number of threads.
pub struct Allocator {
    device: DeviceIndex,
    inner: Lock<Inner>,
}

struct Inner {
    pool: Pool,
    driver: Box<dyn Driver>,
    recorder: Option<Recorder>,
    history: History,
    wrong_frees: Repeated,
    troubles: Troubles,
    /// What the driver obeys.
    limit: Limit,
    /// This process was forked from the one that uses the device.
    orphaned: bool,
}

/// What a device's allocator holds, and how that came about.
pub(crate) struct Looks {
    pub(crate) blocks: Vec<BlockLayout>,
    /// Oldest first.
    pub(crate) history: Vec<Entry>,
    /// Where the program was when it asked for what is live, by address, as far as known.
    pub(crate) stacks: HashMap<u64, StackId>,
}

/// Why a forked child has no accelerator.
const ORPHANED: &str = "this process was forked from one that uses the GPU, and no GPU runtime \
     works in both: start it with the multiprocessing method `spawn`, or leave the GPU to the parent";

impl Allocator {
    /// Takes the warm-up floor from the driver at once.
    pub fn new(
        device: DeviceIndex,
        config: PoolConfig,
        mut driver: Box<dyn Driver>,
        recorder: Option<Recorder>,
    ) -> Self {
        let mut pool = Pool::new(config);
        pool.warm_up(driver.as_mut());
        Allocator {
            device,
            inner: Lock::new(Inner {
                pool,
                driver,
                recorder,
                history: History::default(),
                wrong_frees: Repeated::new(),
                troubles: Troubles::default(),
                limit: Limit::default(),
                orphaned: false,
            }),
        }
    }

    /// With the limit that the driver obeys.
    pub(crate) fn with_limit(self, limit: Limit) -> Self {
        self.inner.lock().limit = limit;
        self
    }

    /// Holds at most this part, from 0 to 1, of what the device could give without a limit.
    /// What is live stays, also above it; what is held beyond that is given back.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), DriverError> {
        let mut inner = self.inner.lock();
        let before = inner.limit.get();
        inner.limit.set(u64::MAX);
        let info = inner.memory_info();
        // The limit from before holds until it is known what the new one is.
        inner.limit.set(before);
        let limit = (info?.total as f64 * fraction) as u64;
        let Inner { pool, driver, .. } = &mut *inner;
        let stats = pool.stats();
        if stats.held_bytes > limit {
            pool.trim(driver.as_mut(), limit.saturating_sub(stats.live_bytes));
        }
        inner
            .limit
            .set(if fraction < 1.0 { limit } else { u64::MAX });
        inner.report_troubles(self.device);
        Ok(())
    }

    /// Serves a request; the error is the whole message for the program's user.
    pub fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, Refusal> {
        self.allocate_from(bytes, stream, StackId::UNKNOWN)
    }

    /// As [`allocate`](Self::allocate), for a program that is at `stack`.
    pub(crate) fn allocate_from(
        &self,
        bytes: u64,
        stream: StreamId,
        stack: StackId,
    ) -> Result<u64, Refusal> {
        let mut inner = self.inner.lock();
        if inner.orphaned {
            return Err(Refusal::Failed(format!("{}: {ORPHANED}", self.device)));
        }
        match inner.with_driver(|pool, driver| pool.allocate(driver, bytes, stream)) {
            Ok(address) => {
                if let Some(recorder) = &mut inner.recorder {
                    recorder.allocated(address, bytes, stream);
                    inner.check_recorder();
                }
                if inner.history.is_on() {
                    inner.complete_history(stream, stack);
                    inner.history.allocated(address, bytes, stream, stack);
                }
                Ok(address)
            }
            Err(error) => {
                if inner.history.is_on() {
                    inner.complete_history(stream, stack);
                    let free = inner.memory_info().map_or(0, |info| info.free);
                    inner.history.refused(bytes, stream, stack, free);
                }
                Err(inner.refusal(self.device, bytes, &error))
            }
        }
    }

    /// Takes memory back. A wrong address is reported, and changes nothing.
    pub fn free(&self, address: u64) {
        self.free_from(address, StackId::UNKNOWN);
    }

    /// As [`free`](Self::free), for a program that is at `stack`.
    pub(crate) fn free_from(&self, address: u64, stack: StackId) {
        let mut inner = self.inner.lock();
        if inner.orphaned {
            // The memory is the parent's, and only the parent can give it back.
            return;
        }
        match inner.with_driver(|pool, driver| pool.free(driver, address)) {
            Ok(bytes) => {
                if let Some(recorder) = &mut inner.recorder {
                    recorder.freed(address);
                    inner.check_recorder();
                }
                if inner.history.is_on() {
                    inner.history.freed(address, bytes, stack);
                    inner.complete_history(StreamId(0), stack);
                }
            }
            Err(error) => {
                let message = format!("{}: free of {address:#x}: {error}", self.device);
                inner.wrong_frees.warn(&message);
            }
        }
        inner.report_troubles(self.device);
    }

    /// Notes that another stream uses an allocation; the error is for an address that is none.
    pub fn record_stream(&self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        self.inner.lock().pool.record_stream(address, stream)
    }

    /// What can still be allocated, and what could be in all.
    pub fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.inner.lock().memory_info()
    }

    /// What the pool did and holds.
    pub fn stats(&self) -> PoolStats {
        self.inner.lock().pool.stats()
    }

    /// Starts the peaks again, and marks a step in a recording.
    pub fn reset_peaks(&self) {
        let mut inner = self.inner.lock();
        inner.pool.reset_peaks();
        if let Some(recorder) = &mut inner.recorder {
            recorder.step();
            inner.check_recorder();
        }
    }

    /// Ends a recording, so that all of it is in its file.
    pub(crate) fn finish_recording(&self) {
        // At exit another thread may still be inside: then its tail is lost.
        if let Some(mut inner) = self.inner.try_lock() {
            inner.recorder = None;
        }
    }

    /// Gives empty blocks back until at most `keep` bytes are held beyond what is live.
    pub fn trim(&self, keep: u64) {
        let mut inner = self.inner.lock();
        if inner.orphaned {
            return;
        }
        inner.with_driver(|pool, driver| pool.trim(driver, keep));
        if inner.history.is_on() {
            inner.complete_history(StreamId(0), StackId::UNKNOWN);
        }
        inner.report_troubles(self.device);
    }

    /// The device that it serves.
    pub fn device(&self) -> DeviceIndex {
        self.device
    }

    /// Keeps this many entries of history from now on, and none for 0.
    pub(crate) fn keep_history(&self, most: usize) {
        self.inner.lock().history.keep(most);
    }

    /// What is held, and what happened until now.
    pub(crate) fn look(&self) -> Looks {
        let inner = self.inner.lock();
        let blocks = inner.pool.layout();
        let live = blocks.iter().flat_map(|block| &block.spans);
        let stacks = live.map(|span| (span.address, inner.history.stack_of(span.address)));
        Looks {
            stacks: stacks
                .filter(|(_, stack)| *stack != StackId::UNKNOWN)
                .collect(),
            blocks,
            history: inner.history.entries(),
        }
    }

    /// Runs `look` on the pool, under the lock.
    pub fn inspect<T>(&self, look: impl FnOnce(&Pool) -> T) -> T {
        look(&self.inner.lock().pool)
    }

    /// Keeps every other thread out until the guard is dropped, on both sides of a fork.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held(self.inner.lock())
    }
}

/// An allocator that no other thread is inside of.
pub(crate) struct Held<'a>(Guard<'a, Inner>);

impl Held<'_> {
    /// Makes the copy in a forked child fit for a process of its own.
    pub(crate) fn adopt(&mut self) {
        // The file is the parent's: closing the recording would write its end there.
        std::mem::forget(self.0.recorder.take());
        self.0.orphaned |= !self.0.driver.survives_fork();
    }
}

impl Inner {
    /// The driver's answer; what is held but not live can be allocated too.
    fn memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        if self.orphaned {
            return Err(DriverError::Orphaned(ORPHANED));
        }
        let stats = self.pool.stats();
        let info = self.driver.memory_info(stats.held_bytes)?;
        let slack = stats.held_bytes.saturating_sub(stats.live_bytes);
        Ok(MemoryInfo {
            free: info.free.saturating_add(slack).min(info.total),
            ..info
        })
    }

    fn refusal(&mut self, device: DeviceIndex, requested: u64, error: &AllocateError) -> Refusal {
        let situation = Situation {
            device,
            runtime: match device {
                DeviceIndex::HOST => "Host",
                _ => self.driver.runtime(),
            },
            requested,
            error,
            stats: self.pool.stats(),
            info: self.memory_info().ok(),
            gives_back_holes: self.driver.mapping().is_some(),
        };
        situation.refusal()
    }

    /// Runs `act`; what it takes from the driver and gives back is noted if that is wanted.
    fn with_driver<T>(&mut self, act: impl FnOnce(&mut Pool, &mut dyn Driver) -> T) -> T {
        let Inner {
            pool,
            driver,
            history,
            ..
        } = self;
        match history.is_on() {
            true => act(pool, &mut history.watch(driver.as_mut())),
            false => act(pool, driver.as_mut()),
        }
    }

    fn complete_history(&mut self, stream: StreamId, stack: StackId) {
        let Inner { pool, history, .. } = self;
        history.complete(stream, stack, |address| {
            pool.awaiting().any(|waiting| waiting == address)
        });
    }

    fn check_recorder(&mut self) {
        let failure = self.recorder.as_mut().and_then(Recorder::take_failure);
        if let Some(error) = failure {
            report::warn(&format!("HIP_ALLOC_TRACE: recording stops: {error}"));
            self.recorder = None;
        }
    }

    #[inline]
    fn report_troubles(&mut self, device: DeviceIndex) {
        if self.pool.has_troubles() {
            self.tell_troubles(device);
        }
    }

    #[cold]
    fn tell_troubles(&mut self, device: DeviceIndex) {
        for error in self.pool.take_troubles() {
            self.troubles.tell(device, &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sim::{SimDriver, SimOrders};
    use crate::units::GIB;

    #[test]
    fn a_fraction_that_cannot_be_set_leaves_the_limit_before() {
        let refused = DriverError::Failed {
            call: "MemGetInfo",
            code: 1,
            message: "invalid argument".to_owned(),
        };
        let driver = SimDriver::new(SimOrders {
            capacity: 8 * GIB,
            // The first asks for the warm-up, the second for the first fraction.
            fail_call: Some((3, refused.clone())),
            ..SimOrders::default()
        });
        let config = PoolConfig {
            warmup_bytes: 0,
            ..PoolConfig::default()
        };
        let limit = Limit::default();
        let allocator = Allocator::new(DeviceIndex(0), config, Box::new(driver), None)
            .with_limit(limit.clone());
        assert_eq!(allocator.set_memory_fraction(0.5), Ok(()));
        assert_eq!(limit.get(), 4 * GIB);
        assert_eq!(allocator.set_memory_fraction(0.75), Err(refused));
        assert_eq!(limit.get(), 4 * GIB);
    }
}
