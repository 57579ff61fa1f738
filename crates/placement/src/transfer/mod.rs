//! The one verified copy: a tensor to the device or back, by the first strategy that works.
//!
//! | module | what it decides or does |
//! |---|---|
//! | [`engine`] | tries the strategies in order, verifies, retries, keeps the trace |
//! | [`strategy`] | which strategies there are, and when one makes no sense |
//! | [`verify`] | which arrivals are verified |
//! | [`checksum`] | what is compared |
//! | [`policy`], [`report`] | what callers ask for, and what they are told |
//! | [`transport`] | what the engine needs of a device |
//! | [`torch_transport`] | a device of libtorch |
//!
//! `docs/transfer.md` is the specification; `docs/transfer-vectors.json` has its test vectors.

pub mod checksum;
pub mod engine;
mod mapped;
pub mod policy;
pub mod report;
pub mod strategy;
pub mod torch_transport;
pub mod transport;
#[cfg(test)]
mod vectors;
pub mod verify;
mod watchdog;
