//! The tests that need no process of their own: one program, so that it is linked once.

mod background_reclaim;
mod c_abi;
mod common;
mod gpu;
mod hostile_programs;
#[cfg(target_os = "linux")]
mod memory_group;
#[cfg(target_os = "linux")]
mod memory_limit;
mod pool_model;
mod pool_streams;
