//! The tests that need no process of their own: one program, so that it is linked once.

mod allocator_library;
mod checkpoint;
mod differentiable;
#[cfg(not(bridge))]
mod distributed;
mod fake;
mod linear;
mod optimizer;
#[cfg(not(bridge))]
mod products;
#[cfg(not(bridge))]
mod rccl;
mod runtime;
mod support;
