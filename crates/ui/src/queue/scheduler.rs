//! Which job starts next and on which device: one run at a time, one per device, or as many as fit in memory.

use std::collections::HashSet;
use std::fmt;

use doctor::Report;
use doctor::findings::seen_by_hip;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::job::JobId;

/// Device memory of a process that an estimate does not count: its context, and what the allocator keeps. In
/// bytes.
const PROCESS_OVERHEAD: u64 = 512 << 20;

/// The device of runs on a machine without a GPU.
pub(super) const CPU: &str = "cpu";

/// How many runs train at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "AtOnce")]
pub enum Concurrency {
    /// One run.
    #[default]
    One,
    /// One run per GPU.
    PerGpu,
    /// On each GPU as many runs as fit in its memory, by their estimates.
    Memory,
}

impl Concurrency {
    /// All values.
    pub const ALL: [Self; 3] = [Self::One, Self::PerGpu, Self::Memory];

    /// Its name in JSON and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::PerGpu => "per_gpu",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl std::str::FromStr for Concurrency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| format!("{text:?} is not one of `one`, `per_gpu` and `memory`"))
    }
}

/// A device to train on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    /// Its name in a config.
    pub(super) name: String,
    /// Bytes that can be allocated on it, if known.
    pub(super) capacity: Option<u64>,
}

/// The visible GPUs as the doctor reports them, in the order in which a run counts them; the CPU if there is none.
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

/// What a run uses of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceUse {
    pub(super) device: String,
    /// Its expected peak in bytes.
    pub(super) expected: Option<u64>,
}

/// A waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WaitingJob {
    pub(super) id: JobId,
    /// The device that its config names, if any.
    pub(super) device: Option<String>,
    /// Its expected peak in bytes, once it has been checked.
    pub(super) expected: Option<u64>,
    /// Whether it needs a device to itself.
    pub(super) alone: bool,
}

/// A job that can start, and its device; `None` leaves the choice to the run.
pub(super) type Assignment = (JobId, Option<String>);

/// The first job that can start. No job overtakes another that waits for the same device.
pub(super) fn choose(
    at_once: Concurrency,
    devices: &[Device],
    in_use: &[DeviceUse],
    waiting: &[WaitingJob],
) -> Option<Assignment> {
    if at_once == Concurrency::One {
        let next = waiting.first().filter(|_| in_use.is_empty())?;
        return Some((next.id, None));
    }
    let mut held: HashSet<&str> = HashSet::new();
    for job in waiting {
        let names: Vec<&str> = match &job.device {
            Some(device) => vec![device],
            None => devices.iter().map(|device| &*device.name).collect(),
        };
        let open = || names.iter().filter(|name| !held.contains(**name));
        let on = |name: &str| {
            let name = name.to_owned();
            in_use.iter().filter(move |one| one.device == name)
        };
        let empty = open().find(|name| on(name).next().is_none());
        let shared = || {
            let free = open().filter_map(|name| {
                let device = devices.iter().find(|device| device.name == **name)?;
                Some((free_memory(device.capacity?, on(name), job)?, name))
            });
            free.max_by_key(|(free_memory, _)| *free_memory)
                .map(|(_, name)| name)
        };
        let found = match at_once {
            Concurrency::Memory => empty.or_else(shared),
            Concurrency::One | Concurrency::PerGpu => empty,
        };
        if let Some(name) = found {
            return Some((job.id, Some((*name).to_owned())));
        }
        held.extend(names);
    }
    None
}

/// The free memory of a device in bytes, if the job fits beside the runs on it. A job that was not checked yet
/// needs half of the device to be free, since the check takes memory, too.
fn free_memory<'a>(
    capacity: u64,
    in_use: impl Iterator<Item = &'a DeviceUse>,
    job: &WaitingJob,
) -> Option<u64> {
    if job.alone {
        return None;
    }
    let taken = in_use.map(|one| Some(one.expected? + PROCESS_OVERHEAD));
    let left = capacity.checked_sub(taken.sum::<Option<u64>>()?)?;
    let wanted = job
        .expected
        .map_or(capacity / 2, |expected| expected + PROCESS_OVERHEAD);
    (wanted <= left).then_some(left)
}

/// Whether a job of this size fits beside the runs on a device.
pub(super) fn fits_beside(capacity: Option<u64>, beside: &[DeviceUse], expected: u64) -> bool {
    let job = WaitingJob {
        id: JobId(0),
        device: None,
        expected: Some(expected),
        alone: false,
    };
    beside.is_empty()
        || capacity.is_some_and(|capacity| free_memory(capacity, beside.iter(), &job).is_some())
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

    fn on(device: &str, gib: Option<u64>) -> DeviceUse {
        DeviceUse {
            device: device.into(),
            expected: gib.map(|gib| gib * GIB),
        }
    }

    fn job(id: u64, device: Option<&str>, gib: Option<u64>) -> WaitingJob {
        WaitingJob {
            id: JobId(id),
            device: device.map(str::to_owned),
            expected: gib.map(|gib| gib * GIB),
            alone: false,
        }
    }

    fn chosen(
        at_once: Concurrency,
        devices: &[Device],
        in_use: &[DeviceUse],
        waiting: &[WaitingJob],
    ) -> Option<(u64, String)> {
        let found = choose(at_once, devices, in_use, waiting);
        found.map(|(id, device)| (id.0, device.unwrap_or_default()))
    }

    fn is(id: u64, device: &str) -> Option<(u64, String)> {
        Some((id, device.to_owned()))
    }

    #[test]
    fn one_at_a_time_means_one_on_all_devices() {
        let gpus = gpus(&[16, 16]);
        let jobs = [job(1, Some("gpu:1"), None), job(2, None, None)];
        assert_eq!(chosen(Concurrency::One, &gpus, &[], &jobs), is(1, ""));
        let busy = [on("gpu:0", Some(1))];
        assert_eq!(chosen(Concurrency::One, &gpus, &busy, &jobs), None);
    }

    #[test]
    fn each_gpu_runs_one_job_and_a_job_that_names_a_gpu_waits_for_it() {
        let (gpus, busy) = (gpus(&[16, 16]), [on("gpu:1", Some(1))]);
        let any = job(2, None, None);
        let named = job(1, Some("gpu:1"), None);
        assert_eq!(
            chosen(Concurrency::PerGpu, &gpus, &busy, &[named, any.clone()]),
            is(2, "gpu:0")
        );
        let all = [busy[0].clone(), on("gpu:0", Some(1))];
        assert_eq!(chosen(Concurrency::PerGpu, &gpus, &all, &[any]), None);
        // A run on the CPU does not compete for a GPU.
        let cpu = job(3, Some(CPU), None);
        assert_eq!(chosen(Concurrency::PerGpu, &gpus, &all, &[cpu]), is(3, CPU));
    }

    #[test]
    fn runs_share_a_gpu_while_their_estimates_fit() {
        let gpus = gpus(&[16]);
        let four = on("gpu:0", Some(4));
        let at = |in_use: &[DeviceUse], job: WaitingJob| {
            chosen(Concurrency::Memory, &gpus, in_use, &[job]).is_some()
        };
        assert!(at(std::slice::from_ref(&four), job(1, None, Some(10))));
        assert!(!at(std::slice::from_ref(&four), job(1, None, Some(12))));
        assert!(at(std::slice::from_ref(&four), job(1, None, None)));
        assert!(!at(&[four.clone(), four.clone()], job(1, None, None)));
        // Beside a run of unknown size nothing is known to fit.
        assert!(!at(&[on("gpu:0", None)], job(1, None, Some(1))));
        let alone = WaitingJob {
            alone: true,
            ..job(1, None, Some(1))
        };
        assert!(!at(&[four], alone.clone()));
        assert!(at(&[], alone));
    }

    #[test]
    fn an_empty_gpu_comes_first_and_then_the_one_with_the_most_free_memory() {
        let three = gpus(&[16, 24, 16]);
        let busy = [on("gpu:0", Some(2)), on("gpu:1", Some(2))];
        let one = [job(1, None, Some(2))];
        assert_eq!(
            chosen(Concurrency::Memory, &three, &busy, &one),
            is(1, "gpu:2")
        );
        assert_eq!(
            chosen(Concurrency::Memory, &three[..2], &busy, &one),
            is(1, "gpu:1")
        );
    }

    #[test]
    fn a_small_job_does_not_overtake_a_large_one_for_ever() {
        let gpus = gpus(&[16, 16]);
        let busy = [on("gpu:0", Some(4)), on("gpu:1", Some(4))];
        let jobs = [job(1, Some("gpu:0"), Some(15)), job(2, None, Some(1))];
        assert_eq!(
            chosen(Concurrency::Memory, &gpus, &busy, &jobs),
            is(2, "gpu:1")
        );
        let jobs = [job(1, None, Some(15)), job(2, None, Some(1))];
        assert_eq!(chosen(Concurrency::Memory, &gpus, &busy, &jobs), None);
    }

    #[test]
    fn a_hidden_gpu_is_not_used_and_a_machine_without_a_gpu_uses_the_cpu() {
        let read = |name: &str| {
            let folder = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../doctor/tests/fixtures/synthetic"
            );
            let text = std::fs::read_to_string(format!("{folder}/{name}.txt")).unwrap();
            devices(&doctor::diagnose_text(&text).unwrap())
        };
        let found = read("kfd_gfx1201_plus_gfx1036");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].name.starts_with("gpu:") && found[0].capacity > Some(8 * GIB));
        let found = read("kfd_cpu_only");
        assert_eq!(found[0].name, CPU);
    }
}
