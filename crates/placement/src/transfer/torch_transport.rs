//! The engine's real device: tensors, moved by libtorch.
//!
//! Works for every device that libtorch has, the CPU included, where a copy is a
//! copy in memory: that is what the tests and benchmarks of a machine without a GPU
//! run. Calls that may hang on a device run under a `Watchdog`.

mod batched;
mod copies;
mod deferred_drop;
mod elements;
mod sums;

use std::time::Duration;

use tch::{Device, Tensor};
use torch_ext::accelerator::{self, DeviceIndex, Stream};
use torch_ext::allocator::Library;
use torch_ext::{Error, copy_into, threads};

use self::batched::{Copied, Load, copy_together};
use self::copies::{
    chunk_buffer, copy_chunked, copy_direct, copy_on_other_stream, empty_on, map_into,
};
pub(crate) use self::elements::{device_name, element_of, kind_of, size_in_bytes};
use self::sums::{computes, sum_rows, weights_on};
use crate::transfer::checksum::{Checksum, Workers};
use crate::transfer::mapped::is_file_mapped;
use crate::transfer::transport::{
    ChecksummedCopy, CopyMethod, DeviceFacts, Element, Operation, Origin, Pool, SourceFacts,
    SyncScope, Transport, TransportError, one_by_one,
};
use crate::transfer::watchdog::{Missed, Watchdog};
use platform::Bytes;

/// How a [`TorchTransport`] treats its device.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// Whether the device and the CPU share one memory (an APU); `None` asks the device's
    /// runtime. To be set for a machine whose runtime is wrong about it.
    pub unified_memory: Option<bool>,
    /// Whether the device's sums can be believed; `None` finds out with a known one.
    pub device_sums: Option<bool>,
    /// How long one operation may take before it counts as hung, beside what the slowest link
    /// ([`SLOWEST_LINK`](Self::SLOWEST_LINK)) takes for the bytes that are on their way.
    pub deadline: Duration,
    /// The allocator library that serves the device, if one does: trimmed when
    /// memory runs out, instead of libtorch's own cache.
    pub allocator: Option<Library>,
}

impl TransportOptions {
    /// Bytes per second of a link that is slow, and does not hang: a quarter of what one lane of PCIe 1.0 carries.
    pub const SLOWEST_LINK: Bytes = Bytes::mib(64);

    /// How long to wait while so many bytes are on their way.
    fn patience(&self, under_way: Bytes) -> Duration {
        let on_the_link = under_way.0 as f64 / Self::SLOWEST_LINK.0 as f64;
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

/// Moves tensors to one device of libtorch.
pub struct TorchTransport {
    device: Device,
    facts: DeviceFacts,
    options: TransportOptions,
    watch: Watchdog,
    /// Bytes of copies that were started, and have not been waited for.
    under_way: Bytes,
    /// How the device sums, found out when it is first asked to.
    sums: Option<DeviceSums>,
    /// Where the device sums while it copies; made when it is first used.
    side_stream: Option<Stream>,
}

/// What is known of an accelerator's sums.
enum DeviceSums {
    /// They are right; with these weights of a row.
    Right(Tensor),
    /// They are not: what arrives is read back.
    Wrong,
}

/// A tensor in host memory, on its way to the device. Not recorded for backward.
pub struct HostTensor(Tensor);

impl HostTensor {
    /// The tensor as the source of a move.
    ///
    /// # Errors
    /// A torch error for a tensor that is not on the CPU or not dense.
    pub fn new(tensor: &Tensor) -> Result<Self, Error> {
        let tensor = tensor.f_detach()?;
        if tensor.device() != Device::Cpu || tensor.is_sparse() {
            return Err(Error::InvalidArgument(format!(
                "only dense tensors on the CPU can be placed; this one is on {:?}",
                tensor.device()
            )));
        }
        Ok(Self(tensor))
    }

    /// The tensor itself.
    pub fn into_tensor(self) -> Tensor {
        self.0
    }

    /// Its bytes without gaps.
    fn size(&self) -> Bytes {
        Bytes(size_in_bytes(&self.0))
    }

    /// The tensor itself, looked at.
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.0
    }

    /// The bytes of a contiguous tensor.
    pub(crate) fn bytes(&self) -> &[u8] {
        let bytes = size_in_bytes(&self.0) as usize;
        let start = self.0.data_ptr().cast::<u8>().cast_const();
        if bytes == 0 || start.is_null() {
            return &[];
        }
        // SAFETY: a dense, contiguous CPU tensor of this many bytes from `start`, kept
        // alive by `self`. Any byte is a valid u8. As with every read of a tensor,
        // nobody may write to its storage from another thread meanwhile: the tensors
        // of a move belong to the caller of the move.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }

    /// Copies the bytes of another tensor of this size, and sums both sides on the way.
    pub(crate) fn fill_from(&mut self, source: &HostTensor) -> (Checksum, Checksum) {
        let copy = |from: &[u8], to: &mut [u8]| to.copy_from_slice(from);
        Checksum::of_copy(source.bytes(), self.bytes_mut(), &TorchThreads, copy)
    }

    /// The same bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = size_in_bytes(&self.0) as usize;
        let start = self.0.data_ptr().cast::<u8>();
        if bytes == 0 || start.is_null() {
            return &mut [];
        }
        // SAFETY: as in `bytes`. It is called for tensors that were just made (which includes
        // the fault matrix's damaged ones), and for slots of a ring between two blocks: nobody
        // reads or writes there meanwhile, and no reference to these bytes is kept anywhere,
        // since tensors hold plain pointers.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }
}

/// The threads that a copy of libtorch's on the CPU is shared by, so that verified copies have no others.
struct TorchThreads;

impl Workers for TorchThreads {
    fn count(&self) -> usize {
        threads::count().unwrap_or(1)
    }

    fn each(&self, shares: usize, work: &(dyn Fn(usize) + Sync)) {
        // Without threads the caller does it alone.
        let _ = threads::in_shares(shares, 1, |share| share.for_each(work));
    }
}

impl TorchTransport {
    /// What was said about the device.
    pub(crate) fn options(&self) -> &TransportOptions {
        &self.options
    }

    /// A transport to `device`: the CPU, or `Device::Cuda(n)` (also under ROCm).
    ///
    /// # Errors
    /// [`Error::NoAccelerator`] or [`Error::InvalidArgument`] for a device that is not
    /// there.
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
            under_way: Bytes::ZERO,
            sums: None,
            side_stream: None,
        })
    }

    /// The device that tensors are moved to.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The device's number, unless it is the CPU.
    pub fn index(&self) -> Option<DeviceIndex> {
        DeviceIndex::try_from(self.device).ok()
    }

    /// Runs a call that touches the device: under the watch on an accelerator, on the
    /// caller's stream; right here on the CPU, which does not hang.
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
        let deadline = self.options.patience(self.under_way);
        match self.watch.run(deadline, on_stream) {
            Ok(outcome) => outcome.map_err(|error| explain(operation, pool, error)),
            Err(Missed::Deadline(after)) => Err(TransportError::TimedOut { operation, after }),
            Err(Missed::Lost) => Err(TransportError::Refused {
                operation,
                message: "its thread was lost".to_owned(),
            }),
        }
    }

    /// As [`Transport::copy`], to memory that is there already, where some is given.
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
                // By itself, so that it is known which memory is full: no pinned memory is no reason to skip
                // strategies that do without.
                let make = move || chunk_buffer(&like, chunk, staging);
                let buffer = self.watched(Operation::Stage, Pool::Pinned, make)?;
                Box::new(move || copy_chunked(&source, target()?, &buffer))
            }
            CopyMethod::OtherStream => Box::new(move || copy_on_other_stream(&source, target)),
            CopyMethod::ZeroCopy => Box::new(move || map_into(&source, device)),
        };
        self.under_way += host.size();
        self.watched(Operation::Copy, Pool::Device, copy)
    }

    /// Whether the device computes, and its sums can be believed; the CPU's always can.
    #[cfg(any(test, feature = "test-support"))]
    pub(crate) fn sums_itself(&mut self) -> bool {
        self.device == Device::Cpu || matches!(self.device_sums(), Ok(DeviceSums::Right(_)))
    }

    /// Whether a tensor is in page-locked memory.
    pub(crate) fn is_pinned(&self, host: &HostTensor) -> bool {
        self.facts.pinned_memory && accelerator::is_pinned(&host.0).unwrap_or(false)
    }

    /// The direct way on an accelerator: all copies and sums in one call under the watch, with one wait at its end.
    fn start_together(&mut self, loads: Vec<Load>) -> Result<Copied, TransportError> {
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
            // Without sums a tensor counts as on its way: it is waited for, and asked about or read back.
            Err(_) => None,
        };
        let (device, side) = (self.device, self.side_stream);
        self.under_way += loads.iter().map(|(host, _)| host.size()).sum();
        let (copied, side) = self.watched(Operation::Copy, Pool::Device, move || {
            let side = match side {
                Some(side) => side,
                None => Stream::new(DeviceIndex::try_from(device)?)?,
            };
            let weights = weights.map(|weights| (weights, side));
            Ok((copy_together(&loads, device, weights)?, side))
        })?;
        self.side_stream = Some(side);
        let arrived = |one: &Result<ChecksummedCopy<Tensor>, Error>| {
            one.as_ref().is_ok_and(|one| one.arrived.is_some())
        };
        if copied.iter().all(arrived) {
            self.under_way = Bytes::ZERO;
        }
        Ok(copied)
    }

    /// How the device sums; asks it the first time.
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
            // Asked only where it matters: reading the kernel's list is not free.
            Origin::MappedFile
        } else {
            Origin::Memory
        };
        SourceFacts {
            bytes: Bytes(size_in_bytes(&host.0)),
            // The placer refuses tensors without an element type before they come here.
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
        Ok(Checksum::of(host.bytes()))
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
            let (sent, arrived) = target.fill_from(host);
            return Ok(ChecksummedCopy {
                remote: target.0,
                sent: Some(sent),
                arrived: Some(arrived),
            });
        }
        if method == CopyMethod::Direct {
            let copied = self.copy_together(&[(host, true)]).pop();
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

    fn copy_together(
        &mut self,
        loads: &[(&HostTensor, bool)],
    ) -> Vec<Result<ChecksummedCopy<Tensor>, TransportError>> {
        if self.device == Device::Cpu {
            return one_by_one(self, loads);
        }
        let own =
            |(host, summed): &(&HostTensor, bool)| (HostTensor(host.0.shallow_clone()), *summed);
        let (operation, pool) = (Operation::Copy, Pool::Device);
        match self.start_together(loads.iter().map(own).collect()) {
            Ok(copied) => copied
                .into_iter()
                .map(|one| one.map_err(|error| explain(operation, pool, error)))
                .collect(),
            Err(error) => loads.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn synchronize(&mut self, scope: SyncScope) -> Result<(), TransportError> {
        let Some(index) = self.index() else {
            return Ok(()); // The CPU is never behind.
        };
        self.watched(Operation::Synchronize, Pool::Device, move || match scope {
            SyncScope::Stream => Stream::current(index)?.synchronize(),
            SyncScope::Device => accelerator::synchronize(index),
        })?;
        self.under_way = Bytes::ZERO;
        Ok(())
    }

    fn sum_device(&mut self, remote: &Tensor) -> Result<Option<Checksum>, TransportError> {
        if self.device == Device::Cpu {
            // The device's memory is the host's: sum it the fast way.
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
        let before = self.under_way;
        self.under_way += Bytes(size_in_bytes(&remote));
        let read = self.watched(Operation::ReadBack, Pool::Host, move || {
            let mut host = Tensor::f_empty(remote.size(), (remote.kind(), Device::Cpu))?;
            copy_into(&mut host, &remote, false)?;
            Ok(HostTensor(host))
        });
        self.under_way = before;
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
        // A stuck operation may still write to the ones and read the others: their
        // memory is never given back.
        std::mem::forget((remotes, sources));
    }
}

/// What an error of libtorch means for the next attempt.
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
