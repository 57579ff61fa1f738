//! The fault matrix on a libtorch device: real strategies, faults made here.
//!
//! Silent faults copy other bytes than requested, by the same strategy. This shows that this device's copies
//! arrive, and that *its* checksums, or its read-backs, detect the difference. Loud faults replace a call
//! with an error. What cannot be caused from outside (a late copy) is left to [`super`] and to the simulated
//! device.

use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_ext::{Error, accelerator};

use super::{Cell, CellOutcome, FaultMatrix, MODES, MoveKind, mode_name};
use crate::testing::fake::{Fault, FaultInjection, pool_of};
use crate::transfer::checksum::Checksum;
use crate::transfer::engine::TransferEngine;
use crate::transfer::policy::{Placed, Policy};
use crate::transfer::strategy::TransferStrategy;
use crate::transfer::torch_transport::{HostTensor, TorchTransport, TransportOptions};
use crate::transfer::transport::{
    ChecksummedCopy, CopyMethod, DeviceFacts, Element, Operation, SourceFacts, SyncScope,
    Transport, TransportError,
};
use crate::transfer::verify::Verify;
use platform::Bytes;

/// Elements of the tensor: several checksum rows, and more than one chunk for every strategy.
const COUNT: i64 = 20_000;

/// Chunk size of the chunked strategy.
const CHUNK: Bytes = Bytes(16 << 10);

/// Contents of memory before anything arrives.
const UNINITIALISED: u8 = 0xa5;

/// Runs every possible cell on the first accelerator, or on the CPU if there is none. Takes a moment.
pub fn fault_matrix_here() -> Result<FaultMatrix, Error> {
    let device = match accelerator::device_count() {
        0 => Device::Cpu,
        _ => Device::Cuda(0),
    };
    // Do not log thousands of injected faults.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || {
        run_cells(device)
    })
}

fn run_cells(device: Device) -> Result<FaultMatrix, Error> {
    let name = match device {
        Device::Cpu => "cpu",
        _ if accelerator::has_hip() => "hip",
        _ => "cuda",
    };
    let mut faulty =
        FaultyTransport::new(TorchTransport::new(device, TransportOptions::default())?);
    // Casts are only meaningful if kernels compute.
    let casts = match faulty.inner.sums_itself() {
        true => [None, Some(Element::BF16)].as_slice(),
        false => &[None],
    };
    let mut cells = Vec::new();
    for fault in Fault::ALL {
        for every_time in [false, true] {
            for kind in MoveKind::all() {
                let order = FaultInjection {
                    fault,
                    route: kind.first_strategy(),
                    every_time,
                };
                for verify in MODES {
                    let mut worst = None;
                    for cast in casts {
                        for skip in 0..kind.tensors() {
                            worst = worst.max(run(&mut faulty, kind, order, skip, verify, *cast)?);
                        }
                    }
                    if let Some(outcome) = worst {
                        cells.push(Cell {
                            device: name,
                            fault: fault.name(),
                            every_time,
                            route: kind.name(),
                            verify: mode_name(verify),
                            outcome,
                        });
                    }
                }
            }
        }
    }
    Ok(FaultMatrix::from_cells(cells))
}

/// How many opportunities to skip before the fault is triggered.
fn run(
    device: &mut FaultyTransport,
    kind: MoveKind,
    order: FaultInjection,
    skip: u32,
    verify: Verify,
    cast: Option<Element>,
) -> Result<Option<CellOutcome>, Error> {
    let mut engine = TransferEngine::new(Policy {
        verify,
        chunk: CHUNK,
        may_stay_on_host: true,
    });

    // The previous batch uses the same strategy without a fault.
    device.begin(order.route, None, 0);
    let before = kind.place(&mut engine, device, &hosts(kind, 1)?, cast);
    if !before.is_ok_and(|placed| placed.iter().all(|one| matches!(one, Placed::OnDevice(_)))) {
        return Ok(None);
    }

    let hosts = hosts(kind, 2)?;
    device.begin(order.route, Some(order), skip);
    let placed = kind.place(&mut engine, device, &hosts, cast);
    if device.struck == 0 {
        return Ok(None);
    }
    let Ok(placed) = placed else {
        return Ok(Some(CellOutcome::Reported));
    };
    let mut worst = None;
    for (number, one) in placed.into_iter().enumerate() {
        let sent = batch(2, number)?;
        let expected = match cast {
            Some(_) => sent.f_to_kind(Kind::BFloat16)?,
            None => sent,
        };
        let (arrived, outcome) = match one {
            Placed::OnDevice(remote) => (remote, CellOutcome::Recovered),
            Placed::OnHost(host) => (host.tensor.into_tensor(), CellOutcome::Reported),
        };
        let is_right = arrived.f_to_device(Device::Cpu)?.f_equal(&expected)?;
        worst = worst.max(Some(match is_right {
            true => outcome,
            false => CellOutcome::Missed,
        }));
    }
    Ok(worst)
}

fn hosts(kind: MoveKind, seed: usize) -> Result<Vec<Host>, Error> {
    let numbers = 0..kind.tensors() as usize;
    numbers
        .map(|number| Host::new(batch(seed, number)?))
        .collect()
}

/// Floats without zeros or NaN and with no two equal parts, in their own storage, since a fault may change
/// it.
fn batch(seed: usize, number: usize) -> Result<Tensor, Error> {
    let first = (seed + 3 * number) as f64;
    Ok(Tensor::f_arange(COUNT, (Kind::Float, Device::Cpu))?.f_add_scalar(first)?)
}

/// The real transport with fault injection.
struct FaultyTransport {
    inner: TorchTransport,
    first_open: TransferStrategy,
    order: Option<FaultInjection>,
    /// How often the fault lets its opportunity pass before it strikes.
    skip: u32,
    struck: u32,
    /// The strategy of the last copy.
    route: TransferStrategy,
    /// The storage of each direct copy.
    direct_copies: Vec<usize>,
    hung: bool,
}

/// A host tensor, and which step of a strategy produced it.
struct Host {
    tensor: HostTensor,
    provenance: Provenance,
}

#[derive(Clone, Copy, PartialEq)]
enum Provenance {
    Caller,
    Stage,
    Cast,
}

impl Host {
    fn new(tensor: Tensor) -> Result<Host, Error> {
        Ok(Host {
            tensor: HostTensor::new(&tensor)?,
            provenance: Provenance::Caller,
        })
    }
}

impl FaultyTransport {
    fn new(inner: TorchTransport) -> FaultyTransport {
        FaultyTransport {
            inner,
            first_open: TransferStrategy::Direct,
            order: None,
            skip: 0,
            struck: 0,
            route: TransferStrategy::Direct,
            direct_copies: Vec::new(),
            hung: false,
        }
    }

    /// Starts a move in which the strategies before `first_open` are refused.
    fn begin(&mut self, first_open: TransferStrategy, order: Option<FaultInjection>, skip: u32) {
        (self.first_open, self.order, self.skip) = (first_open, order, skip);
        (self.struck, self.hung) = (0, false);
        self.direct_copies.clear();
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

    /// Fails if an out-of-memory fault is injected for this operation.
    fn enter(
        &mut self,
        operation: Operation,
        route: TransferStrategy,
    ) -> Result<(), TransportError> {
        match self.triggers(route, |fault| fault == Fault::OutOfMemory(operation)) {
            None => Ok(()),
            Some(_) => Err(TransportError::OutOfMemory {
                operation,
                pool: pool_of(operation),
                message: "injected by the fault matrix".to_owned(),
            }),
        }
    }

    fn route_of(&mut self, host: &Host, method: CopyMethod) -> TransferStrategy {
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
                if is_first {
                    TransferStrategy::Direct
                } else {
                    TransferStrategy::Retry
                }
            }
        }
    }

    /// Refuses a copy, or returns the fault that changes its bytes.
    fn pass(&mut self, host: &Host, method: CopyMethod) -> Result<Option<Fault>, TransportError> {
        let (operation, message) = (Operation::Copy, "injected by the fault matrix".to_owned());
        let route = self.route_of(host, method);
        self.route = route;
        self.enter(operation, route)?;
        if route < self.first_open {
            return Err(TransportError::Refused { operation, message });
        }
        let after = Duration::from_secs(30);
        let struck = self.triggers(route, |fault| {
            // Memory and casts have their own operations, and a copy cannot be made late from here.
            !matches!(
                fault,
                Fault::OutOfMemory(_) | Fault::CastZeros | Fault::LateCopy
            )
        });
        match struck {
            Some(Fault::Refused) => Err(TransportError::Refused { operation, message }),
            Some(Fault::ContextLost) => Err(TransportError::ContextLost { operation, message }),
            Some(Fault::Stall) => Err(TransportError::TimedOut { operation, after }),
            Some(Fault::Hang) => {
                self.hung = true;
                Err(TransportError::TimedOut { operation, after })
            }
            silent => Ok(silent),
        }
    }

    /// Copies the source after applying the fault.
    fn copy_damaged(
        &mut self,
        host: &Host,
        method: CopyMethod,
        fault: Fault,
    ) -> Result<Tensor, TransportError> {
        if fault == Fault::MutatedSource {
            let mut written = host.tensor.tensor().shallow_clone();
            let _ = written.f_add_scalar_(1.0).map_err(not_made)?;
            return self.inner.copy(&host.tensor, method);
        }
        let source = host.tensor.tensor();
        let tensor = source.f_empty_like().map_err(not_made)?;
        let mut damaged = HostTensor::new(&tensor).map_err(not_made)?;
        damaged.bytes_mut().map_err(not_made)?.fill(UNINITIALISED);
        let sent = host.tensor.bytes().map_err(not_made)?;
        fault.apply(sent, damaged.bytes_mut().map_err(not_made)?);
        if self.inner.is_pinned(&host.tensor) {
            damaged = self.inner.stage(&damaged)?;
        }
        self.inner.copy(&damaged, method)
    }
}

/// The damage could not be produced: the cell ends as if the copy was refused.
fn not_made(error: impl std::fmt::Display) -> TransportError {
    TransportError::Refused {
        operation: Operation::Copy,
        message: error.to_string(),
    }
}

impl Transport for FaultyTransport {
    type Host = Host;
    type Remote = Tensor;

    fn facts(&self) -> DeviceFacts {
        self.inner.facts()
    }

    fn source(&self, host: &Host) -> SourceFacts {
        self.inner.source(&host.tensor)
    }

    fn contiguous(&mut self, host: &Host) -> Result<Host, TransportError> {
        self.enter(Operation::Contiguous, TransferStrategy::Direct)?;
        Ok(Host {
            tensor: self.inner.contiguous(&host.tensor)?,
            provenance: host.provenance,
        })
    }

    fn sum_host(&mut self, host: &Host) -> Result<Checksum, TransportError> {
        self.inner.sum_host(&host.tensor)
    }

    fn stage(&mut self, host: &Host) -> Result<Host, TransportError> {
        let (route, provenance) = match host.provenance {
            Provenance::Cast => (TransferStrategy::CastOnHost, Provenance::Cast),
            _ => (TransferStrategy::Staged, Provenance::Stage),
        };
        self.enter(Operation::Stage, route)?;
        Ok(Host {
            tensor: self.inner.stage(&host.tensor)?,
            provenance,
        })
    }

    fn cast_on_host(&mut self, host: &Host, to: Element) -> Result<Host, TransportError> {
        self.enter(Operation::CastOnHost, TransferStrategy::CastOnHost)?;
        Ok(Host {
            tensor: self.inner.cast_on_host(&host.tensor, to)?,
            provenance: Provenance::Cast,
        })
    }

    fn copy(&mut self, host: &Host, method: CopyMethod) -> Result<Tensor, TransportError> {
        match self.pass(host, method)? {
            Some(fault) => self.copy_damaged(host, method, fault),
            None => self.inner.copy(&host.tensor, method),
        }
    }

    fn copy_with_checksum(
        &mut self,
        host: &Host,
        method: CopyMethod,
    ) -> Result<ChecksummedCopy<Tensor>, TransportError> {
        let Some(fault) = self.pass(host, method)? else {
            return self.inner.copy_with_checksum(&host.tensor, method);
        };
        let sent = self.inner.sum_host(&host.tensor)?;
        Ok(ChecksummedCopy {
            remote: self.copy_damaged(host, method, fault)?,
            sent: Some(sent),
            arrived: None,
        })
    }

    fn synchronize(&mut self, scope: SyncScope) -> Result<(), TransportError> {
        if self.hung {
            return Err(TransportError::TimedOut {
                operation: Operation::Synchronize,
                after: Duration::from_secs(30),
            });
        }
        self.inner.synchronize(scope)
    }

    fn sum_device(&mut self, remote: &Tensor) -> Result<Option<Checksum>, TransportError> {
        self.enter(Operation::SumDevice, self.route)?;
        self.inner.sum_device(remote)
    }

    fn remote_bytes(&self, remote: &Tensor) -> Bytes {
        self.inner.remote_bytes(remote)
    }

    fn read_back(&mut self, remote: &Tensor) -> Result<Host, TransportError> {
        self.enter(Operation::ReadBack, self.route)?;
        Ok(Host {
            tensor: self.inner.read_back(remote)?,
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
        self.inner.trim()
    }

    fn abandon(&mut self, remotes: Vec<Tensor>, sources: Vec<Host>) {
        // Nothing is in flight: the hang was simulated here.
        drop((remotes, sources));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_through_libtorch_misses_nothing_and_shows_what_off_misses() {
        let matrix = run_cells(Device::Cpu).unwrap();
        let missed = matrix
            .cells
            .iter()
            .find(|cell| cell.verify == "always" && cell.outcome == CellOutcome::Missed);
        assert_eq!((missed, matrix.missed), (None, 0));
        for fault in [
            "zeros",
            "nan",
            "bit_flip",
            "truncated",
            "stale",
            "swapped_chunks",
        ] {
            for route in ["direct", "retry", "chunked", "cast_on_host"] {
                let of = |verify| {
                    let mut cells = matrix.cells.iter();
                    let found = cells.find(|cell| {
                        (cell.fault, cell.route, cell.verify, cell.every_time)
                            == (fault, route, verify, false)
                    });
                    found.map(|cell| cell.outcome)
                };
                assert_eq!(of("off"), Some(CellOutcome::Missed), "{fault} {route}");
                // Without a cast, the CPU has no strategy after `chunked`.
                let expected = match route {
                    "chunked" => CellOutcome::Reported,
                    _ => CellOutcome::Recovered,
                };
                assert_eq!(of("always"), Some(expected), "{fault} {route}");
            }
        }
    }

    #[test]
    fn every_fault_but_the_late_copy_strikes_where_its_operation_is() {
        let matrix = run_cells(Device::Cpu).unwrap();
        let absent: Vec<_> = Fault::ALL
            .into_iter()
            .filter(|fault| matrix.cells.iter().all(|cell| cell.fault != fault.name()))
            .collect();
        // On the CPU nothing is staged, and checksums need no device memory.
        let expected = [
            Fault::LateCopy,
            Fault::OutOfMemory(Operation::Stage),
            Fault::OutOfMemory(Operation::ReadBack),
        ];
        assert_eq!(absent, expected);
    }
}
