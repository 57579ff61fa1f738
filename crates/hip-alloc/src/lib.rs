#![doc = include_str!("../README.md")]
//!
//! # How it is made
//!
//! ```text
//! ffi ──▶ registry ──▶ allocator ──▶ pool (pure) ──▶ driver: host, sim, …
//!            │            (lock)
//!            └─▶ config, capacity (what this machine has)
//! private_pools: the program's own, beside that of the device, and captures of graphs
//! recorder: writes what a program asked for; snapshot: writes what is held
//! background_reclaim: a thread that gives kept memory back when it is needed or unused
//! other_processes: other processes with this library that use the same memory
//! ```
//!
//! As a cdylib this is `libhip_alloc.so` (`include/hip_alloc.h`). Traces are read and
//! replayed by the crate `alloc-lab`.

pub mod allocator;
pub mod background_reclaim;
pub mod capacity;
pub mod config;
mod deferred_errors;
pub mod driver;
pub mod ffi;
mod fork;
mod history;
mod limit;
mod lock;
mod other_processes;
pub mod pickle;
pub mod pool;
mod private_pools;
mod python_stacks;
pub mod recorder;
pub mod refusal;
mod registry;
mod report;
mod snapshot;
pub mod units;
