//! A transport with fault injection, and how the [`TransferEngine`](crate::TransferEngine) handles each fault.
//!
//! For the tests of this crate and its users, and for `surefoot probe --placement`.

mod fault;
mod faulty;
pub mod matrix;

pub use fault::Fault;
pub use faulty::{FaultInjection, FaultyHost, FaultyTransport, bytes_of};
