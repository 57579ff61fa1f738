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

use crate::allocator::Held;
use crate::lock::{Guard, Lock};
use crate::registry::existing;
use std::cell::{Cell, RefCell};

/// Held while the registry or an allocator is made: a child must not inherit half of one,
/// and the allocators after a fork must be those from before it.
static MAKING: Lock<()> = Lock::new(());

thread_local! {
    /// This thread holds `MAKING`.
    static MAKES: Cell<bool> = const { Cell::new(false) };
    /// What `before` took, on the thread that forks.
    static HELD: RefCell<Option<Everything>> = const { RefCell::new(None) };
}

/// All locks of the library. Fields are dropped in this order.
struct Everything {
    allocators: Vec<Held<'static>>,
    _making: Guard<'static, ()>,
}

/// Runs `make` while no other thread makes anything or forks.
pub(crate) fn making<T>(make: impl FnOnce() -> T) -> T {
    struct Makes;
    impl Drop for Makes {
        fn drop(&mut self) {
            MAKES.set(false);
        }
    }
    let _guard = MAKING.lock();
    MAKES.set(true);
    let _makes = Makes;
    make()
}

/// Runs on the thread that forks.
pub(crate) fn before() {
    // A runtime that forks while we open it (to start a helper) must not wait for us.
    if MAKES.get() {
        return;
    }
    let _making = MAKING.lock();
    let registry = existing().into_iter();
    let allocators = registry.flat_map(|registry| registry.all());
    let everything = Everything {
        allocators: allocators.map(|allocator| allocator.hold()).collect(),
        _making,
    };
    HELD.set(Some(everything));
}

/// Runs on the same thread, in the parent.
pub(crate) fn after_in_parent() {
    HELD.take();
}

/// Runs on the same thread, now the only one, in the child.
pub(crate) fn after_in_child() {
    if let Some(mut everything) = HELD.take() {
        for allocator in &mut everything.allocators {
            allocator.adopt();
        }
    }
}
