//! What the two binaries of this package share: `surefoot` (`main.rs`) and
//! `surefoot-trainer` (`trainer.rs`).

use std::ffi::OsString;
use std::path::PathBuf;

pub mod cache;
pub mod link;
pub mod live;
pub mod notify;
pub mod output;
pub mod unsafe_gpu;
#[cfg(windows)]
pub mod windows;

/// The release of PyTorch that the trainer of this build is for, and no other; where there is none, the one
/// that a trainer without a release in its name is for.
pub const TRAINER_TORCH: &str = env!("SUREFOOT_TRAINER_TORCH");

/// The releases of PyTorch for which the trainer's wheel has one, the newest first.
pub const TRAINER_RELEASES: [&str; 2] = ["2.15.0", "2.13.0"];

/// A variable that names the program that had Python load the trainer, where it is a library.
pub const LAUNCHER: &str = "SUREFOOT_LAUNCHER";

/// How many arguments Python has before those of the trainer: `-c`, a program and the library.
const OF_PYTHON: usize = 3;

/// The trainer once more: the program, and the arguments that it has here. Where it is a library in a Python, that is
/// the program which started that Python.
///
/// # Errors
/// If the system does not tell which program this is.
pub fn itself() -> std::io::Result<(PathBuf, impl Iterator<Item = OsString>)> {
    let launcher = std::env::var_os(LAUNCHER).map(PathBuf::from);
    let skipped = 1 + launcher.as_ref().map_or(0, |_| OF_PYTHON);
    let program = launcher.map_or_else(std::env::current_exe, Ok)?;
    Ok((program, std::env::args_os().skip(skipped)))
}

/// A variable that names the library that the trainer loads before it asks libtorch for devices.
pub const DEVICE_LIBRARY: &str = "SUREFOOT_DEVICE_LIBRARY";
