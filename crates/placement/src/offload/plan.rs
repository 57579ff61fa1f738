//! Plans what lives where under a memory budget, before anything is moved.
//!
//! A plan covers the phases of a run (encode the text, encode the images, train). In each phase, modules in
//! use are on the device as far as they fit, and the rest is streamed through a ring of slots. Idle modules
//! leave the device *before* others are loaded, because on unified memory the opposite order needs both at
//! once.
//!
//! On unified memory, "offloading to the CPU" would put a second copy into the same RAM. A plan never does
//! that: it registers host memory with the device where possible (zero-copy), and otherwise streams from
//! disk.
//!
//! This module only computes with sizes; it does not touch a device.

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
pub use modules::{Component, Module, Phase, PlacementConstraint, TensorSize};
pub use options::{DeviceMap, MaxMemory, Memory, OffloadOptions, Place};
pub(crate) use pack::leaves;

/// What is where in each phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The memory budget, after the user's limits.
    pub memory: Memory,
    /// In execution order.
    pub phases: Vec<PhasePlan>,
    /// Remarks for the user.
    pub notes: Vec<String>,
}

/// What is where in one phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhasePlan {
    /// Name of the phase.
    pub phase: String,
    /// What to do on entering it, in this order.
    pub steps: Vec<Step>,
    /// Each module exactly once, in the given order.
    pub placements: Vec<Placement>,
    /// Bytes of the modules on the device, shared storage counted once.
    pub resident: Bytes,
    /// Bytes of the ring for streamed blocks.
    pub ring: Bytes,
    /// Slots of the ring: as requested, or fewer if those do not fit; 0 without a ring.
    pub ring_slots: u32,
    /// Bytes reserved for activations, gradients and optimizer state.
    pub working: Bytes,
    /// Host memory for weights: copies of swapped blocks, idle modules, zero-copy modules.
    pub host: Bytes,
}

impl PhasePlan {
    /// A phase that was not planned: residencies without totals.
    pub(crate) fn from_placements(phase: &str, placements: Vec<Placement>) -> Self {
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

/// Where a module is in one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// Name of the component that the module belongs to.
    pub component: String,
    /// Name of the module within its component.
    pub module: String,
    /// Its size, including shared storage.
    pub bytes: Bytes,
    /// Where it is during the phase.
    pub residency: Residency,
}

/// Where a module can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// On the device.
    Device,
    /// In host memory that the device reads directly (unified memory only).
    ZeroCopy,
    /// In host memory, streamed through the ring when it is used.
    StreamedFromHost,
    /// On disk, streamed through the ring when it is used.
    StreamedFromDisk,
    /// Idle, in host memory.
    IdleOnHost,
    /// Idle, on disk only.
    IdleOnDisk,
}

/// One step on entering a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Whether modules are loaded to the device or leave it.
    pub action: Action,
    /// Their component.
    pub component: String,
    /// Number of modules.
    pub modules: usize,
    /// Their total size.
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
    /// Between host and disk, without involving the device.
    Prepare,
    /// Onto the device.
    Onload,
}

/// Plans all phases.
///
/// # Errors
/// [`PlanError`]: what does not fit and by how much, or which option is invalid.
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

/// Plans phases that repeat in this order: two experts that are trained in turns, with previews in between.
///
/// The plan is for any cycle but the first: whatever a phase uses will be used again, and therefore waits in
/// host memory if there is room, or stays on the device.
///
/// # Errors
/// See [`plan`].
///
/// ```
/// use surefoot_placement::Bytes;
/// use surefoot_placement::plan::{
///     Component, Memory, Module, OffloadOptions, Phase, PlacementConstraint, Residency, plan_cycle,
/// };
///
/// let expert = |name: &str, storage| Component {
///     name: name.into(),
///     modules: vec![Module::new(name, storage, Bytes::gib(10), PlacementConstraint::Resident)],
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
    // In the first cycle everything starts on disk, and after the last nothing is used any more; the one in
    // between is like all others.
    let rounds: Vec<Phase> = phases.iter().chain(phases).chain(phases).cloned().collect();
    let mut all = plan(components, &rounds, memory, options)?;
    all.phases = all.phases.drain(phases.len()..2 * phases.len()).collect();
    all.notes = print::notes(&all.phases, all.memory, options);
    Ok(all)
}

impl Plan {
    /// The peak device memory of all phases, including working memory.
    pub fn device_peak(&self) -> Bytes {
        self.phases
            .iter()
            .map(PhasePlan::device)
            .max()
            .unwrap_or_default()
    }
}

impl PhasePlan {
    /// The device memory of the phase, including working memory.
    pub fn device(&self) -> Bytes {
        self.resident + self.ring + self.working
    }
}

impl Residency {
    fn is_on_device(self) -> bool {
        self == Residency::Device
    }

    /// Whether a module there is not in use.
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
