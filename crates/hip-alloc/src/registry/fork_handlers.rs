//! The handlers that are called around every fork of the process.
//!
//! ```text
//!   before:  keep other threads from creating allocators, then take the lock of every allocator
//!   parent:  drop them
//!   child:   make each allocator usable in the new process, forget threads that were opening devices,
//!            drop the locks
//! ```

use super::existing;
use crate::allocator::Held;
use crate::fork::nothing_is_made;
use crate::lock::Guard;
use std::cell::Cell;
use std::mem::ManuallyDrop;

thread_local! {
    /// What `before` took, on the forking thread. It must not need dropping: a thread
    /// may fork at exit, when its thread-local variables are already gone.
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

/// Runs on the forking thread.
pub(crate) fn before() {
    let Some(_making) = nothing_is_made() else {
        return;
    };
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
        if let Some(registry) = existing() {
            registry.forked();
        }
    }
}

fn taken() -> Option<Everything> {
    ManuallyDrop::into_inner(HELD.replace(ManuallyDrop::new(None)))
}
