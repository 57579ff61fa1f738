//! Verified transfers: a tensor to the device or back, with the first strategy that works.
//!
//! | module | purpose |
//! |---|---|
//! | [`engine`] | tries the strategies in order, verifies, retries, records the trace |
//! | [`strategy`] | the strategies, and when one is skipped |
//! | [`verify`] | which transfers are verified |
//! | [`checksum`] | what is compared |
//! | [`policy`], [`report`] | input and output of the engine |
//! | [`transport`] | what the engine needs from a device |
//! | [`torch_transport`] | a libtorch device |
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
