//! The error catalogue: messages of the ROCm stack, what causes them, what mends them.
//!
//! Data, not code. The order within a file and of the files is the order of
//! judgement: where two entries match, the earlier one is nearer to the cause. The file
//! of an entry is that of the part of the stack that failed: `driver` the kernel driver and
//! its installation, `kernels` what the GPU ran, `results` wrong results, `places` WSL
//! and Windows, `compilers` what compiles kernels, `shared_objects` and `packages` what
//! is installed, `installation` how, `programs` and `inference` llama.cpp, ollama, vLLM and their kin,
//! `kernel_log` what the kernel says of a GPU that has started, `last_resort` what is told when
//! nothing better is known.
//! Every entry names a public source; add none without.

mod architecture;
mod compilers;
mod driver;
mod inference;
mod installation;
mod kernel_log;
mod kernels;
mod last_resort;
mod libraries;
mod memory;
mod packages;
mod programs;
mod python;
mod results;
mod shared_objects;
mod wsl_and_windows;

use super::{Confidence, Severity};
use platform::machine::System;

/// One known error.
///
/// In `cause` and `fix`, `{gpu}` is the architecture that the text names, or "the GPU". In
/// the cause, `{kernel}` is the release of the kernel in brackets, or nothing. In
/// `fix`, `<gfx>` is the same within a command, the step `{install}` becomes the commands that
/// install a torch for it, and a step with `{override}` is told where an override is safe. A
/// step that begins with `Linux: `, `WSL: `, `Windows: ` or `Linux, WSL: ` is not told of another system.
#[derive(Debug)]
pub struct Entry {
    /// Its name, stable across versions.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// How sure it is that the cause is this one, when the message is this one.
    pub confidence: Confidence,
    /// Regular expressions over ASCII; a line that matches any of them is this error.
    pub patterns: &'static [&'static str],
    /// Regular expressions that must all be found somewhere in the text as well.
    pub also: &'static [&'static str],
    /// Regular expressions of which none may be found anywhere in the text.
    pub unless: &'static [&'static str],
    /// Told only where no other error is: it knows the part that failed and no more.
    pub last_resort: bool,
    /// Where it means this.
    pub scope: Scope,
    /// Entries that need not be told when this one is: they know less about the same error.
    pub covers: &'static [&'static str],
    /// What causes it.
    pub cause: &'static str,
    /// What to do, most promising first.
    pub fix: &'static [&'static str],
    /// Commands whose output would settle whether this is the cause.
    pub ask: &'static [&'static str],
    /// Where this is known from.
    pub source: &'static str,
}

/// What most entries have in common.
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

/// The systems on which a message means what an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of them.
    Anywhere,
    /// Linux with its own kernel and driver; also where the text does not show the system.
    BareMetal,
    /// All but Windows; also where the text does not show the system.
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
        driver::ENTRIES,
        wsl_and_windows::ENTRIES,
        kernels::ENTRIES,
        results::ENTRIES,
        compilers::ENTRIES,
        libraries::ENTRIES,
        shared_objects::ENTRIES,
        packages::ENTRIES,
        installation::ENTRIES,
        programs::ENTRIES,
        inference::ENTRIES,
        python::ENTRIES,
        last_resort::ENTRIES,
    ]
    .into_iter()
    .flatten()
}
