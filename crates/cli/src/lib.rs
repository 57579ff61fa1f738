//! What the two binaries of this package share: `surefoot` (`main.rs`) and
//! `surefoot-trainer` (`trainer.rs`).

pub mod cache;
pub mod link;
pub mod live;
pub mod notify;
pub mod output;
pub mod unsafe_gpu;

/// The release of PyTorch that the trainer is built for, and no other.
pub const TRAINER_TORCH: &str = "2.13.0";

/// A variable that names the library that the trainer loads before it asks libtorch for devices.
pub const DEVICE_LIBRARY: &str = "SUREFOOT_DEVICE_LIBRARY";
