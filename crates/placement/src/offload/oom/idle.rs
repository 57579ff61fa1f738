//! Offloads what is idle, once memory has run short.
//!
//! Training has more on the device than a step uses at any time: the optimizer's moments and averaged weights
//! wait for the end of the backward pass, a teacher or a decoder for the next evaluation. Once memory has run
//! short, each phase of a run has on the device only what it uses:
//!
//! ```text
//!               forward and backward   update       evaluation
//!   moments     offloaded              on device    offloaded
//!   averages    offloaded              on device    on device
//!   teacher     offloaded              offloaded    on device
//! ```
//!
//! With a discrete card, offloaded tensors go to host memory. On unified memory (and on the CPU) that would
//! be a second copy in the same RAM, so they go to an unlinked temporary file.

use std::io;
use std::path::{Path, PathBuf};

use tch::Tensor;

use crate::offload::phases::Parameters;
use crate::offload::phases::{PhaseTransfers, SpillFile, StageComponent, enter};
use crate::offload::plan::{Memory, PhasePlan, Placement, Residency};
use crate::placer::{PlaceError, Placer, size_of_tensor};
use platform::Bytes;

/// Tensors that are used in the same phases.
pub struct OffloadGroup {
    /// The name in messages, unique among the groups.
    name: String,
    tensors: Vec<(String, Tensor)>,
    in_use: bool,
}

impl OffloadGroup {
    /// A part of these tensors, each with a name of its own. They are handles
    /// ([`Tensor::shallow_clone`]) on those of their owner, who sees them leave and come back; while they
    /// are away they are empty, or on the CPU.
    pub fn new(
        name: impl Into<String>,
        tensors: impl IntoIterator<Item = (String, Tensor)>,
        in_use: bool,
    ) -> OffloadGroup {
        OffloadGroup {
            name: name.into(),
            tensors: tensors.into_iter().collect(),
            in_use,
        }
    }

    /// The name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that it takes in memory; what is in the file does not count.
    pub fn bytes(&self) -> Bytes {
        let sizes = self
            .tensors
            .iter()
            .map(|(_, tensor)| size_of_tensor(tensor));
        sizes.sum()
    }
}

impl Parameters for OffloadGroup {
    fn parameters(&mut self) -> Vec<(String, &mut Tensor)> {
        let OffloadGroup { name, tensors, .. } = self;
        let named = tensors.iter_mut();
        named
            .map(|(tensor, data)| (format!("{name}.{tensor}"), data))
            .collect()
    }
}

/// Offloads idle groups, from the first time memory runs out.
///
/// ```
/// use surefoot_placement::plan::Memory;
/// use surefoot_placement::oom::{IdleOffloader, OffloadGroup};
/// use surefoot_placement::{Bytes, Placer, Policy};
/// use tch::{Device, Kind, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut placer = Placer::new(Device::Cpu, Policy::default())?;
/// let teacher = Tensor::ones([64, 64], (Kind::Float, Device::Cpu));
/// let groups = |in_use| {
///     let weights = [("weight".to_owned(), teacher.shallow_clone())];
///     [OffloadGroup::new("teacher", weights, in_use)]
/// };
/// // A step ran out of memory, and `OomPolicy` decided to offload what is idle.
/// let memory = placer.memory(Bytes::gib(8), Bytes::gib(8));
/// let mut idle = IdleOffloader::new(memory, &std::env::temp_dir())?;
/// let moved = idle.enter(&mut placer, &mut groups(false))?;
/// assert_eq!((moved.to_file, teacher.numel()), (Bytes(64 * 64 * 4), 0));
/// // An evaluation uses it.
/// idle.enter(&mut placer, &mut groups(true))?;
/// assert_eq!(teacher.sum(Kind::Float).double_value(&[]), 64.0 * 64.0);
/// # Ok(())
/// # }
/// ```
pub struct IdleOffloader {
    memory: Memory,
    folder: PathBuf,
    spill_file: SpillFile,
}

impl IdleOffloader {
    /// Nothing is offloaded yet. `folder` must be on a disk: one in memory (`/dev/shm`) would free nothing.
    pub fn new(memory: Memory, folder: &Path) -> io::Result<IdleOffloader> {
        Ok(IdleOffloader {
            memory,
            folder: folder.to_owned(),
            spill_file: SpillFile::new(folder)?,
        })
    }

    /// Where tensors of this total size go while they are idle.
    pub fn residency(memory: Memory, bytes: Bytes) -> Residency {
        match memory {
            Memory::Discrete { host, .. } if bytes <= host => Residency::IdleOnHost,
            _ => Residency::IdleOnDisk,
        }
    }

    /// Where idle groups go, for messages: `host memory`, or the folder of the file.
    pub fn place(&self, parts: &[OffloadGroup]) -> String {
        match Self::residency(self.memory, idle_bytes(parts)) {
            Residency::IdleOnHost => "host memory".to_owned(),
            _ => format!("a file in `{}`", self.folder.display()),
        }
    }

    /// Moves the groups that are in use to the device and the others off it, in the opposite order. Copies in
    /// both directions are verified as the placer's policy says, and reads from the file always.
    ///
    /// # Errors
    /// [`PlaceError`] if a tensor does not arrive, or the file cannot be written or read. Nothing is lost:
    /// what was offloaded stays so, and entering again continues.
    pub fn enter(
        &mut self,
        placer: &mut Placer,
        parts: &mut [OffloadGroup],
    ) -> Result<PhaseTransfers, PlaceError> {
        let away = Self::residency(self.memory, idle_bytes(parts));
        let placements = parts.iter().map(|part| Placement {
            component: part.name.clone(),
            module: part.name.clone(),
            bytes: part.bytes(),
            residency: if part.in_use { Residency::Device } else { away },
        });
        let phase = PhasePlan::from_placements("memory is short", placements.collect());
        let names: Vec<String> = parts.iter().map(|part| part.name.clone()).collect();
        let mut components: Vec<StageComponent<'_>> = names
            .iter()
            .zip(parts)
            .map(|(name, parameters)| StageComponent { name, parameters })
            .collect();
        enter(placer, &phase, &mut components, &mut self.spill_file)
    }
}

fn idle_bytes(parts: &[OffloadGroup]) -> Bytes {
    let idle = parts.iter().filter(|part| !part.in_use);
    idle.map(OffloadGroup::bytes).sum()
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::transfer::policy::Policy;

    #[test]
    fn one_memory_frees_nothing_for_itself() {
        let card = Memory::Discrete {
            device: Bytes::gib(8),
            host: Bytes::gib(1),
        };
        assert_eq!(
            IdleOffloader::residency(card, Bytes::gib(1)),
            Residency::IdleOnHost
        );
        assert_eq!(
            IdleOffloader::residency(card, Bytes::gib(2)),
            Residency::IdleOnDisk
        );
        let apu = Memory::Unified {
            device: Bytes::gib(8),
            pool: Bytes::gib(64),
            zero_copy: true,
        };
        assert_eq!(
            IdleOffloader::residency(apu, Bytes(1)),
            Residency::IdleOnDisk
        );
    }

    #[test]
    fn each_moment_has_what_it_uses_and_tied_tensors_stay_one() {
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let memory = placer.memory(Bytes::gib(1), Bytes::gib(1));
        let folder = tempfile::tempdir().unwrap();
        let mut idle = IdleOffloader::new(memory, folder.path()).unwrap();
        let average = Tensor::arange(1000, (Kind::Float, Device::Cpu));
        let teacher = Tensor::arange(500, (Kind::Half, Device::Cpu));
        let again = teacher.shallow_clone();
        let alias = teacher.detach();
        let mut enter = |average_in_use, teacher_in_use| {
            let handle = |name: &str, tensor: &Tensor| (name.to_owned(), tensor.shallow_clone());
            let teacher = [handle("w", &again), handle("head", &alias)];
            let mut parts = [
                OffloadGroup::new("average", [handle("w", &average)], average_in_use),
                OffloadGroup::new("teacher", teacher, teacher_in_use),
            ];
            idle.enter(&mut placer, &mut parts).unwrap();
            (average.numel(), again.numel())
        };
        for (average_in_use, teacher_in_use) in
            [(false, false), (true, false), (false, true), (false, false)]
        {
            let there = |used, numbers| if used { numbers } else { 0 };
            assert_eq!(
                enter(average_in_use, teacher_in_use),
                (there(average_in_use, 1000), there(teacher_in_use, 500))
            );
        }
        enter(true, true);
        assert!(average.equal(&Tensor::arange(1000, (Kind::Float, Device::Cpu))));
        assert!(teacher.equal(&Tensor::arange(500, (Kind::Half, Device::Cpu))));
        assert_eq!(teacher.data_ptr(), alias.data_ptr());
    }
}
