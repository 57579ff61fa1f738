//! What is not in use at the moment, off the device for as long as memory is short.
//!
//! Training has more on its device than a step uses: the optimizer's moments and averaged weights wait for the
//! backward pass to end, a teacher or a decoder for the next evaluation. Once memory was short, each moment of
//! a run has on the device what it uses, and nothing else:
//!
//! ```text
//!               passes    update    evaluation
//!   moments      away      here       away
//!   averages     away      here       here
//!   teacher      away      away       here
//! ```
//!
//! With a card of its own, away is host memory. On unified memory (and on the CPU) that would be a second copy
//! in the same RAM: there it is a file without a name.

use std::io;
use std::path::{Path, PathBuf};

use tch::Tensor;

use crate::offload::phases::Parameters;
use crate::offload::phases::{Entered, SpillFile, StageComponent, enter};
use crate::offload::plan::{Memory, PhasePlan, Placement, Residency};
use crate::placer::{PlaceError, Placer, size_of_tensor};
use platform::Bytes;

/// Tensors that are used at the same moments.
pub struct Part {
    /// As messages name it. No two parts have the same.
    name: String,
    tensors: Vec<(String, Tensor)>,
    in_use: bool,
}

impl Part {
    /// A part of these tensors, each with a name of its own. They are handles
    /// ([`Tensor::shallow_clone`]) on those of their owner, who sees them leave and come back; while they
    /// are away they are empty, or on the CPU.
    pub fn new(
        name: impl Into<String>,
        tensors: impl IntoIterator<Item = (String, Tensor)>,
        in_use: bool,
    ) -> Part {
        Part {
            name: name.into(),
            tensors: tensors.into_iter().collect(),
            in_use,
        }
    }

    /// As messages name it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size, as far as it is in memory.
    pub fn bytes(&self) -> Bytes {
        let sizes = self
            .tensors
            .iter()
            .map(|(_, tensor)| size_of_tensor(tensor));
        sizes.sum()
    }
}

impl Parameters for Part {
    fn parameters(&mut self) -> Vec<(String, &mut Tensor)> {
        let Part { name, tensors, .. } = self;
        let named = tensors.iter_mut();
        named
            .map(|(tensor, data)| (format!("{name}.{tensor}"), data))
            .collect()
    }
}

/// Where idle parts are, from the first shortage on.
///
/// ```
/// use surefoot_placement::plan::Memory;
/// use surefoot_placement::oom::{Idle, Part};
/// use surefoot_placement::{Bytes, Placer, Policy};
/// use tch::{Device, Kind, Tensor};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut placer = Placer::new(Device::Cpu, Policy::default())?;
/// let teacher = Tensor::ones([64, 64], (Kind::Float, Device::Cpu));
/// let parts = |in_use| {
///     let weights = [("weight".to_owned(), teacher.shallow_clone())];
///     [Part::new("teacher", weights, in_use)]
/// };
/// // A step said that memory is full, and `OomPolicy` that what is idle should go.
/// let memory = placer.memory(Bytes::gib(8), Bytes::gib(8));
/// let mut idle = Idle::new(memory, &std::env::temp_dir())?;
/// let gone = idle.enter(&mut placer, &mut parts(false))?;
/// assert_eq!((gone.to_file, teacher.numel()), (Bytes(64 * 64 * 4), 0));
/// // An evaluation uses it.
/// idle.enter(&mut placer, &mut parts(true))?;
/// assert_eq!(teacher.sum(Kind::Float).double_value(&[]), 64.0 * 64.0);
/// # Ok(())
/// # }
/// ```
pub struct Idle {
    memory: Memory,
    folder: PathBuf,
    spill_file: SpillFile,
}

impl Idle {
    /// Nothing is away yet. `folder` is on a disk: one in memory (`/dev/shm`) would free nothing.
    ///
    /// # Errors
    /// When no file can be made in the folder.
    pub fn new(memory: Memory, folder: &Path) -> io::Result<Idle> {
        Ok(Idle {
            memory,
            folder: folder.to_owned(),
            spill_file: SpillFile::new(folder)?,
        })
    }

    /// Where something of this size goes while it is idle.
    pub fn residency(memory: Memory, bytes: Bytes) -> Residency {
        match memory {
            Memory::Discrete { host, .. } if bytes <= host => Residency::IdleOnHost,
            _ => Residency::IdleOnDisk,
        }
    }

    /// Where idle parts are, in words: `host memory`, or the folder of the file.
    pub fn place(&self, parts: &[Part]) -> String {
        match Self::residency(self.memory, idle_bytes(parts)) {
            Residency::IdleOnHost => "host memory".to_owned(),
            _ => format!("a file in `{}`", self.folder.display()),
        }
    }

    /// Has the parts that are in use on the device, and no others. What leaves does so first; what arrives
    /// on either side is verified as the placer's policy asks, and what was in the file always.
    ///
    /// # Errors
    /// [`PlaceError`]: a tensor that does not arrive, or a file that cannot be written or read. Nothing is lost:
    /// what had left is still away, and entering again goes on.
    pub fn enter(
        &mut self,
        placer: &mut Placer,
        parts: &mut [Part],
    ) -> Result<Entered, PlaceError> {
        let away = Self::residency(self.memory, idle_bytes(parts));
        let placements = parts.iter().map(|part| Placement {
            component: part.name.clone(),
            module: part.name.clone(),
            bytes: part.bytes(),
            residency: if part.in_use { Residency::Device } else { away },
        });
        let phase = PhasePlan::by_hand("memory is short", placements.collect());
        let names: Vec<String> = parts.iter().map(|part| part.name.clone()).collect();
        let mut components: Vec<StageComponent<'_>> = names
            .iter()
            .zip(parts)
            .map(|(name, parameters)| StageComponent { name, parameters })
            .collect();
        enter(placer, &phase, &mut components, &mut self.spill_file)
    }
}

fn idle_bytes(parts: &[Part]) -> Bytes {
    let idle = parts.iter().filter(|part| !part.in_use);
    idle.map(Part::bytes).sum()
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
        assert_eq!(Idle::residency(card, Bytes::gib(1)), Residency::IdleOnHost);
        assert_eq!(Idle::residency(card, Bytes::gib(2)), Residency::IdleOnDisk);
        let apu = Memory::Unified {
            device: Bytes::gib(8),
            pool: Bytes::gib(64),
            zero_copy: true,
        };
        assert_eq!(Idle::residency(apu, Bytes(1)), Residency::IdleOnDisk);
    }

    #[test]
    fn each_moment_has_what_it_uses_and_tied_tensors_stay_one() {
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let memory = placer.memory(Bytes::gib(1), Bytes::gib(1));
        let folder = tempfile::tempdir().unwrap();
        let mut idle = Idle::new(memory, folder.path()).unwrap();
        let average = Tensor::arange(1000, (Kind::Float, Device::Cpu));
        let teacher = Tensor::arange(500, (Kind::Half, Device::Cpu));
        let again = teacher.shallow_clone();
        let alias = teacher.detach();
        let mut enter = |average_in_use, teacher_in_use| {
            let handle = |name: &str, tensor: &Tensor| (name.to_owned(), tensor.shallow_clone());
            let teacher = [handle("w", &again), handle("head", &alias)];
            let mut parts = [
                Part::new("average", [handle("w", &average)], average_in_use),
                Part::new("teacher", teacher, teacher_in_use),
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
