//! The tests that need no process of their own: one program, so that it is linked once.

mod allocator_library;
mod checkpoint;
mod differentiable;
mod distributed;
mod linear;
mod optimizer;
mod products;
mod rccl;
mod runtime;
mod support;
