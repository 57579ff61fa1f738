//! Devices with faults to order, and what the [`TransferEngine`](crate::TransferEngine) makes of each fault.
//!
//! For this crate's tests, for those of crates that use it, and for `surefoot probe --placement`.

pub mod fake;
pub mod matrix;
