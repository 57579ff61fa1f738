//! Tensors and modules onto the device step by step, verified, with fallback.

mod bytes;
pub mod checksum;
pub mod transport;

pub use bytes::{Bytes, NotASize};
