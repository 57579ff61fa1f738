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

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Serialize;
use tch::{Device, Kind, Tensor};

use crate::bytes::Bytes;
use crate::checksum::Checksum;
use crate::placer::{PlaceError, Placer, size_of_tensor};
use crate::plan::{Home, PhasePlan};
use crate::prepare::Parameters;
use crate::torch_transport::HostTensor;
use crate::transport::Transport;
use crate::verify::Verify;

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

/// Enters a phase: what is idle in it leaves, caches are trimmed, and what is used comes, module by module.
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
    let homes = Homes::of(phase);
    let mut entered = Entered::default();
    for component in components.iter_mut() {
        let mut gone: HashMap<usize, (String, Tensor)> = HashMap::new();
        for (name, tensor) in component.parameters.parameters() {
            let idle = match homes.home(component.name, &name) {
                Some(home @ (Home::IdleOnHost | Home::IdleOnDisk)) => home,
                _ => continue,
            };
            let key = tensor.data_ptr() as usize;
            if let Some((first, data)) = gone.get(&key) {
                set(&name, tensor, data)?;
                shelf.tie(&name, first);
                continue;
            }
            if tensor.numel() == 0 {
                continue; // On the shelf already.
            }
            let bytes = size_of_tensor(tensor);
            if tensor.device() != Device::Cpu {
                let host = placer.fetch(&name, tensor)?;
                set(&name, tensor, &host)?;
                entered.to_host += bytes;
            }
            if idle == Home::IdleOnDisk {
                let empty = shelf.put(&name, tensor)?;
                set(&name, tensor, &empty)?;
                entered.to_shelf += bytes;
            }
            gone.insert(key, (name, tensor.shallow_clone()));
        }
    }
    if entered != Entered::default() {
        entered.trimmed = placer.trim()?;
    }
    for component in components {
        let (mut coming, mut taken) = (Vec::new(), HashMap::new());
        for (name, tensor) in component.parameters.parameters() {
            if homes.home(component.name, &name) == Some(Home::Device) {
                shelf.take(&name, tensor, &mut taken)?;
                coming.push((name, tensor));
            }
        }
        let elsewhere = |tensor: &Tensor| tensor.device() != placer.device();
        let moving = coming.iter().any(|(_, tensor)| elsewhere(tensor));
        let summary = placer.module(coming, None)?;
        if moving {
            entered.to_device += summary.bytes;
        }
    }
    Ok(entered)
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

/// A file without a name that holds what is in no memory.
pub struct Shelf {
    file: File,
    end: u64,
    things: HashMap<String, Thing>,
}

/// A tensor on the shelf.
#[derive(Clone)]
struct Thing {
    at: u64,
    kind: Kind,
    size: Vec<i64>,
    sum: Checksum,
}

impl Shelf {
    /// An empty shelf on the disk of this folder.
    ///
    /// # Errors
    /// When no file can be made there.
    pub fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            file: tempfile::tempfile_in(folder)?,
            end: 0,
            things: HashMap::new(),
        })
    }

    /// Tensors on the shelf.
    pub fn len(&self) -> usize {
        self.things.len()
    }

    /// Whether there is nothing on it.
    pub fn is_empty(&self) -> bool {
        self.things.is_empty()
    }

    /// Writes a host tensor; what to put in its place.
    fn put(&mut self, name: &str, tensor: &Tensor) -> Result<Tensor, PlaceError> {
        let torch = |error: tch::TchError| PlaceError::Torch {
            tensor: name.to_owned(),
            source: error.into(),
        };
        let host = HostTensor::new(&tensor.f_contiguous().map_err(torch)?)?;
        let at = self.end;
        let written = self.file.write_all_at(host.bytes(), at);
        written.map_err(|error| shelf_error(name, "written to", &error))?;
        self.end += host.bytes().len() as u64;
        let kind = tensor.kind();
        let thing = Thing {
            at,
            kind,
            size: tensor.size(),
            sum: Checksum::of(host.bytes()),
        };
        self.things.insert(name.to_owned(), thing);
        Tensor::f_empty([0], (kind, Device::Cpu)).map_err(torch)
    }

    /// A second name for what is here under the first.
    fn tie(&mut self, name: &str, first: &str) {
        if let Some(thing) = self.things.get(first).cloned() {
            self.things.insert(name.to_owned(), thing);
        }
    }

    /// Brings a tensor back to host memory, if it is here. `taken` has what came back already, by its place:
    /// tied tensors come once.
    fn take(
        &mut self,
        name: &str,
        tensor: &mut Tensor,
        taken: &mut HashMap<u64, Tensor>,
    ) -> Result<(), PlaceError> {
        let Some(thing) = self.things.remove(name) else {
            return Ok(());
        };
        if let Some(tied) = taken.get(&thing.at) {
            return set(name, tensor, tied);
        }
        let empty = Tensor::f_empty(thing.size.as_slice(), (thing.kind, Device::Cpu));
        let empty = empty.map_err(|error| PlaceError::Torch {
            tensor: name.to_owned(),
            source: error.into(),
        })?;
        let mut host = HostTensor::new(&empty)?;
        let read = self.file.read_exact_at(host.bytes_mut(), thing.at);
        read.map_err(|error| shelf_error(name, "read from", &error))?;
        if let Some(damage) = thing.sum.damage(&Checksum::of(host.bytes())) {
            let error = io::Error::other(format!("it came back wrong: {damage}"));
            return Err(shelf_error(name, "read from", &error));
        }
        if self.things.is_empty() {
            // Nothing is needed any more: the next one begins where the first one did.
            self.end = 0;
            let emptied = self.file.set_len(0);
            emptied.map_err(|error| shelf_error(name, "emptied on", &error))?;
        }
        let host = host.into_tensor();
        set(name, tensor, &host)?;
        taken.insert(thing.at, host);
        Ok(())
    }
}

fn shelf_error(name: &str, done: &str, error: &io::Error) -> PlaceError {
    PlaceError::Torch {
        tensor: name.to_owned(),
        source: torch_ext::Error::Torch(format!("it cannot be {done} the disk: {error}")),
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
mod tests {
    use super::*;
    use crate::plan::{Component, Handling, Memory, Module, Phase, Plan, Wishes, plan};
    use crate::policy::Policy;

    struct Tensors(Vec<(String, Tensor)>);

    impl Parameters for Tensors {
        fn parameters(&mut self) -> Vec<(String, &mut Tensor)> {
            let tensors = self.0.iter_mut();
            tensors
                .map(|(name, tensor)| (name.clone(), tensor))
                .collect()
        }
    }

    /// A text encoder that is used first, and a transformer that does not fit beside it.
    fn planned() -> Plan {
        let component = |name: &str, storage| Component {
            name: name.to_owned(),
            modules: vec![Module::new(
                format!("{name}.0"),
                storage,
                Bytes(4096),
                Handling::Resident,
            )],
        };
        let phase = |name: &str, active: &str| Phase {
            name: name.to_owned(),
            active: vec![active.to_owned()],
            working: Bytes::ZERO,
        };
        let memory = Memory::Unified {
            device: Bytes(5000),
            pool: Bytes(5000),
            zero_copy: false,
        };
        let components = [component("text", 0), component("transformer", 1)];
        let phases = [
            phase("encode", "text"),
            phase("train", "transformer"),
            phase("sample", "text"),
        ];
        plan(&components, &phases, memory, &Wishes::default()).unwrap()
    }

    fn tensor(seed: i64) -> Tensor {
        Tensor::arange_start(seed, seed + 1024, (Kind::Float, Device::Cpu))
    }

    #[test]
    fn what_is_idle_is_in_no_memory_and_comes_back_bit_by_bit() {
        let plan = planned();
        let mut text = Tensors(vec![("text.0.weight".to_owned(), tensor(1))]);
        let tied = text.0[0].1.detach();
        text.0.push(("text.0.tied".to_owned(), tied));
        let mut transformer = Tensors(vec![("transformer.0.weight".to_owned(), tensor(2))]);
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let mut shelf = Shelf::new(&std::env::temp_dir()).unwrap();
        let mut go = |phase: usize, text: &mut Tensors, transformer: &mut Tensors| {
            let mut components = [
                StageComponent {
                    name: "text",
                    parameters: text,
                },
                StageComponent {
                    name: "transformer",
                    parameters: transformer,
                },
            ];
            enter(
                &mut placer,
                &plan.phases[phase],
                &mut components,
                &mut shelf,
            )
            .unwrap()
        };

        let entered = go(0, &mut text, &mut transformer);
        assert_eq!(
            (entered.to_shelf, transformer.0[0].1.numel()),
            (Bytes(4096), 0)
        );
        let entered = go(1, &mut text, &mut transformer);
        assert_eq!(entered.to_shelf, Bytes(4096), "tied weights go once");
        assert_eq!((text.0[0].1.numel(), text.0[1].1.numel()), (0, 0));
        assert!(transformer.0[0].1.equal(&tensor(2)));
        go(2, &mut text, &mut transformer);
        assert!(text.0[0].1.equal(&tensor(1)));
        assert_eq!(text.0[0].1.data_ptr(), text.0[1].1.data_ptr(), "still tied");
        assert_eq!(transformer.0[0].1.numel(), 0);
    }
}
