//! A device-memory allocator for PyTorch on HIP that holds what is live, and nothing else.
//!
//! ```text
//! ffi ──▶ registry ──▶ allocator ──▶ pool (pure) ──▶ driver: host, sim, …
//!            │            (lock)
//!            └─▶ config, capacity (what this machine has)
//! trace: recording, reading and replaying what a program asked for
//! ```
//!
//! As a cdylib this is `libhip_alloc.so` (`include/hip_alloc.h`); as an rlib it
//! gives the trace tools to the command line.

pub mod allocator;
pub mod capacity;
pub mod config;
pub mod driver;
pub mod ffi;
mod fork;
mod history;
mod limit;
mod lock;
pub mod pool;
pub mod refusal;
mod registry;
mod report;
mod snapshot;
pub mod trace;
pub mod units;
