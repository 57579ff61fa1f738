//! Allocation traces: reading, writing, making and replaying them.

pub mod format;
pub mod peers;
pub mod pickle;
pub mod record;
pub mod replay;
pub mod snapshot;
pub mod synthetic;
