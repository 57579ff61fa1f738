//! Forks: PyTorch's data loaders fork the process, with our locks and devices in it.
//!
//! All our locks are held around a fork (`registry/fork_handlers.rs`). Otherwise a child that
//! is forked while another thread is inside would have a lock that is never released, and
//! inconsistent data.
//!
//! So a forking thread waits for the holders of our locks, possibly in the constructor of
//! a library while it holds the loader's lock. What needs the loader is therefore done without a
//! lock that a fork waits for: finding a runtime and its functions, and its first calls, in which
//! runtimes load what they need. A child that is forked meanwhile has none of it, and repeats it; only
//! a runtime that its parent has begun to use must not be used in the child.
//!
//! A runtime may fork too, inside a call of ours, to start a helper. That fork must not wait
//! for a lock that the same thread holds; its child is about to execute another program,
//! and never calls us.

#[cfg(unix)]
use crate::lock::Guard;
use crate::lock::Lock;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Held while the registry is created or an allocator added to it: a child must not inherit an incomplete
/// one, and the allocators after a fork must be those from before it.
static MAKING: Lock<()> = Lock::new(());

/// How often a GPU runtime of this process was called.
static RUNTIME_CALLED: AtomicUsize = AtomicUsize::new(0);
/// Whether it was called before this process was forked.
static RUNTIME_INHERITED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread holds `MAKING`, or is in a call of a runtime that may fork.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `make` while no other thread does or forks. It must call neither the loader nor a
/// runtime.
pub(crate) fn making<T>(make: impl FnOnce() -> T) -> T {
    // In this order: the first access to thread-local variables may need the loader.
    forking_on_its_own(|| {
        let _guard = MAKING.lock();
        make()
    })
}

/// Calls `call`, which may fork without taking our locks, since this thread holds some.
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

#[cfg(unix)]
/// Keeps every thread from calling `make` until the guard is dropped; `None` if this
/// thread itself does, or is in a call of a runtime that forks.
pub(crate) fn nothing_is_made() -> Option<Guard<'static, ()>> {
    (!INSIDE.get()).then(|| MAKING.lock())
}

/// To be called before the first call of a GPU runtime. `false` in a child of a process that has
/// called it: no runtime works in both.
pub(crate) fn may_call_runtime() -> bool {
    if RUNTIME_INHERITED.load(Ordering::SeqCst) {
        return false;
    }
    RUNTIME_CALLED.fetch_add(1, Ordering::SeqCst);
    true
}

/// To be called if the runtime has no device, so that it is not used.
pub(crate) fn runtime_is_of_no_use() {
    RUNTIME_CALLED.fetch_sub(1, Ordering::SeqCst);
}

#[cfg(unix)]
/// To be called in a forked child: the runtime belongs to the parent, if that has called it.
pub(crate) fn runtime_is_the_parents() {
    let called = RUNTIME_CALLED.load(Ordering::SeqCst) > 0;
    RUNTIME_INHERITED.fetch_or(called, Ordering::SeqCst);
}

/// Lets one thread at a time open a device. No fork waits for that thread, so it may call
/// whatever it needs; in a child it does not exist, and opening starts again.
pub(crate) struct Opening(AtomicBool);

impl Opening {
    pub(crate) const fn new() -> Self {
        Opening(AtomicBool::new(false))
    }

    /// Calls `open` while no other thread of this process does.
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

    #[cfg(unix)]
    /// To be called in a forked child, in which the opening thread does not exist.
    pub(crate) fn forget(&self) {
        self.0.store(false, Ordering::Release);
    }
}
