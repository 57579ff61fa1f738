//! What lives where when not everything fits: plans under a budget, phases, block swapping, running out of
//! memory.

pub mod oom;
pub mod phases;
pub mod plan;
pub mod swap;
