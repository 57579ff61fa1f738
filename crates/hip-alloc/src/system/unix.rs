//! Linux.

pub(crate) use libloading::os::unix::Library;

use libloading::os::unix::{RTLD_LAZY, RTLD_LOCAL};
use platform::memory::{MemoryBudget, VideoMemory};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::{OsStr, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PAGE: u64 = 4096;
/// How many pages are queried per call.
const PAGES_AT_ONCE: usize = 1 << 16;
/// Mappings of at least this size request huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// The processor time that this process has used.
pub(crate) fn processor_time() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

/// The time since the machine was started, the same in every process.
pub(crate) fn machine_time() -> Duration {
    duration(clock_gettime(ClockId::Monotonic))
}

fn duration(time: rustix::time::Timespec) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Writes to standard error as far as that is possible, without the standard library's lock, which a forked child may
/// have inherited locked.
pub(crate) fn write_to_stderr(mut bytes: &[u8]) {
    while let Ok(written @ 1..) = rustix::io::write(io::stderr(), bytes) {
        bytes = &bytes[written..];
    }
}

/// The path that a program passes as bytes; `None` if it cannot be one.
pub(crate) fn path(bytes: &[u8]) -> Option<&Path> {
    Some(Path::new(OsStr::from_bytes(bytes)))
}

/// Has the handler called when the process exits; returns whether that was possible. It must not need anything that
/// may be unloaded before.
pub(crate) fn at_exit(handler: extern "C" fn()) -> bool {
    // SAFETY: the handler is a function of this library, which is never unloaded (it is linked with
    // `-z nodelete`).
    unsafe { libc::atexit(handler) == 0 }
}

/// Whether the process is past the point where its other threads were ended. Here they run until it is gone.
#[inline]
pub(crate) fn other_threads_are_gone() -> bool {
    false
}

/// The files of NVIDIA's.
pub(crate) const CUDA_RUNTIMES: &[&str] = &[
    "libcudart.so.13",
    "libcudart.so.12",
    "libcudart.so.11.0",
    "libcudart.so",
];
/// CUDA's driver.
pub(crate) const CUDA_DRIVER: &str = "libcuda.so.1";
/// The libraries of PyTorch that only its builds for HIP and CUDA have.
pub(crate) const PYTORCH_FOR: [&str; 2] = ["libc10_hip.so", "libc10_cuda.so"];

/// Whether a runtime that the user names is looked for on the disk.
pub(crate) const FINDS_RUNTIMES: bool = true;
/// The usual reasons why AMD's runtime sees no GPU.
pub(crate) const WHY_NO_HIP_DEVICE: &str = "Is the amdgpu driver loaded (is there a /dev/kfd), may this user open it \
    (group `render`), and does no HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES hide the GPU? `surefoot doctor` looks at each";

/// The library with this file name, if the process has loaded it.
pub(crate) fn loaded(name: &str) -> Option<Library> {
    open_library(name, libc::RTLD_NOLOAD)
}

/// The library of a runtime, never a second one: that whose functions the program has in its global scope (`probe` is one
/// of them), a private one, or if `from_disk` one that the loader finds. The error is for several in one process.
pub(crate) fn runtime_library(
    probe: &str,
    names: &[&str],
    from_disk: bool,
) -> Result<Option<Library>, Vec<PathBuf>> {
    let global = Library::this();
    // SAFETY: the symbol is only looked up, not called or read.
    if unsafe { global.get::<*const c_void>(probe.as_bytes()) }.is_ok() {
        return Ok(Some(global));
    }
    let open = |flags| names.iter().find_map(|name| open_library(name, flags));
    let library = open(libc::RTLD_NOLOAD);
    Ok(library.or_else(|| if from_disk { open(0) } else { None }))
}

fn open_library(name: &str, flags: c_int) -> Option<Library> {
    // SAFETY: with RTLD_NOLOAD nothing new is loaded, and no library that is asked for is ever unloaded by the
    // program, so that our closing it is not the last, which would run its destructors; without it, the user asked
    // for this runtime, and its initialisers are those that any program linked against it runs.
    unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL | flags) }.ok()
}

/// Whether the system has numbers of its own for devices.
pub(crate) const KNOWS_DEVICES_BY_LUID: bool = false;

/// What the system says of the memory of the device with this number: nothing that its driver does not say.
pub(crate) fn video_memory(_luid: Option<[u8; 8]>) -> impl FnMut() -> Option<VideoMemory> {
    || None
}

/// How this budget reads the memory of the machine: from its files.
pub(crate) fn budget(budget: MemoryBudget) -> MemoryBudget {
    budget
}

/// Calls `act` with all signals blocked; threads that it starts inherit that, since the
/// program's handlers are for the program's threads.
pub(crate) fn without_signals<T>(act: impl FnOnce() -> T) -> T {
    /// The mask before; restored even if `act` panics.
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the set was filled by the call below and lives through this one, which reads
            // it and changes only the mask of this thread.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }
    // SAFETY: all bytes zero are a valid `sigset_t`; both sets live through the calls, which
    // write and read them and change only the mask of this thread.
    let _restore = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        Restore(before)
    };
    act()
}

/// Maps new memory that only this process sees, all zeros, and returns its address.
pub(crate) fn map_memory(bytes: usize) -> io::Result<u64> {
    // SAFETY: a new private anonymous mapping at an address of the kernel's
    // choice touches no memory that anything else uses; the arguments are
    // those that mmap(2) documents for it.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if bytes >= HUGE_PAGE {
        // SAFETY: the range is the mapping made above, which is ours alone.
        // This is only advice: a kernel without huge pages refuses it, which is fine.
        unsafe { libc::madvise(address, bytes, libc::MADV_HUGEPAGE) };
    }
    Ok(address as u64)
}

/// Unmaps memory of [`map_memory`].
///
/// # Safety
/// It was mapped with this address and size, nothing uses it, and this is done once.
pub(crate) unsafe fn unmap_memory(address: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How many bytes of memory of [`map_memory`] the system counts as used.
pub(crate) fn bytes_in_use(address: u64, bytes: u64) -> u64 {
    let mut pages = vec![0u8; PAGES_AT_ONCE];
    let mut used = 0;
    for offset in (0..bytes).step_by(PAGES_AT_ONCE * PAGE as usize) {
        let length = (bytes - offset).min(PAGES_AT_ONCE as u64 * PAGE);
        // SAFETY: asks about a range of a mapping of ours; one byte a page is
        // written, and the buffer has as many.
        let result = unsafe {
            libc::mincore(
                (address + offset) as *mut libc::c_void,
                length as usize,
                pages.as_mut_ptr(),
            )
        };
        // Pages that cannot be queried count as unused.
        if result == 0 {
            let asked = &pages[..length.div_ceil(PAGE) as usize];
            let there = asked.iter().filter(|page| **page & 1 != 0).count();
            used += there as u64 * PAGE;
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether this thread blocks the signal.
    fn blocks(signal: libc::c_int) -> bool {
        // SAFETY: all bytes zero are a valid `sigset_t`, which is written and read here; without a
        // new set the mask stays as it is.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask);
            libc::sigismember(&mask, signal) == 1
        }
    }

    #[test]
    fn signals_are_blocked_inside_alone_also_after_a_panic() {
        assert!(!blocks(libc::SIGUSR1));
        assert!(without_signals(|| blocks(libc::SIGUSR1)));
        assert!(!blocks(libc::SIGUSR1));
        let panicked = std::panic::catch_unwind(|| without_signals(|| panic!("inside")));
        assert!(panicked.is_err());
        assert!(!blocks(libc::SIGUSR1));
    }
}
