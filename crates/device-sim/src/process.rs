//! What the simulator knows of its process: whether it is a fork of one that had used the
//! device, and whom to tell.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether anybody asked for the engine yet.
static USED: AtomicBool = AtomicBool::new(false);

/// Set in a child of a process that had used the device: as with CUDA and HIP,
/// the child cannot use it any more.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Runs when the library is loaded: a thread that forks while another one starts the
/// engine must not leave a child that waits for the start to end.
#[used]
// SAFETY: the section holds the addresses of functions that the loader calls, of which
// this is one; what it does needs nothing that is set up later.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn watch_forks() {
        // SAFETY: the handler only loads and stores atomics, which is allowed in a child. Where
        // there is no memory for it, tests of forked children fail; nothing else uses this.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    }
    watch_forks
};

extern "C" fn after_fork() {
    if USED.load(Ordering::Relaxed) {
        FORKED.store(true, Ordering::Relaxed);
    }
}

/// Notes that this process uses the device.
pub(crate) fn mark_used() {
    USED.store(true, Ordering::Relaxed);
}

/// Whether this process is the child of one that had used the device. No lock may be waited
/// for in it.
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Writes a message to standard error, where somebody may or may not listen.
pub(crate) fn tell(message: &str) {
    let _ = writeln!(std::io::stderr(), "device-sim: {message}");
}

/// Writes a message and ends the process.
pub(crate) fn stop(message: &str) -> ! {
    tell(message);
    // SAFETY: ends the process without running handlers, which may be what
    // called us; nothing after this point can observe broken state.
    unsafe { libc::_exit(2) }
}
