//! Carries out a [`Plan`](crate::offload::plan::Plan) when a phase is entered.
//!
//! ```text
//!   encode text:  text encoder ──▶ device
//!   train:        text encoder ──▶ host, or the spill file    first
//!                 caches trimmed                              then
//!                 transformer  ──▶ device                     last
//! ```
//!
//! The order matters: on unified memory, the opposite order needs both at once. What a plan leaves on disk is
//! written to the [`SpillFile`], an unlinked temporary file, and is restored bit-exactly from there, even if
//! it was trained in between. Swapped and zero-copy modules are left to [`crate::offload::swap`].

mod spill_file;

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use tch::{Device, Tensor};

pub use self::spill_file::SpillFile;

use crate::offload::plan::{Memory, PhasePlan, Residency};
use crate::placer::{PlaceError, Placer, size_of_tensor};
use platform::Bytes;

/// Bytes that are copied to the device at a time, which bounds the additional host memory.
const LOAD_BYTES: Bytes = Bytes::mib(64);

/// Something with named tensors.
pub trait Parameters {
    /// All parameters and buffers with their names, in a fixed order. Tied weights may occur twice.
    fn parameters(&mut self) -> Vec<(String, &mut Tensor)>;
}

/// A component by its name in the plan. Its tensors have full names: a module's name, a dot, and the rest.
pub struct StageComponent<'a> {
    /// Its name in the plan.
    pub name: &'a str,
    /// Its tensors.
    pub parameters: &'a mut dyn Parameters,
}

/// What entering a phase did, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PhaseTransfers {
    /// Bytes moved from the device to host memory.
    pub to_host: Bytes,
    /// Bytes moved from memory to the spill file.
    pub to_file: Bytes,
    /// Bytes released by caches before anything was loaded.
    pub trimmed: Bytes,
    /// Bytes moved to the device.
    pub to_device: Bytes,
}

/// Enters a phase: offloads what is idle, trims caches, and loads what is used, a few tensors at a time.
/// Tensors that share storage move once and keep sharing it, also between components: if the phase uses one
/// of them, the others go with it.
///
/// # Errors
/// [`PlaceError`] if a tensor does not arrive, or the spill file cannot be written or read. What was already
/// moved stays moved; entering the phase again continues.
pub fn enter(
    placer: &mut Placer,
    phase: &PhasePlan,
    components: &mut [StageComponent<'_>],
    spill_file: &mut SpillFile,
) -> Result<PhaseTransfers, PlaceError> {
    let mut entered = PhaseTransfers::default();
    // Before anything moves, because afterwards shared storage cannot be recognised.
    let mut tensors = find(&ResidencyMap::of(phase), components, spill_file)?;
    offload_idle(placer, &mut tensors, spill_file, &mut entered)?;
    if entered != PhaseTransfers::default() {
        entered.trimmed = placer.trim()?;
    }
    let mut group = LoadGroup::default();
    for mut tied in TiedTensors::used(tensors) {
        tied.restore(spill_file)?;
        group.add(tied);
        if group.bytes >= LOAD_BYTES {
            entered.to_device += group.load(placer)?;
        }
    }
    entered.to_device += group.load(placer)?;
    Ok(entered)
}

/// A tensor that has a residency in a phase, as found on entering it.
struct PhaseTensor<'a> {
    name: String,
    tensor: &'a mut Tensor,
    residency: Residency,
    origin: Origin,
}

impl PhaseTensor<'_> {
    fn is_idle(&self) -> bool {
        self.residency.is_idle()
    }
}

/// The tensors of all components.
fn find<'a>(
    residencies: &ResidencyMap<'_>,
    components: &'a mut [StageComponent<'_>],
    spill_file: &mut SpillFile,
) -> Result<Vec<PhaseTensor<'a>>, PlaceError> {
    let mut found = Vec::new();
    for component in components {
        for (name, tensor) in component.parameters.parameters() {
            let Some(residency) = residencies.residency(component.name, &name) else {
                continue;
            };
            let mut staged = PhaseTensor {
                origin: Origin::of(tensor),
                name,
                tensor,
                residency,
            };
            if staged.tensor.numel() == 0 {
                let place = spill_file.offset_of(&staged.name).map(Origin::SpillFile);
                staged.origin = place.unwrap_or(staged.origin);
            } else if staged.is_idle() || residency == Residency::Device {
                // It has been refilled since; the version in the spill file is outdated.
                spill_file.forget(&staged.name)?;
            }
            found.push(staged);
        }
    }
    Ok(found)
}

/// Offloads what is idle, unless it shares storage with something in use.
fn offload_idle(
    placer: &mut Placer,
    tensors: &mut [PhaseTensor<'_>],
    spill_file: &mut SpillFile,
    entered: &mut PhaseTransfers,
) -> Result<(), PlaceError> {
    let used = tensors.iter().filter(|staged| !staged.is_idle());
    let used: HashSet<Origin> = used.map(|staged| staged.origin.clone()).collect();
    let mut gone: HashMap<&Origin, (&str, Tensor)> = HashMap::new();
    for staged in tensors.iter_mut().filter(|staged| staged.is_idle()) {
        let PhaseTensor {
            name,
            tensor,
            residency,
            origin,
        } = staged;
        if matches!(origin, Origin::SpillFile(_)) || used.contains(origin) {
            continue;
        }
        // Checked before its size: it may be the same tensor, and already empty.
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

/// Where a tensor was when the phase was entered; the same for tied tensors, since all are inspected before
/// any moves.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Origin {
    /// In memory: storage and layout.
    Memory {
        device: Device,
        address: usize,
        kind: i32,
        size: Vec<i64>,
        strides: Vec<i64>,
    },
    /// In the spill file at this offset.
    SpillFile(u64),
}

impl Origin {
    fn of(tensor: &Tensor) -> Self {
        Self::Memory {
            device: tensor.device(),
            // Empty tensors share no storage, whatever their address.
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

/// Tensors that share storage, one of which the phase uses on the device.
struct TiedTensors<'a> {
    /// The one that is moved.
    first: PhaseTensor<'a>,
    /// They follow, whether used or idle.
    others: Vec<PhaseTensor<'a>>,
}

impl<'a> TiedTensors<'a> {
    /// The tensors in use, in their order.
    fn used(tensors: Vec<PhaseTensor<'a>>) -> Vec<Self> {
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
        for staged in others.into_iter().filter(PhaseTensor::is_idle) {
            if let Some(&place) = places.get(&staged.origin) {
                all[place].others.push(staged);
            }
        }
        all
    }

    /// Restores them from the spill file, all at once, so that they share storage again even if a later step
    /// fails.
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

    /// Makes the others share the first one's storage.
    fn follow(&mut self) -> Result<(), PlaceError> {
        let there = Origin::of(self.first.tensor);
        for PhaseTensor { name, tensor, .. } in &mut self.others {
            // Another handle to the same tensor has already moved.
            if Origin::of(tensor) != there {
                set(name, tensor, self.first.tensor)?;
            }
        }
        Ok(())
    }
}

/// Tensors that are copied to the device together.
#[derive(Default)]
struct LoadGroup<'a> {
    tensors: Vec<TiedTensors<'a>>,
    bytes: Bytes,
}

impl<'a> LoadGroup<'a> {
    fn add(&mut self, tied: TiedTensors<'a>) {
        self.bytes += size_of_tensor(tied.first.tensor);
        self.tensors.push(tied);
    }

    /// Places them; returns the bytes that moved.
    fn load(&mut self, placer: &mut Placer) -> Result<Bytes, PlaceError> {
        self.bytes = Bytes::ZERO;
        let mut tensors = std::mem::take(&mut self.tensors);
        let device = placer.device();
        let sizes = tensors.iter().map(|tied| &*tied.first.tensor);
        let elsewhere = sizes.filter(|tensor| tensor.device() != device);
        let moving = elsewhere.map(size_of_tensor).sum();
        for tied in &tensors {
            // It may have changed since it was offloaded, as moments do in each step.
            placer.expect_new_bytes(&tied.first.name);
        }
        let coming = tensors.iter_mut().map(|tied| &mut tied.first);
        let came =
            placer.move_in_place(coming.map(|first| (first.name.as_str(), &mut *first.tensor)));
        // Also after a failure: some may have moved, and entering again could not recognise shared storage.
        let followed: Vec<_> = tensors.iter_mut().map(TiedTensors::follow).collect();
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

/// The residency of each module.
struct ResidencyMap<'a>(Vec<(&'a str, &'a str, Residency)>);

impl<'a> ResidencyMap<'a> {
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

    /// The residency of a tensor: that of the longest module name that is a prefix of its own.
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
    /// The memory budget of a plan, given the free bytes of device and host. The CPU counts as a device that
    /// shares memory with the host.
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
