//! Allocation traces: reading, writing, making and replaying them.

pub mod format;
pub mod peers;
pub mod record;
pub mod replay;
pub mod synthetic;
