#![doc = include_str!("../README.md")]
//!
//! # Overview
//!
//! ```text
//! the recorder's text ───────┐          ┌─▶ replay     a policy of `hip-alloc` on its simulated driver: what is held,
//! PyTorch's snapshot, pickle ┼─▶ Trace ─┤              compared with the bounds
//! synthetic ─────────────────┘          └─▶ baselines  what PyTorch's own allocators would hold
//! ```
//!
//! [`policies`] is the place to try another placement policy; CONTRIBUTING.md explains how.

pub mod baselines;
pub mod pickle;
pub mod policies;
pub mod replay;
pub mod synthetic;
pub mod trace;
