//! What Python tools print about an installation: `python -m torch.utils.collect_env`
//! and `accelerate env`. Every bug report of a trainer has one of them.

use super::gpu_mention::GpuMention;
use super::several::listed_once;
use super::value_of;
use platform::Bytes;
use platform::machine::{Gpu, Kernel, Machine};
use platform::python::{self, is_relevant_package};
use platform::snapshot::Snapshot;

/// Whether the text is such a report, even one without a GPU.
pub(super) fn is_python_report(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start_matches(['-', '*', ' ']);
        let rest = line
            .find("PyTorch version")
            .map(|at| line[at + "PyTorch version".len()..].trim_start());
        // A log of ComfyUI names it as well, among other things.
        rest.is_some_and(|rest| {
            line.starts_with("PyTorch version (")
                || rest.starts_with(':') && !line.contains("- PyTorch Version")
        })
    }) && [
        "Is debug build",
        "ROCM used to build",
        "`Accelerate` version",
        "Python platform",
        "PyTorch version (",
    ]
    .iter()
    .any(|sign| text.contains(sign))
}

/// Whether its torch sees a GPU, named or not: `PyTorch version (GPU?): 2.8.0+rocm6.4 (True)`.
pub(super) fn sees_gpu(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim().trim_start_matches(['-', '*']).trim_start();
        line.starts_with("PyTorch version (") && line.ends_with("(True)")
            || line.contains("Is CUDA available: True")
    })
}

/// The GPUs it names; the packages become the Python of the machine.
pub(super) fn gpus(text: &str, machine: &mut Machine) -> Vec<Gpu> {
    if !is_python_report(text) {
        return Vec::new();
    }
    let mut packages: Vec<(String, String)> = Vec::new();
    // One list a report: of two environments, the second lists the same GPUs again.
    let mut lists = vec![Vec::new()];
    for line in text.lines() {
        let line = line.trim().trim_start_matches(['-', '*']).trim_start();
        // What came before on the same line is of another program.
        let line = line.find("PyTorch version").map_or(line, |at| &line[at..]);
        if let Some((name, version)) = package(line) {
            packages.push((name, version));
        } else if let Some(value) = value_of(line, "PyTorch version") {
            lists.push(Vec::new());
            if value != "N/A" {
                packages.push(("torch".to_owned(), value.to_owned()));
            }
        } else if let Some((_, value)) = line
            .strip_prefix("PyTorch version (")
            .and_then(|rest| rest.split_once("): "))
        {
            // `2.9.1+rocm6.4 (True)`
            let version = value.split_whitespace().next().unwrap_or_default();
            packages.push(("torch".to_owned(), version.to_owned()));
        } else if let Some(value) = value_of(line, "`Accelerate` version") {
            packages.push(("accelerate".to_owned(), value.to_owned()));
        } else if let Some(value) = value_of(line, "System RAM") {
            machine.memory.total = machine.memory.total.or(Bytes::parse_tool_output(value));
        } else if let Some(value) =
            value_of(line, "Python platform").or_else(|| value_of(line, "Platform"))
        {
            let release = value.strip_prefix("Linux-").unwrap_or_default();
            machine.kernel = machine.kernel.take().or_else(|| Kernel::parse(release));
            if value.starts_with("Windows") {
                machine.system = platform::machine::System::Windows;
            }
        } else if let Some(value) = value_of(line, "OS") {
            machine.distribution = machine.distribution.take().or(Some(value.to_owned()));
            if value.starts_with("Microsoft Windows") {
                machine.system = platform::machine::System::Windows;
            }
        } else if let Some(name) = gpu_name(line) {
            if super::gpu_mention::is_other_vendor(name) {
                super::listing::other(name, machine);
            } else {
                let gpu = gpu(name, machine);
                if let Some(list) = lists.last_mut() {
                    list.extend(gpu);
                }
            }
        }
    }
    // `packages` of a snapshot: the first of a name counts.
    packages.reverse();
    let list: String = packages
        .iter()
        .map(|(name, version)| format!("{name} {version}\n"))
        .collect();
    let mut snapshot = Snapshot::default();
    snapshot.insert_text("python/prefix", "the Python of this report\n");
    snapshot.insert_text("python/packages", list);
    machine.python = python::from_snapshot(&snapshot);
    listed_once(lists)
}

/// `[pip3] torch==2.9.1+rocm6.4`, or `[conda] torch  2.9.1  pypi_0  pypi`.
fn package(line: &str) -> Option<(String, String)> {
    let entry = line
        .strip_prefix("[pip3] ")
        .map(|entry| entry.split_once("=="))
        .or_else(|| {
            line.strip_prefix("[conda] ")
                .map(|entry| entry.split_once(char::is_whitespace))
        })??;
    let name = entry.0.trim().to_ascii_lowercase().replace(['_', '.'], "-");
    let version = entry.1.split_whitespace().next()?.to_owned();
    is_relevant_package(&name).then_some((name, version))
}

fn gpu_name(line: &str) -> Option<&str> {
    value_of(line, "GPU models and configuration")
        .or_else(|| value_of(line, "GPU type"))
        .or_else(|| value_of(line, "Accelerator"))
        .or_else(|| {
            let number = line.strip_prefix("GPU ")?.split_once(": ")?;
            number.0.parse::<u32>().ok().map(|_| number.1)
        })
}

/// `AMD Radeon RX 6700 XT (gfx1031)`; other vendors' cards are ignored.
fn gpu(name: &str, machine: &mut Machine) -> Option<Gpu> {
    // vLLM's program writes this if torch does not report the architecture.
    let name = name.split("NoGCNArchName").next().unwrap_or(name).trim();
    let is_amd = name.contains("AMD") || name.contains("Radeon");
    let gpu = GpuMention::default().named(name).settled(machine);
    (gpu.gfx.is_some() || is_amd || gpu.device_id.is_some()).then_some(gpu)
}
