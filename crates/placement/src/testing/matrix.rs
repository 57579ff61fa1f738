//! The fault matrix: every fault × every route × every way to verify, and what the engine made of it.
//!
//! For one cell a fake device refuses the routes before the cell's, so that the engine comes to it, and
//! there the fault strikes: once, or from there on every time. What came out is compared bit by bit with
//! what was sent:
//!
//! - `recovered`: the device holds the right bytes;
//! - `reported`: it does not, and the caller knows: an error, or a warning that the tensor is on the host;
//! - `missed`: the caller was told that all is well, and the device holds other bytes.
//!
//! Each cell is the worst of several runs: with a device that computes checksums and one that is read back,
//! with and without a cast. The modes `first` and `sample` are shown where they do *not* look: the batch has
//! taken this route before. The route `together` is the direct one for several tensors at once, as modules take it:
//! the fault strikes each of them in turn, and the worst of what came of all of them counts. So `off`, `first` and `sample` miss wrong bytes by design, and
//! [`FaultMatrix::missed`] counts only `always`, where there must be none. Cells in which a fault cannot strike
//! (no cast happens on the route, nothing is verified) are left out.
//!
//! What `always` only reports cannot be recovered: a context that is lost and a device that hangs end the move at
//! once, since going on would corrupt the run; a source of the caller's that was written to is gone; and after the
//! last route of a machine, or a fault that strikes on every one, none is left.

mod device;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub use self::device::fault_matrix_here;
use crate::testing::fake::{FakeDevice, FakeHost, Fault, Order};
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
    /// Each fault × route × mode in which the fault struck.
    pub cells: Vec<Cell>,
    /// Wrong bytes taken for right ones in `always`: the number that must be 0.
    pub missed: usize,
    /// The same for each mode.
    pub missed_by_mode: BTreeMap<&'static str, usize>,
}

/// One fault on one route under one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// What the tensor moved to: `in_process` (the fake), `cpu`, `hip` or `cuda`.
    pub device: &'static str,
    /// [`Fault::name`].
    pub fault: &'static str,
    /// Whether it strikes again and again, on this route and those after it.
    pub every_time: bool,
    /// [`TransferStrategy::name`] of the route on which it strikes, or `together`.
    pub route: &'static str,
    /// The mode.
    pub verify: &'static str,
    /// What came of it.
    pub outcome: CellOutcome,
}

/// What the engine made of a fault, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CellOutcome {
    /// The device holds the right bytes.
    Recovered,
    /// It does not, and the caller was told.
    Reported,
    /// It does not, and the caller was not told.
    Missed,
}

/// Runs every cell. Takes some milliseconds; needs no device.
pub fn fault_matrix() -> FaultMatrix {
    // Thousands of ordered faults are no news to whoever reads the log.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), run_cells)
}

fn run_cells() -> FaultMatrix {
    let mut cells = Vec::new();
    for fault in Fault::ALL {
        for every_time in [false, true] {
            for way in Way::all() {
                for verify in MODES {
                    let order = Order {
                        fault,
                        route: way.first_strategy(),
                        every_time,
                    };
                    if let Some(outcome) = worst_outcome(way, order, verify) {
                        cells.push(Cell {
                            device: "in_process",
                            fault: fault.name(),
                            every_time,
                            route: way.name(),
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
    /// As cells name the direct route of several tensors at once.
    pub const TOGETHER: &str = "together";

    /// As cells name a mode.
    pub fn mode_name(verify: Verify) -> &'static str {
        match verify {
            Verify::Off => "off",
            Verify::First => "first",
            Verify::Always => "always",
            Verify::Sample { .. } => "sample",
        }
    }

    /// The matrix of cells that were run elsewhere, as on a device.
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

/// How a cell's tensors move.
#[derive(Clone, Copy)]
enum Way {
    /// One, by the first strategy that is open.
    Alone(TransferStrategy),
    /// Several at once.
    Together,
}

impl Way {
    /// In the order of the engine.
    fn all() -> impl Iterator<Item = Way> {
        let alone = TransferStrategy::TO_DEVICE.into_iter().map(Way::Alone);
        std::iter::once(Way::Together).chain(alone)
    }

    fn name(self) -> &'static str {
        match self {
            Way::Alone(strategy) => strategy.name(),
            Way::Together => FaultMatrix::TOGETHER,
        }
    }

    fn first_strategy(self) -> TransferStrategy {
        match self {
            Way::Alone(strategy) => strategy,
            Way::Together => TransferStrategy::Direct,
        }
    }

    fn tensors(self) -> u32 {
        match self {
            Way::Alone(_) => 1,
            Way::Together => 3,
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
            Way::Alone(_) => loads
                .map(|(host, request)| engine.to_device(device, host, &request))
                .collect(),
            Way::Together => engine.to_device_together(device, &loads.collect::<Vec<_>>()),
        }
    }
}

/// The worst outcome of the runs in which the fault struck.
fn worst_outcome(way: Way, order: Order, verify: Verify) -> Option<CellOutcome> {
    let mut worst = None;
    for sums in [true, false] {
        for cast in [None, Some(Element::BF16)] {
            for spared in 0..way.tensors() {
                worst = worst.max(run(way, order, spared, verify, sums, cast));
            }
        }
    }
    worst
}

/// One run; `None` when the fault did not strike.
fn run(
    way: Way,
    order: Order,
    spared: u32,
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
        let numbers = 0..way.tensors();
        numbers.map(|number| batch(seed + 3 * number)).collect()
    };

    // The batch before this one takes the same route without a fault.
    device.begin(order.route);
    way.place(&mut engine, &mut device, &batches(1), cast)
        .ok()?;

    let hosts = batches(2);
    let sent: Vec<Vec<u8>> = hosts.iter().map(FakeHost::bytes).collect();
    device.order_later(order, spared);
    let placed = way.place(&mut engine, &mut device, &hosts, cast);
    if device.struck() == 0 {
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

/// A batch of floats with no zeros, no NaN and no two parts alike, over several rows of the checksum.
fn batch(seed: u32) -> FakeHost {
    let bytes = (0..5_120_u32)
        .flat_map(|index| (1.0 + (index * 8 + seed) as f32 / 1024.0).to_le_bytes())
        .collect();
    FakeHost::new(bytes, Element::F32, Origin::Memory)
}

/// What the device shall hold: written out here, so that the fake's own cast is not its own tracker.
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
    /// As tables and JSON name it.
    pub fn name(self) -> &'static str {
        match self {
            CellOutcome::Recovered => "recovered",
            CellOutcome::Reported => "reported",
            CellOutcome::Missed => "missed",
        }
    }
}
