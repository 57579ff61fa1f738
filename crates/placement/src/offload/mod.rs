//! What is where when not everything fits: plans under a budget, phases, block swapping, out of memory.

pub mod oom;
pub mod phases;
pub mod plan;
pub mod profile;
pub mod swap;
