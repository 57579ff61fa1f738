//! The fault matrix: every fault × strategy × verification mode, and the outcome.
//!
//! For each cell, a [`FaultyTransport`] refuses the strategies before the cell's, so that the engine reaches it, and
//! there the fault is triggered: once, or every time from then on. The result is compared bit by bit with the
//! source:
//!
//! - `recovered`: the device has the right bytes;
//! - `reported`: it does not, but the caller knows: an error, or a warning that the tensor is on the host;
//! - `missed`: the caller was told that all is well, but the device has other bytes.
//!
//! Each cell is the worst of several runs: with and without a cast, and, where the CPU poses as an APU, with checksums
//! from there and with read-backs. The modes `first` and `sample` are shown where they do *not* verify, because an
//! earlier batch has used the same strategy. The route `together` is the direct one for several tensors at
//! once, as used for modules: the fault affects each of them in turn, and the worst outcome counts. So `off`,
//! `first` and `sample` miss wrong bytes by design, and [`FaultMatrix::missed`] counts only `always`, where
//! there must be none. Cells in which a fault cannot occur (the strategy does not cast, nothing is verified)
//! are left out.
//!
//! Some faults cannot be recovered from, only reported: a lost context and a hanging device end the move at
//! once, since going on would corrupt the run; a source that was overwritten is gone; and after the last
//! strategy, or with a fault that affects all of them, there is nothing left to try.

use std::collections::BTreeMap;
use std::fmt;

use platform::Bytes;
use serde::Serialize;
use tch::{Device, Kind, Tensor};
use torch_ext::{Error, accelerator};

use crate::testing::{Fault, FaultInjection, FaultyHost, FaultyTransport};
use crate::transfer::engine::{PlacedBy, TransferEngine};
use crate::transfer::policy::{MoveError, Placed, Policy, Request};
use crate::transfer::strategy::TransferStrategy;
use crate::transfer::torch_transport::{TorchTransport, TransportOptions};
use crate::transfer::transport::Element;
use crate::transfer::verify::{Role, Verify};

/// The modes of the matrix.
const MODES: [Verify; 4] = [Verify::Off, Verify::First, Verify::SAMPLE, Verify::Always];

/// Elements of a tensor: several checksum rows, and more than one chunk for every strategy.
const COUNT: i64 = 5_120;

/// Chunk size of the chunked strategy.
const CHUNK: Bytes = Bytes(4 << 10);

/// All cells.
#[derive(Clone, Debug, Serialize)]
pub struct FaultMatrix {
    /// Every combination of fault, strategy and mode in which the fault was triggered.
    pub cells: Vec<Cell>,
    /// Wrong bytes that `always` accepted: must be 0.
    pub missed: usize,
    /// The same for each mode.
    pub missed_by_mode: BTreeMap<&'static str, usize>,
}

/// One fault for one strategy in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// The target: `apu` (the CPU posing as one), `cpu`, `hip` or `cuda`.
    pub device: &'static str,
    /// [`Fault::name`].
    pub fault: &'static str,
    /// Whether it is triggered every time, for this strategy and the following ones.
    pub every_time: bool,
    /// [`TransferStrategy::name`] of the affected strategy, or `together`.
    pub route: &'static str,
    /// The mode.
    pub verify: &'static str,
    /// The outcome.
    pub outcome: CellOutcome,
}

/// The outcome of a fault, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CellOutcome {
    /// The device has the right bytes.
    Recovered,
    /// It does not, and the caller was told.
    Reported,
    /// It does not, and the caller was not told.
    Missed,
}

/// Runs every cell on the CPU, which poses as an APU. Takes a moment and needs no device.
pub fn fault_matrix() -> Result<FaultMatrix, Error> {
    let devices = [FaultyTransport::apu(true)?, FaultyTransport::apu(false)?];
    run_cells("apu", devices)
}

/// Runs every possible cell on the first accelerator, or on the CPU if there is none. Takes a moment.
pub fn fault_matrix_here() -> Result<FaultMatrix, Error> {
    let (name, device) = match (accelerator::device_count(), accelerator::has_hip()) {
        (0, _) => ("cpu", Device::Cpu),
        (_, true) => ("hip", Device::Cuda(0)),
        (_, false) => ("cuda", Device::Cuda(0)),
    };
    let inner = TorchTransport::new(device, TransportOptions::default())?;
    run_cells(name, [FaultyTransport::new(inner)])
}

fn run_cells<const N: usize>(
    name: &'static str,
    mut devices: [FaultyTransport; N],
) -> Result<FaultMatrix, Error> {
    let mut cells = Vec::new();
    let mut run = || -> Result<(), Error> {
        for fault in Fault::ALL {
            for every_time in [false, true] {
                for kind in MoveKind::all() {
                    let order = FaultInjection {
                        fault,
                        route: kind.first_strategy(),
                        every_time,
                    };
                    for verify in MODES {
                        if let Some(outcome) = worst_outcome(&mut devices, kind, order, verify)? {
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
        Ok(())
    };
    // Do not log thousands of injected faults.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), &mut run)?;
    Ok(FaultMatrix::from_cells(cells))
}

impl FaultMatrix {
    /// The route name of direct copies of several tensors at once.
    pub const BATCHED: &str = "together";

    /// The mode's name in cells.
    pub fn mode_name(verify: Verify) -> &'static str {
        match verify {
            Verify::Off => "off",
            Verify::First => "first",
            Verify::Always => "always",
            Verify::Sample { .. } => "sample",
        }
    }

    /// The matrix of cells that were run elsewhere, for example on a device.
    pub fn from_cells(cells: Vec<Cell>) -> FaultMatrix {
        let missed_in = |mode| {
            let missed = |cell: &&Cell| cell.verify == mode && cell.outcome == CellOutcome::Missed;
            cells.iter().filter(missed).count()
        };
        let missed_by_mode: BTreeMap<_, _> = MODES
            .map(mode_name)
            .map(|mode| (mode, missed_in(mode)))
            .into();
        FaultMatrix {
            missed: missed_in(mode_name(Verify::Always)),
            missed_by_mode,
            cells,
        }
    }
}

fn mode_name(verify: Verify) -> &'static str {
    FaultMatrix::mode_name(verify)
}

/// How a cell's tensors are moved.
#[derive(Clone, Copy)]
enum MoveKind {
    /// One tensor, by the first strategy that is not refused.
    Single(TransferStrategy),
    /// Several tensors at once.
    Batched,
}

impl MoveKind {
    /// In the engine's order.
    fn all() -> impl Iterator<Item = MoveKind> {
        let alone = TransferStrategy::TO_DEVICE
            .into_iter()
            .map(MoveKind::Single);
        std::iter::once(MoveKind::Batched).chain(alone)
    }

    fn name(self) -> &'static str {
        match self {
            MoveKind::Single(strategy) => strategy.name(),
            MoveKind::Batched => FaultMatrix::BATCHED,
        }
    }

    fn first_strategy(self) -> TransferStrategy {
        match self {
            MoveKind::Single(strategy) => strategy,
            MoveKind::Batched => TransferStrategy::Direct,
        }
    }

    fn tensors(self) -> u32 {
        match self {
            MoveKind::Single(_) => 1,
            MoveKind::Batched => 3,
        }
    }

    fn place(
        self,
        engine: &mut TransferEngine,
        device: &mut FaultyTransport,
        hosts: &[FaultyHost],
        cast: Option<Element>,
    ) -> Result<Vec<PlacedBy<FaultyTransport>>, MoveError> {
        const NAMES: [&str; 3] = ["batch", "batch.1", "batch.2"];
        let role = Role::Batch;
        let request = |name| Request { name, role, cast };
        let loads = hosts.iter().zip(NAMES.map(request));
        match self {
            MoveKind::Single(_) => loads
                .map(|(host, request)| engine.to_device(device, host, &request))
                .collect(),
            MoveKind::Batched => engine.to_device_batched(device, &loads.collect::<Vec<_>>()),
        }
    }
}

/// The worst outcome of the runs in which the fault was triggered.
fn worst_outcome(
    devices: &mut [FaultyTransport],
    kind: MoveKind,
    order: FaultInjection,
    verify: Verify,
) -> Result<Option<CellOutcome>, Error> {
    let mut worst = None;
    for device in devices {
        // Casts are only meaningful if kernels compute.
        let casts = match device.computes() {
            true => [None, Some(Element::BF16)].as_slice(),
            false => &[None],
        };
        for cast in casts {
            for skip in 0..kind.tensors() {
                worst = worst.max(run(device, kind, order, skip, verify, *cast)?);
            }
        }
    }
    Ok(worst)
}

/// One run; `None` if the fault was not triggered.
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
    device.heal();
    device.begin(order.route);
    let before = kind.place(&mut engine, device, &hosts(kind, 1)?, cast);
    if !before.is_ok_and(|placed| placed.iter().all(|one| matches!(one, Placed::OnDevice(_)))) {
        return Ok(None);
    }

    let hosts = hosts(kind, 2)?;
    device.inject_later(order, skip);
    let placed = kind.place(&mut engine, device, &hosts, cast);
    if device.triggered() == 0 {
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
            Placed::OnHost(host) => (host.into_tensor(), CellOutcome::Reported),
        };
        let is_right = arrived.f_to_device(Device::Cpu)?.f_equal(&expected)?;
        worst = worst.max(Some(match is_right {
            true => outcome,
            false => CellOutcome::Missed,
        }));
    }
    Ok(worst)
}

fn hosts(kind: MoveKind, seed: usize) -> Result<Vec<FaultyHost>, Error> {
    let numbers = 0..kind.tensors() as usize;
    numbers
        .map(|number| FaultyHost::of(&batch(seed, number)?))
        .collect()
}

/// Floats without zeros or NaN and with no two equal parts, in their own storage, since a fault may change
/// it.
fn batch(seed: usize, number: usize) -> Result<Tensor, Error> {
    let first = (seed + 3 * number) as f64;
    Ok(Tensor::f_arange(COUNT, (Kind::Float, Device::Cpu))?.f_add_scalar(first)?)
}

impl fmt::Display for FaultMatrix {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:<40} {:<13}", "fault", "route")?;
        for mode in MODES {
            write!(formatter, " {:<10}", mode_name(mode))?;
        }
        writeln!(formatter)?;
        let mut rows: Vec<(Cell, BTreeMap<&str, CellOutcome>)> = Vec::new();
        for cell in &self.cells {
            let same_row = |row: &Cell| {
                (row.fault, row.every_time, row.route) == (cell.fault, cell.every_time, cell.route)
            };
            match rows.last_mut() {
                Some((row, outcomes)) if same_row(row) => {
                    outcomes.insert(cell.verify, cell.outcome);
                }
                _ => rows.push((*cell, BTreeMap::from([(cell.verify, cell.outcome)]))),
            }
        }
        for (row, outcomes) in rows {
            let fault = if row.every_time {
                format!("{}, every time", row.fault)
            } else {
                row.fault.into()
            };
            write!(formatter, "{fault:<40} {:<13}", row.route)?;
            for mode in MODES {
                let outcome = outcomes
                    .get(mode_name(mode))
                    .map_or("-", |outcome| outcome.name());
                write!(formatter, " {outcome:<10}")?;
            }
            writeln!(formatter)?;
        }
        write!(formatter, "\nmissed")?;
        for mode in MODES {
            let missed = self
                .missed_by_mode
                .get(mode_name(mode))
                .copied()
                .unwrap_or_default();
            write!(formatter, "  {}: {missed}", mode_name(mode))?;
        }
        writeln!(formatter, "   of {} cells", self.cells.len())
    }
}

impl CellOutcome {
    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            CellOutcome::Recovered => "recovered",
            CellOutcome::Reported => "reported",
            CellOutcome::Missed => "missed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::transport::Operation;

    #[test]
    fn the_matrix_through_libtorch_misses_nothing_and_shows_what_off_misses() {
        let matrix = fault_matrix_here().unwrap();
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
    fn every_fault_strikes_where_its_operation_is() {
        let matrix = fault_matrix_here().unwrap();
        let absent: Vec<_> = Fault::ALL
            .into_iter()
            .filter(|fault| matrix.cells.iter().all(|cell| cell.fault != fault.name()))
            .collect();
        // On the CPU nothing is staged, and checksums need no device memory.
        let expected = [
            Fault::OutOfMemory(Operation::Stage),
            Fault::OutOfMemory(Operation::ReadBack),
        ];
        assert_eq!(absent, expected);
    }
}
