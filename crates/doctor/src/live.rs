//! The machine that this process runs on, with its Python environment.

use crate::encoding::decode;
use crate::probe_cache;
use platform::live::Live;
use platform::python::Build;
use platform::python_source::collect_python;
use platform::source::Source;
use platform::windows_source::{collect_runtimes, hipinfo_program, insert_hipinfo};
use platform::{Machine, Snapshot};
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
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
/// GPUs it was built, that Python (20 seconds at most), and on Windows `hipInfo.exe` (as long).
#[must_use]
pub fn snapshot(python: &Python, cache: Option<PathBuf>) -> Snapshot {
    let source = Live {
        cache: cache.as_ref().map(|folder| folder.join("words")),
    };
    let mut snapshot = source.snapshot();
    let prefix = match python {
        Python::Skip => None,
        Python::Active => collect_python(&source, None, &mut snapshot),
        Python::At(path) => collect_python(&source, Some(path), &mut snapshot),
    };
    if source.is_windows() {
        collect_runtimes(&source, prefix.as_deref(), &mut snapshot);
        ask_hipinfo(&source, prefix.as_deref(), &mut snapshot);
    }
    if let Some(prefix) = prefix {
        ask_torch(&source, &prefix, &mut snapshot);
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

/// As long as a program is waited for that may hang on a broken driver.
const PATIENCE: Duration = Duration::from_secs(20);

/// Which GPUs HIP has on Windows, in HIP's own words.
fn ask_hipinfo(source: &Live, prefix: Option<&str>, snapshot: &mut Snapshot) {
    let Some(program) = hipinfo_program(source, prefix) else {
        return;
    };
    let mut command = Command::new(&program);
    // All of them: what the variables of this shell hide is judged apart.
    for name in crate::plan::VISIBILITY {
        command.env_remove(name);
    }
    let printed = match ended_within(command, PATIENCE) {
        Ok(Some((_, text))) if !text.trim().is_empty() => Ok(text),
        Ok(Some((status, _))) => Err(status.to_string()),
        Ok(None) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        Err(error) => Err(error.to_string()),
    };
    insert_hipinfo(snapshot, &program, printed);
}

/// The last resort for the architectures of a ROCm wheel: torch itself, in a process
/// that may crash or hang.
fn ask_torch(source: &Live, prefix: &str, snapshot: &mut Snapshot) {
    let machine = platform::detect::machine(snapshot);
    let torch = machine.python.and_then(|python| python.torch);
    if torch.is_none_or(|torch| torch.build != Build::Rocm || torch.architectures.is_some()) {
        return;
    }
    const QUESTION: &str =
        "import torch; print(*torch.cuda.get_arch_list(), torch._C._cuda_getArchFlags())";
    let places: &[&str] = match source.is_windows() {
        true => &["Scripts/python.exe", "python.exe"],
        false => &["bin/python"],
    };
    let mut programs = places.iter().map(|place| format!("{prefix}/{place}"));
    let Some(program) = programs.find(|program| source.owner(program).is_some()) else {
        return;
    };
    let mut command = Command::new(program);
    command.args(["-c", QUESTION]);
    if let Ok(Some((status, answer))) = ended_within(command, PATIENCE)
        && status.success()
    {
        snapshot.insert_text("python/torch/arch_list", answer);
    }
}

/// How a command ended and what it printed; `None` if it did not end in time.
fn ended_within(mut command: Command, limit: Duration) -> io::Result<Option<(ExitStatus, String)>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let Ok(Some(status)) = child.wait_timeout(limit) else {
        // It hangs, or cannot be waited for; either way there is no answer.
        let _ = child.kill();
        let _ = child.wait();
        return Ok(None);
    };
    let mut printed = Vec::new();
    // What it prints fits into a pipe, so that it could end before we read.
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut printed)?;
    }
    Ok(Some((status, decode(&printed))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_command_that_hangs_has_no_answer() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let ended = ended_within(command, Duration::from_millis(50));
        assert!(matches!(ended, Ok(None)), "{ended:?}");
    }
}
