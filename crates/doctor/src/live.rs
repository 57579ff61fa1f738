//! The machine that this process runs on, with its Python environment.

use crate::encoding::decode;
use crate::probe_cache;
use platform::live::Live;
use platform::python::Build;
use platform::python_source::{collect_python, interpreter};
use platform::source::Source;
use platform::windows_source::{collect_runtimes, hipinfo_program, insert_hipinfo};
use platform::{Machine, Snapshot};
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use wait_timeout::ChildExt;

/// Which Python to examine.
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

/// Reads this machine. `cache` is a folder for slow facts and for the results of
/// `surefoot probe`; without one, nothing is written.
///
/// Starts at most two processes: Python, for a ROCm build of torch whose architectures are not known otherwise
/// (20 seconds at most), and on Windows `hipInfo.exe` (likewise).
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

/// The results of an earlier `surefoot probe` for the selected GPU and this torch: the
/// lines of [`probe_cache`], empty if there was none.
#[must_use]
pub fn probe_results(machine: &Machine, cache: &std::path::Path) -> String {
    let picked = crate::plan::plan(machine).pick;
    let gfx = picked.and_then(|index| machine.gpus.get(index)?.gfx);
    let python = machine.python.as_ref();
    match (gfx, python.and_then(|python| python.torch.as_ref())) {
        (Some(gfx), Some(torch)) => {
            let tested = probe_cache::Tested {
                architecture: &gfx.to_string(),
                torch: &torch.version,
                driver: &probe_cache::driver(machine),
            };
            probe_cache::read(cache, tested)
        }
        _ => String::new(),
    }
}

/// The timeout for a program that may hang on a broken driver.
const PATIENCE: Duration = Duration::from_secs(20);

/// The output of `hipInfo`: the GPUs that HIP has on Windows.
fn ask_hipinfo(source: &Live, prefix: Option<&str>, snapshot: &mut Snapshot) {
    let Some(program) = hipinfo_program(source, prefix) else {
        return;
    };
    let mut command = Command::new(&program);
    // All of them: GPUs that the variables of this shell hide are handled separately.
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

/// The last resort for the architectures of a ROCm wheel: asks torch itself, in a process
/// that may crash or hang.
fn ask_torch(source: &Live, prefix: &str, snapshot: &mut Snapshot) {
    let machine = platform::detect::machine(snapshot);
    let torch = machine.python.and_then(|python| python.torch);
    if torch.is_none_or(|torch| torch.build != Build::Rocm || torch.architectures.is_some()) {
        return;
    }
    const QUESTION: &str =
        "import torch; print(*torch.cuda.get_arch_list(), torch._C._cuda_getArchFlags())";
    let Some(program) = interpreter(source, prefix) else {
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

/// The exit status and output of a command; `None` if it did not end in time.
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
    // The output fits into the pipe, so the program could end before we read.
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
