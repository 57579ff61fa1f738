//! Forks: PyTorch's data loaders fork the process, with our locks and devices in it.
//!
//! Around a fork all our locks are held (`registry/fork_handlers.rs`). Without this a child
//! forked while another thread was inside would have a lock that nobody opens any more, and
//! half a change behind it.
//!
//! So whoever forks waits for whoever has one of our locks, and may do so in the constructor of
//! a library, where it has the loader's lock. What needs the loader is therefore done without a
//! lock that a fork waits for: finding a runtime and its functions, and its first calls, in which
//! runtimes load what they need. A child forked meanwhile has none of it, and does it again; only
//! a runtime that its parent began to use is not for it.
//!
//! A runtime may fork too, inside a call of ours, to start a helper. That fork must not wait
//! for the lock that this very thread has; its child is about to become another program,
//! and never asks us for anything.

use crate::lock::{Guard, Lock};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Held while the registry is made or an allocator put into it: a child must not inherit half of
/// one, and the allocators after a fork must be those from before it.
static MAKING: Lock<()> = Lock::new(());

/// How often a GPU runtime of this process was called to be used.
static RUNTIME_CALLED: AtomicUsize = AtomicUsize::new(0);
/// It was called before this process was forked from another one.
static RUNTIME_INHERITED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread holds `MAKING`, or is in a call of a runtime that may fork.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `make` while no other thread makes anything or forks. It calls neither the loader nor a
/// runtime.
pub(crate) fn making<T>(make: impl FnOnce() -> T) -> T {
    // In this order: a thread's first look at its variables may need the loader.
    forking_on_its_own(|| {
        let _guard = MAKING.lock();
        make()
    })
}

/// Runs `call`, which may fork without our locks: of these, this thread holds some.
pub(crate) fn forking_on_its_own<T>(call: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _restore = Restore(INSIDE.replace(true));
    call()
}

/// Keeps every thread from making anything until the guard is dropped; `None` where this
/// thread itself makes something, or is in a call of a runtime that forks.
pub(crate) fn nothing_is_made() -> Option<Guard<'static, ()>> {
    (!INSIDE.get()).then(|| MAKING.lock())
}

/// To be said before the first call of a GPU runtime. `false` in a child of a process that had
/// called it: no runtime works in both.
pub(crate) fn may_call_runtime() -> bool {
    if RUNTIME_INHERITED.load(Ordering::SeqCst) {
        return false;
    }
    RUNTIME_CALLED.fetch_add(1, Ordering::SeqCst);
    true
}

/// It has no device, so it is not used.
pub(crate) fn runtime_is_of_no_use() {
    RUNTIME_CALLED.fetch_sub(1, Ordering::SeqCst);
}

/// This process is a new one, forked from that which called the runtime, if it did.
pub(crate) fn runtime_is_the_parents() {
    let called = RUNTIME_CALLED.load(Ordering::SeqCst) > 0;
    RUNTIME_INHERITED.fetch_or(called, Ordering::SeqCst);
}

/// Lets one thread at a time open a device. No fork waits for that thread, so it may call
/// whatever it needs; a child, which does not have it, begins anew.
pub(crate) struct Opening(AtomicBool);

impl Opening {
    pub(crate) const fn new() -> Self {
        Opening(AtomicBool::new(false))
    }

    /// Runs `open` while no other thread does, here.
    pub(crate) fn alone<T>(&self, open: impl FnOnce() -> T) -> T {
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Release);
            }
        }
        while self.0.swap(true, Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _done = Done(&self.0);
        open()
    }

    /// The thread that opens is not in this process, a forked child.
    pub(crate) fn forget(&self) {
        self.0.store(false, Ordering::Release);
    }
}
