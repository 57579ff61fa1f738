//! Carries out what a [`Plan`](crate::plan::Plan) says on entering a phase.
//!
//! ```text
//!   encode text:  text encoder ──▶ device
//!   train:        text encoder ──▶ host, or the shelf      first
//!                 caches trimmed                            then
//!                 transformer  ──▶ device                   last
//! ```
//!
//! The order is the point: on unified memory the other one needs both at once. What a plan leaves in its file is
//! put on the [`Shelf`], a file without a name, and comes back from there bit by bit, also when it was trained
//! meanwhile. Streamed and zero-copy modules are the business of [`crate::stream`], and left alone here.

mod shelf;

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use tch::{Device, Tensor};

pub use self::shelf::Shelf;

use crate::bytes::Bytes;
use crate::checksum::Checksum;
use crate::placer::{PlaceError, Placer, size_of_tensor};
use crate::plan::{Home, PhasePlan};
use crate::prepare::Parameters;
use crate::transport::Transport;
use crate::verify::Verify;

/// How much comes to the device at a time: as much may be in host memory beside what is there already.
const LOAD: Bytes = Bytes::mib(64);

/// A component by its name in the plan. Its tensors have full names: a module's name, a dot, and more.
pub struct StageComponent<'a> {
    /// As the plan names it.
    pub name: &'a str,
    /// Its tensors.
    pub parameters: &'a mut dyn Parameters,
}

/// What entering a phase did, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Entered {
    /// Left the device for host memory.
    pub to_host: Bytes,
    /// Left memory for the shelf.
    pub to_shelf: Bytes,
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
/// [`PlaceError`]: a tensor that does not arrive on either side, or a shelf that cannot be written or read. What
/// was moved before stays moved; entering the phase again goes on.
pub fn enter(
    placer: &mut Placer,
    phase: &PhasePlan,
    components: &mut [StageComponent<'_>],
    shelf: &mut Shelf,
) -> Result<Entered, PlaceError> {
    let mut entered = Entered::default();
    // Before anything moves: afterwards nobody could tell what was one memory.
    let mut tensors = find(&Homes::of(phase), components, shelf)?;
    leave(placer, &mut tensors, shelf, &mut entered)?;
    if entered != Entered::default() {
        entered.trimmed = placer.trim()?;
    }
    let mut load = Load::default();
    for mut tied in Tied::used(tensors) {
        tied.unshelve(shelf)?;
        load.add(tied);
        if load.bytes >= LOAD {
            entered.to_device += load.bring(placer)?;
        }
    }
    entered.to_device += load.bring(placer)?;
    Ok(entered)
}

/// A tensor that has a home in a phase, as it was found on entering.
struct Staged<'a> {
    name: String,
    tensor: &'a mut Tensor,
    home: Home,
    origin: Origin,
}

impl Staged<'_> {
    fn is_idle(&self) -> bool {
        matches!(self.home, Home::IdleOnHost | Home::IdleOnDisk)
    }
}

/// The tensors of all components.
fn find<'a>(
    homes: &Homes<'_>,
    components: &'a mut [StageComponent<'_>],
    shelf: &mut Shelf,
) -> Result<Vec<Staged<'a>>, PlaceError> {
    let mut found = Vec::new();
    for component in components {
        for (name, tensor) in component.parameters.parameters() {
            let Some(home) = homes.home(component.name, &name) else {
                continue;
            };
            let mut staged = Staged {
                origin: Origin::of(tensor),
                name,
                tensor,
                home,
            };
            if staged.tensor.numel() == 0 {
                let place = shelf.place_of(&staged.name).map(Origin::Shelf);
                staged.origin = place.unwrap_or(staged.origin);
            } else if staged.is_idle() || home == Home::Device {
                // It was filled by somebody else since; what is on the shelf is older.
                shelf.forget(&staged.name)?;
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
    shelf: &mut Shelf,
    entered: &mut Entered,
) -> Result<(), PlaceError> {
    let used = tensors.iter().filter(|staged| !staged.is_idle());
    let used: HashSet<Origin> = used.map(|staged| staged.origin.clone()).collect();
    let mut gone: HashMap<&Origin, (&str, Tensor)> = HashMap::new();
    for staged in tensors.iter_mut().filter(|staged| staged.is_idle()) {
        let Staged {
            name,
            tensor,
            home,
            origin,
        } = staged;
        if matches!(origin, Origin::Shelf(_)) || used.contains(origin) {
            continue;
        }
        // Asked before its size: it may be the same tensor, and empty by now.
        if let Some((first, data)) = gone.get(origin) {
            set(name, tensor, data)?;
            shelf.tie(name, first);
            continue;
        }
        if tensor.numel() == 0 {
            continue;
        }
        let bytes = size_of_tensor(tensor);
        if tensor.device() != Device::Cpu {
            let host = placer.fetch(name, tensor)?;
            set(name, tensor, &host)?;
            entered.to_host += bytes;
        }
        if *home == Home::IdleOnDisk {
            let empty = shelf.put(name, tensor)?;
            set(name, tensor, &empty)?;
            entered.to_shelf += bytes;
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
    /// The shelf, from this byte on.
    Shelf(u64),
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
            .partition(|staged| staged.home == Home::Device);
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

    /// Takes them off the shelf, all at once: they are of one memory then, even if it does not get further.
    fn unshelve(&mut self, shelf: &mut Shelf) -> Result<(), PlaceError> {
        if !matches!(self.first.origin, Origin::Shelf(_)) {
            return Ok(());
        }
        let data = shelf.read(&self.first.name)?;
        set(&self.first.name, self.first.tensor, &data)?;
        self.follow()?;
        for staged in std::iter::once(&self.first).chain(&self.others) {
            shelf.forget(&staged.name)?;
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

/// Which module has which home.
struct Homes<'a>(Vec<(&'a str, &'a str, Home)>);

impl<'a> Homes<'a> {
    fn of(phase: &'a PhasePlan) -> Self {
        let placements = phase.placements.iter();
        Self(
            placements
                .map(|placed| {
                    (
                        placed.component.as_str(),
                        placed.module.as_str(),
                        placed.home,
                    )
                })
                .collect(),
        )
    }

    /// The home of a tensor: that of the longest module name that its own begins with.
    fn home(&self, component: &str, tensor: &str) -> Option<Home> {
        let holds = |module: &str| {
            tensor
                .strip_prefix(module)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let modules = self.0.iter();
        modules
            .filter(|(of, module, _)| *of == component && holds(module))
            .max_by_key(|(_, module, _)| module.len())
            .map(|(_, _, home)| *home)
    }
}

impl Placer {
    /// A tensor of the device in host memory, compared with what the device holds as the policy asks.
    ///
    /// # Errors
    /// [`PlaceError`]; the tensor on the device is as it was.
    pub fn fetch(&mut self, name: &str, tensor: &Tensor) -> Result<Tensor, PlaceError> {
        let verify = self.policy().verify != Verify::Off;
        let wrong = |source| PlaceError::Torch {
            tensor: name.to_owned(),
            source,
        };
        let there = tensor.f_detach().and_then(|tensor| tensor.f_contiguous());
        let there = there.map_err(|error| wrong(error.into()))?;
        let transport = self.transport();
        let mut last = None;
        for _ in 0..3 {
            let host = transport
                .read_back(&there)
                .map_err(|error| wrong(error.into()))?;
            if !verify {
                return Ok(host.into_tensor());
            }
            let sum = Checksum::of(host.bytes());
            // A device that cannot sum has to say the same twice.
            let expected = transport
                .sum_device(&there)
                .map_err(|error| wrong(error.into()))?;
            if expected.as_ref().or(last.as_ref()) == Some(&sum) {
                return Ok(host.into_tensor());
            }
            last = Some(sum);
        }
        Err(wrong(torch_ext::Error::Torch(
            "three copies from the device differ from each other, or from what is there".to_owned(),
        )))
    }

    /// Hands memory that caches hold back to the driver; how much it was.
    ///
    /// # Errors
    /// What the device says.
    pub fn trim(&mut self) -> Result<Bytes, PlaceError> {
        let trimmed = self.transport().trim();
        trimmed.map_err(|error| PlaceError::Device(error.into()))
    }
}

#[cfg(test)]
mod tests;
