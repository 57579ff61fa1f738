//! What machine is this: facts, findings, environment and error explanations from text alone.
//!
//! Nothing in this crate asks a driver. It reads what the kernel publishes as text
//! (or what somebody pasted into a bug report) and decides from that:
//!
//! ```text
//! live machine ─┐                       ┌─▶ findings    what, why, how to mend it, source
//!               ├─▶ Snapshot ─▶ Machine ┼─▶ environment  the variables this machine needs
//! a dump ───────┘   (text)     (facts)  └─▶ report      for people, programs and bug reports
//! ```
//!
//! Every arrow is a pure function except the first, and that one goes through a
//! small trait, so that any machine can be described in a test.

#![forbid(unsafe_code)]

pub mod bytes;
mod describe;
pub mod detect;
pub mod dump;
pub mod explain;
pub mod findings;
pub mod gfx;
pub mod machine;
pub mod memory;
mod names;
pub mod pci;
mod plain;
pub mod plan;
pub mod python;
pub mod python_source;
pub mod report;
pub mod snapshot;
pub mod source;
pub mod wheels;

pub use bytes::Bytes;
pub use gfx::Gfx;
pub use machine::Machine;
pub use snapshot::Snapshot;
