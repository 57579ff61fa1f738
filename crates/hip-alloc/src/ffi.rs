//! The C interface; `include/hip_alloc.h` documents each function.
//!
//! It is deliberately thin: it converts pointers to integers and errors to codes or exceptions,
//! and everything else happens in safe code.

mod cpp;
pub mod pools;
pub mod stacks;

use crate::allocator::Allocator;
use crate::background_reclaim;
use crate::refusal::Refusal;
#[cfg(unix)]
use crate::registry::fork_handlers;
use crate::registry::{self, Registry, settings};
use crate::report::{self, Repeated};
use crate::system;
use crate::units::{DeviceIndex, StreamId};
use cpp::Exception;
use stacks::stack;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
#[cfg(unix)]
use std::sync::Once;

const OK: c_int = 0;
const ERROR_DEVICE: c_int = 1;
const ERROR_ARGUMENT: c_int = 2;
const ERROR_DRIVER: c_int = 3;
const ERROR_IO: c_int = 4;
const ABI_VERSION: c_uint = 1;

/// Frees on devices that cannot be used.
static NO_DEVICE: Repeated = Repeated::new();
/// Calls that return an error code.
static FAILED: Repeated = Repeated::new();

/// `struct hip_alloc_stats`.
pub use crate::pool::PoolStats as HipAllocStats;

/// Allocates at least `size` bytes for work on `stream`. Throws a C++ exception if out of
/// memory, and another if the device fails.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_malloc(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    match serve(size, device, stream) {
        Ok(address) => address,
        Err(exception) => exception.throw(),
    }
}

/// The address, or what is thrown. On Windows the frame that throws has nothing to be unwound: so whatever needs that
/// is here.
#[cfg_attr(windows, inline(never))]
fn serve(size: usize, device: c_int, stream: *mut c_void) -> Result<*mut c_void, Exception> {
    let stack = stack();
    let served = guarded("hip_alloc_malloc", || {
        let allocator = open(device).map_err(Refusal::Failed)?;
        allocator.allocate_from(size as u64, StreamId(stream as u64), stack)
    });
    let refusal = match served {
        Some(Ok(address)) => {
            let address = address as *mut c_void;
            tell_profiler(address, size as i64, device);
            return Ok(address);
        }
        Some(Err(refusal)) => refusal,
        None => Refusal::Failed("hip-alloc failed internally; see standard error".to_owned()),
    };
    Err(Exception::new(refusal))
}

/// Frees memory.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_free(
    ptr: *mut c_void,
    size: usize,
    device: c_int,
    _stream: *mut c_void,
) {
    if ptr.is_null() {
        return;
    }
    let stack = stack();
    guarded("hip_alloc_free", || match existing(device) {
        Ok(Some(allocator)) => allocator.free_from(ptr as u64, stack),
        Ok(None) => NO_DEVICE.warn(&format!("free of {ptr:?}: not allocated here")),
        Err(problem) => NO_DEVICE.warn(&format!("free of {ptr:?}: {problem}")),
    });
    tell_profiler(ptr, (size as i64).wrapping_neg(), device);
}

/// Reports to `torch.profiler.profile(profile_memory=True)` what PyTorch's own allocator would
/// report. PyTorch's CPU allocator reports host memory itself.
#[inline]
fn tell_profiler(address: *mut c_void, change: i64, device: c_int) {
    if device < 0 || !cpp::profiler_listens() {
        return;
    }
    guarded("the profiler", || {
        if let Ok(Some(allocator)) = existing(device) {
            let stats = allocator.stats();
            let (live, held) = (stats.live_bytes as usize, stats.held_bytes as usize);
            cpp::tell_profiler(address, change, live, held, device);
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
        // The signature of PyTorch's callback has no device: try each of them.
        let known = registry::existing().is_some_and(|registry| {
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

/// What can still be allocated on a device, and the total.
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
    let read = guarded("hip_alloc_mem_info", || {
        let registry = registry().map_err(|problem| (ERROR_DEVICE, problem))?;
        let info = registry.memory_info(DeviceIndex(device));
        info.map_err(|problem| (code_of(device), problem))
    });
    match read {
        Some(Ok(info)) => {
            // SAFETY: neither is null, and the caller promises that both may be written.
            unsafe {
                free.write(info.free as usize);
                total.write(info.total as usize);
            }
            OK
        }
        Some(Err((code, problem))) => failed(code, &format!("hip_alloc_mem_info: {problem}")),
        None => ERROR_DRIVER,
    }
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
    with_existing("hip_alloc_stats", device, |allocator| {
        let ours = allocator.map(Allocator::stats).unwrap_or_default();
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

/// Resets the peaks to what is live and held now.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_reset_peaks(device: c_int) -> c_int {
    with_existing("hip_alloc_reset_peaks", device, |allocator| {
        allocator
            .iter()
            .for_each(|allocator| allocator.reset_peaks());
        OK
    })
}

/// Returns empty blocks until at most `keep_bytes` are held beyond live memory.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_trim(device: c_int, keep_bytes: usize) -> c_int {
    let stack = stack();
    with_existing("hip_alloc_trim", device, |allocator| {
        let allocator = allocator.iter();
        allocator.for_each(|allocator| allocator.trim_from(keep_bytes as u64, stack));
        OK
    })
}

/// Limits held memory to a fraction of what the device could provide.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_set_memory_fraction(device: c_int, fraction: f64) -> c_int {
    if !(0.0..=1.0).contains(&fraction) {
        return failed(
            ERROR_ARGUMENT,
            &format!("hip_alloc_set_memory_fraction: {fraction} is not from 0 to 1"),
        );
    }
    const FUNCTION: &str = "hip_alloc_set_memory_fraction";
    let set = guarded(FUNCTION, || {
        let registry = registry().map_err(|problem| (ERROR_DEVICE, problem))?;
        let set = registry.set_memory_fraction(DeviceIndex(device), fraction);
        set.map_err(|problem| (code_of(device), problem))
    });
    match set {
        Some(Ok(())) => OK,
        Some(Err((code, problem))) => failed(code, &format!("{FUNCTION}: {problem}")),
        None => ERROR_DRIVER,
    }
}

/// Keeps the last `entries` requests and frees of every device for snapshots; 0 keeps none.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_record_history(entries: usize) -> c_int {
    const FUNCTION: &str = "hip_alloc_record_history";
    let recorded = guarded(FUNCTION, || {
        registry().map(|registry| registry.record_history(entries))
    });
    match recorded {
        Some(Ok(())) => OK,
        Some(Err(problem)) => failed(ERROR_ARGUMENT, &format!("{FUNCTION}: {problem}")),
        None => ERROR_DRIVER,
    }
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
    let Some(path) = system::path(unsafe { CStr::from_ptr(path) }.to_bytes()) else {
        return failed(ERROR_ARGUMENT, "hip_alloc_snapshot: the path is not UTF-8");
    };
    let written = guarded("hip_alloc_snapshot", || {
        std::fs::write(path, crate::snapshot::pickle(&state_by_device()))
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

/// The state of each accelerator's allocator; the host's, as device 0, if there is no other.
fn state_by_device() -> Vec<crate::snapshot::DeviceState> {
    let registry = registry::existing().into_iter();
    let allocators = registry.flat_map(|registry| registry.all());
    // Each lock is held only for the copy: writing the file allocates and waits.
    let (host, devices): (Vec<_>, Vec<_>) = allocators
        .map(Allocator::state)
        .partition(|state| state.device == DeviceIndex::HOST);
    if devices.is_empty() { host } else { devices }
}

/// Whether the settings in the environment are valid; if not, why, in `message`.
///
/// # Safety
/// `message` is null, or `size` bytes there may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn hip_alloc_check_settings(
    message: *mut c_char,
    size: usize,
) -> c_int {
    let problem = match guarded("hip_alloc_check_settings", settings) {
        Some(Ok(_)) => return OK,
        Some(Err(problem)) => problem.to_string(),
        None => "HIP_ALLOC_CONF: an internal error".to_owned(),
    };
    if !message.is_null() && size > 0 {
        let length = problem.len().min(size - 1);
        // SAFETY: not null, and the caller promises `size > length` bytes that may be written;
        // `problem` is a string of our own, which cannot overlap them.
        unsafe {
            ptr::copy_nonoverlapping(problem.as_ptr().cast(), message, length);
            message.add(length).write(0);
        }
    }
    ERROR_ARGUMENT
}

/// The version of this library.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_release() -> *const c_char {
    const RELEASE: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(release) => release,
            Err(_) => c"unknown",
        };
    RELEASE.as_ptr()
}

/// The version of this interface.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn hip_alloc_abi_version() -> c_uint {
    ABI_VERSION
}

/// The registry; created at the first call with valid settings.
#[inline]
fn registry() -> Result<&'static Registry, String> {
    registry::existing().map_or_else(make_registry, Ok)
}

#[cold]
fn make_registry() -> Result<&'static Registry, String> {
    #[cfg(unix)]
    watch_forks();
    #[cfg(windows)]
    system::stay_loaded();
    registry::get_or_make(watch_exit).map_err(|error| error.to_string())
}

/// The allocator of a device that memory is requested from; the error says why there is none.
fn open(device: c_int) -> Result<&'static Allocator, String> {
    registry()?.open(DeviceIndex(device))
}

/// The allocator of a device for everything else: only if memory was requested from it.
fn existing(device: c_int) -> Result<Option<&'static Allocator>, String> {
    registry()?.existing(DeviceIndex(device))
}

/// Ends recordings when the process exits, and from then on calls no driver except on request of the
/// program: its runtime may be gone before the last tensors are freed.
fn watch_exit() {
    extern "C" fn at_exit() {
        background_reclaim::end();
        let registry = registry::existing().into_iter();
        for allocator in registry.flat_map(|registry| registry.all()) {
            allocator.end();
            allocator.finish_recording();
        }
    }
    // It touches nothing but our own allocators, which are never dropped, and the files of their recorders, and calls
    // no driver.
    if !system::at_exit(at_exit) {
        report::warn("the end of a recording may be missing: no memory for the exit handler");
    }
}

/// Registers `fork` for every fork of this process, once.
#[cfg(unix)]
fn watch_forks() {
    extern "C" fn before() {
        fork_handlers::before();
    }
    extern "C" fn in_parent() {
        fork_handlers::after_in_parent();
    }
    extern "C" fn in_child() {
        fork_handlers::after_in_child();
        stacks::after_fork();
        cpp::profiler_after_fork();
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handlers are functions of this library, which is never unloaded (it is
        // linked with `-z nodelete`). They wait for our locks, whose holders wait neither for the
        // loader nor for a fork, and allocate, which can be done on both sides of a fork.
        let result = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if result != 0 {
            report::warn(
                "forked children of this process must not allocate: no memory for the fork handlers",
            );
        }
    });
}

/// When the library is loaded, so that no thread can fork between our first lock and this.
#[cfg(unix)]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        watch_forks();
    }
    at_load
};

/// The code for a problem with a device: that its runtime failed, if it was in use.
fn code_of(device: c_int) -> c_int {
    match existing(device) {
        Ok(Some(_)) => ERROR_DRIVER,
        _ => ERROR_DEVICE,
    }
}

/// Calls `act` with the allocator of a device that memory is, or will be, requested from.
fn with_open(function: &str, device: c_int, act: impl FnOnce(&Allocator) -> c_int) -> c_int {
    with(function, || open(device), act)
}

/// Calls `act` with the allocator of a device, if memory was requested from it.
fn with_existing(
    function: &str,
    device: c_int,
    act: impl FnOnce(Option<&Allocator>) -> c_int,
) -> c_int {
    with(function, || existing(device), act)
}

fn with<T>(
    function: &str,
    find: impl FnOnce() -> Result<T, String>,
    act: impl FnOnce(T) -> c_int,
) -> c_int {
    guarded(function, || match find() {
        Ok(allocator) => act(allocator),
        Err(problem) => failed(ERROR_DEVICE, &format!("{function}: {problem}")),
    })
    .unwrap_or(ERROR_DRIVER)
}

/// A panic is a bug of ours: it is reported, and does not unwind into the program. Nothing is done where the other
/// threads were ended, possibly with one of our locks.
fn guarded<T>(function: &str, act: impl FnOnce() -> T) -> Option<T> {
    if system::other_threads_are_gone() {
        return None;
    }
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
