//! The accelerator, whichever libtorch has: devices, memory, streams, events and
//! pinned host memory.
//!
//! Device numbers are libtorch's, from zero; in tch's words `Device::Cuda(n)`,
//! also under ROCm. Without an accelerator everything here but [`device_count`],
//! [`has_hip`] is [`Error::NoAccelerator`].

use std::marker::PhantomData;
use std::ptr::NonNull;

use tch::{Device, Tensor};

use crate::loader::{self, Names};
use crate::{Error, Result, raw};

/// Number of an accelerator device, from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u8);

impl DeviceIndex {
    fn raw(self) -> i32 {
        i32::from(self.0)
    }
}

impl From<DeviceIndex> for Device {
    fn from(index: DeviceIndex) -> Self {
        Device::Cuda(usize::from(index.0))
    }
}

impl TryFrom<Device> for DeviceIndex {
    type Error = Error;

    fn try_from(device: Device) -> Result<Self> {
        match device {
            Device::Cuda(index) => u8::try_from(index)
                .map(DeviceIndex)
                .map_err(|_| Error::InvalidArgument(format!("there is no device {index}"))),
            other => Err(Error::InvalidArgument(format!(
                "{other:?} is no accelerator"
            ))),
        }
    }
}

/// Loads the part of libtorch that knows a kind of device (`libtorch_hip.so`) into a process whose
/// libtorch was linked without it, for good. libtorch looks for devices once: before that.
///
/// # Errors
/// [`Error::NoAccelerator`] with the dynamic linker's words when it cannot be loaded.
pub fn load_device_library(path: &std::path::Path) -> Result<()> {
    // SAFETY: a library of PyTorch's own, whose initialisers register its operators; that is
    // what loading it is for, and they run in any Python that imports torch.
    let library = unsafe { loader::load(path.as_os_str(), Names::OfAll) };
    let library = library.map_err(|error| {
        Error::NoAccelerator(format!("cannot load {}: {error}", path.display()))
    })?;
    // libtorch keeps what was registered: it must never be closed.
    std::mem::forget(library);
    Ok(())
}

/// Whether this libtorch was built for ROCm, whatever devices there are.
pub fn has_hip() -> bool {
    let mut answer = false;
    // SAFETY: `answer` is a valid place for the result.
    raw::check(unsafe { raw::surefoot_has_hip(&mut answer) }).is_ok() && answer
}

/// How many accelerator devices libtorch sees; 0 for a CPU build. Does not
/// initialise them.
pub fn device_count() -> usize {
    let mut count = 0;
    // SAFETY: `count` is a valid place for the result.
    match raw::check(unsafe { raw::surefoot_device_count(&mut count) }) {
        Ok(()) => usize::try_from(count).unwrap_or(0),
        Err(error) => {
            tracing::warn!(%error, "libtorch cannot count its devices");
            0
        }
    }
}

/// Makes `device` the current one of this thread.
pub fn set_current_device(device: DeviceIndex) -> Result<()> {
    // SAFETY: no pointers.
    raw::check(unsafe { raw::surefoot_set_device(device.raw()) })
}

/// Waits until everything queued on the device is done. This is where an
/// asynchronous error of an earlier call shows.
pub fn synchronize(device: DeviceIndex) -> Result<()> {
    // SAFETY: no pointers.
    raw::check(unsafe { raw::surefoot_synchronize(device.raw()) })
}

/// What the driver says about a device's memory.
///
/// On an APU this is not the truth (free may exceed total; the pool is shared with
/// the CPU): plan with the allocator library's numbers instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that could be allocated.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Whether a device and the CPU share one memory, as on an APU: what the runtime calls
/// *integrated*. `None` when no runtime that can be asked is in this process.
///
/// libtorch's device-agnostic interface does not say, so the runtime below it is asked:
/// the one that this process has already, and no other.
#[cfg(not(bridge))]
pub fn shares_host_memory(device: DeviceIndex) -> Option<bool> {
    use std::ffi::{CStr, c_int};

    type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    // `cudaDevAttrIntegrated` and `hipDeviceAttributeIntegrated` of the two headers.
    const RUNTIMES: [(&CStr, c_int); 2] = [
        (c"hipDeviceGetAttribute", 16),
        (c"cudaDeviceGetAttribute", 18),
    ];
    let process = libloading::os::unix::Library::this();
    let (name, attribute) = match has_hip() {
        true => RUNTIMES[0],
        false => RUNTIMES[1],
    };
    // SAFETY: both runtimes declare this function as `int (int *, int, int)`, with enums
    // of the size of an int.
    let get = unsafe { process.get::<GetAttribute>(name.to_bytes_with_nul()) }.ok()?;
    let mut integrated = 0;
    // SAFETY: a valid place for the result; any device number may be asked for.
    let status = unsafe { get(&mut integrated, attribute, device.raw()) };
    (status == 0).then_some(integrated != 0)
}

/// Whether a device and the CPU share one memory, as on an APU; `None` if there is no such device.
#[cfg(bridge)]
pub fn shares_host_memory(device: DeviceIndex) -> Option<bool> {
    let mut integrated = false;
    // SAFETY: a valid place for the result.
    let status = unsafe { raw::surefoot_is_integrated(device.raw(), &mut integrated) };
    raw::check(status).ok().map(|()| integrated)
}

/// Asks the driver for free and total memory.
pub fn memory_info(device: DeviceIndex) -> Result<MemoryInfo> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: two valid places for the results.
    raw::check(unsafe { raw::surefoot_memory_info(device.raw(), &mut free, &mut total) })?;
    Ok(MemoryInfo {
        free: free as u64,
        total: total as u64,
    })
}

/// Gives memory that libtorch's own caches hold (device and pinned host) back.
pub fn empty_cache() -> Result<()> {
    // SAFETY: no arguments.
    raw::check(unsafe { raw::surefoot_empty_cache() })
}

/// A queue of work on a device. Work on one stream runs in order; work on two runs
/// in any, unless an [`Event`] orders it.
///
/// A name, not an owner: libtorch keeps its streams in a pool for the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(raw::StreamIdentity);

impl Stream {
    /// The stream that this thread's operators on `device` go to.
    pub fn current(device: DeviceIndex) -> Result<Self> {
        let mut stream = raw::StreamIdentity::default();
        // SAFETY: `stream` is a valid place for the result.
        raw::check(unsafe { raw::surefoot_current_stream(device.raw(), &mut stream) })?;
        Ok(Self(stream))
    }

    /// A side stream from libtorch's pool.
    pub fn new(device: DeviceIndex) -> Result<Self> {
        let mut stream = raw::StreamIdentity::default();
        // SAFETY: `stream` is a valid place for the result.
        raw::check(unsafe { raw::surefoot_new_stream(device.raw(), &mut stream) })?;
        Ok(Self(stream))
    }

    /// The device it belongs to.
    pub fn device(self) -> DeviceIndex {
        DeviceIndex(u8::try_from(self.0.device).unwrap_or(0))
    }

    /// The default stream of its device, which libtorch numbers 0.
    pub(crate) fn default_of_device(self) -> Self {
        Self(raw::StreamIdentity { id: 0, ..self.0 })
    }

    /// Sends this thread's operators here until the guard is dropped.
    pub fn enter(self) -> Result<StreamGuard> {
        let before = Stream::current(self.device())?;
        // SAFETY: a valid stream identity, borrowed for the call.
        raw::check(unsafe { raw::surefoot_set_current_stream(&self.0) })?;
        Ok(StreamGuard {
            before,
            not_send: PhantomData,
        })
    }

    /// Waits on the host until everything queued here is done.
    pub fn synchronize(self) -> Result<()> {
        // SAFETY: a valid stream identity, borrowed for the call.
        raw::check(unsafe { raw::surefoot_stream_synchronize(&self.0) })
    }

    /// Makes this stream wait for the event; the host does not wait.
    pub fn wait_for(self, event: &Event) -> Result<()> {
        // SAFETY: the handle is alive as long as `event`, the identity is valid.
        raw::check(unsafe { raw::surefoot_event_block(event.handle.as_ptr(), &self.0) })
    }

    /// Tells the allocator that `tensor` is used on this stream: its memory is not
    /// given out again before the stream has passed this point.
    pub fn uses(self, tensor: &Tensor) -> Result<()> {
        // SAFETY: a valid tensor and stream identity, borrowed for the call.
        raw::check(unsafe { raw::surefoot_record_stream(tensor.as_ptr(), &self.0) })
    }
}

/// Puts the thread's previous stream back when dropped.
#[must_use = "the stream is left when the guard is dropped"]
#[derive(Debug)]
pub struct StreamGuard {
    before: Stream,
    /// The current stream is thread-local, so the guard must not change threads.
    not_send: PhantomData<*const ()>,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        // SAFETY: an identity that libtorch gave us.
        let code = unsafe { raw::surefoot_set_current_stream(&self.before.0) };
        if let Err(error) = raw::check(code) {
            tracing::warn!(%error, "the previous stream could not be made current again");
        }
    }
}

/// A point in a stream that others can wait for.
#[derive(Debug)]
pub struct Event {
    handle: NonNull<raw::EventHandle>,
}

// SAFETY: a c10::Event may be used from any thread, one at a time; `&self` methods
// that change it do not exist (`record` takes `&mut self`), and the handle is freed
// once. It is not `Sync`.
unsafe impl Send for Event {}

impl Event {
    /// An event that was not recorded yet: waiting for it returns at once.
    pub fn new(device: DeviceIndex) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a valid place for the result.
        raw::check(unsafe { raw::surefoot_event_new(device.raw(), &mut handle) })?;
        NonNull::new(handle)
            .map(|handle| Self { handle })
            .ok_or_else(|| Error::Torch("libtorch made no event".into()))
    }

    /// Marks the point that `stream` has been filled to.
    pub fn record(&mut self, stream: Stream) -> Result<()> {
        // SAFETY: the handle is alive and ours, the identity valid.
        raw::check(unsafe { raw::surefoot_event_record(self.handle.as_ptr(), &stream.0) })
    }

    /// Waits on the host until the marked point is reached.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the handle is alive as long as `self`.
        raw::check(unsafe { raw::surefoot_event_synchronize(self.handle.as_ptr()) })
    }

    /// Whether the marked point is reached; does not wait.
    pub(crate) fn is_done(&self) -> Result<bool> {
        let mut done = false;
        // SAFETY: the handle is alive as long as `self`; a valid place for the result.
        raw::check(unsafe { raw::surefoot_event_query(self.handle.as_ptr(), &mut done) })?;
        Ok(done)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle came from `surefoot_event_new` and is freed once.
        unsafe { raw::surefoot_event_free(self.handle.as_ptr()) };
    }
}

/// A fresh, contiguous copy of `tensor` in page-locked host memory, which a device can
/// read on its own.
///
/// # Errors
/// [`Error::NoAccelerator`]; [`Error::OutOfMemory`] when the limit on locked pages
/// is reached.
pub fn pin_memory(tensor: &Tensor) -> Result<Tensor> {
    // SAFETY: a valid tensor, borrowed for the call, and a place for the result.
    raw::tensor(|out| unsafe { raw::surefoot_pin_memory(tensor.as_ptr(), out) })
}

/// Whether a tensor lies in page-locked host memory. `false` without an accelerator.
pub fn is_pinned(tensor: &Tensor) -> Result<bool> {
    let mut pinned = false;
    // SAFETY: a valid tensor, borrowed for the call, and a place for the result.
    raw::check(unsafe { raw::surefoot_is_pinned(tensor.as_ptr(), &mut pinned) })?;
    Ok(pinned)
}

/// A device tensor over the same pinned host memory, without a copy. On unified
/// memory this *is* the tensor on the device; on a discrete GPU every access goes
/// over the bus. The pinned tensor is kept alive by the result, and its memory beyond that by
/// the work on two streams: the one that is current now, and the one that is current where the
/// result is dropped. Work on others has to be over by then.
///
/// # Errors
/// [`Error::InvalidArgument`] for a tensor that is not pinned or not contiguous.
pub fn map_pinned(pinned: &Tensor, device: DeviceIndex) -> Result<Tensor> {
    // SAFETY: a valid tensor, borrowed for the call, and a place for the result.
    raw::tensor(|out| unsafe { raw::surefoot_map_pinned(pinned.as_ptr(), device.raw(), out) })
}
