#![doc = include_str!("../README.md")]
//!
//! # Overview
//!
//! ```text
//! run folders ──▶ runs     a run: its status, its curves, stopping and removing it
//!                  ▲
//! job files ────▶ queue    runs to come, and the process that starts them
//!                  ▲
//! sysfs ────────▶ gpus     the current state of the GPUs
//!                  ▲
//! a browser ──▶ server     access control, the routes, the page
//! ```

#![cfg_attr(not(windows), forbid(unsafe_code))]

pub mod gpus;
pub mod queue;
pub mod runs;
pub mod server;
