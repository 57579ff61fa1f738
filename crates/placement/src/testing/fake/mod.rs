//! A device made of vectors, with faults to order.
//!
//! It stands in for the real transport wherever decisions are tested, and produces the fault matrix
//! ([`crate::testing::matrix`]). Copies are asynchronous: the bytes land when the stream is synchronised, and until
//! then the memory holds what was there before. The fake sees only what a transport is asked for, and finds
//! out by itself which route that must be; so it does not take the engine's word for it.

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

/// What memory holds that nobody has written to.
const BEFORE: u8 = 0xa5;

type Memory = Rc<RefCell<Vec<u8>>>;

/// A tensor of the fake's host.
#[derive(Clone, Debug)]
pub struct FakeHost {
    bytes: Memory,
    element: Element,
    origin: Origin,
    made_by: MadeBy,
}

/// Which step of a route made a host tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MadeBy {
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

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// What goes wrong.
    pub fault: Fault,
    /// On which route; the routes before it are refused, so that the engine comes to it.
    pub route: TransferStrategy,
    /// There only once, or from there on for ever.
    pub every_time: bool,
}

/// The device.
#[derive(Debug)]
pub struct FakeDevice {
    facts: DeviceFacts,
    sums: bool,
    first_open: TransferStrategy,
    order: Option<Order>,
    /// How often the fault lets its opportunity pass before it strikes.
    spared: u32,
    struck: u32,
    /// The route of the last copy.
    route: TransferStrategy,
    /// The memory that was copied directly, once for each copy.
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
    /// A tensor of the caller's.
    pub fn new(bytes: Vec<u8>, element: Element, origin: Origin) -> FakeHost {
        FakeHost {
            bytes: Rc::new(RefCell::new(bytes)),
            element,
            origin,
            made_by: MadeBy::Caller,
        }
    }

    /// What it holds.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.borrow().clone()
    }

    fn made(bytes: Vec<u8>, element: Element, made_by: MadeBy) -> FakeHost {
        let origin = if made_by == MadeBy::Stage {
            Origin::Pinned
        } else {
            Origin::Memory
        };
        FakeHost {
            bytes: Rc::new(RefCell::new(bytes)),
            element,
            origin,
            made_by,
        }
    }
}

impl FakeRemote {
    /// What it holds at this moment.
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.borrow().clone()
    }
}

impl FakeDevice {
    /// A sound APU, on which every route is open. `sums` says whether it can compute checksums.
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
            spared: 0,
            struck: 0,
            route: TransferStrategy::Direct,
            direct_copies: Vec::new(),
            pending: Vec::new(),
            hung: false,
            lost: false,
            abandoned: 0,
        }
    }

    /// The device, with what it is changed.
    pub fn with_facts(mut self, change: impl FnOnce(&mut DeviceFacts)) -> FakeDevice {
        change(&mut self.facts);
        self
    }

    /// Begins a new move, in which the routes before `first_open` are refused.
    pub fn begin(&mut self, first_open: TransferStrategy) {
        self.first_open = first_open;
        self.direct_copies.clear();
    }

    /// Orders a fault for the moves that follow, and begins one.
    pub fn order(&mut self, order: Order) {
        self.order_later(order, 0);
    }

    /// The same, but the fault lets so many opportunities pass: of several tensors it strikes a later one.
    pub fn order_later(&mut self, order: Order, spared: u32) {
        (self.order, self.spared, self.struck) = (Some(order), spared, 0);
        self.begin(order.route);
    }

    /// How often the fault has struck.
    pub fn struck(&self) -> u32 {
        self.struck
    }

    /// How many tensors were given up because something may still be using them.
    pub fn abandoned(&self) -> usize {
        self.abandoned
    }

    /// Whether the fault strikes now, on this route.
    fn strikes(&mut self, route: TransferStrategy, is: impl Fn(Fault) -> bool) -> Option<Fault> {
        let order = self.order?;
        let here = if order.every_time {
            route >= order.route
        } else {
            route == order.route && self.struck == 0
        };
        if !here || !is(order.fault) {
            return None;
        }
        if self.spared > 0 {
            self.spared -= 1;
            return None;
        }
        self.struck += 1;
        Some(order.fault)
    }

    /// Fails when the device is gone, or the order says that this operation finds no memory.
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
            .strikes(route, |fault| fault == Fault::OutOfMemory(operation))
            .is_some()
        {
            let message = "the fake was told to be full".to_owned();
            let pool = pool_of(operation);
            return Err(TransportError::OutOfMemory {
                operation,
                pool,
                message,
            });
        }
        Ok(())
    }

    /// The route that a copy must belong to.
    fn route_of(&mut self, host: &FakeHost, method: CopyMethod) -> TransferStrategy {
        // The cast of a staged tensor does not happen; the stage of a cast one keeps the cast's type.
        match (method, host.made_by) {
            (CopyMethod::OtherStream, _) => TransferStrategy::OtherStream,
            (CopyMethod::ZeroCopy, _) => TransferStrategy::ZeroCopy,
            (_, MadeBy::Cast) => TransferStrategy::CastOnHost,
            (CopyMethod::Chunked { .. }, _) => TransferStrategy::Chunked,
            (CopyMethod::Direct, MadeBy::Stage) => TransferStrategy::Staged,
            (CopyMethod::Direct, MadeBy::Caller) => {
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

    /// Lets the copies that are due land.
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
        Rc::new(RefCell::new(vec![BEFORE; length]))
    }
}

/// Somebody fills the buffer with the next batch.
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
        let cast = host.made_by == MadeBy::Cast;
        self.enter(
            Operation::Stage,
            if cast {
                TransferStrategy::CastOnHost
            } else {
                TransferStrategy::Staged
            },
        )?;
        let mut staged = FakeHost::made(host.bytes(), host.element, MadeBy::Stage);
        if cast {
            staged.made_by = MadeBy::Cast;
        }
        Ok(staged)
    }

    fn cast_on_host(&mut self, host: &FakeHost, to: Element) -> Result<FakeHost, TransportError> {
        self.enter(Operation::CastOnHost, TransferStrategy::CastOnHost)?;
        Ok(FakeHost::made(
            cast(&host.bytes.borrow(), host.element, to)?,
            to,
            MadeBy::Cast,
        ))
    }

    fn copy(&mut self, host: &FakeHost, method: CopyMethod) -> Result<FakeRemote, TransportError> {
        let operation = Operation::Copy;
        let route = self.route_of(host, method);
        self.route = route;
        self.enter(operation, route)?;
        let refused = self
            .strikes(route, |fault| fault == Fault::Refused)
            .is_some();
        if refused || route < self.first_open {
            let message = format!("the fake was told to refuse `{route}`");
            return Err(TransportError::Refused { operation, message });
        }
        // Memory and casts have their own operations; everything else strikes the copy.
        let fault = self.strikes(route, |fault| {
            !matches!(fault, Fault::OutOfMemory(_) | Fault::CastZeros)
        });
        let aliases = method == CopyMethod::ZeroCopy
            && fault.is_none_or(|fault| fault == Fault::MutatedSource);
        // A chunked copy reads through a buffer of its own.
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
            // Whoever asks again finds it complete.
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
            MadeBy::Caller,
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
            .strikes(self.route, |fault| fault == Fault::CastZeros)
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

/// The casts that the fake knows: to the same type, and from `F32` to `BF16`.
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
