//! What the two binaries of this package share: `surefoot` (`main.rs`) and
//! `surefoot-trainer` (`trainer.rs`).

pub mod cache;
pub mod link;
pub mod live;
pub mod notify;
pub mod output;
pub mod unsafe_gpu;

/// The release of PyTorch that the trainer of this build is for, and no other; where there is none, the one
/// that a trainer without a release in its name is for.
pub const TRAINER_TORCH: &str = env!("SUREFOOT_TRAINER_TORCH");

/// The releases of PyTorch for which the trainer's wheel has one, the newest first.
pub const TRAINER_RELEASES: [&str; 2] = ["2.15.0", "2.13.0"];

/// A variable that names the library that the trainer loads before it asks libtorch for devices.
pub const DEVICE_LIBRARY: &str = "SUREFOOT_DEVICE_LIBRARY";
