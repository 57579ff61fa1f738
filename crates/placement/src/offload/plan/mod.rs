//! What lives where, under a budget: decided before anything is moved.
//!
//! A plan goes through the phases of the work (encode the text, encode the images, train). In each, what is in
//! use is on the device as far as it fits, and the rest of it is streamed through a ring. What is idle
//! leaves *before* anything else comes: on unified memory the other order needs both at once.
//!
//! On unified memory "offloading to the CPU" would put a second copy beside the first in the same RAM. So there
//! a plan never does that: it registers host memory with the device where that is possible (zero-copy), and
//! otherwise streams from the file.
//!
//! Everything here is arithmetic over sizes; nothing touches a device.

mod assign;
mod error;
mod modules;
mod options;
mod pack;
mod print;

use serde::Serialize;

use assign::{Model, PhaseContext};
use platform::Bytes;

pub use error::PlanError;
pub use modules::{Component, Handling, Module, Phase, TensorSize};
pub use options::{DeviceMap, MaxMemory, Memory, OffloadOptions, Place};
pub(crate) use pack::leaves;

/// Where everything is in each phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The memory it was made for, after the user's bounds.
    pub memory: Memory,
    /// In the order of the work.
    pub phases: Vec<PhasePlan>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// Where everything is in one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhasePlan {
    /// Name of the phase.
    pub phase: String,
    /// What to do on entering it, in this order.
    pub steps: Vec<Step>,
    /// Each module exactly once, in the order they were given.
    pub placements: Vec<Placement>,
    /// Storages on the device, each counted once.
    pub resident: Bytes,
    /// The ring for streamed blocks.
    pub ring: Bytes,
    /// Its slots: as asked, or fewer where those do not fit; 0 without a ring.
    pub ring_slots: u32,
    /// Set aside for activations, gradients and optimizer state.
    pub working: Bytes,
    /// Host memory that holds weights: copies of swapped blocks, idle modules, zero-copy modules.
    pub host: Bytes,
}

impl PhasePlan {
    /// A phase that is entered without having been planned: residencies, and no sums.
    pub(crate) fn by_hand(phase: &str, placements: Vec<Placement>) -> Self {
        PhasePlan {
            phase: phase.to_owned(),
            steps: Vec::new(),
            placements,
            resident: Bytes::ZERO,
            ring: Bytes::ZERO,
            ring_slots: 0,
            working: Bytes::ZERO,
            host: Bytes::ZERO,
        }
    }
}

/// Where one module is in one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Name of the component that the module belongs to.
    pub component: String,
    /// Name of the module within its component.
    pub module: String,
    /// Its size, with what it shares.
    pub bytes: Bytes,
    /// Where it is during the phase.
    #[serde(rename = "home")]
    pub residency: Residency,
}

/// A place for a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// On the device.
    Device,
    /// In host memory that the device reads directly (unified memory only).
    ZeroCopy,
    /// In host memory, streamed through the ring when it is used.
    StreamedFromHost,
    /// In its file, streamed through the ring when it is used.
    StreamedFromDisk,
    /// Not in use, in host memory.
    IdleOnHost,
    /// Not in use, and only in its file.
    IdleOnDisk,
}

/// One step on entering a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Whether modules come to the device or leave it.
    pub action: Action,
    /// Of which component.
    pub component: String,
    /// How many of its modules.
    pub modules: usize,
    /// Bytes of these modules together.
    pub bytes: Bytes,
    /// Where they go.
    pub to: Residency,
}

/// The direction of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Off the device.
    Offload,
    /// Between host and disk; the device does not notice.
    Prepare,
    /// Onto the device.
    Onload,
}

/// Plans all phases.
///
/// # Errors
/// [`PlanError`] says what does not fit, and by how much, or which option makes no sense.
pub fn plan(
    components: &[Component],
    phases: &[Phase],
    memory: Memory,
    options: &OffloadOptions,
) -> Result<Plan, PlanError> {
    error::check(components, phases, options)?;
    let memory = memory.bounded(options.max_memory);
    let model = Model::new(components);
    let mut planned: Vec<PhasePlan> = Vec::new();
    for (at, phase) in phases.iter().enumerate() {
        let before = planned.last().map(|plan| plan.placements.as_slice());
        let moment = PhaseContext {
            phase,
            before,
            later: &phases[at + 1..],
        };
        planned.push(model.plan_phase(&moment, memory, options)?);
    }
    let notes = print::notes(&planned, memory, options);
    Ok(Plan {
        memory,
        phases: planned,
        notes,
    })
}

/// Plans phases that come again and again in this order: two experts that learn by turns, with previews between.
///
/// The plan is that of any round but the first: whatever some phase uses comes back, and so waits in host memory
/// where there is room, or stays.
///
/// # Errors
/// As [`plan`].
///
/// ```
/// use surefoot_placement::Bytes;
/// use surefoot_placement::plan::{
///     Component, Handling, Memory, Module, OffloadOptions, Phase, Residency, plan_cycle,
/// };
///
/// let expert = |name: &str, storage| Component {
///     name: name.into(),
///     modules: vec![Module::new(name, storage, Bytes::gib(10), Handling::Resident)],
/// };
/// let turn = |name: &str| Phase {
///     name: name.into(),
///     active: vec![name.into()],
///     working: Bytes::gib(4),
/// };
/// let memory = Memory::Discrete { device: Bytes::gib(16), host: Bytes::gib(32) };
/// let experts = [expert("high", 0), expert("low", 1)];
/// let plan = plan_cycle(&experts, &[turn("high"), turn("low")], memory, &OffloadOptions::default())?;
/// assert_eq!(plan.phases[0].placements[1].residency, Residency::IdleOnHost);
/// # Ok::<(), surefoot_placement::plan::PlanError>(())
/// ```
pub fn plan_cycle(
    components: &[Component],
    phases: &[Phase],
    memory: Memory,
    options: &OffloadOptions,
) -> Result<Plan, PlanError> {
    // The first round finds everything in its file, and after the last nothing is used any more: the one between
    // them is like any other.
    let rounds: Vec<Phase> = phases.iter().chain(phases).chain(phases).cloned().collect();
    let mut all = plan(components, &rounds, memory, options)?;
    all.phases = all.phases.drain(phases.len()..2 * phases.len()).collect();
    all.notes = print::notes(&all.phases, all.memory, options);
    Ok(all)
}

impl Plan {
    /// The most device memory that any phase uses, working memory included.
    pub fn device_peak(&self) -> Bytes {
        self.phases
            .iter()
            .map(PhasePlan::device)
            .max()
            .unwrap_or_default()
    }
}

impl PhasePlan {
    /// The device memory that the phase uses, working memory included.
    pub fn device(&self) -> Bytes {
        self.resident + self.ring + self.working
    }
}

impl Residency {
    fn is_on_device(self) -> bool {
        self == Residency::Device
    }

    /// Whether what is there is not in use.
    pub fn is_idle(self) -> bool {
        matches!(self, Residency::IdleOnHost | Residency::IdleOnDisk)
    }

    fn takes_host_memory(self) -> bool {
        matches!(
            self,
            Residency::ZeroCopy | Residency::StreamedFromHost | Residency::IdleOnHost
        )
    }

    fn is_streamed(self) -> bool {
        matches!(
            self,
            Residency::StreamedFromHost | Residency::StreamedFromDisk
        )
    }
}

impl Action {
    fn between(from: Residency, to: Residency) -> Action {
        match (from, to) {
            (_, Residency::Device) => Action::Onload,
            (Residency::Device, _) | (_, Residency::IdleOnDisk) => Action::Offload,
            _ => Action::Prepare,
        }
    }
}
