//! Windows.

mod dxgi;
mod loader;

pub(crate) use dxgi::video_memory;
pub(crate) use loader::{Library, loaded, runtime_library, stay_loaded};

use platform::Bytes;
use platform::memory::{HostMemory, MemoryBudget};
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;
use windows_sys::Win32::Foundation::{ERROR_COMMITMENT_LIMIT, FILETIME};
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_RELEASE, MEM_RESERVE, PAGE_READWRITE, VirtualAlloc, VirtualFree,
};
use windows_sys::Win32::System::SystemInformation::{
    GetTickCount64, GlobalMemoryStatusEx, MEMORYSTATUSEX,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, GetProcessTimes};

/// The files of NVIDIA's.
pub(crate) const CUDA_RUNTIMES: &[&str] =
    &["cudart64_13.dll", "cudart64_12.dll", "cudart64_110.dll"];
/// CUDA's driver.
pub(crate) const CUDA_DRIVER: &str = "nvcuda.dll";
/// The libraries of PyTorch that only its builds for HIP and CUDA have.
pub(crate) const PYTORCH_FOR: [&str; 2] = ["c10_hip.dll", "c10_cuda.dll"];
/// A runtime is only used if the process has loaded it. The driver's, which the loader would find, is not the one that
/// PyTorch brings.
pub(crate) const FINDS_RUNTIMES: bool = false;
/// The usual reasons why AMD's runtime sees no GPU.
pub(crate) const WHY_NO_HIP_DEVICE: &str = "Is AMD's driver installed, is the GPU one that this runtime supports, and \
    does no HIP_VISIBLE_DEVICES hide it? `surefoot doctor` looks at each";

/// The processor time that this process has used.
pub(crate) fn processor_time() -> Duration {
    let mut times = [FILETIME::default(); 4];
    let [created, ended, kernel, user] = &mut times;
    // SAFETY: the pseudo-handle of this process is always valid; four times are written to live locals.
    let read = unsafe { GetProcessTimes(GetCurrentProcess(), created, ended, kernel, user) };
    if read == 0 {
        return Duration::ZERO;
    }
    // In units of 100 ns.
    let ticks =
        |time: &FILETIME| u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    Duration::from_nanos((ticks(&times[2]) + ticks(&times[3])) * 100)
}

/// The time since the machine was started, the same in every process.
pub(crate) fn machine_time() -> Duration {
    // SAFETY: takes nothing and cannot fail.
    Duration::from_millis(unsafe { GetTickCount64() })
}

/// Writes to standard error as far as that is possible.
pub(crate) fn write_to_stderr(bytes: &[u8]) {
    let _ = io::stderr().write_all(bytes);
}

/// The path that a program passes as bytes, which are UTF-8, as in Python; `None` if it cannot be one.
pub(crate) fn path(bytes: &[u8]) -> Option<&Path> {
    std::str::from_utf8(bytes).ok().map(Path::new)
}

/// Has the handler called when the program calls `exit` or returns from `main`, while its threads still run; returns
/// whether that was possible.
///
/// The exit handlers of this library's own C runtime would be called while it is detached, when Windows has ended all
/// other threads, wherever they were. Those of the program's runtime, the one that Python and PyTorch share, come before.
pub(crate) fn at_exit(handler: extern "C" fn()) -> bool {
    type AtExit = unsafe extern "C" fn(extern "C" fn()) -> i32;
    let Some(runtime) = loaded("ucrtbase.dll") else {
        return false;
    };
    // SAFETY: the Universal C Runtime exports this function with this signature.
    let Some(at_exit) = (unsafe { runtime.function::<AtExit>("_crt_atexit") }) else {
        return false;
    };
    // SAFETY: the handler is a function of this library, which `stay_loaded` has kept from being unloaded.
    unsafe { at_exit(handler) == 0 }
}

/// Whether the process is past the point where its other threads were ended, wherever they were: locks may be taken for
/// ever, and the memory goes back with the process.
#[inline]
pub(crate) fn other_threads_are_gone() -> bool {
    type IsShuttingDown = unsafe extern "system" fn() -> u8;
    static ASKS: OnceLock<Option<IsShuttingDown>> = OnceLock::new();
    let asks = ASKS.get_or_init(|| {
        // SAFETY: ntdll has exported this function with this signature since Windows XP.
        unsafe { loaded("ntdll.dll")?.function("RtlDllShutdownInProgress") }
    });
    // SAFETY: takes nothing; ntdll is in every process until its end.
    asks.is_some_and(|asks| unsafe { asks() } != 0)
}

/// Calls `act`: Windows interrupts no thread with signals.
pub(crate) fn without_signals<T>(act: impl FnOnce() -> T) -> T {
    act()
}

/// Commits new memory that only this process sees, all zeros, and returns its address.
pub(crate) fn map_memory(bytes: usize) -> io::Result<u64> {
    // SAFETY: new memory at an address of the system's choice touches nothing that anything else uses.
    let address = unsafe {
        VirtualAlloc(
            std::ptr::null(),
            bytes,
            MEM_RESERVE | MEM_COMMIT,
            PAGE_READWRITE,
        )
    };
    if !address.is_null() {
        return Ok(address as u64);
    }
    let error = io::Error::last_os_error();
    let code = error.raw_os_error().unwrap_or_default().unsigned_abs();
    Err(match code {
        ERROR_COMMITMENT_LIMIT => io::ErrorKind::OutOfMemory.into(),
        _ => error,
    })
}

/// Releases memory of [`map_memory`].
///
/// # Safety
/// It was mapped with this address, nothing uses it, and this is done once.
pub(crate) unsafe fn unmap_memory(address: u64, _bytes: u64) -> io::Result<()> {
    // SAFETY: as the caller promises; with `MEM_RELEASE` the size is 0, and all that was reserved is released.
    match unsafe { VirtualFree(address as *mut _, 0, MEM_RELEASE) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// How many bytes of memory of [`map_memory`] the system counts as used: what is committed counts at once.
pub(crate) fn bytes_in_use(_address: u64, bytes: u64) -> u64 {
    bytes
}

/// Whether the system has numbers of its own for devices.
pub(crate) const KNOWS_DEVICES_BY_LUID: bool = true;

/// How this budget reads the memory of the machine.
pub(crate) fn budget(budget: MemoryBudget) -> MemoryBudget {
    budget.reading_host(host_memory)
}

/// The memory of this machine.
fn host_memory() -> HostMemory {
    let mut status = MEMORYSTATUSEX {
        dwLength: size_of::<MEMORYSTATUSEX>() as u32,
        ..MEMORYSTATUSEX::default()
    };
    // SAFETY: the structure says its own size, and lives through the call that fills it.
    if unsafe { GlobalMemoryStatusEx(&mut status) } == 0 {
        return HostMemory::default();
    }
    // What is called page file there is the limit of committed memory: RAM and page files together.
    let committable = status.ullAvailPageFile;
    HostMemory {
        total: Some(Bytes(status.ullTotalPhys)),
        available: Some(Bytes(status.ullAvailPhys.min(committable))),
        swap_total: Some(Bytes(
            status.ullTotalPageFile.saturating_sub(status.ullTotalPhys),
        )),
        swap_free: Some(Bytes(committable.saturating_sub(status.ullAvailPhys))),
    }
}
