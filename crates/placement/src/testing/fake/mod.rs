//! A fake device made of vectors, with fault injection.
//!
//! It replaces the real transport wherever decisions are tested, and produces the fault matrix
//! ([`crate::testing::matrix`]). Copies are asynchronous: the bytes arrive when the stream is synchronised,
//! and until then the memory keeps its previous contents. The fake only sees the calls to a transport and
//! works out itself which strategy they belong to, so it does not rely on the engine's own account.

mod fault;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

pub use fault::Fault;
pub(crate) use fault::pool_of;

use crate::transfer::checksum::Checksum;
use crate::transfer::strategy::TransferStrategy;
use crate::transfer::transport::{
    CopyMethod, DeviceFacts, Element, Operation, Origin, SourceFacts, SyncScope, Transport,
    TransportError,
};
use platform::Bytes;

/// Contents of memory that has not been written to.
const UNINITIALISED: u8 = 0xa5;

type Memory = Rc<RefCell<Vec<u8>>>;

/// A tensor in the fake's host memory.
#[derive(Clone, Debug)]
pub struct FakeHost {
    bytes: Memory,
    element: Element,
    origin: Origin,
    provenance: Provenance,
}

/// Which step of a strategy produced a host tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provenance {
    Caller,
    Stage,
    Cast,
}

/// A tensor on the fake device.
#[derive(Clone, Debug)]
pub struct FakeRemote {
    bytes: Memory,
    element: Element,
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

/// The device.
#[derive(Debug)]
pub struct FakeDevice {
    facts: DeviceFacts,
    sums: bool,
    first_open: TransferStrategy,
    order: Option<FaultInjection>,
    /// How many opportunities to skip before the fault is triggered.
    skip: u32,
    struck: u32,
    /// The strategy of the last copy.
    route: TransferStrategy,
    /// The storage of each direct copy.
    direct_copies: Vec<*const RefCell<Vec<u8>>>,
    pending: Vec<Pending>,
    hung: bool,
    lost: bool,
    abandoned: usize,
}

/// A copy that has been started.
#[derive(Debug)]
struct Pending {
    source: Memory,
    target: Memory,
    fault: Option<Fault>,
}

impl FakeHost {
    /// A tensor of the caller.
    pub fn new(bytes: Vec<u8>, element: Element, origin: Origin) -> FakeHost {
        FakeHost {
            bytes: Rc::new(RefCell::new(bytes)),
            element,
            origin,
            provenance: Provenance::Caller,
        }
    }

    /// Its contents.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.borrow().clone()
    }

    fn made(bytes: Vec<u8>, element: Element, provenance: Provenance) -> FakeHost {
        let origin = if provenance == Provenance::Stage {
            Origin::Pinned
        } else {
            Origin::Memory
        };
        FakeHost {
            bytes: Rc::new(RefCell::new(bytes)),
            element,
            origin,
            provenance,
        }
    }
}

impl FakeRemote {
    /// Its current contents.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.borrow().clone()
    }
}

impl FakeDevice {
    /// A healthy APU that supports every strategy. `sums`: whether it can compute checksums.
    pub fn apu(sums: bool) -> FakeDevice {
        FakeDevice {
            facts: DeviceFacts {
                name: "fake:0".to_owned(),
                unified_memory: true,
                zero_copy: true,
                pinned_memory: true,
                other_streams: true,
            },
            sums,
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

    /// The device with changed properties.
    pub fn with_facts(mut self, change: impl FnOnce(&mut DeviceFacts)) -> FakeDevice {
        change(&mut self.facts);
        self
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
        let here = if order.every_time {
            route >= order.route
        } else {
            route == order.route && self.struck == 0
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
        if self
            .triggers(route, |fault| fault == Fault::OutOfMemory(operation))
            .is_some()
        {
            let message = "injected out-of-memory fault".to_owned();
            let pool = pool_of(operation);
            return Err(TransportError::OutOfMemory {
                operation,
                pool,
                message,
            });
        }
        Ok(())
    }

    /// The strategy that a copy must belong to.
    fn route_of(&mut self, host: &FakeHost, method: CopyMethod) -> TransferStrategy {
        // A staged tensor is not cast; staging a cast tensor keeps the type.
        match (method, host.provenance) {
            (CopyMethod::OtherStream, _) => TransferStrategy::OtherStream,
            (CopyMethod::ZeroCopy, _) => TransferStrategy::ZeroCopy,
            (_, Provenance::Cast) => TransferStrategy::CastOnHost,
            (CopyMethod::Chunked { .. }, _) => TransferStrategy::Chunked,
            (CopyMethod::Direct, Provenance::Stage) => TransferStrategy::Staged,
            (CopyMethod::Direct, Provenance::Caller) => {
                let memory = Rc::as_ptr(&host.bytes);
                let is_first = !self.direct_copies.contains(&memory);
                self.direct_copies.push(memory);
                if is_first {
                    TransferStrategy::Direct
                } else {
                    TransferStrategy::Retry
                }
            }
        }
    }

    /// Completes the copies that are due.
    fn land(&mut self, scope: SyncScope) {
        let late = |pending: &Pending| {
            scope == SyncScope::Stream && pending.fault == Some(Fault::LateCopy)
        };
        let (waiting, due) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(late);
        self.pending = waiting;
        for Pending {
            source,
            target,
            fault,
        } in due
        {
            if fault == Some(Fault::MutatedSource) {
                mutate(&source);
            }
            if Rc::ptr_eq(&source, &target) {
                continue;
            }
            let sent = source.borrow();
            fault
                .unwrap_or(Fault::LateCopy)
                .apply(&sent, &mut target.borrow_mut());
        }
    }

    fn allocate(&self, length: usize) -> Memory {
        Rc::new(RefCell::new(vec![UNINITIALISED; length]))
    }
}

/// Simulates a caller that fills the buffer with the next batch.
fn mutate(memory: &Memory) {
    let mut bytes = memory.borrow_mut();
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..] {
        *byte = byte.wrapping_add(1);
    }
}

impl Transport for FakeDevice {
    type Host = FakeHost;
    type Remote = FakeRemote;

    fn facts(&self) -> DeviceFacts {
        self.facts.clone()
    }

    fn source(&self, host: &FakeHost) -> SourceFacts {
        SourceFacts {
            bytes: Bytes(host.bytes.borrow().len() as u64),
            element: host.element,
            origin: host.origin,
        }
    }

    fn contiguous(&mut self, host: &FakeHost) -> Result<FakeHost, TransportError> {
        self.enter(Operation::Contiguous, TransferStrategy::Direct)?;
        Ok(host.clone())
    }

    fn sum_host(&mut self, host: &FakeHost) -> Result<Checksum, TransportError> {
        Ok(Checksum::of(&host.bytes.borrow()))
    }

    fn stage(&mut self, host: &FakeHost) -> Result<FakeHost, TransportError> {
        let cast = host.provenance == Provenance::Cast;
        self.enter(
            Operation::Stage,
            if cast {
                TransferStrategy::CastOnHost
            } else {
                TransferStrategy::Staged
            },
        )?;
        let mut staged = FakeHost::made(host.bytes(), host.element, Provenance::Stage);
        if cast {
            staged.provenance = Provenance::Cast;
        }
        Ok(staged)
    }

    fn cast_on_host(&mut self, host: &FakeHost, to: Element) -> Result<FakeHost, TransportError> {
        self.enter(Operation::CastOnHost, TransferStrategy::CastOnHost)?;
        Ok(FakeHost::made(
            cast(&host.bytes.borrow(), host.element, to)?,
            to,
            Provenance::Cast,
        ))
    }

    fn copy(&mut self, host: &FakeHost, method: CopyMethod) -> Result<FakeRemote, TransportError> {
        let operation = Operation::Copy;
        let route = self.route_of(host, method);
        self.route = route;
        self.enter(operation, route)?;
        let refused = self
            .triggers(route, |fault| fault == Fault::Refused)
            .is_some();
        if refused || route < self.first_open {
            let message = format!("the fake refuses `{route}`");
            return Err(TransportError::Refused { operation, message });
        }
        // Memory and casts have their own operations; all other faults affect the copy.
        let fault = self.triggers(route, |fault| {
            !matches!(fault, Fault::OutOfMemory(_) | Fault::CastZeros)
        });
        let aliases = method == CopyMethod::ZeroCopy
            && fault.is_none_or(|fault| fault == Fault::MutatedSource);
        // A chunked copy reads through its own buffer.
        let source = if matches!(method, CopyMethod::Chunked { .. }) {
            Rc::new(RefCell::new(host.bytes()))
        } else {
            Rc::clone(&host.bytes)
        };
        let target = if aliases {
            Rc::clone(&source)
        } else {
            self.allocate(source.borrow().len())
        };
        self.pending.push(Pending {
            source,
            target: Rc::clone(&target),
            fault,
        });
        Ok(FakeRemote {
            bytes: target,
            element: host.element,
        })
    }

    fn synchronize(&mut self, scope: SyncScope) -> Result<(), TransportError> {
        let operation = Operation::Synchronize;
        self.enter(operation, self.route)?;
        let timed_out = TransportError::TimedOut {
            operation,
            after: Duration::from_secs(30),
        };
        let has = |pending: &[Pending], fault| {
            pending
                .iter()
                .any(|pending: &Pending| pending.fault == Some(fault))
        };
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
            for pending in &mut self.pending {
                pending.fault = pending.fault.filter(|fault| *fault != Fault::Stall);
            }
            return Err(timed_out);
        }
        self.land(scope);
        Ok(())
    }

    fn sum_device(&mut self, remote: &FakeRemote) -> Result<Option<Checksum>, TransportError> {
        self.enter(Operation::SumDevice, self.route)?;
        Ok(self.sums.then(|| Checksum::of(&remote.bytes.borrow())))
    }

    fn remote_bytes(&self, remote: &FakeRemote) -> Bytes {
        Bytes(remote.bytes.borrow().len() as u64)
    }

    fn read_back(&mut self, remote: &FakeRemote) -> Result<FakeHost, TransportError> {
        self.enter(Operation::ReadBack, self.route)?;
        Ok(FakeHost::made(
            remote.bytes(),
            remote.element,
            Provenance::Caller,
        ))
    }

    fn cast_on_device(
        &mut self,
        remote: &FakeRemote,
        to: Element,
    ) -> Result<FakeRemote, TransportError> {
        self.enter(Operation::CastOnDevice, self.route)?;
        let mut bytes = cast(&remote.bytes.borrow(), remote.element, to)?;
        if self
            .triggers(self.route, |fault| fault == Fault::CastZeros)
            .is_some()
        {
            bytes.fill(0);
        }
        Ok(FakeRemote {
            bytes: Rc::new(RefCell::new(bytes)),
            element: to,
        })
    }

    fn trim(&mut self) -> Result<Bytes, TransportError> {
        self.enter(Operation::Trim, self.route)?;
        Ok(Bytes::ZERO)
    }

    fn abandon(&mut self, remotes: Vec<FakeRemote>, sources: Vec<FakeHost>) {
        self.abandoned += remotes.len() + sources.len();
    }
}

/// The supported casts: to the same type, and from `F32` to `BF16`.
fn cast(bytes: &[u8], from: Element, to: Element) -> Result<Vec<u8>, TransportError> {
    match (from, to) {
        _ if from == to => Ok(bytes.to_vec()),
        (Element::F32, Element::BF16) => {
            let (values, _) = bytes.as_chunks::<4>();
            Ok(values
                .iter()
                .flat_map(|value| bf16(f32::from_le_bytes(*value)))
                .collect())
        }
        _ => Err(TransportError::Refused {
            operation: Operation::CastOnDevice,
            message: format!("the fake cannot cast {from:?} to {to:?}"),
        }),
    }
}

/// The nearest bf16, ties to even.
fn bf16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    if value.is_nan() {
        return 0x7fc0_u16.to_le_bytes();
    }
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    ((rounded >> 16) as u16).to_le_bytes()
}
