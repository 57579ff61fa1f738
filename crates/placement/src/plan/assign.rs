//! One phase at a time: what is required, then which blocks stay, then what may idle where.

use crate::bytes::Bytes;
use crate::plan::modules::{Component, Group, Handling, Module, Phase, tie};
use crate::plan::pack::{Packing, pack, pack_all_but};
use crate::plan::wishes::{Memory, Place, Wishes};
use crate::plan::{Action, Home, PhasePlan, Placement, PlanError, Step};

/// The components as one row of modules, and the groups that share memory.
pub(super) struct Model<'a> {
    components: &'a [Component],
    /// Each module with the index of its component.
    modules: Vec<(usize, &'a Module)>,
    groups: Vec<Group>,
}

/// The active groups of a phase.
#[derive(Default)]
struct Choice {
    /// Whose place is given, by what they are or by the device map.
    given: Vec<(usize, Place)>,
    /// For which the plan may choose.
    free: Vec<usize>,
}

/// A phase, and what lies before and after it.
pub(super) struct Moment<'a> {
    pub(super) phase: &'a Phase,
    /// Where everything is when it begins; `None` at the start, when everything is in its file.
    pub(super) before: Option<&'a [Placement]>,
    pub(super) later: &'a [Phase],
}

/// The groups of one phase while it is planned.
struct Desk<'a> {
    phase: &'a Phase,
    memory: Memory,
    wishes: &'a Wishes,
    homes: Vec<Option<Home>>,
    resident: Bytes,
    ring: Bytes,
    /// Slots of the ring: as wished, or fewer where those do not fit.
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
        moment: &Moment<'_>,
        memory: Memory,
        wishes: &Wishes,
    ) -> Result<PhasePlan, PlanError> {
        let phase = moment.phase;
        let mut desk = Desk {
            phase,
            memory,
            wishes,
            homes: vec![None; self.groups.len()],
            resident: Bytes::ZERO,
            ring: Bytes::ZERO,
            slots: wishes.ring_slots,
            host: Bytes::ZERO,
        };
        let (active, idle): (Vec<usize>, Vec<usize>) =
            (0..self.groups.len()).partition(|group| self.is_active(*group, phase));
        let Choice { given, free } = self.split(&active, wishes)?;
        self.place_required(&mut desk, &given, &idle)?;
        self.place_blocks(&mut desk, &free)?;
        self.place_idle(&mut desk, &idle, moment);
        self.check_host(&desk)?;

        let placements = self.placements(&desk);
        let steps = self.steps(moment.before, &placements);
        Ok(PhasePlan {
            phase: phase.name.clone(),
            steps,
            placements,
            resident: desk.resident,
            ring: desk.ring,
            ring_slots: if desk.ring > Bytes::ZERO {
                desk.slots
            } else {
                0
            },
            working: phase.working,
            host: desk.host,
        })
    }

    fn is_active(&self, group: usize, phase: &Phase) -> bool {
        self.groups[group].members.iter().any(|member| {
            let component = &self.components[self.modules[*member].0];
            phase.active.contains(&component.name)
        })
    }

    /// Separates what must be somewhere from what is free.
    fn split(&self, active: &[usize], wishes: &Wishes) -> Result<Choice, PlanError> {
        let mut choice = Choice::default();
        for group in active {
            let wanted = self.wanted(*group, wishes)?;
            match (self.groups[*group].handling, wanted) {
                (Handling::Streamable, None) => choice.free.push(*group),
                (_, None | Some(Place::Device)) => choice.given.push((*group, Place::Device)),
                (Handling::Streamable, Some(place)) => choice.given.push((*group, place)),
                (Handling::Trained | Handling::Resident, Some(place)) => {
                    let module = self.name(*group).to_owned();
                    return Err(PlanError::NotStreamable { module, place });
                }
            }
        }
        Ok(choice)
    }

    /// The place that the device map gives a group, the same for all its members.
    fn wanted(&self, group: usize, wishes: &Wishes) -> Result<Option<Place>, PlanError> {
        let members = &self.groups[group].members;
        let place_of = |member: usize| wishes.device_map.place_of(&self.modules[member].1.name);
        let first = place_of(members[0]);
        if let Some(other) = members.iter().find(|member| place_of(**member) != first) {
            return Err(PlanError::TiedApart {
                one: self.name(group).to_owned(),
                other: self.modules[*other].1.name.clone(),
            });
        }
        Ok(first)
    }

    /// Puts everything on the device that has to be there, and away what the map says.
    fn place_required(
        &self,
        desk: &mut Desk<'_>,
        given: &[(usize, Place)],
        idle: &[usize],
    ) -> Result<(), PlanError> {
        let mut largest_away = Vec::new();
        for (group, place) in given {
            match place {
                Place::Device => self.put(desk, *group, Home::Device),
                Place::Cpu => {
                    let home = match desk.memory {
                        Memory::Discrete { .. } => Home::StreamedFromHost,
                        Memory::Unified {
                            zero_copy: true, ..
                        } => Home::ZeroCopy,
                        Memory::Unified { .. } => Home::StreamedFromDisk,
                    };
                    self.put(desk, *group, home);
                }
                Place::Disk => self.put(desk, *group, Home::StreamedFromDisk),
            }
            if desk.homes[*group].is_some_and(Home::is_streamed) {
                largest_away.push(self.groups[*group].bytes);
            }
        }
        // On one memory, moving trained weights elsewhere frees nothing: they stay.
        if let Memory::Unified { .. } = desk.memory {
            for group in idle {
                if self.groups[*group].handling == Handling::Trained {
                    self.put(desk, *group, Home::Device);
                }
            }
        }
        let beside = desk.resident + desk.phase.working;
        let ring = |slots| pack_all_but(&largest_away, largest_away.len(), slots).ring;
        let fits = rings(desk.slots).find(|&slots| beside + ring(slots) <= desk.device_limit());
        let Some(slots) = fits else {
            return Err(desk.too_small(beside + ring(1), "what must be on the device"));
        };
        desk.slots = slots;
        desk.ring = ring(slots);
        Ok(())
    }

    /// Decides which blocks stay on the device, and where the others come from.
    fn place_blocks(&self, desk: &mut Desk<'_>, blocks: &[usize]) -> Result<(), PlanError> {
        let sizes: Vec<Bytes> = blocks
            .iter()
            .map(|group| self.groups[*group].bytes)
            .collect();
        let all: Bytes = sizes.iter().copied().sum();
        let capacity = desk.device_limit() - desk.resident - desk.ring - desk.phase.working;
        let zero_copy = desk.room_for_zero_copy(all);
        // What is read in place needs no ring.
        let slots = if zero_copy { 0 } else { desk.slots };
        let packing = match desk.wishes.blocks_to_swap {
            Some(count) => {
                let exactly = |slots| desk.exactly(&sizes, count, slots, capacity);
                let fits = rings(slots).find_map(|slots| Some((slots, exactly(slots).ok()?)));
                let (slots, packing) = match fits {
                    Some(fits) => fits,
                    None => (slots, exactly(slots.min(1))?),
                };
                desk.slots = desk.slots.min(slots.max(1));
                packing
            }
            None => {
                let kept = if desk.wishes.low_vram {
                    Bytes::ZERO
                } else {
                    all - all.share(desk.wishes.offload_fraction)
                };
                let packed = |slots| pack(&sizes, capacity, kept, slots);
                let fits = rings(slots).find_map(|slots| Some((slots, packed(slots)?)));
                let (slots, packing) = fits.ok_or_else(|| {
                    let smallest = pack_all_but(&sizes, sizes.len(), slots.min(1));
                    let needed = desk.device_limit() - capacity + smallest.ring;
                    desk.too_small(needed, "even with every block streamed")
                })?;
                desk.slots = desk.slots.min(slots.max(1));
                packing
            }
        };
        // Rings are used one after the other, so that one of the larger size serves both.
        desk.ring = desk.ring.max(packing.ring);
        let mut away = Vec::new();
        for (group, stays) in blocks.iter().zip(&packing.stays) {
            if *stays {
                self.put(desk, *group, Home::Device);
            } else {
                away.push(*group);
            }
        }
        // The disk is slowest, so that it gets the smallest.
        away.sort_by_key(|group| std::cmp::Reverse(self.groups[*group].bytes));
        for group in away {
            let bytes = self.groups[group].bytes;
            let home = match desk.memory {
                Memory::Discrete { host, .. } if desk.host + bytes <= host => {
                    Home::StreamedFromHost
                }
                Memory::Unified { .. } if desk.room_for_zero_copy(bytes) => Home::ZeroCopy,
                _ => Home::StreamedFromDisk,
            };
            self.put(desk, group, home);
        }
        Ok(())
    }

    /// Leaves what was not used yet in its file, drops what will not be used again, and keeps the rest where
    /// it disturbs nobody.
    fn place_idle(&self, desk: &mut Desk<'_>, idle: &[usize], moment: &Moment<'_>) {
        for at in 0..self.components.len() {
            let groups: Vec<usize> = idle
                .iter()
                .copied()
                .filter(|group| self.component_of(*group) == at && desk.homes[*group].is_none())
                .collect();
            // A component stays as a whole or not at all: half of one saves no wait.
            let bytes: Bytes = groups.iter().map(|group| self.groups[*group].bytes).sum();
            let there = |group: &usize| self.home_before(*group, moment) == Some(Home::Device);
            let stays = desk.has_room_beside(bytes)
                && groups.iter().all(there)
                && self.is_used_in(at, moment.later);
            for group in groups {
                let home = if stays {
                    Home::Device
                } else {
                    self.idle_home(desk, group, moment)
                };
                self.put(desk, group, home);
            }
        }
    }

    fn idle_home(&self, desk: &Desk<'_>, group: usize, moment: &Moment<'_>) -> Home {
        let Group {
            bytes, handling, ..
        } = self.groups[group];
        let Memory::Discrete { host, .. } = desk.memory else {
            return Home::IdleOnDisk;
        };
        if handling == Handling::Trained {
            // These weights exist nowhere else; whether the host can hold them is checked at the end.
            return Home::IdleOnHost;
        }
        let was_used = self
            .home_before(group, moment)
            .is_some_and(|home| home != Home::IdleOnDisk);
        let comes_back = self.is_used_in(self.component_of(group), moment.later);
        if was_used && comes_back && desk.host + bytes <= host {
            Home::IdleOnHost
        } else {
            Home::IdleOnDisk
        }
    }

    fn component_of(&self, group: usize) -> usize {
        self.modules[self.groups[group].members[0]].0
    }

    fn home_before(&self, group: usize, moment: &Moment<'_>) -> Option<Home> {
        moment
            .before
            .map(|before| before[self.groups[group].members[0]].home)
    }

    fn is_used_in(&self, component: usize, phases: &[Phase]) -> bool {
        let name = &self.components[component].name;
        phases.iter().any(|phase| phase.active.contains(name))
    }

    fn check_host(&self, desk: &Desk<'_>) -> Result<(), PlanError> {
        let (needed, limit) = match desk.memory {
            Memory::Discrete { host, .. } => (desk.host, host),
            Memory::Unified { pool, .. } => (
                desk.resident + desk.ring + desk.phase.working + desk.host,
                pool,
            ),
        };
        if needed <= limit {
            return Ok(());
        }
        Err(PlanError::HostTooSmall {
            phase: desk.phase.name.clone(),
            needed,
            limit,
        })
    }

    fn put(&self, desk: &mut Desk<'_>, group: usize, home: Home) {
        let bytes = self.groups[group].bytes;
        if home.is_on_device() {
            desk.resident += bytes;
        }
        if home.takes_host_memory() {
            desk.host += bytes;
        }
        desk.homes[group] = Some(home);
    }

    fn name(&self, group: usize) -> &str {
        &self.modules[self.groups[group].members[0]].1.name
    }

    fn placements(&self, desk: &Desk<'_>) -> Vec<Placement> {
        let mut homes = vec![Home::IdleOnDisk; self.modules.len()];
        for (group, home) in self.groups.iter().zip(&desk.homes) {
            for member in &group.members {
                homes[*member] = home.unwrap_or(Home::IdleOnDisk);
            }
        }
        let modules = self.modules.iter().zip(homes);
        modules
            .map(|((component, module), home)| Placement {
                component: self.components[*component].name.clone(),
                module: module.name.clone(),
                bytes: module.bytes(),
                home,
            })
            .collect()
    }

    /// What changes against the phase before: first everything that leaves, then everything that comes.
    fn steps(&self, before: Option<&[Placement]>, after: &[Placement]) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for action in [Action::Offload, Action::Prepare, Action::Onload] {
            for (at, placement) in after.iter().enumerate() {
                // At the start, everything is in its file.
                let was = before.map_or(Home::IdleOnDisk, |before| before[at].home);
                if was == placement.home || Action::between(was, placement.home) != action {
                    continue;
                }
                let same = |step: &&mut Step| {
                    (step.action, step.to) == (action, placement.home)
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
                    to: placement.home,
                });
            }
        }
        steps
    }
}

/// The rings to try: one that does not fit is made smaller, since copies that wait are better than no run.
fn rings(slots: u32) -> impl Iterator<Item = u32> {
    (slots.min(1)..=slots).rev()
}

impl Desk<'_> {
    fn device_limit(&self) -> Bytes {
        match self.memory {
            Memory::Discrete { device, .. } => device,
            // What is read in place lies in the same memory.
            Memory::Unified { device, pool, .. } => device.min(pool - self.host),
        }
    }

    /// Whether something idle may stay beside what is in use.
    fn has_room_beside(&self, bytes: Bytes) -> bool {
        let used = self.resident + self.ring + self.phase.working;
        let streaming = self.ring > Bytes::ZERO;
        !streaming
            && !self.wishes.low_vram
            && used + bytes <= self.device_limit()
            && self.room_in_pool(bytes)
    }

    /// Whether this much more fits beside everything, where both share one memory.
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

    /// The packing that streams exactly so many blocks, if it fits.
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
