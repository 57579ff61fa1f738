#![doc = include_str!("../README.md")]
//!
//! # Overview
//!
//! ```text
//! ffi ──▶ registry ──▶ allocator ──▶ device_pools ──▶ pool (pure) ──▶ driver: host, sim, …
//!            │            (lock)
//!            └─▶ config, capacity (the machine's memory)
//! device_pools: the device's pool, and those for MemPools and captures of graphs
//! recorder: records a program's requests; snapshot: writes what is held
//! background_reclaim: a thread that returns kept memory when it is needed elsewhere or unused
//! other_processes: other processes with this library that use the same memory; turns: they allocate it one at a time
//! ```
//!
//! As a cdylib this is `libhip_alloc.so` (`include/hip_alloc.h`). Traces are read and
//! replayed by the crate `alloc-lab`.
//!
//! On Windows only what a replay needs is compiled: the pool, the simulated device and the formats. PyTorch
//! there is built with another compiler, whose C++ exceptions are incompatible with ours.

#![cfg_attr(
    not(unix),
    allow(
        dead_code,
        reason = "a replay needs a part of the pool that the library uses"
    )
)]

#[cfg(unix)]
pub mod allocator;
#[cfg(unix)]
pub mod background_reclaim;
#[cfg(unix)]
pub mod capacity;
pub mod config;
#[cfg(unix)]
mod deferred_errors;
#[cfg(unix)]
mod device_pools;
pub mod driver;
#[cfg(unix)]
pub mod ffi;
#[cfg(unix)]
mod fork;
#[cfg(unix)]
mod history;
#[cfg(unix)]
mod limit;
mod lock;
#[cfg(unix)]
mod other_processes;
pub mod pickle;
pub mod pool;
#[cfg(unix)]
mod python_stacks;
pub mod recorder;
#[cfg(unix)]
pub mod refusal;
#[cfg(unix)]
mod registry;
#[cfg(unix)]
mod report;
#[cfg(unix)]
mod shared_file;
#[cfg(unix)]
mod snapshot;
#[cfg(unix)]
mod turns;
pub mod units;
