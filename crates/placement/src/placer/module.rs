//! The move of a model's parameters: which are tied, which have arrived, and when the caller's tensors
//! change.

use std::collections::{HashMap, HashSet};

use tch::{Device, Kind, Tensor};

use super::{PlaceError, Placer, size_of_tensor, torch};
use platform::Bytes;

/// Maximum number of tensors in a group: each takes some kilobytes while in flight.
const GROUP_TENSORS: usize = 256;

/// How many of these tensors make a group; at least one, if there is one.
pub(super) fn group_length<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> usize {
    let mut bytes = Bytes::ZERO;
    let before_the_last = tensors.take(GROUP_TENSORS).take_while(|tensor| {
        let has_room = bytes < Placer::GROUP_BYTES;
        bytes += size_of_tensor(tensor);
        has_room
    });
    before_the_last.count()
}

/// The result of [`Placer::module`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleSummary {
    /// Number of tensors, including tied ones.
    pub tensors: usize,
    /// Tensors that share storage with an earlier one.
    pub tied: usize,
    /// Tensors that had to stay on the host.
    pub on_host: usize,
    /// Total bytes, tied tensors counted once.
    pub bytes: Bytes,
}

impl Placer {
    /// See [`TransferEngine::expect_new_bytes`](crate::transfer::engine::TransferEngine::expect_new_bytes).
    pub(crate) fn expect_new_bytes(&mut self, name: &str) {
        self.engine.expect_new_bytes(name);
    }
}

/// The move of a model's parameters.
pub(super) struct ModuleMove<'a> {
    /// Target type of floating-point tensors.
    pub(super) kind: Option<Kind>,
    /// The next parameters to move.
    group: Vec<Parameter<'a>>,
    group_bytes: Bytes,
    /// All storages that are in the group or have arrived.
    known: HashSet<Identity>,
    /// Where each storage is now.
    moved: HashMap<Identity, Tensor>,
    /// Tensors that have arrived but are not visible to the caller yet.
    arrived: Vec<(Parameter<'a>, Tensor)>,
    summary: ModuleSummary,
    progress: Progress,
}

/// A parameter of the caller.
pub(super) struct Parameter<'a> {
    pub(super) name: String,
    pub(super) tensor: &'a mut Tensor,
    /// Whether it is the first with its storage.
    pub(super) is_first: bool,
    identity: Identity,
}

impl<'a> ModuleMove<'a> {
    pub(super) fn new(kind: Option<Kind>, device: String) -> Self {
        Self {
            kind,
            group: Vec::new(),
            group_bytes: Bytes::ZERO,
            known: HashSet::new(),
            moved: HashMap::new(),
            arrived: Vec::new(),
            summary: ModuleSummary::default(),
            progress: Progress::new(device),
        }
    }

    /// Adds a parameter to the group.
    pub(super) fn add(&mut self, name: String, tensor: &'a mut Tensor) {
        let identity = Identity::of(tensor);
        let is_first = self.known.insert(identity.clone());
        if is_first {
            self.group_bytes += size_of_tensor(tensor);
        }
        self.group.push(Parameter {
            name,
            tensor,
            is_first,
            identity,
        });
    }

    pub(super) fn group_is_full(&self) -> bool {
        self.group_bytes >= Placer::GROUP_BYTES || self.group.len() >= GROUP_TENSORS
    }

    pub(super) fn take_group(&mut self) -> Vec<Parameter<'a>> {
        self.group_bytes = Bytes::ZERO;
        std::mem::take(&mut self.group)
    }

    /// On unified memory, freed host memory may become device memory.
    pub(super) fn placed(
        &mut self,
        group: Vec<Parameter<'a>>,
        placed: Vec<Tensor>,
        device: Device,
    ) {
        let mut placed = placed.into_iter();
        for parameter in group {
            self.progress.enter(&parameter.name);
            if parameter.is_first
                && let Some(placed) = placed.next()
            {
                self.summary.bytes += size_of_tensor(&placed);
                self.moved.insert(parameter.identity.clone(), placed);
            }
            // Every storage has a first parameter.
            let Some(placed) = self.moved.get(&parameter.identity) else {
                continue;
            };
            self.summary.tensors += 1;
            self.summary.tied += usize::from(!parameter.is_first);
            self.summary.on_host += usize::from(placed.device() != device);
            self.progress.add(size_of_tensor(placed));
            let placed = placed.shallow_clone();
            self.arrived.push((parameter, placed));
        }
    }

    /// Makes the caller's tensors refer to what has arrived, which frees their host memory.
    pub(super) fn commit(&mut self) -> Result<(), PlaceError> {
        for (parameter, placed) in self.arrived.drain(..) {
            let Parameter { name, tensor, .. } = parameter;
            if !same_place(tensor, &placed) {
                let data = placed.f_detach().map_err(|error| torch(&name, error))?;
                tensor
                    .f_set_data(&data)
                    .map_err(|error| torch(&name, error))?;
                // Another handle to the same tensor refers to the new data from now on.
                let identity = Identity::of(tensor);
                self.known.insert(identity.clone());
                self.moved.insert(identity, placed);
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> ModuleSummary {
        self.progress.leave();
        self.summary
    }
}

/// Whether assigning `placed` to `tensor` would change nothing.
fn same_place(tensor: &Tensor, placed: &Tensor) -> bool {
    tensor.device() == placed.device()
        && tensor.kind() == placed.kind()
        && tensor.data_ptr() == placed.data_ptr()
}

/// Storage and layout of a tensor: equal for tied weights.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Identity {
    /// Host memory that is free again may be the device's on unified memory.
    device: Device,
    address: usize,
    kind: u8,
    size: Vec<i64>,
    strides: Vec<i64>,
    /// Empty tensors share no storage, whatever their address.
    empty: Option<usize>,
}

impl Identity {
    fn of(tensor: &Tensor) -> Self {
        Self {
            device: tensor.device(),
            address: tensor.data_ptr() as usize,
            kind: tensor.kind() as u8,
            size: tensor.size(),
            strides: tensor.stride(),
            empty: (tensor.numel() == 0).then_some(tensor.as_ptr() as usize),
        }
    }
}

/// Logs which module is being moved, once per module.
struct Progress {
    device: String,
    module: Option<String>,
    bytes: Bytes,
}

impl Progress {
    fn new(device: String) -> Self {
        Self {
            device,
            module: None,
            bytes: Bytes::ZERO,
        }
    }

    /// The module of a parameter is its name without the last component.
    fn enter(&mut self, parameter: &str) {
        let module = parameter.rsplit_once('.').map_or("", |(module, _)| module);
        if self.module.as_deref() != Some(module) {
            self.leave();
            self.module = Some(module.to_owned());
        }
    }

    fn add(&mut self, bytes: Bytes) {
        self.bytes += bytes;
    }

    fn leave(&mut self) {
        if let Some(module) = self.module.take() {
            tracing::debug!(
                module,
                bytes = self.bytes.0,
                device = self.device,
                "module placed"
            );
            self.bytes = Bytes::ZERO;
        }
    }
}
