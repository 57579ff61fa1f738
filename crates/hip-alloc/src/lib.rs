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
//! On Windows it is `hip_alloc.dll`. `system`, `shared_file` and `ffi/cpp` have what differs between operating systems.

pub mod allocator;
pub mod background_reclaim;
pub mod capacity;
pub mod config;
mod deferred_errors;
mod device_pools;
pub mod driver;
pub mod ffi;
mod fork;
mod history;
mod limit;
mod lock;
mod other_processes;
pub mod pickle;
pub mod pool;
mod python_stacks;
pub mod recorder;
pub mod refusal;
mod registry;
mod report;
mod shared_file;
mod snapshot;
mod system;
mod turns;
pub mod units;
