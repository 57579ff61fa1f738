//! Carries out what a [`Plan`](crate::offload::plan::Plan) says on entering a phase.
//!
//! ```text
//!   encode text:  text encoder ──▶ device
//!   train:        text encoder ──▶ host, or the spill file      first
//!                 caches trimmed                            then
//!                 transformer  ──▶ device                   last
//! ```
//!
//! The order is the point: on unified memory the other one needs both at once. What a plan leaves in its file is
//! put on the [`SpillFile`], a file without a name, and comes back from there bit by bit, also when it was trained
//! meanwhile. Swapped and zero-copy modules are the business of [`crate::offload::swap`], and left alone here.

mod spill_file;

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use tch::{Device, Tensor};

pub use self::spill_file::SpillFile;

use crate::offload::plan::{Memory, PhasePlan, Residency};
use crate::placer::{PlaceError, Placer, size_of_tensor};
use platform::Bytes;

/// How much comes to the device at a time: as much may be in host memory beside what is there already.
const LOAD: Bytes = Bytes::mib(64);

/// Something with named tensors.
pub trait Parameters {
    /// Every parameter and buffer by its name, in a fixed order. Tied weights may come twice.
    fn parameters(&mut self) -> Vec<(String, &mut Tensor)>;
}

/// A component by its name in the plan. Its tensors have full names: a module's name, a dot, and more.
pub struct StageComponent<'a> {
    /// As the plan names it.
    pub name: &'a str,
    /// The component's tensors.
    pub parameters: &'a mut dyn Parameters,
}

/// What entering a phase did, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Entered {
    /// Left the device for host memory.
    pub to_host: Bytes,
    /// Left memory for the spill file.
    #[serde(rename = "to_spill_file")]
    pub to_file: Bytes,
    /// Handed back by caches before anything came.
    pub trimmed: Bytes,
    /// Came to the device.
    pub to_device: Bytes,
}

/// Enters a phase: what is idle in it leaves, caches are trimmed, and what is used comes, a few tensors at a
/// time. Tensors of one memory leave once, come once, and stay of one memory, also between components: where the
/// phase uses one of them, the others are where it is.
///
/// # Errors
/// [`PlaceError`]: a tensor that does not arrive on either side, or a spill file that cannot be written or read. What
/// was moved before stays moved; entering the phase again goes on.
pub fn enter(
    placer: &mut Placer,
    phase: &PhasePlan,
    components: &mut [StageComponent<'_>],
    spill_file: &mut SpillFile,
) -> Result<Entered, PlaceError> {
    let mut entered = Entered::default();
    // Before anything moves: afterwards nobody could tell what was one memory.
    let mut tensors = find(&BlockStore::of(phase), components, spill_file)?;
    leave(placer, &mut tensors, spill_file, &mut entered)?;
    if entered != Entered::default() {
        entered.trimmed = placer.trim()?;
    }
    let mut load = Load::default();
    for mut tied in Tied::used(tensors) {
        tied.restore(spill_file)?;
        load.add(tied);
        if load.bytes >= LOAD {
            entered.to_device += load.bring(placer)?;
        }
    }
    entered.to_device += load.bring(placer)?;
    Ok(entered)
}

/// A tensor that has a residency in a phase, as it was found on entering.
struct Staged<'a> {
    name: String,
    tensor: &'a mut Tensor,
    residency: Residency,
    origin: Origin,
}

impl Staged<'_> {
    fn is_idle(&self) -> bool {
        self.residency.is_idle()
    }
}

/// The tensors of all components.
fn find<'a>(
    residencies: &BlockStore<'_>,
    components: &'a mut [StageComponent<'_>],
    spill_file: &mut SpillFile,
) -> Result<Vec<Staged<'a>>, PlaceError> {
    let mut found = Vec::new();
    for component in components {
        for (name, tensor) in component.parameters.parameters() {
            let Some(residency) = residencies.residency(component.name, &name) else {
                continue;
            };
            let mut staged = Staged {
                origin: Origin::of(tensor),
                name,
                tensor,
                residency,
            };
            if staged.tensor.numel() == 0 {
                let place = spill_file.place_of(&staged.name).map(Origin::SpillFile);
                staged.origin = place.unwrap_or(staged.origin);
            } else if staged.is_idle() || residency == Residency::Device {
                // It was filled by somebody else since; what is in the spill file is older.
                spill_file.forget(&staged.name)?;
            }
            found.push(staged);
        }
    }
    Ok(found)
}

/// Takes what is idle off the device, unless it is of one memory with what is used.
fn leave(
    placer: &mut Placer,
    tensors: &mut [Staged<'_>],
    spill_file: &mut SpillFile,
    entered: &mut Entered,
) -> Result<(), PlaceError> {
    let used = tensors.iter().filter(|staged| !staged.is_idle());
    let used: HashSet<Origin> = used.map(|staged| staged.origin.clone()).collect();
    let mut gone: HashMap<&Origin, (&str, Tensor)> = HashMap::new();
    for staged in tensors.iter_mut().filter(|staged| staged.is_idle()) {
        let Staged {
            name,
            tensor,
            residency,
            origin,
        } = staged;
        if matches!(origin, Origin::SpillFile(_)) || used.contains(origin) {
            continue;
        }
        // Asked before its size: it may be the same tensor, and empty by now.
        if let Some((first, data)) = gone.get(origin) {
            set(name, tensor, data)?;
            spill_file.tie(name, first);
            continue;
        }
        if tensor.numel() == 0 {
            continue;
        }
        let bytes = size_of_tensor(tensor);
        if tensor.device() != Device::Cpu {
            let host = placer.to_host(name, tensor)?;
            set(name, tensor, &host)?;
            entered.to_host += bytes;
        }
        if *residency == Residency::IdleOnDisk {
            let empty = spill_file.put(name, tensor)?;
            set(name, tensor, &empty)?;
            entered.to_file += bytes;
        }
        gone.insert(origin, (name, tensor.shallow_clone()));
    }
    Ok(())
}

/// Where a tensor was when a phase was entered: the same for tied ones, since all are looked at before any moves.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Origin {
    /// Memory, and how it is looked at.
    Memory {
        device: Device,
        address: usize,
        kind: i32,
        size: Vec<i64>,
        strides: Vec<i64>,
    },
    /// The spill_file, from this byte on.
    SpillFile(u64),
}

impl Origin {
    fn of(tensor: &Tensor) -> Self {
        Self::Memory {
            device: tensor.device(),
            // Tensors without numbers share no memory, whatever their address.
            address: match tensor.numel() {
                0 => tensor.as_ptr() as usize,
                _ => tensor.data_ptr() as usize,
            },
            kind: tensor.kind() as i32,
            size: tensor.size(),
            strides: tensor.stride(),
        }
    }
}

/// Tensors of one memory, of which the phase has one on the device.
struct Tied<'a> {
    /// The one that moves.
    first: Staged<'a>,
    /// They follow, whether they are used or idle.
    others: Vec<Staged<'a>>,
}

impl<'a> Tied<'a> {
    /// Those that are used, in their order.
    fn used(tensors: Vec<Staged<'a>>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        let mut places: HashMap<Origin, usize> = HashMap::new();
        let (used, others): (Vec<_>, Vec<_>) = tensors
            .into_iter()
            .partition(|staged| staged.residency == Residency::Device);
        for staged in used {
            if let Some(&place) = places.get(&staged.origin) {
                all[place].others.push(staged);
                continue;
            }
            places.insert(staged.origin.clone(), all.len());
            all.push(Self {
                first: staged,
                others: Vec::new(),
            });
        }
        for staged in others.into_iter().filter(Staged::is_idle) {
            if let Some(&place) = places.get(&staged.origin) {
                all[place].others.push(staged);
            }
        }
        all
    }

    /// Takes them out of the spill file, all at once: they are of one memory then, even if it does not get further.
    fn restore(&mut self, spill_file: &mut SpillFile) -> Result<(), PlaceError> {
        if !matches!(self.first.origin, Origin::SpillFile(_)) {
            return Ok(());
        }
        let data = spill_file.read(&self.first.name)?;
        set(&self.first.name, self.first.tensor, &data)?;
        self.follow()?;
        for staged in std::iter::once(&self.first).chain(&self.others) {
            spill_file.forget(&staged.name)?;
        }
        Ok(())
    }

    /// Lets the others be where the first is.
    fn follow(&mut self) -> Result<(), PlaceError> {
        let there = Origin::of(self.first.tensor);
        for Staged { name, tensor, .. } in &mut self.others {
            // Another handle on the same tensor is there already.
            if Origin::of(tensor) != there {
                set(name, tensor, self.first.tensor)?;
            }
        }
        Ok(())
    }
}

/// Tensors that come to the device together.
#[derive(Default)]
struct Load<'a> {
    tensors: Vec<Tied<'a>>,
    bytes: Bytes,
}

impl<'a> Load<'a> {
    fn add(&mut self, tied: Tied<'a>) {
        self.bytes += size_of_tensor(tied.first.tensor);
        self.tensors.push(tied);
    }

    /// Has them placed; the bytes that moved.
    fn bring(&mut self, placer: &mut Placer) -> Result<Bytes, PlaceError> {
        self.bytes = Bytes::ZERO;
        let mut tensors = std::mem::take(&mut self.tensors);
        let device = placer.device();
        let sizes = tensors.iter().map(|tied| &*tied.first.tensor);
        let elsewhere = sizes.filter(|tensor| tensor.device() != device);
        let moving = elsewhere.map(size_of_tensor).sum();
        for tied in &tensors {
            // It may have been trained since it left, as moments are in each step.
            placer.expect_new_bytes(&tied.first.name);
        }
        let coming = tensors.iter_mut().map(|tied| &mut tied.first);
        let came = placer.module(
            coming.map(|first| (first.name.as_str(), &mut *first.tensor)),
            None,
        );
        // Also after a failure, since some may have moved: entering again could not tell what was one memory.
        let followed: Vec<_> = tensors.iter_mut().map(Tied::follow).collect();
        came?;
        followed.into_iter().collect::<Result<(), _>>()?;
        Ok(moving)
    }
}

fn set(name: &str, tensor: &mut Tensor, data: &Tensor) -> Result<(), PlaceError> {
    tensor.f_set_data(data).map_err(|error| PlaceError::Torch {
        tensor: name.to_owned(),
        source: error.into(),
    })
}

/// Which module has which residency.
struct BlockStore<'a>(Vec<(&'a str, &'a str, Residency)>);

impl<'a> BlockStore<'a> {
    fn of(phase: &'a PhasePlan) -> Self {
        let placements = phase.placements.iter();
        Self(
            placements
                .map(|placed| {
                    (
                        placed.component.as_str(),
                        placed.module.as_str(),
                        placed.residency,
                    )
                })
                .collect(),
        )
    }

    /// The residency of a tensor: that of the longest module name that its own begins with.
    fn residency(&self, component: &str, tensor: &str) -> Option<Residency> {
        let holds = |module: &str| {
            tensor
                .strip_prefix(module)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let modules = self.0.iter();
        modules
            .filter(|(of, module, _)| *of == component && holds(module))
            .max_by_key(|(_, module, _)| module.len())
            .map(|(_, _, residency)| *residency)
    }
}

impl Placer {
    /// The memory that a plan may use, of which so much is free on the device and the host.
    /// The CPU is a device that has one memory with the host.
    pub fn memory(&self, device: Bytes, host: Bytes) -> Memory {
        let (facts, on_cpu) = (self.facts(), self.device() == Device::Cpu);
        match facts.unified_memory || on_cpu {
            true => Memory::Unified {
                device,
                pool: host,
                zero_copy: facts.zero_copy && !on_cpu,
            },
            false => Memory::Discrete { device, host },
        }
    }
}

#[cfg(test)]
mod tests;
