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

use std::collections::HashMap;

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
/// time. Tensors of one memory leave once, come once, and stay of one memory, also between components.
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
    let mut gone: HashMap<Origin, (String, Tensor)> = HashMap::new();
    for component in components.iter_mut() {
        for (name, tensor) in component.parameters.parameters() {
            let idle = match homes.home(component.name, &name) {
                Some(home @ (Home::IdleOnHost | Home::IdleOnDisk)) => home,
                _ => continue,
            };
            if tensor.numel() == 0 {
                continue; // On the shelf already.
            }
            let origin = Origin::of(tensor);
            if let Some((first, data)) = gone.get(&origin) {
                set(&name, tensor, data)?;
                shelf.tie(&name, first);
                continue;
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
            gone.insert(origin, (name, tensor.shallow_clone()));
        }
    }
    if entered != Entered::default() {
        entered.trimmed = placer.trim()?;
    }
    let mut arrived = HashMap::new();
    for component in components {
        let mut load = Load::default();
        for (name, tensor) in component.parameters.parameters() {
            if homes.home(component.name, &name) != Some(Home::Device) {
                continue;
            }
            let on_shelf = shelf.place_of(&name).map(Origin::Shelf);
            let origin = on_shelf.unwrap_or_else(|| Origin::of(tensor));
            if load.has(&origin) {
                entered.to_device += load.bring(placer, &mut arrived)?;
            }
            if let Some(there) = arrived.get(&origin) {
                set(&name, tensor, there)?;
                shelf.forget(&name)?;
                continue;
            }
            if let Origin::Shelf(_) = origin {
                set(&name, tensor, &shelf.read(&name)?)?;
                shelf.forget(&name)?;
            }
            load.add(origin, name, tensor);
            if load.bytes >= LOAD {
                entered.to_device += load.bring(placer, &mut arrived)?;
            }
        }
        entered.to_device += load.bring(placer, &mut arrived)?;
    }
    Ok(entered)
}

/// Where a tensor was when a phase was entered: the same for tied ones. Two that are told apart by it are two
/// as long as both are looked at before either is freed, or come from the shelf.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Origin {
    /// Memory, and how it is looked at.
    Memory {
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

/// Tensors that come to the device together.
#[derive(Default)]
struct Load<'a> {
    tensors: Vec<(Origin, String, &'a mut Tensor)>,
    bytes: Bytes,
}

impl<'a> Load<'a> {
    fn has(&self, origin: &Origin) -> bool {
        self.tensors.iter().any(|(other, ..)| other == origin)
    }

    fn add(&mut self, origin: Origin, name: String, tensor: &'a mut Tensor) {
        self.bytes += size_of_tensor(tensor);
        self.tensors.push((origin, name, tensor));
    }

    /// Has them placed; the bytes that moved. They are in `arrived` afterwards, for those that are tied to them.
    fn bring(
        &mut self,
        placer: &mut Placer,
        arrived: &mut HashMap<Origin, Tensor>,
    ) -> Result<Bytes, PlaceError> {
        self.bytes = Bytes::ZERO;
        let tensors = std::mem::take(&mut self.tensors);
        let elsewhere = tensors
            .iter()
            .filter(|(_, _, tensor)| tensor.device() != placer.device());
        let moving = elsewhere.map(|(_, _, tensor)| size_of_tensor(tensor)).sum();
        let mut coming = Vec::with_capacity(tensors.len());
        for (origin, name, tensor) in tensors {
            // Another handle on the same tensor: it sees the move.
            arrived.insert(origin, tensor.shallow_clone());
            coming.push((name, tensor));
        }
        placer.module(coming, None)?;
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
mod tests {
    use tch::Kind;

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

    /// Two components of which one weight is the same, and one is a part of the other's.
    #[test]
    fn what_is_tied_between_components_stays_tied_and_parts_stay_parts() {
        let tied = |name: &str| Component {
            name: name.to_owned(),
            modules: vec![Module::new(
                format!("{name}.0"),
                0,
                Bytes(4096),
                Handling::Resident,
            )],
        };
        let away = Component {
            name: "other".to_owned(),
            modules: vec![Module::new("other.0", 1, Bytes(4096), Handling::Resident)],
        };
        let phase = |active: &[&str]| Phase {
            name: active[0].to_owned(),
            active: active.iter().map(|name| (*name).to_owned()).collect(),
            working: Bytes::ZERO,
        };
        let memory = Memory::Unified {
            device: Bytes(5000),
            pool: Bytes(5000),
            zero_copy: false,
        };
        let phases = [
            phase(&["text", "model"]),
            phase(&["other"]),
            phase(&["text", "model"]),
        ];
        let components = [tied("text"), tied("model"), away];
        let plan = plan(&components, &phases, memory, &Wishes::default()).unwrap();

        let weight = tensor(1);
        let mut text = Tensors(vec![
            ("text.0.weight".into(), weight.shallow_clone()),
            ("text.0.first".into(), weight.narrow(0, 0, 8)),
        ]);
        let mut model = Tensors(vec![("model.0.weight".into(), weight.detach())]);
        let mut other = Tensors(vec![("other.0.weight".into(), tensor(2))]);
        drop(weight);
        let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
        let mut shelf = Shelf::new(&std::env::temp_dir()).unwrap();
        let mut shelved = Vec::new();
        for phase in &plan.phases {
            let mut components = [
                ("text", &mut text),
                ("model", &mut model),
                ("other", &mut other),
            ]
            .map(|(name, parameters)| StageComponent { name, parameters });
            let entered = enter(&mut placer, phase, &mut components, &mut shelf).unwrap();
            shelved.push(entered.to_shelf.0);
            if phase.phase == "text" {
                let (weight, part) = (&text.0[0].1, &text.0[1].1);
                assert_eq!(weight.data_ptr(), model.0[0].1.data_ptr(), "one memory");
                assert!(weight.equal(&tensor(1)) && model.0[0].1.equal(&tensor(1)));
                assert!(part.equal(&tensor(1).narrow(0, 0, 8)), "{:?}", part.size());
            }
        }
        // What two share goes once; what is a part of it is a tensor of its own.
        assert_eq!(shelved, [4096, 4096 + 32, 4096]);
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
