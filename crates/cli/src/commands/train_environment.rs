//! Sets the variables that this machine needs, for our own training.
//!
//! The HIP runtime reads most of them once, while it is loaded, and other threads may read the environment at any time:
//! setting them in a running process is too late and unsafe. So the trainer restarts itself with them, before anything
//! has touched a GPU. Signals, terminal and exit code are those of one
//! process.

use doctor::plan::{AOTRITON, AOTRITON_CHECK, VISIBILITY, Variable, attention_is_untried, plan};
use platform::Machine;
use std::io::{Seek as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use surefoot_cli::live::{self, Python};

/// What stdin had, once it was read.
static STDIN: OnceLock<String> = OnceLock::new();

/// The text on stdin, which is read once, and handed on to the process that this one becomes.
pub(crate) fn stdin() -> std::io::Result<String> {
    if let Some(text) = STDIN.get() {
        return Ok(text.clone());
    }
    let text = std::io::read_to_string(std::io::stdin())?;
    Ok(STDIN.get_or_init(|| text).clone())
}

/// Reads a number of processes.
pub(crate) fn processes(text: &str) -> Result<u32, String> {
    let number = text.parse().ok();
    match number.filter(|number| (1..=1024).contains(number)) {
        None => Err("give a number from 1 to 1024".into()),
        Some(2..) if cfg!(not(unix)) => {
            Err("training in several processes is for Linux: remove it".into())
        }
        Some(number) => Ok(number),
    }
}

/// Marks the restarted process.
const STARTED: &str = "SUREFOOT_ENVIRONMENT";

/// Restarts this process if the config's device needs variables that are not set, or `tuned` ones are not. Returns if nothing
/// is needed, or if that fails, which is reported.
pub(crate) fn apply(device: &str, tuned: Vec<Variable>) {
    if is_restarted() {
        return;
    }
    let mut needed = Vec::new();
    if device != "cpu" {
        let machine = live::machine(&Python::Skip);
        needed = self::needed(&machine, device);
        if !machine.gpus.is_empty() && !needed.iter().any(|variable| variable.name == AOTRITON) {
            needed.extend(attention());
        }
    }
    needed.extend(tuned);
    if needed.is_empty() {
        return;
    }
    for Variable { name, value, why } in &needed {
        eprintln!("surefoot: set {name}={value}: {why}");
    }
    let error = start(&needed);
    eprintln!("surefoot: cannot restart with them ({error}); continuing without");
}

/// Whether this process was restarted by [`apply`].
pub(crate) fn is_restarted() -> bool {
    std::env::var_os(STARTED).is_some()
}

/// The switch of attention's fast kernels, if they are right on this GPU with this PyTorch, which is tried once.
fn attention() -> Option<Variable> {
    let mut machine = live::machine(&Python::Active);
    if attention_is_untried(&machine) {
        eprintln!(
            "surefoot: trying AOTriton's kernels for attention on this GPU, once for it and this PyTorch"
        );
        let (program, _) = surefoot_cli::itself().ok()?;
        let name = format!("surefoot{}", std::env::consts::EXE_SUFFIX);
        let beside = program.with_file_name(&name);
        // Its own process: a kernel that is not for this GPU may end it.
        let tried = Command::new(if beside.is_file() {
            beside
        } else {
            name.into()
        })
        .args(["probe", "--only", AOTRITON_CHECK])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
        if let Err(error) = tried {
            eprintln!(
                "surefoot: `surefoot probe` cannot be started ({error}); attention stays as it is"
            );
            return None;
        }
        machine = live::machine(&Python::Active);
        if machine.probed.get(AOTRITON_CHECK) == Some(&false) {
            eprintln!("surefoot: they fail or are wrong here, and stay off");
        }
    }
    let mut variables = plan(&machine).variables.into_iter();
    variables.find(|variable| variable.name == AOTRITON)
}

/// The variables from the plan. If the device is a GPU by number, no GPU may be hidden: that would change the
/// numbers.
fn needed(machine: &Machine, device: &str) -> Vec<Variable> {
    let is_numbered = device.starts_with("gpu:");
    let mut needed = plan(machine).variables;
    needed.retain(|variable| !is_numbered || !VISIBILITY.contains(&variable.name.as_str()));
    needed
}

/// A file without a name that has this text.
fn again(text: &str) -> std::io::Result<std::fs::File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Returns only if it fails.
fn start(variables: &[Variable]) -> std::io::Error {
    let (program, arguments) = match surefoot_cli::itself() {
        Ok(itself) => itself,
        Err(error) => return error,
    };
    let mut command = Command::new(program);
    command.args(arguments).env(STARTED, "1");
    if let Some(text) = STDIN.get() {
        match again(text) {
            Ok(file) => drop(command.stdin(file)),
            Err(error) => return error,
        }
    }
    for variable in variables {
        command.env(&variable.name, &variable.value);
    }
    #[cfg(unix)]
    return std::os::unix::process::CommandExt::exec(&mut command);
    #[cfg(windows)]
    match surefoot_cli::windows::stand_in(&mut command) {
        Ok(code) => std::process::exit(code),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_selected_by_number_keeps_it() {
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
