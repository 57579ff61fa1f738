//! One device's pools, and the lock around them.

mod pools;
mod reclaim_view;
#[cfg(test)]
mod tests;

pub(crate) use pools::CannotBegin;
pub(crate) use reclaim_view::ReclaimView;

use crate::deferred_errors::DeferredErrors;
use crate::device_pools::{Captured, Pools};
use crate::driver::{Driver, DriverError, MemoryInfo};
use crate::history::{History, StackId};
use crate::lock::{Guard, Lock};
use crate::other_processes::{self, OtherProcesses};
use crate::pool::{AllocateError, Device, DeviceMemory, FreeError, Keep, PoolConfig, PoolStats};
use crate::recorder::Recorder;
use crate::refusal::{Refusal, Situation};
use crate::report::{self, Repeated};
use crate::snapshot::{self, DeviceState};
use crate::units::{DeviceIndex, StreamId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The allocator of one device, for any number of threads.
pub struct Allocator {
    device: DeviceIndex,
    inner: Lock<Inner>,
}

struct Inner {
    pools: Pools,
    reach: Reach,
    recorder: Option<Recorder>,
    history: History,
    wrong_frees: Repeated,
    deferred: DeferredErrors,
    other_processes: Option<OtherProcesses>,
    look_after: Option<LookAfter>,
    looked_after: bool,
}

/// Starts the background reclaim when more than the floor is kept for the first time; returns
/// whether it is running.
type LookAfter = Arc<dyn Fn() -> bool + Send + Sync>;

/// Whether the device may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// It may.
    Usable,
    /// This process was forked from the one that uses the device.
    Orphaned,
    /// The process is exiting, and the runtime may be gone: requests are served, but nothing is returned
    /// except on request.
    Ending,
}

/// Why a forked child has no accelerator.
pub(crate) const ORPHANED: &str = "this process was forked from one that uses the GPU, and no GPU runtime \
     works in both: start it with the multiprocessing method `spawn`, or leave the GPU to the parent";

/// Why no more pools are created.
const ENDING: &str = "the process ends, and its GPU runtime may be gone";

/// Makes an [`Allocator`].
pub struct AllocatorBuilder {
    device: DeviceIndex,
    memory: Device,
    config: PoolConfig,
    recorder: Option<Recorder>,
    history: History,
    other_processes: Option<OtherProcesses>,
    look_after: Option<LookAfter>,
    captures: Vec<Captured>,
}

impl AllocatorBuilder {
    /// Sizes and limits of its pool, if not the defaults.
    pub fn config(self, config: PoolConfig) -> Self {
        Self { config, ..self }
    }

    /// Records the program's requests to a file.
    pub fn recorder(self, recorder: Recorder) -> Self {
        let recorder = Some(recorder);
        Self { recorder, ..self }
    }

    /// Keeps the last `most` requests and frees for snapshots; 0 keeps none.
    pub fn history(mut self, most: usize) -> Self {
        self.history.keep(most);
        self
    }

    /// Waits for memory that other processes may return, and returns memory for them.
    pub(crate) fn other_processes(self, other_processes: Option<OtherProcesses>) -> Self {
        Self {
            other_processes,
            ..self
        }
    }

    /// Calls `look_after`, without the allocator's lock, when memory starts to be kept for which a
    /// [`BackgroundReclaim`](crate::background_reclaim::BackgroundReclaim) is needed; if it returns
    /// false there is none, and nothing is kept. Without this the caller has to run one itself.
    pub(crate) fn looked_after(
        self,
        look_after: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            look_after: Some(Arc::new(look_after)),
            ..self
        }
    }

    /// Respects captures of graphs that have begun on other devices.
    pub(crate) fn captures(self, captures: Vec<Captured>) -> Self {
        Self { captures, ..self }
    }

    /// Builds the allocator, and allocates the warm-up floor from the driver.
    pub fn build(self) -> Allocator {
        if self.config.keep == Keep::Auto {
            let mut memory = self.memory.lock();
            let others = self.other_processes.as_ref();
            // Measuring returns memory, which would invalidate a capture.
            let captured = (self.captures.iter()).any(|captured| captured.load(Ordering::SeqCst));
            let cost = others
                .and_then(OtherProcesses::remembered)
                .or_else(|| (!captured).then(|| memory.driver.measure())?);
            memory.set_cost(cost.unwrap_or_default());
            if let (Some(others), Some(cost)) = (others, cost) {
                others.remember(cost);
            }
        }
        self.memory.lock().record_moves(self.history.is_on());
        Allocator {
            device: self.device,
            inner: Lock::new(Inner {
                pools: Pools::new(self.config, self.memory, self.captures),
                reach: Reach::Usable,
                recorder: self.recorder,
                history: self.history,
                wrong_frees: Repeated::new(),
                deferred: DeferredErrors::default(),
                other_processes: self.other_processes,
                look_after: self.look_after,
                looked_after: false,
            }),
        }
    }
}

impl Allocator {
    /// Builds an allocator for `device`, whose memory comes from `driver`.
    pub fn builder(device: DeviceIndex, driver: impl Driver + 'static) -> AllocatorBuilder {
        AllocatorBuilder {
            device,
            memory: DeviceMemory::of(driver),
            config: PoolConfig::default(),
            recorder: None,
            history: History::default(),
            other_processes: None,
            look_after: None,
            captures: Vec::new(),
        }
    }

    /// Limits held memory to a fraction, from 0 to 1, of what the device could provide without a limit.
    /// Live memory above the limit stays; what is held beyond it is returned.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), DriverError> {
        let mut inner = self.inner.lock();
        if let Some(reason) = inner.out_of_reach() {
            return Err(DriverError::Orphaned(reason));
        }
        let stats = inner.pools.stats();
        let held = stats.held_bytes;
        let total = inner.pools.memory_info()?.total;
        let limit = match fraction < 1.0 {
            true => (total as f64 * fraction) as u64,
            false => u64::MAX,
        };
        inner.pools.device().lock().limit = limit;
        if held > limit {
            inner.pools.trim(limit.saturating_sub(stats.live_bytes));
            if inner.history.is_on() {
                inner.complete_history(StreamId(0), StackId::UNKNOWN);
            }
        }
        inner.report_deferred(self.device);
        Ok(())
    }

    /// Serves a request; the error contains the complete message for the user.
    pub fn allocate(&self, bytes: u64, stream: StreamId) -> Result<u64, Refusal> {
        self.allocate_from(bytes, stream, StackId::UNKNOWN)
    }

    /// Like [`allocate`](Self::allocate), called at `stack`.
    pub(crate) fn allocate_from(
        &self,
        bytes: u64,
        stream: StreamId,
        stack: StackId,
    ) -> Result<u64, Refusal> {
        let mut inner = self.inner.lock();
        if inner.reach == Reach::Orphaned {
            return Err(Refusal::Failed(format!("{}: {ORPHANED}", self.device)));
        }
        let mut served = inner.pools.allocate(bytes, stream);
        if served == Err(AllocateError::OutOfMemory) {
            (inner, served) = self.wait_for_others(inner, bytes, stream);
        }
        match served {
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

    /// Out of memory: tells the other processes, and retries for a moment in case one of them
    /// returns some.
    #[cold]
    fn wait_for_others<'a>(
        &'a self,
        mut inner: Guard<'a, Inner>,
        bytes: u64,
        stream: StreamId,
    ) -> (Guard<'a, Inner>, Result<u64, AllocateError>) {
        let mut served = Err(AllocateError::OutOfMemory);
        let possible = bytes <= inner.memory_info().map_or(0, |info| info.total);
        let began = Instant::now();
        while let Some(other_processes) = &mut inner.other_processes
            && possible
            && served == Err(AllocateError::OutOfMemory)
            && other_processes.any()
            && began.elapsed() < other_processes::LONGEST_WAIT
        {
            other_processes.announce();
            drop(inner);
            std::thread::sleep(other_processes::INTERVAL);
            inner = self.inner.lock();
            if inner.reach == Reach::Orphaned {
                break;
            }
            inner.pools.ask_again();
            served = inner.pools.allocate(bytes, stream);
        }
        (inner, served)
    }

    /// Frees memory. A wrong address is reported, and changes nothing.
    pub fn free(&self, address: u64) {
        self.free_from(address, StackId::UNKNOWN);
    }

    /// Like [`free`](Self::free), called at `stack`.
    pub(crate) fn free_from(&self, address: u64, stack: StackId) {
        let mut inner = self.inner.lock();
        if inner.reach != Reach::Usable {
            // The memory belongs to the parent, and only the parent can return it; or it disappears with
            // this process.
            return;
        }
        match inner.pools.free(address) {
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
        inner.report_deferred(self.device);
        if inner.pools.main().is_keeping() && !inner.looked_after {
            self.have_looked_after(inner);
        }
    }

    /// Starts the background reclaim, without the lock: a new thread may wait for the loader, whose lock another
    /// thread may hold that needs ours.
    #[cold]
    fn have_looked_after(&self, mut inner: Guard<'_, Inner>) {
        inner.looked_after = true;
        let look_after = inner.look_after.clone();
        drop(inner);
        if look_after.is_some_and(|start| !start()) {
            self.inner.lock().pools.main().set_keeping(false);
        }
    }

    /// Records that another stream uses an allocation; the error is for an unknown address.
    pub fn record_stream(&self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        self.inner.lock().pools.record_stream(address, stream)
    }

    /// What can still be allocated, and the total.
    pub fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.inner.lock().memory_info()
    }

    /// Statistics of all pools, with the total of [`memory_info`](Self::memory_info) when the driver was last
    /// asked for it: they are read often, and asking takes a thousand times as long.
    pub fn stats(&self) -> PoolStats {
        self.inner.lock().pools.stats()
    }

    /// Resets the peaks, and marks a step in a recording.
    pub fn reset_peaks(&self) {
        let mut inner = self.inner.lock();
        inner.pools.reset_peaks();
        if let Some(recorder) = &mut inner.recorder {
            recorder.step();
            inner.check_recorder();
        }
    }

    /// Ends a recording, so that its file is complete.
    pub(crate) fn finish_recording(&self) {
        // At exit another thread may still be inside: then the end of the recording is lost.
        if let Some(mut inner) = self.inner.try_lock() {
            inner.recorder = None;
        }
    }

    /// Returns empty blocks until at most `keep` bytes are held beyond live memory.
    pub fn trim(&self, keep: u64) {
        self.trim_from(keep, StackId::UNKNOWN);
    }

    /// Like [`trim`](Self::trim), called at `stack`.
    pub(crate) fn trim_from(&self, keep: u64, stack: StackId) {
        let mut inner = self.inner.lock();
        if inner.reach != Reach::Usable {
            return;
        }
        inner.pools.trim(keep);
        if inner.history.is_on() {
            inner.complete_history(StreamId(0), stack);
        }
        inner.report_deferred(self.device);
    }

    /// The process is exiting: from now on a driver that may be gone is called only on request of the
    /// program. Waits for a moment until no thread is inside.
    pub(crate) fn end(&self) {
        for _ in 0..200 {
            if let Some(mut inner) = self.inner.try_lock() {
                let survives = inner.pools.device().lock().driver.survives_exit();
                if inner.reach == Reach::Usable && !survives {
                    inner.reach = Reach::Ending;
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The device.
    pub fn device(&self) -> DeviceIndex {
        self.device
    }

    /// Keeps the last `most` requests and frees for snapshots from now on; 0 keeps none.
    pub fn record_history(&self, most: usize) {
        let mut inner = self.inner.lock();
        inner.history.keep(most);
        inner.pools.device().lock().record_moves(most > 0);
    }

    /// The held memory and the recorded history, as a pickle that PyTorch's memory_viz opens.
    pub fn snapshot(&self) -> Vec<u8> {
        snapshot::pickle(&[self.state()])
    }

    /// The held memory and the history so far.
    pub(crate) fn state(&self) -> DeviceState {
        let inner = self.inner.lock();
        let blocks = inner.pools.layout();
        let live = blocks.iter().flat_map(|(_, block)| &block.spans);
        let stacks = live.map(|span| (span.address, inner.history.stack_of(span.address)));
        DeviceState {
            device: self.device,
            stacks: stacks
                .filter(|(_, stack)| *stack != StackId::UNKNOWN)
                .collect(),
            blocks,
            history: inner.history.entries(),
        }
    }

    #[cfg(unix)]
    /// Keeps every other thread out until the guard is dropped, on both sides of a fork.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held(self.inner.lock())
    }
}

#[cfg(unix)]
/// An allocator with no other thread inside.
pub(crate) struct Held<'a>(Guard<'a, Inner>);

#[cfg(unix)]
impl Held<'_> {
    /// Makes the copy in a forked child usable there.
    pub(crate) fn adopt(&mut self) {
        // The file belongs to the parent: closing the recording would write its end there.
        std::mem::forget(self.0.recorder.take());
        let survives = self.0.pools.device().lock().driver.survives_fork();
        if !survives {
            self.0.reach = Reach::Orphaned;
        }
        // The background thread does not exist in the child.
        self.0.looked_after = false;
    }
}

impl Inner {
    /// Why the device must not be used, if so, except for direct requests of the program.
    fn out_of_reach(&self) -> Option<&'static str> {
        match self.reach {
            Reach::Usable => None,
            Reach::Orphaned => Some(ORPHANED),
            Reach::Ending => Some(ENDING),
        }
    }

    /// The driver's answer; memory that is held but not live can be allocated too.
    fn memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        if self.reach == Reach::Orphaned {
            return Err(DriverError::Orphaned(ORPHANED));
        }
        let info = self.pools.memory_info()?;
        let info = self.pools.within_limit(info);
        // Free memory in private pools is not available to others.
        let main = self.pools.main();
        let slack = main.held().saturating_sub(main.own_stats().live_bytes);
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
                _ => self.pools.device().lock().driver.runtime(),
            },
            requested,
            error,
            stats: self.pools.stats(),
            info: self.memory_info().ok(),
        };
        situation.refusal()
    }

    fn complete_history(&mut self, stream: StreamId, stack: StackId) {
        let Inner { pools, history, .. } = self;
        let moved = pools.device().lock().take_moved();
        history.complete(stream, stack, moved, |address| {
            pools.pending().any(|waiting| waiting == address)
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
    fn report_deferred(&mut self, device: DeviceIndex) {
        if self.pools.main().has_deferred_errors() {
            self.tell_deferred(device);
        }
    }

    #[cold]
    fn tell_deferred(&mut self, device: DeviceIndex) {
        for error in self.pools.main().take_deferred_errors() {
            self.deferred.report(device, &error);
        }
    }
}
