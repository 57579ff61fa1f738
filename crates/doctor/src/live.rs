//! The machine that this process runs on, with its Python environment.

use crate::probe_cache;
use platform::live::Live;
use platform::python::Build;
use platform::python_source::collect_python;
use platform::source::collect;
use platform::{Machine, Snapshot};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use wait_timeout::ChildExt;

/// Which Python to look at.
#[derive(Clone, Debug, Default)]
pub enum Python {
    /// None: everything else takes a few milliseconds.
    Skip,
    /// The active one.
    #[default]
    Active,
    /// This interpreter, or this environment.
    At(String),
}

/// Reads this machine. `cache` is a folder for what takes long to read, and where
/// `surefoot probe` keeps its results; without one, nothing is written.
///
/// Starts nothing but, for a ROCm build of torch that does not tell otherwise for which
/// GPUs it was built, that Python (20 seconds at most).
#[must_use]
pub fn snapshot(python: &Python, cache: Option<PathBuf>) -> Snapshot {
    let source = Live {
        cache: cache.as_ref().map(|folder| folder.join("words")),
    };
    let mut snapshot = collect(&source);
    let wanted = match python {
        Python::Skip => return snapshot,
        Python::Active => None,
        Python::At(path) => Some(path.as_str()),
    };
    if let Some(prefix) = collect_python(&source, wanted, &mut snapshot) {
        ask_torch(&prefix, &mut snapshot);
        let machine = platform::detect::machine(&snapshot);
        let results = cache.map_or(String::new(), |folder| probe_results(&machine, &folder));
        if !results.is_empty() {
            snapshot.insert_text("surefoot/probed", results);
        }
    }
    snapshot
}

/// What an earlier `surefoot probe` found for the GPU that is picked, and this torch: the
/// lines of [`probe_cache`], empty when there was none.
#[must_use]
pub fn probe_results(machine: &Machine, cache: &std::path::Path) -> String {
    let picked = crate::plan::plan(machine).pick;
    let gfx = picked.and_then(|index| machine.gpus.get(index)?.gfx);
    let python = machine.python.as_ref();
    match (gfx, python.and_then(|python| python.torch.as_ref())) {
        (Some(gfx), Some(torch)) => probe_cache::read(cache, &gfx.to_string(), &torch.version),
        _ => String::new(),
    }
}

/// The last resort for the architectures of a ROCm wheel: torch itself, in a process
/// that may crash or hang.
fn ask_torch(prefix: &str, snapshot: &mut Snapshot) {
    let machine = platform::detect::machine(snapshot);
    let torch = machine.python.and_then(|python| python.torch);
    if torch.is_none_or(|torch| torch.build != Build::Rocm || torch.architectures.is_some()) {
        return;
    }
    const QUESTION: &str =
        "import torch; print(*torch.cuda.get_arch_list(), torch._C._cuda_getArchFlags())";
    let mut command = Command::new(format!("{prefix}/bin/python"));
    command.args(["-c", QUESTION]);
    if let Some(answer) = output_within(command, Duration::from_secs(20)) {
        snapshot.insert_text("python/torch/arch_list", answer);
    }
}

/// What a command prints, if it ends well and in time.
fn output_within(mut command: Command, limit: Duration) -> Option<String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let Ok(Some(status)) = child.wait_timeout(limit) else {
        // It hangs, or cannot be waited for; either way there is no answer.
        let _ = child.kill();
        let _ = child.wait();
        return None;
    };
    let mut text = String::new();
    // What it prints fits into a pipe, so that it could end before we read.
    child.stdout.take()?.read_to_string(&mut text).ok()?;
    status.success().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_has_no_answer() {
        let mut command = Command::new("sleep");
        command.arg("60");
        assert_eq!(output_within(command, Duration::from_millis(50)), None);
    }
}
