//! Forks: PyTorch's data loaders fork the process, with our locks and devices in it.
//!
//! ```text
//!   before:  take MAKING, then the lock of every allocator     (no other thread is inside)
//!   parent:  drop them
//!   child:   make each allocator fit for a process of its own, drop them
//! ```
//!
//! Without this a child forked while another thread was inside would have a lock that
//! nobody opens any more, and half a change behind it.
//!
//! A runtime may fork too, inside a call of ours, to start a helper. That fork must not wait
//! for the lock that this very thread has; its child is about to become another program,
//! and never asks us for anything.

use crate::allocator::Held;
use crate::lock::{Guard, Lock};
use crate::registry::existing;
use std::cell::Cell;
use std::mem::ManuallyDrop;

/// Held while the registry or an allocator is made: a child must not inherit half of one,
/// and the allocators after a fork must be those from before it.
static MAKING: Lock<()> = Lock::new(());

thread_local! {
    /// This thread holds `MAKING`, or is in a call of a runtime that may fork.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// What `before` took, on the thread that forks. Nothing that must be dropped: a thread
    /// may fork when its own variables are gone already, at exit.
    static HELD: Cell<ManuallyDrop<Option<Everything>>> =
        const { Cell::new(ManuallyDrop::new(None)) };
}

const _: () = assert!(!std::mem::needs_drop::<
    Cell<ManuallyDrop<Option<Everything>>>,
>());

/// All locks of the library. Fields are dropped in this order.
struct Everything {
    allocators: Vec<Held<'static>>,
    _making: Guard<'static, ()>,
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

/// Runs on the thread that forks.
pub(crate) fn before() {
    if INSIDE.get() {
        return;
    }
    let _making = MAKING.lock();
    let registry = existing().into_iter();
    let allocators = registry.flat_map(|registry| registry.all());
    let everything = Everything {
        allocators: allocators.map(|allocator| allocator.hold()).collect(),
        _making,
    };
    HELD.set(ManuallyDrop::new(Some(everything)));
}

/// Runs on the same thread, in the parent.
pub(crate) fn after_in_parent() {
    drop(taken());
}

/// Runs on the same thread, now the only one, in the child.
pub(crate) fn after_in_child() {
    if let Some(mut everything) = taken() {
        for allocator in &mut everything.allocators {
            allocator.adopt();
        }
    }
}

fn taken() -> Option<Everything> {
    ManuallyDrop::into_inner(HELD.replace(ManuallyDrop::new(None)))
}
