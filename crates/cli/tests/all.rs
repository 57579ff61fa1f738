//! `surefoot` and `surefoot-trainer` as people and programs meet them: one program, so that it is linked once.

// Its name in its own tests, of which `try_it` has a part.
#[cfg(feature = "torch")]
extern crate trainer as surefoot_trainer;

mod common;
#[cfg(feature = "torch")]
mod hub;
#[cfg(all(feature = "torch", unix))]
mod import;
#[cfg(all(feature = "torch", target_os = "linux"))]
mod memory;
#[cfg(feature = "torch")]
mod models;
#[cfg(all(feature = "torch", target_os = "linux"))]
mod notify;
#[cfg(all(feature = "torch", target_os = "linux"))]
mod queue;
#[cfg(all(feature = "torch", unix))]
mod ranks;
mod tools;
#[cfg(all(feature = "torch", target_os = "linux"))]
mod trackers;
#[cfg(feature = "torch")]
mod train;
#[cfg(feature = "torch")]
mod try_it;
#[cfg(feature = "torch")]
mod video_memory;
