//! The C interface: `include/hip_alloc.h` says what each function promises.
//!
//! Thin on purpose: pointers become numbers, errors become codes or exceptions,
//! and everything else happens in safe code.

use crate::allocator::Allocator;
use crate::fork;
use crate::history::StackId;
use crate::refusal::Refusal;
use crate::registry::{existing, registry};
use crate::report::{self, Repeated};
use crate::units::{DeviceIndex, StreamId};
use std::cell::Cell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

const OK: c_int = 0;
const ERROR_DEVICE: c_int = 1;
const ERROR_ARGUMENT: c_int = 2;
const ERROR_DRIVER: c_int = 3;
const ERROR_IO: c_int = 4;
const ABI_VERSION: c_uint = 1;

/// Frees on devices that cannot be used.
static NO_DEVICE: Repeated = Repeated::new();
/// Calls that the code they return says failed.
static FAILED: Repeated = Repeated::new();

/// Names the stack of the thread that calls it.
type NameStack = extern "C" fn() -> u64;
/// What [`hip_alloc_record_stacks`] was given; null while stacks are not wanted.
static NAME_STACK: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// `struct hip_alloc_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the header documents each field")]
pub struct HipAllocStats {
    pub live_bytes: u64,
    pub live_peak_bytes: u64,
    pub held_bytes: u64,
    pub held_peak_bytes: u64,
    pub live_allocations: u64,
    pub allocations: u64,
    pub frees: u64,
    pub driver_allocs: u64,
    pub driver_frees: u64,
    pub out_of_memory: u64,
    pub pending_bytes: u64,
    pub capacity_bytes: u64,
    pub allocated_bytes: u64,
    pub driver_alloc_bytes: u64,
    pub live_allocations_peak: u64,
    pub driver_blocks_peak: u64,
    pub active_peak_bytes: u64,
}

unsafe extern "C-unwind" {
    /// `cpp/exceptions.cpp`: throws; copies the message first.
    fn hip_alloc_throw_out_of_memory(message: *const c_char) -> !;
    /// As that, for what is not a lack of memory.
    fn hip_alloc_throw_failure(message: *const c_char) -> !;
}

/// Memory of at least `size` bytes for work on `stream`. Throws a C++ exception when
/// there is none, and another when the device fails.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_malloc(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let stack = stack();
    let refusal = {
        let served = guarded("hip_alloc_malloc", || {
            let allocator = registry()
                .get(DeviceIndex(device))
                .map_err(Refusal::Failed)?;
            allocator.allocate_from(size as u64, StreamId(stream as u64), stack)
        });
        match served {
            Some(Ok(address)) => return address as *mut c_void,
            Some(Err(refusal)) => refusal,
            None => Refusal::Failed("hip-alloc failed internally; see standard error".to_owned()),
        }
    };
    throw(refusal)
}

/// Gives memory back.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_free(
    ptr: *mut c_void,
    _size: usize,
    device: c_int,
    _stream: *mut c_void,
) {
    if ptr.is_null() {
        return;
    }
    let stack = stack();
    guarded("hip_alloc_free", || {
        match registry().get(DeviceIndex(device)) {
            Ok(allocator) => allocator.free_from(ptr as u64, stack),
            Err(problem) => NO_DEVICE.warn(&format!("free of {ptr:?}: {problem}")),
        }
    });
}

/// Work on `stream` uses `ptr` too.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_record_stream(ptr: *mut c_void, stream: *mut c_void) {
    if ptr.is_null() {
        return;
    }
    guarded("hip_alloc_record_stream", || {
        // The signature of PyTorch's callback has no device: ask each of them.
        let known = existing().is_some_and(|registry| {
            registry.all().any(|allocator| {
                allocator
                    .record_stream(ptr as u64, StreamId(stream as u64))
                    .is_ok()
            })
        });
        if !known {
            static UNKNOWN: Repeated = Repeated::new();
            UNKNOWN.warn(&format!("record_stream of {ptr:?}: not allocated here"));
        }
    });
}

/// What can still be allocated on a device, and what could be in all.
///
/// # Safety
/// `free` and `total` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn hip_alloc_mem_info(
    device: c_int,
    free: *mut usize,
    total: *mut usize,
) -> c_int {
    if free.is_null() || total.is_null() {
        return failed(ERROR_ARGUMENT, "hip_alloc_mem_info: a pointer is null");
    }
    with_device("hip_alloc_mem_info", device, |allocator| {
        match allocator.memory_info() {
            Ok(info) => {
                // SAFETY: neither is null, and the caller promises that both may be written.
                unsafe {
                    free.write(info.free as usize);
                    total.write(info.total as usize);
                }
                OK
            }
            Err(error) => failed(ERROR_DRIVER, &format!("hip_alloc_mem_info: {error}")),
        }
    })
}

/// Fills the first `out_size` bytes of the statistics of a device.
///
/// # Safety
/// `out_size` bytes at `out` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn hip_alloc_stats(
    device: c_int,
    out: *mut HipAllocStats,
    out_size: usize,
) -> c_int {
    if out.is_null() {
        return failed(ERROR_ARGUMENT, "hip_alloc_stats: the pointer is null");
    }
    with_device("hip_alloc_stats", device, |allocator| {
        let stats = allocator.stats();
        let capacity_bytes = allocator.memory_info().map_or(0, |info| info.total);
        let ours = HipAllocStats {
            live_bytes: stats.live_bytes,
            live_peak_bytes: stats.live_peak_bytes,
            held_bytes: stats.held_bytes,
            held_peak_bytes: stats.held_peak_bytes,
            live_allocations: stats.live_allocations,
            allocations: stats.allocations,
            frees: stats.frees,
            driver_allocs: stats.driver_allocs,
            driver_frees: stats.driver_frees,
            out_of_memory: stats.out_of_memory,
            pending_bytes: stats.pending_bytes,
            capacity_bytes,
            allocated_bytes: stats.allocated_bytes,
            driver_alloc_bytes: stats.driver_alloc_bytes,
            live_allocations_peak: stats.live_allocations_peak,
            driver_blocks_peak: stats.driver_blocks_peak,
            active_peak_bytes: stats.active_peak_bytes,
        };
        let length = out_size.min(size_of::<HipAllocStats>());
        // SAFETY: `ours` is plain numbers of at least `length` bytes; the caller
        // promises that `out_size >= length` bytes at `out` may be written, and a
        // local cannot overlap them.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const ours).cast::<u8>(), out.cast::<u8>(), length);
        }
        OK
    })
}

/// Starts the peaks again from what is live and held now.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_reset_peaks(device: c_int) -> c_int {
    with_device("hip_alloc_reset_peaks", device, |allocator| {
        allocator.reset_peaks();
        OK
    })
}

/// Gives empty blocks back until at most `keep_bytes` are held beyond what is live.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_trim(device: c_int, keep_bytes: usize) -> c_int {
    with_device("hip_alloc_trim", device, |allocator| {
        allocator.trim(keep_bytes as u64);
        OK
    })
}

/// Limits what is held to a part of what the device could give.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_set_memory_fraction(device: c_int, fraction: f64) -> c_int {
    if !(0.0..=1.0).contains(&fraction) {
        return failed(
            ERROR_ARGUMENT,
            &format!("hip_alloc_set_memory_fraction: {fraction} is not from 0 to 1"),
        );
    }
    with_device(
        "hip_alloc_set_memory_fraction",
        device,
        |allocator| match allocator.set_memory_fraction(fraction) {
            Ok(()) => OK,
            Err(error) => failed(
                ERROR_DRIVER,
                &format!("hip_alloc_set_memory_fraction: {error}"),
            ),
        },
    )
}

/// Keeps the last `entries` requests and frees of every device for snapshots; 0 keeps none.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_record_history(entries: usize) -> c_int {
    match guarded("hip_alloc_record_history", || {
        registry().keep_history(entries)
    }) {
        Some(()) => OK,
        None => ERROR_DRIVER,
    }
}

/// Has `name_stack` called before every request and free, and its answer kept with the entry.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_record_stacks(name_stack: Option<NameStack>) -> c_int {
    let function = name_stack.map_or(ptr::null_mut(), |function| function as *mut c_void);
    NAME_STACK.store(function, Ordering::Release);
    OK
}

/// Where the program is, as the function says that it gave us. None of our locks is held
/// meanwhile: it may wait for locks of its own (Python's), and may free memory.
fn stack() -> StackId {
    let function = NAME_STACK.load(Ordering::Acquire);
    if function.is_null() {
        return StackId::UNKNOWN;
    }
    // SAFETY: only `hip_alloc_record_stacks` writes here, null or a `NameStack`; a pointer to
    // a function has the size of one to data on every platform that has `dlsym`.
    let name_stack: NameStack = unsafe { std::mem::transmute(function) };
    thread_local! {
        /// This thread is in that function, and what it asks for there has no stack.
        static NAMING: Cell<bool> = const { Cell::new(false) };
    }
    if NAMING.replace(true) {
        return StackId::UNKNOWN;
    }
    let stack = StackId(name_stack());
    NAMING.set(false);
    stack
}

/// Writes a snapshot that PyTorch's memory_viz opens.
///
/// # Safety
/// `path` is null or a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn hip_alloc_snapshot(path: *const c_char) -> c_int {
    if path.is_null() {
        return failed(ERROR_ARGUMENT, "hip_alloc_snapshot: the path is null");
    }
    // SAFETY: not null, and the caller promises a string that ends with a zero.
    let path = Path::new(OsStr::from_bytes(
        unsafe { CStr::from_ptr(path) }.to_bytes(),
    ));
    let written = guarded("hip_alloc_snapshot", || {
        std::fs::write(path, crate::snapshot::pickle(&held_by_device()))
    });
    match written {
        Some(Ok(())) => OK,
        Some(Err(error)) => {
            let path = path.display();
            let message = format!("hip_alloc_snapshot: cannot write `{path}`: {error}");
            failed(ERROR_IO, &message)
        }
        None => ERROR_IO,
    }
}

/// What each accelerator's allocator holds; the host's, as device 0, where there is no other.
fn held_by_device() -> Vec<crate::snapshot::Device> {
    let allocators = existing().into_iter().flat_map(|registry| registry.all());
    let (host, mut devices): (Vec<_>, Vec<_>) = allocators
        // The lock is held for the look alone: writing the file allocates and waits.
        .map(|allocator| (allocator.device(), allocator.look()))
        .partition(|(device, _)| *device == DeviceIndex::HOST);
    if devices.is_empty() {
        devices = host;
    }
    let numbered = devices
        .into_iter()
        .map(|(device, looks)| crate::snapshot::Device {
            index: device.0.max(0).into(),
            looks,
        });
    numbered.collect()
}

/// The version of this interface.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_abi_version() -> c_uint {
    ABI_VERSION
}

/// Ends recordings when the process does.
pub(crate) fn watch_exit() {
    extern "C" fn at_exit() {
        for allocator in existing().into_iter().flat_map(|registry| registry.all()) {
            allocator.finish_recording();
        }
    }
    // SAFETY: the handler is a function of this library, which is never unloaded (it is
    // linked with `-z nodelete`); it touches nothing but our own allocators, which are
    // never dropped.
    if unsafe { libc::atexit(at_exit) } != 0 {
        report::warn("the end of a recording may be missing: no memory for the exit handler");
    }
}

/// Has `fork` called around every fork of this process, once.
pub(crate) fn watch_forks() {
    extern "C" fn before() {
        fork::before();
    }
    extern "C" fn in_parent() {
        fork::after_in_parent();
    }
    extern "C" fn in_child() {
        fork::after_in_child();
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handlers are functions of this library, which is never unloaded (it is
        // linked with `-z nodelete`); they only take and release our own locks.
        let result = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if result != 0 {
            report::warn(
                "forked children of this process must not allocate: no memory for the fork handlers",
            );
        }
    });
}

/// When the library is loaded, so that no thread can fork between our first lock and this.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        watch_forks();
    }
    at_load
};

/// Writes to standard error past the standard library's lock on it, which a forked child
/// may have inherited closed.
pub(crate) fn write_to_standard_error(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: reads `bytes.len()` bytes of a live slice.
        let written =
            unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => bytes = &bytes[written.min(bytes.len())..],
            _ => return,
        }
    }
}

fn with_device(function: &str, device: c_int, act: impl FnOnce(&Allocator) -> c_int) -> c_int {
    guarded(function, || match registry().get(DeviceIndex(device)) {
        Ok(allocator) => act(allocator),
        Err(problem) => failed(ERROR_DEVICE, &format!("{function}: {problem}")),
    })
    .unwrap_or(ERROR_DRIVER)
}

/// A panic is a defect of ours: it is reported, and does not unwind into the program.
fn guarded<T>(function: &str, act: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(act));
    if result.is_err() {
        report::warn(&format!("{function}: an internal error, please report it"));
    }
    result.ok()
}

fn failed(code: c_int, message: &str) -> c_int {
    FAILED.warn(message);
    code
}

fn throw(refusal: Refusal) -> ! {
    let (message, throw): (String, unsafe extern "C-unwind" fn(*const c_char) -> !) = match refusal
    {
        Refusal::OutOfMemory(message) => (message, hip_alloc_throw_out_of_memory),
        Refusal::Failed(message) => (message, hip_alloc_throw_failure),
    };
    let mut bytes = message.into_bytes();
    bytes.retain(|byte| *byte != 0);
    let message = CString::new(bytes).unwrap_or_default();
    // SAFETY: the pointer is to a string that ends with a zero and outlives the
    // call's use of it (it is copied before anything is thrown). The exception
    // passes only through `extern "C-unwind"` frames without a `catch_unwind`.
    unsafe { throw(message.as_ptr()) }
}
