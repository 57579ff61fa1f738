//! The error catalogue: messages of the ROCm stack, their causes and remedies.
//!
//! Data, not code. The order of the files, and of entries in a file, matters: if two entries match, the earlier one is
//! nearer to the cause. The file of an entry is that of the part of the stack that failed:
//!
//! - under the programs: `driver` the kernel driver and its installation, `driver_loading` its start, `kernel_log` its messages
//!   about a running GPU, `hip_status` codes of the runtime, `kernels` code on the GPU, `results` wrong results, `npu` the NPU
//!   beside the GPU, `containers`, `wsl_and_windows` ROCm under WSL and Windows, `system_of_windows` these themselves;
//! - compilers and packages: `compilers` and `toolchain` compilers of kernels, `build_setup` what a build is given,
//!   `shared_objects`, `packages` and `repositories` what is installed, `installation` how, `environments` Python
//!   environments and paths, `versions` Python packages that do not fit;
//! - training: `training` libraries that train, `data` samples and settings, `model_files` models and checkpoints as files,
//!   `distributed` several processes;
//! - other programs: `generation` programs that generate images, `image_programs` their files, workflows and nodes,
//!   `programs`, `inference` and `servers` llama.cpp, ollama, vLLM and similar, `engines` settings of servers,
//!   `vulkan` what they say of Vulkan, `language_models` of models,
//!   `compute_programs` OpenCL, JAX, CuPy, schedulers of clusters;
//! - `remarks` messages that stop nothing, `shapes` what tools print in one shape whatever the reason is,
//!   `last_resort` answers for when nothing better is known.
//!
//! Every entry names a public source; do not add one without.

mod architecture;
mod build_setup;
mod compilers;
mod compute_programs;
mod containers;
mod data;
mod distributed;
mod driver;
mod driver_loading;
mod engines;
mod environments;
mod generation;
mod hip_status;
mod image_programs;
mod inference;
mod installation;
mod kernel_log;
mod kernels;
mod language_models;
mod last_resort;
mod libraries;
mod memory;
mod model_files;
mod npu;
mod packages;
mod programs;
mod python;
mod remarks;
mod repositories;
mod results;
mod servers;
mod shapes;
mod shared_objects;
mod system_of_windows;
mod toolchain;
mod training;
mod versions;
mod vulkan;
mod wsl_and_windows;

use super::{Confidence, Severity};
use platform::machine::System;

/// One known error.
///
/// In `cause` and `fix`, `{gpu}` is replaced by the architecture that the text names, or "the GPU". In
/// `cause`, `{kernel}` is replaced by the kernel release in brackets, or nothing, and `{package}` by the Python package in
/// which the traceback ends. In
/// `fix`, `<gfx>` is the architecture within a command, the step `{install}` becomes the commands that
/// install a torch for it, and a step with `{override}` is shown if an override is safe. A
/// step that begins with `Linux: `, `WSL: `, `Windows: ` or `Linux, WSL: ` is not shown for other systems.
/// One that begins with `Fedora: `, `Arch: `, `openSUSE: ` or `NixOS: ` is not shown where the text shows another
/// distribution that does not install with apt; commands of apt are those of Ubuntu, and are named so there.
#[derive(Debug)]
pub struct Entry {
    /// Its id, stable across versions.
    pub id: &'static str,
    /// The severity.
    pub severity: Severity,
    /// How certain the cause is, given the message.
    pub confidence: Confidence,
    /// Regular expressions over ASCII; a line that matches any of them is this error.
    pub patterns: &'static [&'static str],
    /// Regular expressions that must all be found somewhere in the text as well.
    pub also: &'static [&'static str],
    /// Regular expressions of which none may be found anywhere in the text.
    pub unless: &'static [&'static str],
    /// Shown only if there is no other error: it only knows which part failed.
    pub last_resort: bool,
    /// The systems on which it applies.
    pub scope: Scope,
    /// Less specific entries for the same error, which are hidden by this one.
    pub covers: &'static [&'static str],
    /// The cause.
    pub cause: &'static str,
    /// What to do, most promising first.
    pub fix: &'static [&'static str],
    /// Commands whose output would settle whether this is the cause.
    pub ask: &'static [&'static str],
    /// Where this is known from.
    pub source: &'static str,
}

/// Defaults that most entries share.
const BASE: Entry = Entry {
    id: "",
    severity: Severity::Error,
    confidence: Confidence::High,
    patterns: &[],
    also: &[],
    unless: &[],
    last_resort: false,
    scope: Scope::Anywhere,
    covers: &[],
    cause: "",
    fix: &[],
    ask: &[],
    source: "",
};

/// The systems on which the meaning of an entry applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of them.
    Anywhere,
    /// Linux with its own kernel and driver; also if the text does not show the system.
    BareMetal,
    /// All but Windows; also if the text does not show the system.
    NotWindows,
    /// Only where the text shows WSL.
    Wsl,
    /// Only where the text shows Windows.
    Windows,
}

impl Scope {
    /// Whether an entry applies to a text that shows this system.
    #[must_use]
    pub fn holds_on(self, system: Option<System>) -> bool {
        match self {
            Self::Anywhere => true,
            Self::BareMetal => matches!(system, None | Some(System::Linux)),
            Self::NotWindows => system != Some(System::Windows),
            Self::Wsl => system == Some(System::Wsl),
            Self::Windows => system == Some(System::Windows),
        }
    }
}

/// All entries, in the order of judgement.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    [
        architecture::ENTRIES,
        memory::ENTRIES,
        kernel_log::ENTRIES,
        driver_loading::ENTRIES,
        driver::ENTRIES,
        npu::ENTRIES,
        containers::ENTRIES,
        system_of_windows::ENTRIES,
        wsl_and_windows::ENTRIES,
        hip_status::ENTRIES,
        kernels::ENTRIES,
        results::ENTRIES,
        environments::ENTRIES,
        build_setup::ENTRIES,
        toolchain::ENTRIES,
        compilers::ENTRIES,
        libraries::ENTRIES,
        training::ENTRIES,
        model_files::ENTRIES,
        data::ENTRIES,
        versions::ENTRIES,
        generation::ENTRIES,
        shared_objects::ENTRIES,
        repositories::ENTRIES,
        packages::ENTRIES,
        installation::ENTRIES,
        programs::ENTRIES,
        vulkan::ENTRIES,
        inference::ENTRIES,
        servers::ENTRIES,
        engines::ENTRIES,
        image_programs::ENTRIES,
        language_models::ENTRIES,
        distributed::ENTRIES,
        python::ENTRIES,
        remarks::ENTRIES,
        compute_programs::ENTRIES,
        shapes::ENTRIES,
        last_resort::ENTRIES,
    ]
    .into_iter()
    .flatten()
}
