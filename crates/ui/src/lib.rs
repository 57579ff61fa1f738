#![doc = include_str!("../README.md")]
//!
//! # How it is made
//!
//! ```text
//! run folders ──▶ runs     what a run is, how it stands, its curves, stopping and removing
//!                  ▲
//! job files ────▶ queue    runs to come, and the process that starts them
//!                  ▲
//! a browser ──▶ server     who may ask, the routes, the page
//! ```

#![forbid(unsafe_code)]

pub mod queue;
pub mod runs;
pub mod server;
