//! A transport with fault injection: libtorch's own copies, of bytes that a fault has changed.
//!
//! On an accelerator the strategies are that device's, and so are its checksums and casts. The CPU can pose as an APU
//! ([`FaultyTransport::apu`]) on which every strategy exists: a copy there arrives when the stream is synchronised, and
//! until then the memory keeps its previous contents. The transport only sees the calls and works out itself which
//! strategy they belong to, so it does not rely on the engine's own account.

use std::time::Duration;

use platform::Bytes;
use tch::{Device, Tensor};
use torch_ext::Error;

use super::Fault;
use super::fault::pool_of;
use crate::transfer::checksum::Checksum;
use crate::transfer::strategy::TransferStrategy;
use crate::transfer::torch_transport::{HostTensor, TorchTransport, TransportOptions, kind_of};
use crate::transfer::transport::{
    ChecksummedCopy, CopyMethod, DeviceFacts, Element, Operation, Origin, SourceFacts, SyncScope,
    Transport, TransportError, one_by_one,
};

/// Contents of memory that has not been written to.
const UNINITIALISED: u8 = 0xa5;

/// A host tensor, and which step of a strategy produced it.
#[derive(Debug)]
pub struct FaultyHost {
    tensor: HostTensor,
    /// Where it claims to be.
    origin: Option<Origin>,
    provenance: Provenance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provenance {
    Caller,
    Stage,
    Cast,
}

impl FaultyHost {
    /// A tensor of the caller, which claims to be in memory of this kind.
    ///
    /// # Errors
    /// If the bytes are not whole elements.
    pub fn new(bytes: &[u8], element: Element, origin: Origin) -> Result<Self, Error> {
        let tensor = Tensor::f_from_slice(bytes)?.f_view_dtype(kind_of(element))?;
        Ok(Self {
            origin: Some(origin),
            ..Self::of(&tensor)?
        })
    }

    /// A tensor of the caller, wherever it is.
    pub(super) fn of(tensor: &Tensor) -> Result<Self, Error> {
        Ok(Self {
            tensor: HostTensor::new(tensor)?,
            origin: None,
            provenance: Provenance::Caller,
        })
    }

    /// The tensor itself.
    pub fn into_tensor(self) -> Tensor {
        self.tensor.into_tensor()
    }
}

/// The bytes of a tensor, wherever it is.
pub fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>, Error> {
    let host = HostTensor::new(&tensor.f_to_device(Device::Cpu)?.f_contiguous()?)?;
    Ok(host.bytes()?.to_vec())
}

/// When a fault is triggered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultInjection {
    /// The fault.
    pub fault: Fault,
    /// The strategy it affects; the ones before it are refused, so that the engine reaches it.
    pub route: TransferStrategy,
    /// Whether it is triggered every time from then on, instead of once.
    pub every_time: bool,
}

/// The transport.
pub struct FaultyTransport {
    inner: TorchTransport,
    /// The APU that the CPU poses as.
    apu: Option<DeviceFacts>,
    /// Whether checksums are computed on the device.
    sums: bool,
    first_open: TransferStrategy,
    order: Option<FaultInjection>,
    /// How many opportunities to skip before the fault is triggered.
    skip: u32,
    struck: u32,
    /// The strategy of the last copy.
    route: TransferStrategy,
    /// The storage of each direct copy.
    direct_copies: Vec<usize>,
    pending: Vec<Pending>,
    hung: bool,
    lost: bool,
    abandoned: usize,
}

/// A copy that has been started.
struct Pending {
    source: Tensor,
    target: Tensor,
    method: CopyMethod,
    fault: Option<Fault>,
}

impl FaultyTransport {
    /// The transport to a device, as it is.
    pub fn new(inner: TorchTransport) -> Self {
        Self {
            inner,
            apu: None,
            sums: true,
            first_open: TransferStrategy::Direct,
            order: None,
            skip: 0,
            struck: 0,
            route: TransferStrategy::Direct,
            direct_copies: Vec::new(),
            pending: Vec::new(),
            hung: false,
            lost: false,
            abandoned: 0,
        }
    }

    /// The CPU, posing as a healthy APU that has every strategy. `sums`: whether it can compute checksums.
    ///
    /// # Errors
    /// None known; making any transport may fail.
    pub fn apu(sums: bool) -> Result<Self, Error> {
        let inner = TorchTransport::new(Device::Cpu, TransportOptions::default())?;
        let apu = DeviceFacts {
            name: "apu:0".to_owned(),
            unified_memory: true,
            zero_copy: true,
            pinned_memory: true,
            other_streams: true,
        };
        Ok(Self {
            apu: Some(apu),
            sums,
            ..Self::new(inner)
        })
    }

    /// The same with changed properties.
    #[must_use]
    pub fn with_facts(mut self, change: impl FnOnce(&mut DeviceFacts)) -> Self {
        let mut facts = self.facts();
        change(&mut facts);
        self.apu = Some(facts);
        self
    }

    /// Whether its kernels compute, so that a cast there means anything.
    pub(super) fn computes(&mut self) -> bool {
        self.inner.sums_itself()
    }

    /// Starts a new move, in which the strategies before `first_open` are refused.
    pub fn begin(&mut self, first_open: TransferStrategy) {
        self.first_open = first_open;
        self.direct_copies.clear();
    }

    /// Injects a fault into the following moves, and starts one.
    pub fn inject(&mut self, order: FaultInjection) {
        self.inject_later(order, 0);
    }

    /// Like `inject`, but skips this many opportunities, so that a later one of several tensors is affected.
    pub fn inject_later(&mut self, order: FaultInjection, skip: u32) {
        (self.order, self.skip, self.struck) = (Some(order), skip, 0);
        self.begin(order.route);
    }

    /// Ends the effects of a fault: a new process would not know of them.
    pub(super) fn heal(&mut self) {
        self.order = None;
        (self.hung, self.lost) = (false, false);
        self.pending.clear();
    }

    /// How often the fault was triggered.
    pub fn triggered(&self) -> u32 {
        self.struck
    }

    /// Number of tensors that were abandoned because something may still be using them.
    pub fn abandoned(&self) -> usize {
        self.abandoned
    }

    /// The fault, if it is triggered now, for this strategy.
    fn triggers(&mut self, route: TransferStrategy, is: impl Fn(Fault) -> bool) -> Option<Fault> {
        let order = self.order?;
        let here = match order.every_time {
            true => route >= order.route,
            false => route == order.route && self.struck == 0,
        };
        if !here || !is(order.fault) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.struck += 1;
        Some(order.fault)
    }

    /// Fails if the device is lost, or an out-of-memory fault is injected for this operation.
    fn enter(
        &mut self,
        operation: Operation,
        route: TransferStrategy,
    ) -> Result<(), TransportError> {
        if self.lost {
            let message = "an earlier copy ended the context".to_owned();
            return Err(TransportError::ContextLost { operation, message });
        }
        match self.triggers(route, |fault| fault == Fault::OutOfMemory(operation)) {
            None => Ok(()),
            Some(_) => Err(TransportError::OutOfMemory {
                operation,
                pool: pool_of(operation),
                message: "injected out-of-memory fault".to_owned(),
            }),
        }
    }

    /// The strategy that a copy must belong to.
    fn route_of(&mut self, host: &FaultyHost, method: CopyMethod) -> TransferStrategy {
        // A staged tensor is not cast; staging a cast tensor keeps the type.
        match (method, host.provenance) {
            (CopyMethod::OtherStream, _) => TransferStrategy::OtherStream,
            (CopyMethod::ZeroCopy, _) => TransferStrategy::ZeroCopy,
            (_, Provenance::Cast) => TransferStrategy::CastOnHost,
            (CopyMethod::Chunked { .. }, _) => TransferStrategy::Chunked,
            (CopyMethod::Direct, Provenance::Stage) => TransferStrategy::Staged,
            (CopyMethod::Direct, Provenance::Caller) => {
                let memory = host.tensor.tensor().data_ptr() as usize;
                let is_first = !self.direct_copies.contains(&memory);
                self.direct_copies.push(memory);
                match is_first {
                    true => TransferStrategy::Direct,
                    false => TransferStrategy::Retry,
                }
            }
        }
    }

    /// Refuses a copy, or returns the fault that affects it.
    fn pass(
        &mut self,
        host: &FaultyHost,
        method: CopyMethod,
    ) -> Result<Option<Fault>, TransportError> {
        let operation = Operation::Copy;
        let route = self.route_of(host, method);
        self.route = route;
        self.enter(operation, route)?;
        let refused = self.triggers(route, |fault| fault == Fault::Refused);
        if refused.is_some() || route < self.first_open {
            let message = format!("`{route}` is refused by the fault injection");
            return Err(TransportError::Refused { operation, message });
        }
        // Memory and casts have their own operations; all other faults affect the copy.
        Ok(self.triggers(route, |fault| {
            !matches!(fault, Fault::OutOfMemory(_) | Fault::CastZeros)
        }))
    }

    /// Starts a copy that arrives at the next synchronisation, as the fault has it.
    fn start(
        &mut self,
        host: &FaultyHost,
        method: CopyMethod,
        fault: Option<Fault>,
    ) -> Result<Tensor, TransportError> {
        let source = match method {
            // It reads through its own buffer.
            CopyMethod::Chunked { .. } => deep_copy(host.tensor.tensor()).map_err(not_made)?,
            _ => host.tensor.tensor().shallow_clone(),
        };
        let is_view = method == CopyMethod::ZeroCopy
            && self.apu.is_some()
            && fault.is_none_or(|fault| fault == Fault::MutatedSource);
        let target = match (is_view, &self.apu) {
            (true, _) => source.shallow_clone(),
            (false, Some(_)) => stale(&source).map_err(not_made)?.into_tensor(),
            (false, None) => {
                let stale = stale(&source).map_err(not_made)?;
                self.inner.copy(&stale, method)?
            }
        };
        self.pending.push(Pending {
            source,
            target: target.shallow_clone(),
            method,
            fault,
        });
        Ok(target)
    }

    /// Completes the copies that are due.
    fn land(&mut self, scope: SyncScope) -> Result<(), TransportError> {
        let late = |pending: &Pending| {
            scope == SyncScope::Stream && pending.fault == Some(Fault::LateCopy)
        };
        let (waiting, due) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition::<Vec<_>, _>(late);
        self.pending = waiting;
        for copy in due {
            if copy.fault == Some(Fault::MutatedSource) {
                // As by a caller that fills the buffer with the next batch.
                let _ = copy
                    .source
                    .shallow_clone()
                    .f_add_scalar_(1_i64)
                    .map_err(not_made)?;
            }
            if copy.source.data_ptr() == copy.target.data_ptr() {
                continue;
            }
            let sent = HostTensor::new(&copy.source).map_err(not_made)?;
            let mut damaged = stale(&copy.source).map_err(not_made)?;
            let bytes = damaged.bytes_mut().map_err(not_made)?;
            let fault = copy.fault.unwrap_or(Fault::LateCopy);
            fault.apply(sent.bytes().map_err(not_made)?, bytes);
            if self.inner.is_pinned(&sent) {
                damaged = self.inner.stage(&damaged)?;
            }
            let method = match copy.method {
                // The APU has one stream, and a view is written to as it is.
                CopyMethod::ZeroCopy => CopyMethod::Direct,
                CopyMethod::OtherStream if self.apu.is_some() => CopyMethod::Direct,
                method => method,
            };
            let _ = self.inner.copy_to(&damaged, method, Some(copy.target))?;
        }
        Ok(())
    }
}

/// Memory for a copy of `tensor`, with what was there before.
fn stale(tensor: &Tensor) -> Result<HostTensor, Error> {
    let mut stale = HostTensor::new(&tensor.f_empty_like()?)?;
    stale.bytes_mut()?.fill(UNINITIALISED);
    Ok(stale)
}

fn deep_copy(tensor: &Tensor) -> Result<Tensor, Error> {
    let mut copy = tensor.f_empty_like()?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

/// What a fault needs could not be made: the copy counts as refused.
fn not_made(error: impl std::fmt::Display) -> TransportError {
    TransportError::Refused {
        operation: Operation::Copy,
        message: error.to_string(),
    }
}

impl Transport for FaultyTransport {
    type Host = FaultyHost;
    type Remote = Tensor;

    fn facts(&self) -> DeviceFacts {
        self.apu.clone().unwrap_or_else(|| self.inner.facts())
    }

    fn source(&self, host: &FaultyHost) -> SourceFacts {
        let known = self.inner.source(&host.tensor);
        SourceFacts {
            origin: host.origin.unwrap_or(known.origin),
            ..known
        }
    }

    fn contiguous(&mut self, host: &FaultyHost) -> Result<FaultyHost, TransportError> {
        self.enter(Operation::Contiguous, TransferStrategy::Direct)?;
        Ok(FaultyHost {
            tensor: self.inner.contiguous(&host.tensor)?,
            ..*host
        })
    }

    fn sum_host(&mut self, host: &FaultyHost) -> Result<Checksum, TransportError> {
        self.inner.sum_host(&host.tensor)
    }

    fn stage(&mut self, host: &FaultyHost) -> Result<FaultyHost, TransportError> {
        let (route, provenance) = match host.provenance {
            Provenance::Cast => (TransferStrategy::CastOnHost, Provenance::Cast),
            _ => (TransferStrategy::Staged, Provenance::Stage),
        };
        self.enter(Operation::Stage, route)?;
        let tensor = match self.apu {
            Some(_) => deep_copy(host.tensor.tensor())
                .and_then(|copy| HostTensor::new(&copy))
                .map_err(not_made)?,
            None => self.inner.stage(&host.tensor)?,
        };
        Ok(FaultyHost {
            tensor,
            origin: Some(Origin::Pinned),
            provenance,
        })
    }

    fn cast_on_host(
        &mut self,
        host: &FaultyHost,
        to: Element,
    ) -> Result<FaultyHost, TransportError> {
        self.enter(Operation::CastOnHost, TransferStrategy::CastOnHost)?;
        Ok(FaultyHost {
            tensor: self.inner.cast_on_host(&host.tensor, to)?,
            origin: None,
            provenance: Provenance::Cast,
        })
    }

    fn copy(&mut self, host: &FaultyHost, method: CopyMethod) -> Result<Tensor, TransportError> {
        match self.pass(host, method)? {
            None if self.apu.is_none() => self.inner.copy(&host.tensor, method),
            fault => self.start(host, method, fault),
        }
    }

    fn copy_with_checksum(
        &mut self,
        host: &FaultyHost,
        method: CopyMethod,
    ) -> Result<ChecksummedCopy<Tensor>, TransportError> {
        let fault = self.pass(host, method)?;
        if fault.is_none() && self.apu.is_none() {
            return self.inner.copy_with_checksum(&host.tensor, method);
        }
        let sent = self.inner.sum_host(&host.tensor)?;
        Ok(ChecksummedCopy {
            remote: self.start(host, method, fault)?,
            sent: Some(sent),
            arrived: None,
        })
    }

    fn copy_batched(
        &mut self,
        loads: &[(&FaultyHost, bool)],
    ) -> Vec<Result<ChecksummedCopy<Tensor>, TransportError>> {
        if self.apu.is_some() {
            return one_by_one(self, loads);
        }
        let method = CopyMethod::Direct;
        let passed: Vec<_> = (loads.iter())
            .map(|(host, _)| self.pass(host, method))
            .collect();
        let sound: Vec<_> = (loads.iter().zip(&passed))
            .filter(|(_, passed)| matches!(passed, Ok(None)))
            .map(|((host, summed), _)| (&host.tensor, *summed))
            .collect();
        let mut copied = self.inner.copy_batched(&sound).into_iter();
        let answers = loads.iter().zip(passed).map(|((host, summed), passed)| {
            let Some(fault) = passed? else {
                let missing = || Err(not_made("it was not answered"));
                return copied.next().unwrap_or_else(missing);
            };
            Ok(ChecksummedCopy {
                sent: match summed {
                    true => Some(self.inner.sum_host(&host.tensor)?),
                    false => None,
                },
                remote: self.start(host, method, Some(fault))?,
                arrived: None,
            })
        });
        answers.collect()
    }

    fn synchronize(&mut self, scope: SyncScope) -> Result<(), TransportError> {
        let operation = Operation::Synchronize;
        self.enter(operation, self.route)?;
        let timed_out = TransportError::TimedOut {
            operation,
            after: Duration::from_secs(30),
        };
        let has = |pending: &[Pending], fault| pending.iter().any(|copy| copy.fault == Some(fault));
        if has(&self.pending, Fault::ContextLost) {
            self.lost = true;
            return self.enter(operation, self.route);
        }
        self.hung |= has(&self.pending, Fault::Hang);
        if self.hung {
            return Err(timed_out);
        }
        if has(&self.pending, Fault::Stall) {
            // The next synchronisation finds it complete.
            for copy in &mut self.pending {
                copy.fault = copy.fault.filter(|fault| *fault != Fault::Stall);
            }
            return Err(timed_out);
        }
        self.land(scope)?;
        self.inner.synchronize(scope)
    }

    fn sum_device(&mut self, remote: &Tensor) -> Result<Option<Checksum>, TransportError> {
        self.enter(Operation::SumDevice, self.route)?;
        match self.sums {
            true => self.inner.sum_device(remote),
            false => Ok(None),
        }
    }

    fn remote_bytes(&self, remote: &Tensor) -> Bytes {
        self.inner.remote_bytes(remote)
    }

    fn read_back(&mut self, remote: &Tensor) -> Result<FaultyHost, TransportError> {
        self.enter(Operation::ReadBack, self.route)?;
        Ok(FaultyHost {
            tensor: self.inner.read_back(remote)?,
            origin: None,
            provenance: Provenance::Caller,
        })
    }

    fn cast_on_device(&mut self, remote: &Tensor, to: Element) -> Result<Tensor, TransportError> {
        self.enter(Operation::CastOnDevice, self.route)?;
        let cast = self.inner.cast_on_device(remote, to)?;
        match self.triggers(self.route, |fault| fault == Fault::CastZeros) {
            Some(_) => cast.f_zeros_like().map_err(not_made),
            None => Ok(cast),
        }
    }

    fn trim(&mut self) -> Result<Bytes, TransportError> {
        self.enter(Operation::Trim, self.route)?;
        self.inner.trim()
    }

    fn abandon(&mut self, remotes: Vec<Tensor>, sources: Vec<FaultyHost>) {
        // They are dropped: what was in flight existed only here.
        self.abandoned += remotes.len() + sources.len();
    }
}
