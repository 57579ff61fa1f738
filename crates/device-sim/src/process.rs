//! State of the process: whether it was forked from one that had used the
//! device; and messages.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(windows)]
use windows_sys::Win32::System::Threading::{GetCurrentProcess, TerminateProcess};

/// Whether the engine has been used yet.
static USED: AtomicBool = AtomicBool::new(false);

/// Set in a child of a process that had used the device: as with CUDA and HIP,
/// the child cannot use it.
static FORKED: AtomicBool = AtomicBool::new(false);

#[cfg(unix)]
/// Runs when the library is loaded, so that the child of a thread that forks while another one starts the
/// engine does not wait for that forever.
#[used]
// SAFETY: the section contains the addresses of functions that the loader calls, and
// this function needs nothing that is initialised later.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn watch_forks() {
        // SAFETY: the handler only loads and stores atomics, which is allowed in a child. If
        // there is no memory for it, tests of forked children fail; nothing else uses this.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    }
    watch_forks
};

#[cfg(unix)]
extern "C" fn after_fork() {
    if USED.load(Ordering::Relaxed) {
        FORKED.store(true, Ordering::Relaxed);
    }
}

/// Notes that this process uses the device.
pub(crate) fn mark_used() {
    USED.store(true, Ordering::Relaxed);
}

/// Whether this process is the child of one that had used the device. It must not wait for
/// locks.
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Writes a message to standard error, and ignores failures.
pub(crate) fn tell(message: &str) {
    let _ = writeln!(std::io::stderr(), "device-sim: {message}");
}

/// Writes a message and terminates the process.
pub(crate) fn stop(message: &str) -> ! {
    tell(message);
    #[cfg(unix)]
    // SAFETY: ends the process without running handlers, which may be what
    // called us; nothing after this point can observe broken state.
    unsafe {
        libc::_exit(2)
    }
    #[cfg(windows)]
    // SAFETY: likewise; the handle is that of this process.
    unsafe {
        TerminateProcess(GetCurrentProcess(), 2);
        std::process::abort()
    }
}
