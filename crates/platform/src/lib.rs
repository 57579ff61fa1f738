#![doc = include_str!("../README.md")]
//!
//! # Overview
//!
//! The lowest crate of the workspace: every other crate may use it, and it uses none of them.
//! It calls no driver. The kernel publishes what it needs as text, so a machine is a
//! [`Snapshot`] of small files, from which all facts are derived:
//!
//! ```text
//! this machine ──[source]──▶ Snapshot ──[detect]──▶ Machine ──[memory]──▶ Capacity
//! ```
//!
//! Reading goes through the [`source::Source`] trait; everything after it is a pure
//! function, so any machine can be described in a test.

#![forbid(unsafe_code)]

pub mod bytes;
pub mod describe;
pub mod detect;
pub mod device_error;
pub mod files;
pub mod gfx;
pub mod hipinfo;
#[cfg(feature = "live")]
pub mod live;
pub mod machine;
pub mod memory;
#[cfg(feature = "network")]
pub mod network;
pub mod oom_message;
pub mod pci;
pub mod python;
pub mod python_source;
pub mod requests;
pub mod rocm_libraries;
pub mod snapshot;
pub mod source;
pub mod timings;
pub mod wheels;
pub mod windows_source;

pub use bytes::Bytes;
pub use gfx::Gfx;
pub use machine::Machine;
pub use snapshot::Snapshot;
