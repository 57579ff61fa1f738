//! The engine's real device: moves tensors with libtorch.
//!
//! Works for every device that libtorch supports, including the CPU, where a copy is a copy in memory; tests
//! and benchmarks on machines without a GPU use that. Calls that may hang on a device run under a `Watchdog`.

mod batched;
mod copies;
mod deferred_drop;
mod elements;
mod host_tensor;
mod sums;

use std::time::Duration;

use tch::{Device, Tensor};
use torch_ext::accelerator::{self, DeviceIndex, Stream};
use torch_ext::allocator::Library;
use torch_ext::{Error, copy_into};

use self::batched::{Copied, CopyJob, copy_batched};
use self::copies::{
    chunk_buffer, copy_chunked, copy_direct, copy_on_other_stream, empty_on, map_into,
};
pub(crate) use self::elements::{device_name, element_of, kind_of, size_in_bytes};
pub use self::host_tensor::HostTensor;
use self::sums::{computes, sum_rows, weights_on};
use crate::transfer::checksum::Checksum;
use crate::transfer::mapped::is_file_mapped;
use crate::transfer::transport::{
    ChecksummedCopy, CopyMethod, DeviceFacts, Element, Operation, Origin, Pool, SourceFacts,
    SyncScope, Transport, TransportError, one_by_one,
};
use crate::transfer::watchdog::{CallError, Watchdog};
use platform::Bytes;

/// Settings of a [`TorchTransport`].
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// Whether device and CPU share memory (an APU); `None` asks the device's runtime. Set this if the
    /// runtime is wrong.
    pub unified_memory: Option<bool>,
    /// Whether checksums computed on the device can be trusted; `None` finds out with a known one.
    pub device_sums: Option<bool>,
    /// Time limit of an operation before it counts as hung, in addition to the time that the bytes in flight
    /// take on the slowest link ([`SLOWEST_LINK`](Self::SLOWEST_LINK)).
    pub deadline: Duration,
    /// The allocator library that serves the device, if any: trimmed when memory runs out, instead of
    /// libtorch's own cache.
    pub allocator: Option<Library>,
}

impl TransportOptions {
    /// Bytes per second of a link that is slow but does not hang: a quarter of one lane of PCIe 1.0.
    pub const SLOWEST_LINK: Bytes = Bytes::mib(64);

    /// Time limit with this many bytes in flight.
    fn timeout(&self, in_flight: Bytes) -> Duration {
        let on_the_link = in_flight.0 as f64 / Self::SLOWEST_LINK.0 as f64;
        let patience = Duration::try_from_secs_f64(on_the_link);
        self.deadline
            .saturating_add(patience.unwrap_or(Duration::MAX))
    }
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            unified_memory: None,
            device_sums: None,
            deadline: Duration::from_secs(120),
            allocator: None,
        }
    }
}

/// Moves tensors to one libtorch device.
pub struct TorchTransport {
    device: Device,
    facts: DeviceFacts,
    options: TransportOptions,
    watch: Watchdog,
    /// Bytes of copies that were started and have not been waited for.
    in_flight: Bytes,
    /// Whether the device's checksums can be trusted, determined on first use.
    sums: Option<DeviceSums>,
    /// The stream for checksums during copies, created on first use.
    side_stream: Option<Stream>,
}

/// Whether an accelerator's checksums can be trusted.
enum DeviceSums {
    /// They can; with a row's weights on the device.
    Right(Tensor),
    /// They cannot: tensors are read back instead.
    Wrong,
}

impl TorchTransport {
    /// The settings.
    pub(crate) fn options(&self) -> &TransportOptions {
        &self.options
    }

    /// A transport to `device`: the CPU, or `Device::Cuda(n)` (also under ROCm).
    ///
    /// # Errors
    /// [`Error::NoAccelerator`] or [`Error::InvalidArgument`] if the device does not exist.
    pub fn new(device: Device, options: TransportOptions) -> Result<Self, Error> {
        let accelerator = match device {
            Device::Cpu => false,
            _ => {
                let index = DeviceIndex::try_from(device)?;
                let count = accelerator::device_count();
                if count == 0 {
                    return Err(Error::NoAccelerator(
                        "this libtorch sees no accelerator".into(),
                    ));
                }
                if usize::from(index.0) >= count {
                    return Err(Error::InvalidArgument(format!(
                        "there is no device {}: this machine has {count}",
                        index.0
                    )));
                }
                true
            }
        };
        let facts = DeviceFacts {
            name: device_name(device),
            unified_memory: match (options.unified_memory, DeviceIndex::try_from(device)) {
                (Some(unified), _) => unified,
                (None, Ok(index)) => accelerator::shares_host_memory(index).unwrap_or(false),
                (None, Err(_)) => false,
            },
            zero_copy: accelerator,
            pinned_memory: accelerator,
            other_streams: accelerator,
        };
        Ok(Self {
            device,
            facts,
            options,
            watch: Watchdog::default(),
            in_flight: Bytes::ZERO,
            sums: None,
            side_stream: None,
        })
    }

    /// The target device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The device's index, unless it is the CPU.
    pub fn index(&self) -> Option<DeviceIndex> {
        DeviceIndex::try_from(self.device).ok()
    }

    /// Runs a call that touches the device: on an accelerator under the watchdog, on the caller's stream; on
    /// the CPU, which does not hang, directly.
    pub(crate) fn watched<R: Send + 'static>(
        &mut self,
        operation: Operation,
        pool: Pool,
        call: impl FnOnce() -> Result<R, Error> + Send + 'static,
    ) -> Result<R, TransportError> {
        let Some(index) = self.index() else {
            return call().map_err(|error| explain(operation, pool, error));
        };
        let stream = Stream::current(index).map_err(|error| explain(operation, pool, error))?;
        let on_stream = move || {
            accelerator::set_current_device(index)?;
            let _stream = stream.enter()?;
            call()
        };
        let deadline = self.options.timeout(self.in_flight);
        match self.watch.run(deadline, on_stream) {
            Ok(outcome) => outcome.map_err(|error| explain(operation, pool, error)),
            Err(CallError::TimedOut(after)) => Err(TransportError::TimedOut { operation, after }),
            Err(CallError::Lost) => Err(TransportError::Refused {
                operation,
                message: "its thread was lost".to_owned(),
            }),
        }
    }

    /// Like [`Transport::copy`], optionally into existing memory.
    pub(crate) fn copy_to(
        &mut self,
        host: &HostTensor,
        method: CopyMethod,
        target: Option<Tensor>,
    ) -> Result<Tensor, TransportError> {
        let (source, device) = (host.0.shallow_clone(), self.device);
        let like = source.shallow_clone();
        let target = move || match target {
            Some(target) => Ok(target),
            None => empty_on(&like, device),
        };
        let copy: Box<dyn FnOnce() -> Result<Tensor, Error> + Send> = match method {
            CopyMethod::Direct => Box::new(move || copy_direct(&source, target()?)),
            CopyMethod::Chunked { chunk } => {
                let (like, staging) = (source.shallow_clone(), self.facts.pinned_memory);
                // A separate call, to know which memory is full: running out of pinned memory is no reason to
                // skip strategies that do not need it.
                let make = move || chunk_buffer(&like, chunk, staging);
                let buffer = self.watched(Operation::Stage, Pool::Pinned, make)?;
                Box::new(move || copy_chunked(&source, target()?, &buffer))
            }
            CopyMethod::OtherStream => Box::new(move || copy_on_other_stream(&source, target)),
            CopyMethod::ZeroCopy => Box::new(move || map_into(&source, device)),
        };
        self.in_flight += host.size();
        self.watched(Operation::Copy, Pool::Device, copy)
    }

    /// Whether the device's checksums can be trusted; always true for the CPU.
    #[cfg(any(test, feature = "test-support"))]
    pub(crate) fn sums_itself(&mut self) -> bool {
        self.device == Device::Cpu || matches!(self.device_sums(), Ok(DeviceSums::Right(_)))
    }

    /// Whether a tensor is in pinned memory.
    pub(crate) fn is_pinned(&self, host: &HostTensor) -> bool {
        self.facts.pinned_memory && accelerator::is_pinned(&host.0).unwrap_or(false)
    }

    /// The direct strategy on an accelerator: all copies and checksums in one watched call, with a single
    /// wait at its end.
    fn start_batched(&mut self, loads: Vec<CopyJob>) -> Result<Copied, TransportError> {
        let weights = match loads.iter().any(|(_, summed)| *summed) {
            true => self.device_sums(),
            false => Ok(&DeviceSums::Wrong),
        };
        let weights = match weights {
            Ok(DeviceSums::Right(weights)) => Some(weights.shallow_clone()),
            Ok(DeviceSums::Wrong) => None,
            Err(error @ (TransportError::ContextLost { .. } | TransportError::TimedOut { .. })) => {
                return Err(error);
            }
            // Without checksums a tensor counts as in flight: it is waited for and then verified or read
            // back.
            Err(_) => None,
        };
        let (device, side) = (self.device, self.side_stream);
        self.in_flight += loads.iter().map(|(host, _)| host.size()).sum();
        let (copied, side) = self.watched(Operation::Copy, Pool::Device, move || {
            let side = match side {
                Some(side) => side,
                None => Stream::new(DeviceIndex::try_from(device)?)?,
            };
            let weights = weights.map(|weights| (weights, side));
            Ok((copy_batched(&loads, device, weights)?, side))
        })?;
        self.side_stream = Some(side);
        let arrived = |one: &Result<ChecksummedCopy<Tensor>, Error>| {
            one.as_ref().is_ok_and(|one| one.arrived.is_some())
        };
        if copied.iter().all(arrived) {
            self.in_flight = Bytes::ZERO;
        }
        Ok(copied)
    }

    /// Whether the device's checksums can be trusted; tested the first time.
    fn device_sums(&mut self) -> Result<&DeviceSums, TransportError> {
        if self.sums.is_none() {
            let (device, known) = (self.device, self.options.device_sums);
            let (weights, right) = self.watched(Operation::SumDevice, Pool::Device, move || {
                let weights = weights_on(device)?;
                let right = match known {
                    Some(right) => right,
                    None => computes(device, &weights)?,
                };
                Ok((weights, right))
            })?;
            if !right && known.is_none() {
                tracing::warn!(
                    device = self.facts.name,
                    "the device's sum of known numbers is wrong: what arrives there is read back to be \
                     verified. Its kernels do not run, or compute nonsense; `surefoot probe` looks into it"
                );
            }
            self.sums = Some(match right {
                true => DeviceSums::Right(weights),
                false => DeviceSums::Wrong,
            });
        }
        Ok(self.sums.as_ref().unwrap_or(&DeviceSums::Wrong))
    }
}

impl Transport for TorchTransport {
    type Host = HostTensor;
    type Remote = Tensor;

    fn facts(&self) -> DeviceFacts {
        self.facts.clone()
    }

    fn source(&self, host: &HostTensor) -> SourceFacts {
        let origin = if self.is_pinned(host) {
            Origin::Pinned
        } else if self.facts.unified_memory && is_file_mapped(host.0.data_ptr() as usize) {
            // Only checked where it matters: reading `/proc/self/maps` takes time.
            Origin::MappedFile
        } else {
            Origin::Memory
        };
        SourceFacts {
            bytes: Bytes(size_in_bytes(&host.0)),
            // The placer refuses tensors without an element type earlier.
            element: element_of(host.0.kind()).unwrap_or(Element::U8),
            origin,
        }
    }

    fn contiguous(&mut self, host: &HostTensor) -> Result<HostTensor, TransportError> {
        host.0
            .f_contiguous()
            .map(HostTensor)
            .map_err(|error| explain(Operation::Contiguous, Pool::Host, error.into()))
    }

    fn sum_host(&mut self, host: &HostTensor) -> Result<Checksum, TransportError> {
        let bytes = host.bytes();
        bytes
            .map(Checksum::of)
            .map_err(|error| explain(Operation::SumHost, Pool::Host, error))
    }

    fn stage(&mut self, host: &HostTensor) -> Result<HostTensor, TransportError> {
        let source = host.0.shallow_clone();
        self.watched(Operation::Stage, Pool::Pinned, move || {
            accelerator::pin_memory(&source).map(HostTensor)
        })
    }

    fn cast_on_host(
        &mut self,
        host: &HostTensor,
        to: Element,
    ) -> Result<HostTensor, TransportError> {
        host.0
            .f_to_kind(kind_of(to))
            .map(HostTensor)
            .map_err(|error| explain(Operation::CastOnHost, Pool::Host, error.into()))
    }

    fn copy(&mut self, host: &HostTensor, method: CopyMethod) -> Result<Tensor, TransportError> {
        self.copy_to(host, method, None)
    }

    fn copy_with_checksum(
        &mut self,
        host: &HostTensor,
        method: CopyMethod,
    ) -> Result<ChecksummedCopy<Tensor>, TransportError> {
        if self.device == Device::Cpu && method == CopyMethod::Direct {
            let target = empty_on(&host.0, self.device);
            let target = target.map_err(|error| explain(Operation::Copy, Pool::Device, error))?;
            let mut target = HostTensor(target);
            let filled = target.fill_from(host);
            let (sent, arrived) =
                filled.map_err(|error| explain(Operation::Copy, Pool::Device, error))?;
            return Ok(ChecksummedCopy {
                remote: target.0,
                sent: Some(sent),
                arrived: Some(arrived),
            });
        }
        if method == CopyMethod::Direct {
            let copied = self.copy_batched(&[(host, true)]).pop();
            return copied.unwrap_or_else(|| {
                Err(TransportError::Refused {
                    operation: Operation::Copy,
                    message: "it was not answered".to_owned(),
                })
            });
        }
        let sent = self.sum_host(host)?;
        Ok(ChecksummedCopy {
            remote: self.copy(host, method)?,
            sent: Some(sent),
            arrived: None,
        })
    }

    fn copy_batched(
        &mut self,
        loads: &[(&HostTensor, bool)],
    ) -> Vec<Result<ChecksummedCopy<Tensor>, TransportError>> {
        if self.device == Device::Cpu {
            return one_by_one(self, loads);
        }
        let own =
            |(host, summed): &(&HostTensor, bool)| (HostTensor(host.0.shallow_clone()), *summed);
        let (operation, pool) = (Operation::Copy, Pool::Device);
        match self.start_batched(loads.iter().map(own).collect()) {
            Ok(copied) => copied
                .into_iter()
                .map(|one| one.map_err(|error| explain(operation, pool, error)))
                .collect(),
            Err(error) => loads.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn synchronize(&mut self, scope: SyncScope) -> Result<(), TransportError> {
        let Some(index) = self.index() else {
            return Ok(()); // The CPU is synchronous.
        };
        self.watched(Operation::Synchronize, Pool::Device, move || match scope {
            SyncScope::Stream => Stream::current(index)?.synchronize(),
            SyncScope::Device => accelerator::synchronize(index),
        })?;
        self.in_flight = Bytes::ZERO;
        Ok(())
    }

    fn sum_device(&mut self, remote: &Tensor) -> Result<Option<Checksum>, TransportError> {
        if self.device == Device::Cpu {
            // Device memory is host memory here: use the fast path.
            return self.sum_host(&HostTensor(remote.shallow_clone())).map(Some);
        }
        let DeviceSums::Right(weights) = self.device_sums()? else {
            return Ok(None);
        };
        let (weights, remote) = (weights.shallow_clone(), remote.shallow_clone());
        self.watched(Operation::SumDevice, Pool::Device, move || {
            sum_rows(&remote, &weights).map(Some)
        })
    }

    fn remote_bytes(&self, remote: &Tensor) -> Bytes {
        Bytes(size_in_bytes(remote))
    }

    fn read_back(&mut self, remote: &Tensor) -> Result<HostTensor, TransportError> {
        let remote = remote.shallow_clone();
        let before = self.in_flight;
        self.in_flight += Bytes(size_in_bytes(&remote));
        let read = self.watched(Operation::ReadBack, Pool::Host, move || {
            let mut host = Tensor::f_empty(remote.size(), (remote.kind(), Device::Cpu))?;
            copy_into(&mut host, &remote, false)?;
            Ok(HostTensor(host))
        });
        self.in_flight = before;
        read
    }

    fn cast_on_device(&mut self, remote: &Tensor, to: Element) -> Result<Tensor, TransportError> {
        let remote = remote.shallow_clone();
        self.watched(Operation::CastOnDevice, Pool::Device, move || {
            Ok(remote.f_to_kind(kind_of(to))?)
        })
    }

    fn trim(&mut self) -> Result<Bytes, TransportError> {
        let Some(index) = self.index() else {
            return Ok(Bytes::ZERO);
        };
        let explain = |error| explain(Operation::Trim, Pool::Device, error);
        if let Some(library) = &self.options.allocator {
            let device = i32::from(index.0);
            let before = library
                .stats(device)
                .map_err(Error::from)
                .map_err(explain)?;
            library
                .trim(device, 0)
                .map_err(Error::from)
                .map_err(explain)?;
            let after = library
                .stats(device)
                .map_err(Error::from)
                .map_err(explain)?;
            return Ok(Bytes(before.held_bytes.saturating_sub(after.held_bytes)));
        }
        let before = accelerator::memory_info(index).map_err(explain)?;
        accelerator::empty_cache().map_err(explain)?;
        let after = accelerator::memory_info(index).map_err(explain)?;
        Ok(Bytes(after.free.saturating_sub(before.free)))
    }

    fn abandon(&mut self, remotes: Vec<Tensor>, sources: Vec<HostTensor>) {
        // A stuck operation may still use this memory, so it is leaked.
        std::mem::forget((remotes, sources));
    }
}

/// What a libtorch error means for the next attempt.
fn explain(operation: Operation, pool: Pool, error: Error) -> TransportError {
    let message = error.to_string();
    match error {
        Error::OutOfMemory { .. } => TransportError::OutOfMemory {
            operation,
            pool,
            message,
        },
        Error::DeviceLost { .. } => TransportError::ContextLost { operation, message },
        _ => TransportError::Refused { operation, message },
    }
}

#[cfg(test)]
mod tests;
