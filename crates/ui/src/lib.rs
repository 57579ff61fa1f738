#![doc = include_str!("../README.md")]
//!
//! # How it is made
//!
//! ```text
//! run folders ──▶ runs     what a run is, how it stands, its curves, stopping and removing
//!                  ▲
//! job files ────▶ queue    runs to come, and the process that starts them
//!                  ▲
//! sysfs ────────▶ gpus     what the driver says of them now
//!                  ▲
//! a browser ──▶ server     who may ask, the routes, the page
//! ```

#![forbid(unsafe_code)]

pub mod gpus;
pub mod queue;
pub mod runs;
pub mod server;
