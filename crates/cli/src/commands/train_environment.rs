//! The variables that this machine needs, for our own training.
//!
//! The HIP runtime reads most of them once, while it is loaded, and other threads may read
//! the environment at any time: setting them in a process that runs is too late and unsafe.
//! So the trainer starts itself anew with them, before anything has touched a GPU. Signals,
//! terminal and exit code stay those of one process.

use doctor::plan::{VISIBILITY, Variable, plan};
use platform::Machine;
use std::process::Command;
use surefoot_cli::live::{self, Python};

/// Tells the second start from the first.
const STARTED: &str = "SUREFOOT_ENVIRONMENT";

/// Starts this process anew when the device of the config needs variables that are not set.
/// Returns when nothing is needed, or when it cannot be done, which is said.
pub(crate) fn apply(device: &str) {
    if device == "cpu" || std::env::var_os(STARTED).is_some() {
        return;
    }
    let needed = needed(&live::machine(&Python::Skip), device);
    if needed.is_empty() {
        return;
    }
    for Variable { name, value, why } in &needed {
        eprintln!("surefoot: set {name}={value}: {why}");
    }
    let error = match std::env::current_exe() {
        Ok(program) => start(program, &needed),
        Err(error) => error,
    };
    eprintln!("surefoot: cannot start anew with them ({error}); going on without");
}

/// What the plan sets. Who names a GPU by number counts all of them: hiding one would
/// make it another.
fn needed(machine: &Machine, device: &str) -> Vec<Variable> {
    let is_numbered = device.starts_with("gpu:");
    let mut needed = plan(machine).variables;
    needed.retain(|variable| !is_numbered || !VISIBILITY.contains(&variable.name.as_str()));
    needed
}

/// Returns only when it fails.
fn start(program: std::path::PathBuf, variables: &[Variable]) -> std::io::Error {
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(STARTED, "1");
    for variable in variables {
        command.env(&variable.name, &variable.value);
    }
    #[cfg(unix)]
    return std::os::unix::process::CommandExt::exec(&mut command);
    #[cfg(not(unix))]
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_named_by_number_keeps_it() {
        let dump = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../doctor/tests/fixtures/synthetic/kfd_gfx1201_plus_gfx1036.txt"
        );
        let text = std::fs::read_to_string(dump).expect("a fixture");
        let machine = doctor::dump::read(&text).expect("a machine");
        let names = |device| -> Vec<String> {
            needed(&machine, device)
                .into_iter()
                .map(|variable| variable.name)
                .collect()
        };
        assert_eq!(names("auto"), ["ROCR_VISIBLE_DEVICES"]);
        assert_eq!(names("gpu:1"), [] as [&str; 0]);
    }
}
