//! Forks: PyTorch's data loaders fork the process, with our locks and devices in it.
//!
//! Around a fork all our locks are held (`registry/fork_handlers.rs`). Without this a child
//! forked while another thread was inside would have a lock that nobody opens any more, and
//! half a change behind it.
//!
//! A runtime may fork too, inside a call of ours, to start a helper. That fork must not wait
//! for the lock that this very thread has; its child is about to become another program,
//! and never asks us for anything.

use crate::lock::{Guard, Lock};
use std::cell::Cell;

/// Held while the registry or an allocator is made: a child must not inherit half of one,
/// and the allocators after a fork must be those from before it.
static MAKING: Lock<()> = Lock::new(());

thread_local! {
    /// This thread holds `MAKING`, or is in a call of a runtime that may fork.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `make` while no other thread makes anything or forks.
pub(crate) fn making<T>(make: impl FnOnce() -> T) -> T {
    let _guard = MAKING.lock();
    forking_on_its_own(make)
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
