//! Problems of a machine: each finding says what was seen, why it matters,
//! what to type, and the source.
//!
//! A finding is emitted only for something that was seen. What a dump does not
//! contain is not judged.

mod accelerate;
mod gpus;
mod kernel;
mod memory;
mod overrides;
mod posted;
mod python;
pub(crate) mod said;
mod system;
mod variables;
mod visibility;
mod windows;

pub use crate::explain::Severity;
use crate::plan::Plan;
use platform::machine::Machine;
pub use said::IDS;
use said::{Found, Said};
use serde::Serialize;
pub use visibility::seen_by_hip;

/// Something that stops training, spoils it or wastes much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its id, stable across versions.
    pub id: String,
    /// The severity.
    pub severity: Severity,
    /// The problem in one line.
    pub title: String,
    /// What was seen.
    pub seen: String,
    /// Why it matters.
    pub why: String,
    /// What to type, in order; lines that are not commands begin with `#`.
    pub fix: Vec<String>,
    /// A public source.
    pub source: String,
    /// Checks of `surefoot probe` that would decide whether it is so here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub probe: Vec<&'static str>,
    /// Which check it belongs to.
    pub check: Check,
    /// Where it is from; nothing for a message of a posted log.
    #[serde(skip)]
    pub(crate) said: Option<&'static Said>,
}

/// The checks of the doctor, in the order of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// The GPUs themselves.
    Gpu,
    /// `/dev/kfd` and the render nodes.
    Access,
    /// Kernel and firmware.
    Kernel,
    /// How much memory GPUs may use, and what limits it.
    Memory,
    /// The Python environment.
    Python,
    /// `HSA_OVERRIDE_GFX_VERSION`.
    Override,
    /// The variables that mask GPUs.
    Visibility,
    /// All other variables.
    Variables,
    /// Limits of the process.
    Limits,
}

impl Check {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Gpu,
        Self::Access,
        Self::Kernel,
        Self::Memory,
        Self::Python,
        Self::Override,
        Self::Visibility,
        Self::Variables,
        Self::Limits,
    ];
}

impl Finding {
    /// Whether it is a message of a posted log, which says nothing about a check.
    #[must_use]
    pub fn is_from_log(&self) -> bool {
        self.said.is_none()
    }

    /// The findings and messages that say less about the same cause.
    pub(crate) fn covers(&self) -> &'static [&'static str] {
        self.said.map_or(&[], |said| said.covers)
    }
}

/// Everything found, the worst first.
#[must_use]
pub fn findings(machine: &Machine, plan: &Plan) -> Vec<Finding> {
    let mut found = Found::about(machine);
    gpus::find(machine, plan, &mut found);
    posted::find(machine, plan, &mut found);
    system::find(machine, &mut found);
    windows::find(machine, &mut found);
    kernel::find(machine, &mut found);
    memory::find(machine, &mut found);
    python::find(machine, plan, &mut found);
    accelerate::find(machine, plan, &mut found);
    overrides::find(machine, &mut found);
    visibility::find(machine, plan, &mut found);
    variables::find(machine, plan, &mut found);
    found.weighed()
}
