//! The fault matrix: every fault × strategy × verification mode, and the outcome.
//!
//! For each cell, a fake device refuses the strategies before the cell's, so that the engine reaches it, and
//! there the fault is triggered: once, or every time from then on. The result is compared bit by bit with the
//! source:
//!
//! - `recovered`: the device has the right bytes;
//! - `reported`: it does not, but the caller knows: an error, or a warning that the tensor is on the host;
//! - `missed`: the caller was told that all is well, but the device has other bytes.
//!
//! Each cell is the worst of several runs: with a device that computes checksums and one that is read back,
//! with and without a cast. The modes `first` and `sample` are shown where they do *not* verify, because an
//! earlier batch has used the same strategy. The route `together` is the direct one for several tensors at
//! once, as used for modules: the fault affects each of them in turn, and the worst outcome counts. So `off`,
//! `first` and `sample` miss wrong bytes by design, and [`FaultMatrix::missed`] counts only `always`, where
//! there must be none. Cells in which a fault cannot occur (the strategy does not cast, nothing is verified)
//! are left out.
//!
//! Some faults cannot be recovered from, only reported: a lost context and a hanging device end the move at
//! once, since going on would corrupt the run; a source that was overwritten is gone; and after the last
//! strategy, or with a fault that affects all of them, there is nothing left to try.

mod device;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub use self::device::fault_matrix_here;
use crate::testing::fake::{FakeDevice, FakeHost, Fault, FaultInjection};
use crate::transfer::engine::{PlacedBy, TransferEngine};
use crate::transfer::policy::{MoveError, Placed, Policy, Request};
use crate::transfer::strategy::TransferStrategy;
use crate::transfer::transport::{Element, Origin, Transport};
use crate::transfer::verify::{Role, Verify};

/// The modes of the matrix.
const MODES: [Verify; 4] = [Verify::Off, Verify::First, Verify::SAMPLE, Verify::Always];

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
    /// The target: `in_process` (the fake), `cpu`, `hip` or `cuda`.
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

/// Runs every cell. Takes some milliseconds and needs no device.
pub fn fault_matrix() -> FaultMatrix {
    // Do not log thousands of injected faults.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), run_cells)
}

fn run_cells() -> FaultMatrix {
    let mut cells = Vec::new();
    for fault in Fault::ALL {
        for every_time in [false, true] {
            for kind in MoveKind::all() {
                for verify in MODES {
                    let order = FaultInjection {
                        fault,
                        route: kind.first_strategy(),
                        every_time,
                    };
                    if let Some(outcome) = worst_outcome(kind, order, verify) {
                        cells.push(Cell {
                            device: "in_process",
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
    FaultMatrix::from_cells(cells)
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

    fn place<T: Transport>(
        self,
        engine: &mut TransferEngine,
        device: &mut T,
        hosts: &[T::Host],
        cast: Option<Element>,
    ) -> Result<Vec<PlacedBy<T>>, MoveError> {
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
fn worst_outcome(kind: MoveKind, order: FaultInjection, verify: Verify) -> Option<CellOutcome> {
    let mut worst = None;
    for sums in [true, false] {
        for cast in [None, Some(Element::BF16)] {
            for skip in 0..kind.tensors() {
                worst = worst.max(run(kind, order, skip, verify, sums, cast));
            }
        }
    }
    worst
}

/// One run; `None` if the fault was not triggered.
fn run(
    kind: MoveKind,
    order: FaultInjection,
    skip: u32,
    verify: Verify,
    sums: bool,
    cast: Option<Element>,
) -> Option<CellOutcome> {
    let mut device = FakeDevice::apu(sums);
    let mut engine = TransferEngine::new(Policy {
        verify,
        ..Policy::default()
    });
    let batches = |seed| -> Vec<FakeHost> {
        let numbers = 0..kind.tensors();
        numbers.map(|number| batch(seed + 3 * number)).collect()
    };

    // The previous batch uses the same strategy without a fault.
    device.begin(order.route);
    kind.place(&mut engine, &mut device, &batches(1), cast)
        .ok()?;

    let hosts = batches(2);
    let sent: Vec<Vec<u8>> = hosts.iter().map(FakeHost::bytes).collect();
    device.inject_later(order, skip);
    let placed = kind.place(&mut engine, &mut device, &hosts, cast);
    if device.triggered() == 0 {
        return None;
    }
    let Ok(placed) = placed else {
        return Some(CellOutcome::Reported);
    };
    let outcomes = placed.iter().zip(sent).map(|(one, sent)| {
        let (arrived, outcome) = match one {
            Placed::OnDevice(remote) => (remote.bytes(), CellOutcome::Recovered),
            Placed::OnHost(host) => (host.bytes(), CellOutcome::Reported),
        };
        match arrived == expected(&sent, cast) {
            true => outcome,
            false => CellOutcome::Missed,
        }
    });
    outcomes.max()
}

/// A batch of floats without zeros or NaN and with no two equal parts, several checksum rows long.
fn batch(seed: u32) -> FakeHost {
    let bytes = (0..5_120_u32)
        .flat_map(|index| (1.0 + (index * 8 + seed) as f32 / 1024.0).to_le_bytes())
        .collect();
    FakeHost::new(bytes, Element::F32, Origin::Memory)
}

/// The expected device contents, computed here independently of the fake's own cast.
fn expected(sent: &[u8], cast: Option<Element>) -> Vec<u8> {
    if cast.is_none() {
        return sent.to_vec();
    }
    let (values, _) = sent.as_chunks::<4>();
    values
        .iter()
        .flat_map(|bytes| {
            let bits = u32::from_le_bytes(*bytes);
            let (kept, dropped) = ((bits >> 16) as u16, bits & 0xffff);
            let up = dropped > 0x8000 || (dropped == 0x8000 && kept % 2 == 1);
            (kept + u16::from(up)).to_le_bytes()
        })
        .collect()
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
