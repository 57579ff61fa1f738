#![doc = include_str!("../README.md")]
//!
//! # How it is made
//!
//! ```text
//! the recorder's text ───────┐          ┌─▶ replay     a policy of `hip-alloc` on its simulated driver: what is held,
//! PyTorch's snapshot, pickle ┼─▶ Trace ─┤              beside the bounds that it is held to
//! synthetic ─────────────────┘          └─▶ baselines  what PyTorch's own allocators would hold
//! ```
//!
//! [`policies`] is where another placement policy is tried; CONTRIBUTING.md says how.

pub mod baselines;
pub mod pickle;
pub mod policies;
pub mod replay;
pub mod synthetic;
pub mod trace;
