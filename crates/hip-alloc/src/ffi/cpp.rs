//! What speaks C++ to PyTorch: exceptions, its profiler, and the functions by which it directs requests to pools.
//!
//! On Linux this is C++ (`cpp/`). On Windows PyTorch is built with Microsoft's compiler (or with clang for the same
//! binary interface), whose classes and exceptions are not those of the C++ compiler that comes with Rust's toolchain; so
//! there it is Rust that follows that interface.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(super) use unix::*;
#[cfg(windows)]
pub(super) use windows::*;
