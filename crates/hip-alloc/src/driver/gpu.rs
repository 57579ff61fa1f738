//! Device memory of a HIP or CUDA runtime.

use super::numbers::{
    CAPTURE_MODE_RELAXED, EVENT_DISABLE_TIMING, NOT_CAPTURING, NOT_READY, OUT_OF_MEMORY, SUCCESS,
};
use super::runtime::{Family, Runtime, RuntimeError, Status, function_table};
use super::{Driver, DriverCost, DriverError, EventId, LimitedBy, MemoryInfo, measured, monotonic};
use crate::fork::forking_on_its_own;
use crate::report::Repeated;
use crate::system::{self, Library};
use crate::turns::Turns;
use crate::units::{DeviceIndex, StreamId};
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

/// Limits on a device's memory besides those of its runtime, given the
/// runtime's numbers, or why it has none.
pub type Bound =
    Box<dyn FnMut(Result<MemoryInfo, DriverError>) -> Result<MemoryInfo, DriverError> + Send>;

/// RDNA 4. hipBLASLt's kernels for these read up to 4 KiB behind an operand
/// (ROCm/rocm-libraries#7992, ROCm/legacy-rocm-build#6413).
const GFX12: u32 = 12;

thread_local! {
    /// Whether this is one of our threads, for which no device needs to be current.
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one of ours: the last device stays current.
pub(crate) fn thread_is_ours() {
    OURS.set(true);
}

function_table! {
    /// Of CUDA's driver.
    ContextFunctions {
        state: "DevicePrimaryCtxGetState" fn(c_int, *mut c_uint, *mut c_int) -> Status;
    }
}

impl ContextFunctions {
    fn find(family: Family) -> Option<Self> {
        let library = system::loaded(system::CUDA_DRIVER).filter(|_| family == Family::Cuda)?;
        let functions = Self::load(&library, family, "cu").ok()?;
        // The functions are called as long as there is a driver.
        std::mem::forget(library);
        Some(functions)
    }
}

/// One device of a runtime.
pub struct GpuDriver {
    runtime: Arc<Runtime>,
    contexts: Option<ContextFunctions>,
    device: DeviceIndex,
    bound: Bound,
    /// The turns of the processes that allocate the same memory, if nothing but free memory bounds them.
    turns: Option<Turns>,
    /// Unused events, to be recorded again.
    spare: Vec<*mut c_void>,
    /// The mode that the capturing thread had before.
    mode_before: Option<c_int>,
}

// SAFETY: event handles belong to the device, not to a thread: both runtimes
// document that any host thread may record, query and destroy them. All access goes
// through `&mut self`.
unsafe impl Send for GpuDriver {}

impl GpuDriver {
    /// A driver for `device`; `bound` returns the real capacity.
    pub fn new(runtime: Arc<Runtime>, device: DeviceIndex, bound: Bound) -> Self {
        GpuDriver {
            contexts: ContextFunctions::find(runtime.family),
            runtime,
            device,
            bound,
            turns: None,
            spare: Vec::new(),
            mode_before: None,
        }
    }

    /// Looks for free memory and allocates it in these turns.
    pub(crate) fn take_turns(&mut self, turns: Option<Turns>) {
        self.turns = turns;
    }

    /// Calls `allocate` if there are `bytes` of free memory, which no other process that takes turns
    /// allocates meanwhile.
    ///
    /// On unified memory the runtime provides more than the machine has, and the kernel later kills a
    /// process for it: what is not free is refused here.
    fn allocate_if_free(
        &mut self,
        bytes: u64,
        allocate: impl FnOnce(&mut Self) -> Result<u64, DriverError>,
    ) -> Result<u64, DriverError> {
        if let Some(turns) = &mut self.turns {
            turns.begin();
        }
        let allocated = match self.memory_info() {
            Ok(info) if bytes > info.free => Err(DriverError::OutOfMemory),
            Ok(_) => allocate(self),
            Err(error) => Err(error),
        };
        if let Some(turns) = &mut self.turns {
            turns.end();
        }
        allocated
    }

    /// Calls a function of the runtime, which may fork.
    fn call<T>(&self, call: impl FnOnce(&Runtime) -> T) -> T {
        forking_on_its_own(|| call(&self.runtime))
    }

    /// Calls `call` with our device current on this thread, and restores the previous device if one
    /// was in use.
    fn on_device(
        &self,
        name: &'static str,
        call: impl FnOnce(&Runtime) -> u32,
    ) -> Result<(), DriverError> {
        forking_on_its_own(|| self.with_device_current(name, call))
    }

    fn with_device_current(
        &self,
        name: &'static str,
        call: impl FnOnce(&Runtime) -> u32,
    ) -> Result<(), DriverError> {
        let functions = &self.runtime.functions;
        let mut before = 0;
        // SAFETY: writes one int to a live local.
        self.check("GetDevice", unsafe { (functions.get_device)(&mut before) })?;
        if before == self.device.0 {
            return self.check(name, call(&self.runtime));
        }
        // SAFETY: takes any index, and refuses those that do not exist.
        self.check("SetDevice", unsafe {
            (functions.set_device)(self.device.0)
        })?;
        let status = call(&self.runtime);
        if !self.is_to_be_restored(before) {
            return self.check(name, status);
        }
        // SAFETY: this device was current a moment ago.
        let restored = self.check("SetDevice", unsafe { (functions.set_device)(before) });
        if let Err(error) = restored {
            // The result of the call stands: memory that it returned must not be forgotten.
            static NOT_RESTORED: Repeated = Repeated::new();
            let device = self.device;
            NOT_RESTORED.warn(&format!(
                "{device} stays the current one of a thread, where it was device {before}: {error}"
            ));
        }
        self.check(name, status)
    }

    /// Since CUDA 12, making a device current creates a context on it, hundreds of megabytes. A thread
    /// that never chose a device has the first one: restoring that would take this memory there
    /// in every process that computes on another one. Then ours stays current, as in PyTorch
    /// (`c10::cuda::MaybeSetDevice`), which sets the device before each use.
    fn is_to_be_restored(&self, before: c_int) -> bool {
        if OURS.get() {
            return false;
        }
        let Some(functions) = &self.contexts else {
            return true;
        };
        let (mut flags, mut active) = (0, 0);
        // SAFETY: writes two ints to live locals; refuses devices that do not exist.
        let status = unsafe { (functions.state)(before, &mut flags, &mut active) };
        status != SUCCESS || active != 0
    }

    fn check(&self, call: &'static str, status: u32) -> Result<(), DriverError> {
        if status == SUCCESS {
            return Ok(());
        }
        self.forget_error();
        if status == OUT_OF_MEMORY {
            return Err(DriverError::OutOfMemory);
        }
        Err(self.failure(call, status))
    }

    /// The runtime keeps an error for the next caller that queries it, which would be PyTorch, after one of
    /// its own kernels that did not fail.
    fn forget_error(&self) {
        // SAFETY: takes nothing, changes only the error kept for this thread.
        self.call(|runtime| unsafe { (runtime.functions.get_last_error)() });
    }

    fn failure(&self, call: &'static str, status: u32) -> DriverError {
        DriverError::Failed {
            call,
            code: status,
            message: self.call(|runtime| runtime.error_name(status)),
        }
    }

    fn raw_info(&mut self) -> Result<MemoryInfo, DriverError> {
        let (mut free, mut total) = (0, 0);
        self.on_device("MemGetInfo", |runtime| {
            // SAFETY: writes two sizes to live locals.
            unsafe { (runtime.functions.mem_get_info)(&mut free, &mut total) }
        })?;
        Ok(MemoryInfo {
            free: free as u64,
            total: total as u64,
            limited_by: LimitedBy::Device,
        })
    }

    /// Sets how strictly this thread respects other captures, and returns the previous mode; `None` if the runtime
    /// does not support it.
    fn exchange_capture_mode(&self, mode: c_int) -> Option<c_int> {
        let functions = self.runtime.capture_functions.as_ref()?;
        let mut mode = mode;
        // SAFETY: reads and writes one int in a live local.
        let status = self.call(|_| unsafe { (functions.exchange_capture_mode)(&mut mode) });
        self.check("ThreadExchangeStreamCaptureMode", status).ok()?;
        Some(mode)
    }

    fn finish(&mut self, event: EventId) {
        self.spare.push(event.0 as *mut c_void);
    }
}

impl Driver for GpuDriver {
    fn allocate(&mut self, bytes: u64) -> Result<u64, DriverError> {
        let size = usize::try_from(bytes).map_err(|_| DriverError::OutOfMemory)?;
        self.allocate_if_free(bytes, |driver| {
            let mut address = std::ptr::null_mut();
            driver.on_device("Malloc", |runtime| {
                // SAFETY: writes one pointer to a live local.
                unsafe { (runtime.functions.malloc)(&mut address, size) }
            })?;
            match address.is_null() {
                true => Err(DriverError::OutOfMemory),
                false => Ok(address as u64),
            }
        })
    }

    fn release(&mut self, address: u64, _bytes: u64) -> Result<(), DriverError> {
        self.on_device("Free", |runtime| {
            // SAFETY: the pool releases what `allocate` gave, once, when nothing uses
            // it any more (the contract of `Driver::release`).
            unsafe { (runtime.functions.free)(address as *mut c_void) }
        })
    }

    fn record(&mut self, stream: StreamId) -> Result<Option<EventId>, DriverError> {
        let handle = stream.0 as *mut c_void;
        let mut status = SUCCESS;
        // With our device current: the default stream of each device has the same handle.
        self.on_device("StreamQuery", |runtime| {
            // SAFETY: the runtime's own stream, or one that the program uses in this call (the contract of
            // `Driver::record`; see `pool/stream_fences.rs`).
            status = unsafe { (runtime.functions.stream_query)(handle) };
            SUCCESS
        })?;
        if status == SUCCESS {
            return Ok(None);
        }
        // That it is busy.
        self.forget_error();
        let event = match self.spare.pop() {
            Some(event) => event,
            None => {
                let mut event = std::ptr::null_mut();
                self.on_device("EventCreateWithFlags", |runtime| {
                    // SAFETY: writes one handle to a live local; the flag is a documented one.
                    unsafe { (runtime.functions.event_create)(&mut event, EVENT_DISABLE_TIMING) }
                })?;
                event
            }
        };
        let recorded = self.on_device("EventRecord", |runtime| {
            // SAFETY: the event is ours and live, and the stream exists, as above.
            unsafe { (runtime.functions.event_record)(event, handle) }
        });
        if let Err(error) = recorded {
            self.spare.push(event);
            return Err(error);
        }
        Ok(Some(EventId(event as u64)))
    }

    fn reached(&mut self, event: EventId) -> Result<bool, DriverError> {
        // SAFETY: `record` gave this event, and it has not ended.
        let query =
            |runtime: &Runtime| unsafe { (runtime.functions.event_query)(event.0 as *mut c_void) };
        let status = self.call(query);
        if status == NOT_READY {
            self.forget_error();
            return Ok(false);
        }
        self.check("EventQuery", status)?;
        self.finish(event);
        Ok(true)
    }

    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        // SAFETY: `record` gave this event, and it has not ended.
        let wait = |runtime: &Runtime| unsafe {
            (runtime.functions.event_synchronize)(event.0 as *mut c_void)
        };
        let status = self.call(wait);
        self.check("EventSynchronize", status)?;
        self.finish(event);
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        self.on_device("DeviceSynchronize", |runtime| {
            // SAFETY: takes nothing; waits for the current device.
            unsafe { (runtime.functions.device_synchronize)() }
        })
    }

    fn is_capturing(&mut self, stream: StreamId) -> Result<bool, DriverError> {
        let Some(functions) = &self.runtime.capture_functions else {
            return Ok(false);
        };
        let mut status = 0;
        self.on_device("StreamIsCapturing", |_| {
            // SAFETY: the stream is that of the request that the program makes; writes one int to a live
            // local.
            unsafe { (functions.stream_is_capturing)(stream.0 as *mut c_void, &mut status) }
        })?;
        Ok(status != NOT_CAPTURING)
    }

    fn enter_capture(&mut self) {
        self.mode_before = self.exchange_capture_mode(CAPTURE_MODE_RELAXED);
    }

    fn leave_capture(&mut self) {
        if let Some(mode) = self.mode_before.take() {
            self.exchange_capture_mode(mode);
        }
    }

    fn runtime(&self) -> &'static str {
        match self.runtime.family {
            Family::Hip => "HIP",
            Family::Cuda => "CUDA",
        }
    }

    fn survives_fork(&self) -> bool {
        false // as both runtimes document
    }

    fn survives_exit(&self) -> bool {
        false
    }

    fn needs_guard(&self) -> bool {
        self.runtime.architecture(self.device) == Some(GFX12)
    }

    fn cheap_memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        self.memory_info()
    }

    fn measure(&mut self) -> Option<DriverCost> {
        measured(monotonic, |bytes| {
            let address = self.allocate(bytes).ok()?;
            self.release(address, bytes).ok()
        })
    }

    fn now(&mut self) -> Duration {
        monotonic()
    }

    fn memory_info(&mut self) -> Result<MemoryInfo, DriverError> {
        let raw = self.raw_info();
        (self.bound)(raw)
    }
}

impl Drop for GpuDriver {
    fn drop(&mut self) {
        for event in std::mem::take(&mut self.spare) {
            // SAFETY: made by `event_create`, not in use, destroyed once.
            self.call(|runtime| unsafe { (runtime.functions.event_destroy)(event) });
        }
    }
}
