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
pub mod memory;

pub use bytes::Bytes;
