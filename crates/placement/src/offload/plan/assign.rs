//! Plans one phase: first what must be on the device, then which blocks stay there, then where idle modules
//! go.

use crate::offload::plan::modules::{Component, Group, Module, Phase, PlacementConstraint, tie};
use crate::offload::plan::options::{Memory, OffloadOptions, Place};
use crate::offload::plan::pack::{Packing, pack, pack_all_but};
use crate::offload::plan::{Action, PhasePlan, Placement, PlanError, Residency, Step};
use platform::Bytes;

/// The components as a flat list of modules, and the groups that share memory.
pub(super) struct Model<'a> {
    components: &'a [Component],
    /// Each module with the index of its component.
    modules: Vec<(usize, &'a Module)>,
    groups: Vec<Group>,
}

/// The active groups of a phase.
#[derive(Default)]
struct ActiveGroups {
    /// Groups whose place is determined, by their constraint or by the device map.
    fixed: Vec<(usize, Place)>,
    /// Groups whose place the plan may choose.
    free: Vec<usize>,
}

/// A phase, with what comes before and after it.
pub(super) struct PhaseContext<'a> {
    pub(super) phase: &'a Phase,
    /// Where everything is when it starts; `None` for the first phase, when everything is on disk.
    pub(super) before: Option<&'a [Placement]>,
    pub(super) later: &'a [Phase],
}

/// The groups of one phase while it is planned.
struct PhaseBuilder<'a> {
    phase: &'a Phase,
    memory: Memory,
    options: &'a OffloadOptions,
    residencies: Vec<Option<Residency>>,
    resident: Bytes,
    ring: Bytes,
    /// Slots of the ring: as requested, or fewer if those do not fit.
    slots: u32,
    host: Bytes,
}

impl<'a> Model<'a> {
    pub(super) fn new(components: &'a [Component]) -> Model<'a> {
        let modules: Vec<(usize, &Module)> = components
            .iter()
            .enumerate()
            .flat_map(|(at, component)| component.modules.iter().map(move |module| (at, module)))
            .collect();
        let groups = tie(&modules
            .iter()
            .map(|(_, module)| *module)
            .collect::<Vec<_>>());
        Model {
            components,
            modules,
            groups,
        }
    }

    pub(super) fn plan_phase(
        &self,
        context: &PhaseContext<'_>,
        memory: Memory,
        options: &OffloadOptions,
    ) -> Result<PhasePlan, PlanError> {
        let phase = context.phase;
        let mut builder = PhaseBuilder {
            phase,
            memory,
            options,
            residencies: vec![None; self.groups.len()],
            resident: Bytes::ZERO,
            ring: Bytes::ZERO,
            slots: options.ring_slots,
            host: Bytes::ZERO,
        };
        let (active, idle): (Vec<usize>, Vec<usize>) =
            (0..self.groups.len()).partition(|group| self.is_active(*group, phase));
        let ActiveGroups { fixed, free } = self.split(&active, options)?;
        self.place_required(&mut builder, &fixed, &idle)?;
        self.place_blocks(&mut builder, &free)?;
        self.place_idle(&mut builder, &idle, context);
        self.check_host(&builder)?;

        let placements = self.placements(&builder);
        let steps = self.steps(context.before, &placements);
        Ok(PhasePlan {
            phase: phase.name.clone(),
            steps,
            placements,
            resident: builder.resident,
            ring: builder.ring,
            ring_slots: if builder.ring > Bytes::ZERO {
                builder.slots
            } else {
                0
            },
            working: phase.working,
            host: builder.host,
        })
    }

    fn is_active(&self, group: usize, phase: &Phase) -> bool {
        self.groups[group].members.iter().any(|member| {
            let component = &self.components[self.modules[*member].0];
            phase.active.contains(&component.name)
        })
    }

    /// Separates groups with a determined place from the others.
    fn split(&self, active: &[usize], options: &OffloadOptions) -> Result<ActiveGroups, PlanError> {
        let mut choice = ActiveGroups::default();
        for group in active {
            let wanted = self.wanted(*group, options)?;
            match (self.groups[*group].constraint, wanted) {
                (PlacementConstraint::Streamable, None) => choice.free.push(*group),
                (_, None | Some(Place::Device)) => choice.fixed.push((*group, Place::Device)),
                (PlacementConstraint::Streamable, Some(place)) => {
                    choice.fixed.push((*group, place))
                }
                (PlacementConstraint::Trained | PlacementConstraint::Resident, Some(place)) => {
                    let module = self.name(*group).to_owned();
                    return Err(PlanError::NotStreamable { module, place });
                }
            }
        }
        Ok(choice)
    }

    /// The place that the device map sets for a group, the same for all its members.
    fn wanted(&self, group: usize, options: &OffloadOptions) -> Result<Option<Place>, PlanError> {
        let members = &self.groups[group].members;
        let place_of = |member: usize| options.device_map.place_of(&self.modules[member].1.name);
        let first = place_of(members[0]);
        if let Some(other) = members.iter().find(|member| place_of(**member) != first) {
            return Err(PlanError::TiedApart {
                one: self.name(group).to_owned(),
                other: self.modules[*other].1.name.clone(),
            });
        }
        Ok(first)
    }

    /// Puts on the device what has to be there, and elsewhere what the map says.
    fn place_required(
        &self,
        builder: &mut PhaseBuilder<'_>,
        fixed: &[(usize, Place)],
        idle: &[usize],
    ) -> Result<(), PlanError> {
        let mut largest_away = Vec::new();
        for (group, place) in fixed {
            match place {
                Place::Device => self.put(builder, *group, Residency::Device),
                Place::Cpu => {
                    let residency = match builder.memory {
                        Memory::Discrete { .. } => Residency::StreamedFromHost,
                        Memory::Unified {
                            zero_copy: true, ..
                        } => Residency::ZeroCopy,
                        Memory::Unified { .. } => Residency::StreamedFromDisk,
                    };
                    self.put(builder, *group, residency);
                }
                Place::Disk => self.put(builder, *group, Residency::StreamedFromDisk),
            }
            if builder.residencies[*group].is_some_and(Residency::is_streamed) {
                largest_away.push(self.groups[*group].bytes);
            }
        }
        // On unified memory, moving trained weights elsewhere frees nothing, so they stay.
        if let Memory::Unified { .. } = builder.memory {
            for group in idle {
                if self.groups[*group].constraint == PlacementConstraint::Trained {
                    self.put(builder, *group, Residency::Device);
                }
            }
        }
        let beside = builder.resident + builder.phase.working;
        let ring = |slots| pack_all_but(&largest_away, largest_away.len(), slots).ring;
        let fits =
            rings(builder.slots).find(|&slots| beside + ring(slots) <= builder.device_limit());
        let Some(slots) = fits else {
            return Err(builder.too_small(beside + ring(1), "what must be on the device"));
        };
        builder.slots = slots;
        builder.ring = ring(slots);
        Ok(())
    }

    /// Decides which blocks stay on the device, and where the others are streamed from.
    fn place_blocks(
        &self,
        builder: &mut PhaseBuilder<'_>,
        blocks: &[usize],
    ) -> Result<(), PlanError> {
        let sizes: Vec<Bytes> = blocks
            .iter()
            .map(|group| self.groups[*group].bytes)
            .collect();
        let all: Bytes = sizes.iter().copied().sum();
        let capacity =
            builder.device_limit() - builder.resident - builder.ring - builder.phase.working;
        let zero_copy = builder.room_for_zero_copy(all);
        // Zero-copy needs no ring.
        let slots = if zero_copy { 0 } else { builder.slots };
        let packing = match builder.options.blocks_to_swap {
            Some(count) => {
                let exactly = |slots| builder.exactly(&sizes, count, slots, capacity);
                let fits = rings(slots).find_map(|slots| Some((slots, exactly(slots).ok()?)));
                let (slots, packing) = match fits {
                    Some(fits) => fits,
                    None => (slots, exactly(slots.min(1))?),
                };
                builder.slots = builder.slots.min(slots.max(1));
                packing
            }
            None => {
                let kept = if builder.options.low_vram {
                    Bytes::ZERO
                } else {
                    all - all.share(builder.options.offload_fraction)
                };
                let packed = |slots| pack(&sizes, capacity, kept, slots);
                let fits = rings(slots).find_map(|slots| Some((slots, packed(slots)?)));
                let (slots, packing) = fits.ok_or_else(|| {
                    let smallest = pack_all_but(&sizes, sizes.len(), slots.min(1));
                    let needed = builder.device_limit() - capacity + smallest.ring;
                    builder.too_small(needed, "even with every block streamed")
                })?;
                builder.slots = builder.slots.min(slots.max(1));
                packing
            }
        };
        // Rings are used one after the other, so one of the larger size serves both.
        builder.ring = builder.ring.max(packing.ring);
        let mut away = Vec::new();
        for (group, stays) in blocks.iter().zip(&packing.stays) {
            if *stays {
                self.put(builder, *group, Residency::Device);
            } else {
                away.push(*group);
            }
        }
        // The disk is slowest, so it gets the smallest.
        away.sort_by_key(|group| std::cmp::Reverse(self.groups[*group].bytes));
        for group in away {
            let bytes = self.groups[group].bytes;
            let residency = match builder.memory {
                Memory::Discrete { host, .. } if builder.host + bytes <= host => {
                    Residency::StreamedFromHost
                }
                Memory::Unified { .. } if builder.room_for_zero_copy(bytes) => Residency::ZeroCopy,
                _ => Residency::StreamedFromDisk,
            };
            self.put(builder, group, residency);
        }
        Ok(())
    }

    /// Leaves what has not been used yet on disk, drops what will not be used again, and keeps the rest where
    /// it is not in the way.
    fn place_idle(
        &self,
        builder: &mut PhaseBuilder<'_>,
        idle: &[usize],
        context: &PhaseContext<'_>,
    ) {
        for at in 0..self.components.len() {
            let groups: Vec<usize> = idle
                .iter()
                .copied()
                .filter(|group| {
                    self.component_of(*group) == at && builder.residencies[*group].is_none()
                })
                .collect();
            // A component stays completely or not at all: half of one saves no wait.
            let bytes: Bytes = groups.iter().map(|group| self.groups[*group].bytes).sum();
            let there =
                |group: &usize| self.residency_before(*group, context) == Some(Residency::Device);
            let stays = builder.has_room_beside(bytes)
                && groups.iter().all(there)
                && self.is_used_in(at, context.later);
            for group in groups {
                let residency = if stays {
                    Residency::Device
                } else {
                    self.idle_residency(builder, group, context)
                };
                self.put(builder, group, residency);
            }
        }
    }

    fn idle_residency(
        &self,
        builder: &PhaseBuilder<'_>,
        group: usize,
        context: &PhaseContext<'_>,
    ) -> Residency {
        let Group {
            bytes, constraint, ..
        } = self.groups[group];
        let Memory::Discrete { host, .. } = builder.memory else {
            return Residency::IdleOnDisk;
        };
        if constraint == PlacementConstraint::Trained {
            // These weights exist nowhere else. Whether the host can hold them is checked at the end.
            return Residency::IdleOnHost;
        }
        let was_used = self
            .residency_before(group, context)
            .is_some_and(|residency| residency != Residency::IdleOnDisk);
        let comes_back = self.is_used_in(self.component_of(group), context.later);
        if was_used && comes_back && builder.host + bytes <= host {
            Residency::IdleOnHost
        } else {
            Residency::IdleOnDisk
        }
    }

    fn component_of(&self, group: usize) -> usize {
        self.modules[self.groups[group].members[0]].0
    }

    fn residency_before(&self, group: usize, context: &PhaseContext<'_>) -> Option<Residency> {
        context
            .before
            .map(|before| before[self.groups[group].members[0]].residency)
    }

    fn is_used_in(&self, component: usize, phases: &[Phase]) -> bool {
        let name = &self.components[component].name;
        phases.iter().any(|phase| phase.active.contains(name))
    }

    fn check_host(&self, builder: &PhaseBuilder<'_>) -> Result<(), PlanError> {
        let (needed, limit) = match builder.memory {
            Memory::Discrete { host, .. } => (builder.host, host),
            Memory::Unified { pool, .. } => (
                builder.resident + builder.ring + builder.phase.working + builder.host,
                pool,
            ),
        };
        if needed <= limit {
            return Ok(());
        }
        Err(PlanError::HostTooSmall {
            phase: builder.phase.name.clone(),
            needed,
            limit,
        })
    }

    fn put(&self, builder: &mut PhaseBuilder<'_>, group: usize, residency: Residency) {
        let bytes = self.groups[group].bytes;
        if residency.is_on_device() {
            builder.resident += bytes;
        }
        if residency.takes_host_memory() {
            builder.host += bytes;
        }
        builder.residencies[group] = Some(residency);
    }

    fn name(&self, group: usize) -> &str {
        &self.modules[self.groups[group].members[0]].1.name
    }

    fn placements(&self, builder: &PhaseBuilder<'_>) -> Vec<Placement> {
        let mut residencies = vec![Residency::IdleOnDisk; self.modules.len()];
        for (group, residency) in self.groups.iter().zip(&builder.residencies) {
            for member in &group.members {
                residencies[*member] = residency.unwrap_or(Residency::IdleOnDisk);
            }
        }
        let modules = self.modules.iter().zip(residencies);
        modules
            .map(|((component, module), residency)| Placement {
                component: self.components[*component].name.clone(),
                module: module.name.clone(),
                bytes: module.bytes(),
                residency,
            })
            .collect()
    }

    /// The changes from the previous phase: first everything that leaves the device, then everything that is
    /// loaded.
    fn steps(&self, before: Option<&[Placement]>, after: &[Placement]) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for action in [Action::Offload, Action::Prepare, Action::Onload] {
            for (at, placement) in after.iter().enumerate() {
                // At the start, everything is on disk.
                let was = before.map_or(Residency::IdleOnDisk, |before| before[at].residency);
                if was == placement.residency || Action::between(was, placement.residency) != action
                {
                    continue;
                }
                let same = |step: &&mut Step| {
                    (step.action, step.to) == (action, placement.residency)
                        && step.component == placement.component
                };
                if let Some(step) = steps.iter_mut().find(same) {
                    step.modules += 1;
                    step.bytes += placement.bytes;
                    continue;
                }
                steps.push(Step {
                    action,
                    component: placement.component.clone(),
                    modules: 1,
                    bytes: placement.bytes,
                    to: placement.residency,
                });
            }
        }
        steps
    }
}

/// The numbers of slots to try. A ring that does not fit is made smaller: slower copies are better than no
/// run.
fn rings(slots: u32) -> impl Iterator<Item = u32> {
    (slots.min(1)..=slots).rev()
}

impl PhaseBuilder<'_> {
    fn device_limit(&self) -> Bytes {
        match self.memory {
            Memory::Discrete { device, .. } => device,
            // Zero-copy tensors are in the same memory.
            Memory::Unified { device, pool, .. } => device.min(pool - self.host),
        }
    }

    /// Whether an idle component of this size can stay beside what is in use.
    fn has_room_beside(&self, bytes: Bytes) -> bool {
        let used = self.resident + self.ring + self.phase.working;
        let streaming = self.ring > Bytes::ZERO;
        !streaming
            && !self.options.low_vram
            && used + bytes <= self.device_limit()
            && self.room_in_pool(bytes)
    }

    /// Whether this much more fits, where device and host share one memory.
    fn room_in_pool(&self, bytes: Bytes) -> bool {
        match self.memory {
            Memory::Discrete { .. } => true,
            Memory::Unified { pool, .. } => {
                let used = self.resident + self.ring + self.phase.working + self.host;
                used + bytes <= pool
            }
        }
    }

    fn room_for_zero_copy(&self, bytes: Bytes) -> bool {
        matches!(
            self.memory,
            Memory::Unified {
                zero_copy: true,
                ..
            }
        ) && self.room_in_pool(bytes)
    }

    /// The packing that streams exactly this many blocks, if it fits.
    fn exactly(
        &self,
        sizes: &[Bytes],
        count: usize,
        slots: u32,
        capacity: Bytes,
    ) -> Result<Packing, PlanError> {
        if count > sizes.len() {
            return Err(PlanError::TooManyBlocks {
                asked: count,
                most: sizes.len(),
            });
        }
        let fits = |packing: &Packing| packing.resident + packing.ring <= capacity;
        let packing = pack_all_but(sizes, count, slots);
        if fits(&packing) {
            return Ok(packing);
        }
        let enough = (count..=sizes.len()).find(|count| fits(&pack_all_but(sizes, *count, slots)));
        let used = self.device_limit() - capacity;
        Err(PlanError::TooFewBlocks {
            asked: count,
            needed: used + packing.resident + packing.ring,
            limit: self.device_limit(),
            enough,
        })
    }

    fn too_small(&self, needed: Bytes, what: &'static str) -> PlanError {
        PlanError::DeviceTooSmall {
            phase: self.phase.name.clone(),
            what,
            needed,
            limit: self.device_limit(),
            working: self.phase.working,
        }
    }
}
