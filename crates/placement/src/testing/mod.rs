//! Devices with fault injection, and how the [`TransferEngine`](crate::TransferEngine) handles each fault.
//!
//! For the tests of this crate and its users, and for `surefoot probe --placement`.

pub mod fake;
pub mod matrix;
