//! Problems of a machine: each finding says what was seen, why it matters,
//! what to type, and the source.
//!
//! A finding is emitted only for something that was seen. What a dump does not
//! contain is not judged.

mod accelerate;
mod gpus;
mod ids;
mod kernel;
mod memory;
mod overrides;
mod posted;
mod python;
mod system;
mod variables;
mod visibility;
mod windows;
mod wsl_and_windows;

pub use crate::explain::Severity;
use crate::plan::Plan;
pub use ids::IDS;
use platform::machine::Machine;
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
    /// Which check it belongs to.
    pub check: Check,
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
        self.title.starts_with("Line ")
    }

    fn new(check: Check, severity: Severity, id: &str, title: impl Into<String>) -> Self {
        debug_assert!(IDS.contains(&id), "`{id}` is not listed in findings/ids.rs");
        Self {
            id: id.to_owned(),
            severity,
            title: title.into(),
            seen: String::new(),
            why: String::new(),
            fix: Vec::new(),
            source: String::new(),
            check,
        }
    }

    fn seen(mut self, seen: impl Into<String>) -> Self {
        self.seen = seen.into();
        self
    }

    fn why(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    fn fix<S: Into<String>>(mut self, fix: impl IntoIterator<Item = S>) -> Self {
        self.fix = fix.into_iter().map(Into::into).collect();
        self
    }

    fn source(mut self, source: &str) -> Self {
        source.clone_into(&mut self.source);
        self
    }
}

/// Everything found, the worst first.
#[must_use]
pub fn findings(machine: &Machine, plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    gpus::find(machine, plan, &mut found);
    posted::find(machine, &mut found);
    system::find(machine, &mut found);
    windows::find(machine, &mut found);
    kernel::find(machine, &mut found);
    memory::find(machine, &mut found);
    python::find(machine, plan, &mut found);
    accelerate::find(machine, plan, &mut found);
    overrides::find(machine, &mut found);
    visibility::find(machine, plan, &mut found);
    variables::find(machine, plan, &mut found);
    wsl_and_windows::fit(machine.system, &mut found);
    if machine.posted.works.is_some() && !machine.posted.has_failed {
        for finding in &mut found {
            if REFUTED_BY_WORK.contains(&finding.id.as_str()) {
                finding.severity = Severity::Info;
            }
        }
    }
    found.sort_by_key(|finding| (finding.severity, finding.check));
    found
}

/// Findings about age and wheels that are notes where the text shows a program at work on the GPU.
const REFUTED_BY_WORK: [&str; 13] = [
    "architecture-needs-device-wheel",
    "architecture-needs-old-wheel",
    "architecture-not-in-wheel",
    "architecture-without-wheel",
    "code-list-without-gpu",
    "firmware-gfx1151",
    "gpu-not-identified",
    "gpu-too-old",
    "kernel-gfx1151",
    "override-missing",
    "override-suspected",
    "rocblas-without-gfx906",
    "several-rocm-versions",
];
