//! Reports memory to PyTorch's profiler, as PyTorch's own allocators do.

use super::functions::catching;
use super::of_c10;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Functions of `c10/core/Allocator.h`.
struct Profiler {
    listens: unsafe extern "C-unwind" fn() -> bool,
    report: unsafe extern "C-unwind" fn(*mut c_void, i64, usize, usize, u16),
}

static PROFILER: OnceLock<Profiler> = OnceLock::new();

/// Looks from time to time until it is found, since `c10.dll` may be loaded after the first request: often at first,
/// then once in a thousand requests.
fn profiler() -> Option<&'static Profiler> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    if let Some(profiler) = PROFILER.get() {
        return Some(profiler);
    }
    let times = ASKED.fetch_add(1, Ordering::Relaxed);
    if !times.is_multiple_of(1024) && !times.is_power_of_two() {
        return None;
    }
    // SAFETY: the mangled names contain the types; a `c10::Device` is two bytes, which are passed as a number.
    let found = unsafe {
        Profiler {
            listens: of_c10("?memoryProfilingEnabled@c10@@YA_NXZ")?,
            report: of_c10("?reportMemoryUsageToProfiler@c10@@YAXPEAX_J_K2UDevice@1@@Z")?,
        }
    };
    Some(PROFILER.get_or_init(|| found))
}

/// Whether the memory of this thread is being profiled.
pub(in crate::ffi) fn profiler_listens() -> bool {
    // SAFETY: takes nothing.
    profiler().is_some_and(|profiler| catching(|| unsafe { (profiler.listens)() }) == Some(true))
}

/// Reports a request, or (below zero) a free, and the totals allocated and held afterwards. If that throws, the profile
/// lacks an entry, but the memory is valid.
pub(in crate::ffi) fn tell_profiler(
    address: *mut c_void,
    change: i64,
    allocated: usize,
    reserved: usize,
    device: c_int,
) {
    /// `c10::DeviceType::CUDA`, which ROCm builds use as well.
    const CUDA: u8 = 1;
    if let Some(profiler) = PROFILER.get() {
        let device = u16::from_le_bytes([CUDA, device as u8]);
        // SAFETY: the address is only written down.
        catching(|| unsafe { (profiler.report)(address, change, allocated, reserved, device) });
    }
}
