//! Where runs go on, and how many at once: one device each, or several on one as far as its memory goes.

use std::collections::HashSet;
use std::fmt;

use doctor::Report;
use doctor::findings::seen_by_hip;
use serde::{Deserialize, Serialize};

use super::job::JobId;

/// What a process takes of a device beside the tensors that an estimate counts: its context, and what an allocator
/// keeps.
const OVERHEAD: u64 = 512 << 20;

/// The device of runs without a GPU.
pub(super) const CPU: &str = "cpu";

/// How many runs go on at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtOnce {
    /// One.
    #[default]
    One,
    /// One on each GPU.
    PerGpu,
    /// On each GPU as many as its memory has room for, by their estimates.
    Memory,
}

impl AtOnce {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::One, Self::PerGpu, Self::Memory];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::PerGpu => "per_gpu",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for AtOnce {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.word())
    }
}

impl std::str::FromStr for AtOnce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.word() == text);
        found.ok_or_else(|| format!("{text:?} is none of `one`, `per_gpu` and `memory`"))
    }
}

/// A device to train on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    /// As a config names it.
    pub(super) name: String,
    /// Bytes that can be allocated on it, where that is known.
    pub(super) capacity: Option<u64>,
}

/// The GPUs that the doctor leaves visible, in the order in which a run counts them; without any, the CPU.
pub(super) fn devices(report: &Report) -> Vec<Device> {
    let seen = seen_by_hip(&report.machine);
    let gpus = seen.into_iter().enumerate().filter_map(|(number, place)| {
        let entry = report.gpus.get(place)?;
        report.visible.contains(&entry.gpu.index).then(|| Device {
            name: format!("gpu:{number}"),
            capacity: entry.capacity.as_ref().map(|capacity| capacity.total.0),
        })
    });
    let mut devices: Vec<Device> = gpus.collect();
    if devices.is_empty() {
        devices.push(Device {
            name: CPU.to_owned(),
            capacity: report.machine.memory.total.map(|total| total.0),
        });
    }
    devices
}

/// A run that goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Occupant {
    pub(super) device: String,
    /// Bytes that it is expected to take at its most.
    pub(super) expected: Option<u64>,
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asking {
    pub(super) id: JobId,
    /// The device that its config names; any, where it names none.
    pub(super) device: Option<String>,
    /// Bytes that it is expected to take, once a check has told.
    pub(super) expected: Option<u64>,
    /// Whether it goes nowhere where others are.
    pub(super) alone: bool,
}

/// A job that can begin, and where; the device is unset where that is up to the run.
pub(super) type Chosen = (JobId, Option<String>);

/// The first job that can begin. None overtakes another that waits for the same device.
pub(super) fn choose(
    at_once: AtOnce,
    devices: &[Device],
    occupants: &[Occupant],
    asking: &[Asking],
) -> Option<Chosen> {
    if at_once == AtOnce::One {
        let next = asking.first().filter(|_| occupants.is_empty())?;
        return Some((next.id, None));
    }
    let mut held: HashSet<&str> = HashSet::new();
    for job in asking {
        let names: Vec<&str> = match &job.device {
            Some(device) => vec![device],
            None => devices.iter().map(|device| &*device.name).collect(),
        };
        let open = || names.iter().filter(|name| !held.contains(**name));
        let on = |name: &str| {
            let name = name.to_owned();
            occupants.iter().filter(move |one| one.device == name)
        };
        let empty = open().find(|name| on(name).next().is_none());
        let shared = || {
            let rooms = open().filter_map(|name| {
                let device = devices.iter().find(|device| device.name == **name)?;
                Some((room(device.capacity?, on(name), job)?, name))
            });
            rooms.max_by_key(|(room, _)| *room).map(|(_, name)| name)
        };
        let found = match at_once {
            AtOnce::Memory => empty.or_else(shared),
            AtOnce::One | AtOnce::PerGpu => empty,
        };
        if let Some(name) = found {
            return Some((job.id, Some((*name).to_owned())));
        }
        held.extend(names);
    }
    None
}

/// What is left of a device beside those on it, if the job may join them. Of one that was not checked yet, half the
/// device is to be free: the check takes memory, too.
fn room<'a>(
    capacity: u64,
    occupants: impl Iterator<Item = &'a Occupant>,
    job: &Asking,
) -> Option<u64> {
    if job.alone {
        return None;
    }
    let taken = occupants.map(|one| Some(one.expected? + OVERHEAD));
    let left = capacity.checked_sub(taken.sum::<Option<u64>>()?)?;
    let wanted = job
        .expected
        .map_or(capacity / 2, |expected| expected + OVERHEAD);
    (wanted <= left).then_some(left)
}

/// Whether a job of this size goes beside those on a device.
pub(super) fn fits_beside(capacity: Option<u64>, beside: &[Occupant], expected: u64) -> bool {
    let job = Asking {
        id: JobId(0),
        device: None,
        expected: Some(expected),
        alone: false,
    };
    beside.is_empty()
        || capacity.is_some_and(|capacity| room(capacity, beside.iter(), &job).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpus(capacities: &[u64]) -> Vec<Device> {
        let gpus = capacities.iter().enumerate();
        gpus.map(|(number, gib)| Device {
            name: format!("gpu:{number}"),
            capacity: Some(gib * GIB),
        })
        .collect()
    }

    fn on(device: &str, gib: Option<u64>) -> Occupant {
        Occupant {
            device: device.into(),
            expected: gib.map(|gib| gib * GIB),
        }
    }

    fn job(id: u64, device: Option<&str>, gib: Option<u64>) -> Asking {
        Asking {
            id: JobId(id),
            device: device.map(str::to_owned),
            expected: gib.map(|gib| gib * GIB),
            alone: false,
        }
    }

    fn chosen(
        at_once: AtOnce,
        devices: &[Device],
        occupants: &[Occupant],
        asking: &[Asking],
    ) -> Option<(u64, String)> {
        let found = choose(at_once, devices, occupants, asking);
        found.map(|(id, device)| (id.0, device.unwrap_or_default()))
    }

    fn is(id: u64, device: &str) -> Option<(u64, String)> {
        Some((id, device.to_owned()))
    }

    #[test]
    fn one_at_a_time_is_one_wherever_it_is() {
        let gpus = gpus(&[16, 16]);
        let jobs = [job(1, Some("gpu:1"), None), job(2, None, None)];
        assert_eq!(chosen(AtOnce::One, &gpus, &[], &jobs), is(1, ""));
        let busy = [on("gpu:0", Some(1))];
        assert_eq!(chosen(AtOnce::One, &gpus, &busy, &jobs), None);
    }

    #[test]
    fn each_gpu_has_one_and_who_names_its_gpu_waits_for_that() {
        let (gpus, busy) = (gpus(&[16, 16]), [on("gpu:1", Some(1))]);
        let any = job(2, None, None);
        let named = job(1, Some("gpu:1"), None);
        assert_eq!(
            chosen(AtOnce::PerGpu, &gpus, &busy, &[named, any.clone()]),
            is(2, "gpu:0")
        );
        let all = [busy[0].clone(), on("gpu:0", Some(1))];
        assert_eq!(chosen(AtOnce::PerGpu, &gpus, &all, &[any]), None);
        // A run on the CPU is in nobody's way.
        let cpu = job(3, Some(CPU), None);
        assert_eq!(chosen(AtOnce::PerGpu, &gpus, &all, &[cpu]), is(3, CPU));
    }

    #[test]
    fn several_share_a_gpu_as_far_as_their_estimates_go() {
        let gpus = gpus(&[16]);
        let four = on("gpu:0", Some(4));
        let at = |occupants: &[Occupant], job: Asking| {
            chosen(AtOnce::Memory, &gpus, occupants, &[job]).is_some()
        };
        assert!(at(std::slice::from_ref(&four), job(1, None, Some(10))));
        assert!(!at(std::slice::from_ref(&four), job(1, None, Some(12))));
        assert!(at(std::slice::from_ref(&four), job(1, None, None)));
        assert!(!at(&[four.clone(), four.clone()], job(1, None, None)));
        // Of what takes nobody knows how much, nobody knows what it leaves.
        assert!(!at(&[on("gpu:0", None)], job(1, None, Some(1))));
        let alone = Asking {
            alone: true,
            ..job(1, None, Some(1))
        };
        assert!(!at(&[four], alone.clone()));
        assert!(at(&[], alone));
    }

    #[test]
    fn an_empty_gpu_comes_first_and_then_the_one_with_most_room() {
        let three = gpus(&[16, 24, 16]);
        let busy = [on("gpu:0", Some(2)), on("gpu:1", Some(2))];
        let one = [job(1, None, Some(2))];
        assert_eq!(chosen(AtOnce::Memory, &three, &busy, &one), is(1, "gpu:2"));
        assert_eq!(
            chosen(AtOnce::Memory, &three[..2], &busy, &one),
            is(1, "gpu:1")
        );
    }

    #[test]
    fn a_small_job_does_not_overtake_a_large_one_for_ever() {
        let gpus = gpus(&[16, 16]);
        let busy = [on("gpu:0", Some(4)), on("gpu:1", Some(4))];
        let jobs = [job(1, Some("gpu:0"), Some(15)), job(2, None, Some(1))];
        assert_eq!(chosen(AtOnce::Memory, &gpus, &busy, &jobs), is(2, "gpu:1"));
        let jobs = [job(1, None, Some(15)), job(2, None, Some(1))];
        assert_eq!(chosen(AtOnce::Memory, &gpus, &busy, &jobs), None);
    }

    #[test]
    fn a_hidden_gpu_is_no_device_and_a_machine_without_one_has_its_cpu() {
        let read = |name: &str| {
            let folder = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../doctor/tests/fixtures/synthetic"
            );
            let text = std::fs::read_to_string(format!("{folder}/{name}.txt")).unwrap();
            devices(&doctor::report::diagnose_text(&text).unwrap())
        };
        let found = read("kfd_gfx1201_plus_gfx1036");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].name.starts_with("gpu:") && found[0].capacity > Some(8 * GIB));
        let found = read("kfd_cpu_only");
        assert_eq!(found[0].name, CPU);
    }
}
