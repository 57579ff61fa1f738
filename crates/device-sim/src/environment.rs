//! Settings from the environment, and the path for the report.

use crate::process::stop;
use crate::settings::{self, KEYS, Setting};

/// The prefix of all variables.
const PREFIX: &str = "DEVICE_SIM_";

/// Where to write the report at exit.
pub(crate) const REPORT: &str = "DEVICE_SIM_REPORT";
/// Faults between processes (`api/rccl.rs`).
pub(crate) const RCCL: &str = "DEVICE_SIM_RCCL";

/// The settings in the environment. An invalid one terminates the program:
/// a test that relies on a fault must not run without it.
pub(crate) fn settings_from_environment() -> Vec<Setting> {
    let mut settings = Vec::new();
    for (name, value) in std::env::vars_os() {
        // A name that is not UTF-8 is not ours, and a value that is not UTF-8 is invalid for every setting.
        let (Some(name), value) = (name.to_str(), value.to_string_lossy()) else {
            continue;
        };
        let Some(key) = name
            .strip_prefix(PREFIX)
            .filter(|_| ![REPORT, RCCL].contains(&name))
        else {
            continue;
        };
        let key = key.to_ascii_lowercase();
        match KEYS
            .contains(&key.as_str())
            .then(|| settings::parse(&key, &value))
        {
            Some(Ok(setting)) => settings.push(setting),
            Some(Err(problem)) => stop(&format!("{name}: {problem}")),
            None => stop(&format!("{name}: unknown; known are {}", KEYS.join(", "))),
        }
    }
    settings
}
