//! The API for training code: tensors, modules and batches to the device, and tensors back.
//!
//! A [`Placer`] has one device, one policy and one report. On an accelerator its [`TransferEngine`] moves
//! each tensor. On the CPU there is nothing to copy or verify, so it only makes tensors contiguous and
//! converts them.

mod supported;

use tch::{Device, Kind, Tensor};

pub(crate) use self::supported::check_supported;
use crate::tensor_tree::{FieldPath, TensorTree, fields, refilled};
use crate::transfer::engine::TransferEngine;
use crate::transfer::policy::{MoveError, Placed, Policy, Request};
use crate::transfer::report::PlacementReport;
use crate::transfer::torch_transport::{HostTensor, TorchTransport, TransportOptions, element_of};
use crate::transfer::transport::{DeviceFacts, Element, Transport};
use crate::transfer::verify::Role;
use platform::Bytes;

/// Maximum number of tensors in a group: each takes some kilobytes while in flight.
const GROUP_TENSORS: usize = 256;

/// Why a tensor, a module or a batch is not on the device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The move failed; its variants say whether the process can continue.
    #[error(transparent)]
    Move(#[from] MoveError),
    /// libtorch failed before or after the move.
    #[error("`{tensor}`: {source}")]
    Torch {
        /// The tensor's name.
        tensor: String,
        /// The error of libtorch.
        source: torch_ext::Error,
    },
    /// An element type that cannot be placed.
    #[error("`{tensor}` has elements of type {kind:?}, which cannot be placed")]
    Kind {
        /// The tensor's name.
        tensor: String,
        /// Its element type.
        kind: Kind,
    },
    /// The result is not what was requested.
    #[error("`{tensor}` arrived as {found} instead of {wanted}")]
    Changed {
        /// The tensor's name.
        tensor: String,
        /// The result: shape, type and device.
        found: String,
        /// What was requested.
        wanted: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] torch_ext::Error),
}

impl PlaceError {
    /// Whether more free memory would have helped.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            PlaceError::Move(error) => error.is_out_of_memory(),
            PlaceError::Torch { source, .. } | PlaceError::Device(source) => {
                source.is_out_of_memory()
            }
            _ => false,
        }
    }

    /// Whether the device context is still usable.
    pub fn context_is_usable(&self) -> bool {
        match self {
            PlaceError::Move(error) => error.context_is_usable(),
            PlaceError::Torch { source, .. } | PlaceError::Device(source) => {
                source.context_is_usable()
            }
            _ => true,
        }
    }
}

/// Moves tensors to one device, and records how each one got there.
pub struct Placer {
    transport: TorchTransport,
    engine: TransferEngine,
    /// Whether the remark that the CPU needs no moves was logged.
    explained: bool,
}

impl Placer {
    /// Bytes of a module that are in flight at a time before they are verified together; a larger tensor
    /// moves with the ones before it.
    pub const GROUP_BYTES: Bytes = Bytes::mib(64);

    /// A placer for `device`: the CPU, or `Device::Cuda(n)` (also under ROCm).
    pub fn new(device: Device, policy: Policy) -> Result<Self, PlaceError> {
        Self::with_options(device, policy, TransportOptions::default())
    }

    /// Like [`Self::new`], with properties of the device that libtorch does not know.
    pub fn with_options(
        device: Device,
        policy: Policy,
        options: TransportOptions,
    ) -> Result<Self, PlaceError> {
        let transport = TorchTransport::new(device, options)?;
        Ok(Self {
            transport,
            engine: TransferEngine::new(policy),
            explained: false,
        })
    }

    /// The device that tensors are placed on.
    pub fn device(&self) -> Device {
        self.transport.device()
    }

    /// The policy of moves.
    pub fn policy(&self) -> &Policy {
        self.engine.policy()
    }

    /// The properties set for the device, for other users of it such as a
    /// [`BlockSwapper`](crate::offload::swap::BlockSwapper).
    pub fn options(&self) -> &TransportOptions {
        self.transport.options()
    }

    /// The device's properties and capabilities.
    pub(crate) fn facts(&self) -> DeviceFacts {
        self.transport.facts()
    }

    /// Releases cached memory to the driver; returns the number of bytes.
    pub fn trim(&mut self) -> Result<Bytes, PlaceError> {
        let trimmed = self.transport.trim();
        trimmed.map_err(|error| PlaceError::Device(error.into()))
    }

    /// Copies a tensor from a device to host memory, contiguous, and compares it with the device's data
    /// unless the policy is [`Verify::Off`](crate::Verify::Off).
    ///
    /// # Errors
    /// [`PlaceError`]; the tensor on the device is unchanged.
    pub fn to_host(&mut self, name: &str, tensor: &Tensor) -> Result<Tensor, PlaceError> {
        let remote = tensor.f_detach().and_then(|tensor| tensor.f_contiguous());
        let remote = remote.map_err(|error| torch(name, error))?;
        let request = Request {
            name,
            role: Role::Weight,
            cast: None,
        };
        let host = match remote.device() == self.device() {
            true => self
                .engine
                .to_host(&mut self.transport, &remote, &request)?,
            false => {
                let options = TransportOptions {
                    deadline: self.options().deadline,
                    ..TransportOptions::default()
                };
                let mut other = TorchTransport::new(remote.device(), options)?;
                self.engine.to_host(&mut other, &remote, &request)?
            }
        };
        Ok(host.into_tensor())
    }

    /// All moves so far. Empty on the CPU, where nothing moves.
    pub fn report(&self) -> &PlacementReport {
        self.engine.report()
    }

    /// Moves a weight to the device, contiguous, as `kind` (`None` keeps its type). The result is a leaf and
    /// requires a gradient if the source did.
    ///
    /// On the CPU the result may share storage with the source. If the policy allows tensors to stay on the
    /// host, the result may be on the CPU (with a warning).
    ///
    /// # Errors
    /// [`PlaceError`]; the source is unchanged.
    pub fn weight(
        &mut self,
        name: &str,
        source: &Tensor,
        kind: Option<Kind>,
    ) -> Result<Tensor, PlaceError> {
        self.place(name, Role::Weight, source, kind)
    }

    /// Moves a batch to the device. Types do not change, and nothing requires a gradient. Like those of a
    /// module, its tensors are copied and verified together.
    ///
    /// # Errors
    /// [`PlaceError`]; the batch is dropped.
    pub fn batch<B: TensorTree>(&mut self, batch: B) -> Result<B, PlaceError> {
        let root = FieldPath::root("batch");
        let (batch, fields) = fields(batch, &root);
        for (path, tensor) in &fields {
            check_supported(path.as_str(), tensor)?;
        }
        let mut placed = Vec::with_capacity(fields.len());
        let mut rest = fields.as_slice();
        while !rest.is_empty() {
            let (group, later) = rest.split_at(group_length(rest.iter().map(|(_, one)| one)));
            let group: Vec<_> = group
                .iter()
                .map(|(path, tensor)| (path.as_str(), tensor))
                .collect();
            match self.place_all(Role::Batch, &group) {
                Ok(group) => placed.extend(group),
                Err(error) => return Err(given_up(error, placed)),
            }
            rest = later;
        }
        Ok(refilled(batch, &root, placed))
    }

    /// Moves tensors, no two of which share storage. Each keeps its identity, so that optimizers that hold it see it move.
    ///
    /// They are copied and verified in groups ([`GROUP_BYTES`](Self::GROUP_BYTES)). On a device with its own memory, no
    /// tensor changes before all have arrived. On unified memory, where a second copy of everything must be avoided, each
    /// group's host memory is freed before the next group moves.
    ///
    /// # Errors
    /// [`PlaceError`]. On a device with its own memory the tensors are unchanged; on unified memory the groups
    /// before the failing one are on the device, complete and verified.
    pub fn move_in_place<'a, N: Into<String>>(
        &mut self,
        tensors: impl IntoIterator<Item = (N, &'a mut Tensor)>,
    ) -> Result<(), PlaceError> {
        let mut arrived = Vec::new();
        let tensors = tensors
            .into_iter()
            .map(|(name, tensor)| (name.into(), tensor));
        match self.move_all(tensors.collect(), &mut arrived) {
            Ok(()) => commit(&mut arrived),
            Err(error) => Err(given_up(error, arrived)),
        }
    }

    fn move_all<'a>(
        &mut self,
        mut tensors: Vec<(String, &'a mut Tensor)>,
        arrived: &mut Vec<Arrived<'a>>,
    ) -> Result<(), PlaceError> {
        let is_unified = self.transport.facts().unified_memory || self.device() == Device::Cpu;
        for (name, tensor) in &tensors {
            check_supported(name, tensor)?;
        }
        while !tensors.is_empty() {
            let length = group_length(tensors.iter().map(|(_, tensor)| &**tensor));
            let later = tensors.split_off(length);
            let group: Vec<_> = tensors
                .iter()
                .map(|(name, tensor)| (name.as_str(), &**tensor))
                .collect();
            let placed = self.place_all(Role::Weight, &group)?;
            arrived.extend(
                std::mem::replace(&mut tensors, later)
                    .into_iter()
                    .zip(placed),
            );
            if is_unified {
                commit(arrived)?;
            }
        }
        Ok(())
    }

    /// See [`TransferEngine::expect_new_bytes`].
    pub(crate) fn expect_new_bytes(&mut self, name: &str) {
        self.engine.expect_new_bytes(name);
    }

    /// Places several tensors together.
    fn place_all(
        &mut self,
        role: Role,
        tensors: &[(&str, &Tensor)],
    ) -> Result<Vec<Tensor>, PlaceError> {
        let mut cargo = Vec::new();
        for (name, source) in tensors {
            if source.device() != self.device() {
                cargo.push((*name, self.pack(name, source, source.kind())?));
            }
        }
        let loads: Vec<_> = cargo
            .iter()
            .map(|(name, (host, cast))| {
                let (name, cast) = (*name, Some(*cast));
                (host, Request { name, role, cast })
            })
            .collect();
        let moved = self.engine.to_device_batched(&mut self.transport, &loads)?;
        let mut moved = moved.into_iter();
        let mut placed = Vec::with_capacity(tensors.len());
        for (name, source) in tensors {
            let kind = source.kind();
            let one = match source.device() == self.device() {
                true => self.adjust(name, source, kind),
                // One result per tensor.
                false => Ok(moved.next().map_or_else(
                    || source.shallow_clone(),
                    |one| match one {
                        Placed::OnDevice(tensor) => tensor,
                        Placed::OnHost(host) => host.into_tensor(),
                    },
                )),
            };
            match one.and_then(|one| finish(name, role, source, kind, one)) {
                Ok(one) => placed.push(one),
                Err(error) => return Err(given_up(error, (placed, moved))),
            }
        }
        Ok(placed)
    }

    fn place(
        &mut self,
        name: &str,
        role: Role,
        source: &Tensor,
        kind: Option<Kind>,
    ) -> Result<Tensor, PlaceError> {
        check_supported(name, source)?;
        let kind = kind.unwrap_or(source.kind());
        let placed = if source.device() == self.device() {
            self.adjust(name, source, kind)?
        } else {
            self.carry(name, role, source, kind)?
        };
        finish(name, role, source, kind, placed)
    }

    /// For a tensor that is already on the device: makes it contiguous and converts it. Shares storage with
    /// the source if there is nothing to do.
    fn adjust(&mut self, name: &str, source: &Tensor, kind: Kind) -> Result<Tensor, PlaceError> {
        if self.device() == Device::Cpu && !self.explained {
            self.explained = true;
            tracing::debug!(
                "the device is the CPU: copies, staging and verification are skipped; tensors are \
                 only made contiguous and converted"
            );
        }
        if source.is_contiguous() && source.kind() == kind {
            return Ok(source.shallow_clone());
        }
        let adjusted = source
            .f_detach()
            .and_then(|source| source.f_contiguous()?.f_to_kind(kind));
        adjusted.map_err(|error| torch(name, error))
    }

    /// Moves a tensor from the host to the device, or from another device through the host.
    fn carry(
        &mut self,
        name: &str,
        role: Role,
        source: &Tensor,
        kind: Kind,
    ) -> Result<Tensor, PlaceError> {
        let (host, cast) = self.pack(name, source, kind)?;
        let request = Request {
            name,
            role,
            cast: Some(cast),
        };
        match self
            .engine
            .to_device(&mut self.transport, &host, &request)?
        {
            Placed::OnDevice(tensor) => Ok(tensor),
            Placed::OnHost(host) => Ok(host.into_tensor()),
        }
    }

    /// The engine's source for a tensor, and the element type it should arrive as.
    fn pack(
        &mut self,
        name: &str,
        source: &Tensor,
        kind: Kind,
    ) -> Result<(HostTensor, Element), PlaceError> {
        let refuse = |kind| PlaceError::Kind {
            tensor: name.to_owned(),
            kind,
        };
        element_of(source.kind()).ok_or_else(|| refuse(source.kind()))?;
        let cast = element_of(kind).ok_or_else(|| refuse(kind))?;
        // Copies between two devices arrive as zeros on some machines where copies through the host do not
        // (pytorch issues 84803, 87363).
        let on_host = match source.device() {
            Device::Cpu => source.shallow_clone(),
            _ => self.to_host(name, source)?,
        };
        let host = HostTensor::new(&on_host).map_err(|source| PlaceError::Torch {
            tensor: name.to_owned(),
            source,
        })?;
        Ok((host, cast))
    }
}

/// Drops what has arrived when the rest fails; leaks it if freeing would call into a runtime that must not be
/// called any more.
fn given_up<T>(error: PlaceError, arrived: T) -> PlaceError {
    if !error.context_is_usable() {
        std::mem::forget(arrived);
    }
    error
}

/// Checks what arrived, and makes it a leaf that requires a gradient if a weight did.
fn finish(
    name: &str,
    role: Role,
    source: &Tensor,
    kind: Kind,
    placed: Tensor,
) -> Result<Tensor, PlaceError> {
    check(name, source, kind, &placed)?;
    if role == Role::Weight && source.requires_grad() && !placed.requires_grad() {
        return placed
            .f_set_requires_grad(true)
            .map_err(|error| torch(name, error));
    }
    Ok(placed)
}

/// Whether the result is what was requested, as far as can be seen without reading it.
fn check(name: &str, source: &Tensor, kind: Kind, placed: &Tensor) -> Result<(), PlaceError> {
    if placed.size() == source.size() && placed.kind() == kind && placed.is_contiguous() {
        return Ok(());
    }
    let describe = |size: Vec<i64>, kind| format!("{kind:?} {size:?}");
    Err(PlaceError::Changed {
        tensor: name.to_owned(),
        found: format!(
            "{}{}",
            describe(placed.size(), placed.kind()),
            if placed.is_contiguous() {
                ""
            } else {
                " with gaps"
            }
        ),
        wanted: describe(source.size(), kind),
    })
}

/// A tensor of the caller by its name, and what has arrived for it.
type Arrived<'a> = ((String, &'a mut Tensor), Tensor);

/// Makes the caller's tensors refer to what has arrived, which frees their host memory.
fn commit(arrived: &mut Vec<Arrived<'_>>) -> Result<(), PlaceError> {
    for ((name, tensor), placed) in arrived.drain(..) {
        if tensor.data_ptr() == placed.data_ptr() && tensor.device() == placed.device() {
            continue;
        }
        let data = placed.f_detach().map_err(|error| torch(&name, error))?;
        tensor
            .f_set_data(&data)
            .map_err(|error| torch(&name, error))?;
    }
    Ok(())
}

/// How many of these tensors make a group; at least one, if there is one.
fn group_length<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> usize {
    let mut bytes = Bytes::ZERO;
    let before_the_last = tensors.take(GROUP_TENSORS).take_while(|tensor| {
        let has_room = bytes < Placer::GROUP_BYTES;
        bytes += size_of_tensor(tensor);
        has_room
    });
    before_the_last.count()
}

pub(crate) fn size_of_tensor(tensor: &Tensor) -> Bytes {
    Bytes(tensor.numel() as u64 * tensor.kind().elt_size_in_bytes() as u64)
}

fn torch(name: &str, error: tch::TchError) -> PlaceError {
    PlaceError::Torch {
        tensor: name.to_owned(),
        source: error.into(),
    }
}

#[cfg(test)]
mod tests;
