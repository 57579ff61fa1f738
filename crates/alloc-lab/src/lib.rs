#![doc = include_str!("../README.md")]
//!
//! # Overview
//!
//! ```text
//! the recorder's text ───────┐          ┌─▶ replay     `hip-alloc` on its simulated driver: what is held,
//! PyTorch's snapshot, pickle ┼─▶ Trace ─┤              compared with the bounds
//! synthetic ─────────────────┘          └─▶ baselines  what PyTorch's own allocators would hold
//! ```

pub mod baselines;
pub mod pickle;
pub mod replay;
pub mod synthetic;
pub mod trace;
