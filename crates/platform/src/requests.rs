//! What others ask of a run on Windows, which has no signals and does not tell who holds a lock.

use std::io;
use std::path::Path;

/// A variable with the number of the process that a run is known by: the one that started Python, which ends with it.
pub const PROCESS: &str = "SUREFOOT_PROCESS";

/// The file in a run's folder with that number.
pub const HOLDER: &str = ".process";

/// The exit code of a program that Ctrl-C has ended.
pub const ENDED_BY_CTRL_C: u32 = 0xC000_013A;

/// What a run is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// To finish its step, save and end; the second time, to end at once.
    Stop,
    /// A checkpoint after the current step.
    Save,
    /// Samples after the current step.
    Sample,
}

impl Request {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Stop, Self::Save, Self::Sample];

    /// The event that asks the run of this process for it, in whichever session of Windows who asks is.
    pub fn event(self, process: u32) -> String {
        format!(r"Global\surefoot-{process}-{self:?}")
    }
}

/// The number of the process that the run of this one is known by.
pub fn process() -> u32 {
    let told = std::env::var(PROCESS).ok();
    told.and_then(|number| number.parse().ok())
        .unwrap_or_else(std::process::id)
}

/// Writes down who trains in a folder, where the system does not tell.
///
/// # Errors
/// If that cannot be written.
pub fn note_holder(folder: &Path) -> io::Result<()> {
    match cfg!(windows) {
        true => std::fs::write(folder.join(HOLDER), process().to_string()),
        false => Ok(()),
    }
}
