//! What the fault matrix must show.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::sync::LazyLock;

use surefoot_placement::TransferStrategy;
use surefoot_placement::testing::Fault;
use surefoot_placement::testing::matrix::FaultMatrix;
use surefoot_placement::testing::matrix::{Cell, CellOutcome, fault_matrix};

static MATRIX: LazyLock<FaultMatrix> = LazyLock::new(|| fault_matrix().unwrap());

/// Faults that leave wrong bytes on the device although no call failed.
const SILENT: [Fault; 9] = [
    Fault::Zeros,
    Fault::Nan,
    Fault::BitFlip,
    Fault::Truncated,
    Fault::Stale,
    Fault::SwappedChunks,
    Fault::LateCopy,
    Fault::MutatedSource,
    Fault::CastZeros,
];

fn cells<'a>(verify: &'a str) -> impl Iterator<Item = &'static Cell> + 'a {
    MATRIX
        .cells
        .iter()
        .filter(move |cell| cell.verify == verify)
}

fn is_silent(cell: &Cell) -> bool {
    SILENT.iter().any(|fault| fault.name() == cell.fault)
}

#[test]
fn always_misses_nothing() {
    let missed: Vec<_> = cells("always")
        .filter(|cell| cell.outcome == CellOutcome::Missed)
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
    assert_eq!(MATRIX.missed, 0);
}

/// Otherwise, what `always` finds might be no fault at all.
#[test]
fn without_verification_every_silent_fault_passes() {
    for cell in cells("off").filter(|cell| is_silent(cell)) {
        // The full synchronisation of this route waits for late copies, too.
        let waited_for = cell.fault == "late_copy" && cell.route == "other_stream";
        let expected = if waited_for {
            CellOutcome::Recovered
        } else {
            CellOutcome::Missed
        };
        assert_eq!(cell.outcome, expected, "{cell:?}");
    }
    for mode in ["off", "first", "sample"] {
        assert!(MATRIX.missed_by_mode[mode] > 0, "{mode}");
    }
}

/// Modes that do not verify still notice faults that are reported.
#[test]
fn no_mode_misses_a_fault_that_an_operation_reports() {
    for cell in MATRIX.cells.iter().filter(|cell| !is_silent(cell)) {
        assert_ne!(cell.outcome, CellOutcome::Missed, "{cell:?}");
    }
}

#[test]
fn what_strikes_once_is_recovered_while_a_route_is_left() {
    // These end the move at once, by design.
    let fatal = ["hang", "context_lost", "out_of_memory_contiguous"];
    for cell in cells("always").filter(|cell| !cell.every_time) {
        // Without a cast, no route comes after this one; where trimming or the cast on the host cures
        // the fault, none is needed.
        let cured = ["out_of_memory_copy", "out_of_memory_sum_device"].contains(&cell.fault)
            || ["out_of_memory_cast_on_device", "cast_zeros"].contains(&cell.fault);
        let last = cell.route == "zero_copy" && !cured;
        // The caller's own buffer has changed: there is nothing correct left to copy.
        let gone = cell.fault == "mutated_source"
            && ["together", "direct", "retry", "other_stream", "zero_copy"].contains(&cell.route);
        let expected = if fatal.contains(&cell.fault) || last || gone {
            CellOutcome::Reported
        } else {
            CellOutcome::Recovered
        };
        assert_eq!(cell.outcome, expected, "{cell:?}");
    }
}

#[test]
fn what_strikes_every_time_is_recovered_where_a_route_avoids_it() {
    let avoidable = |cell: &Cell| match cell.fault {
        // A full synchronisation waits for the late; the routes after it do without one.
        "late_copy" => cell.route < "zero_copy" && cell.route != "cast_on_host",
        // Chunks need no large pinned buffer, a copy back no device memory, the host's cast no kernel.
        "out_of_memory_stage" | "out_of_memory_sum_device" | "cast_zeros" => true,
        "out_of_memory_cast_on_device" => true,
        _ => false,
    };
    for cell in cells("always").filter(|cell| cell.every_time) {
        let recovered = cell.outcome == CellOutcome::Recovered;
        assert_eq!(recovered, avoidable(cell), "{cell:?}");
    }
}

#[test]
fn every_copy_fault_strikes_on_every_route_under_every_mode() {
    let alone = TransferStrategy::TO_DEVICE
        .iter()
        .map(|strategy| strategy.name());
    let all: BTreeSet<_> = alone.chain([FaultMatrix::BATCHED]).collect();
    for fault in Fault::ALL {
        if matches!(fault, Fault::OutOfMemory(_) | Fault::CastZeros) {
            continue;
        }
        for mode in ["off", "first", "sample", "always"] {
            let routes: BTreeSet<_> = cells(mode)
                .filter(|cell| cell.fault == fault.name() && !cell.every_time)
                .map(|cell| cell.route)
                .collect();
            assert_eq!(routes, all, "{fault} {mode}");
        }
    }
}

#[test]
fn no_fault_is_listed_that_never_strikes() {
    let struck: BTreeSet<_> = MATRIX.cells.iter().map(|cell| cell.fault).collect();
    assert_eq!(struck.len(), Fault::ALL.len(), "{struck:?}");
}

#[test]
fn json_has_the_promised_shape() {
    let json = serde_json::to_value(&*MATRIX).unwrap();
    assert_eq!(json["missed"], 0);
    let cell = &json["cells"][0];
    for key in ["fault", "route", "verify", "outcome"] {
        assert!(cell[key].is_string(), "{key} in {cell}");
    }
}

#[test]
fn table_has_one_line_for_each_fault_and_route() {
    let table = MATRIX.to_string();
    let rows: BTreeSet<_> = MATRIX
        .cells
        .iter()
        .map(|cell| (cell.fault, cell.every_time, cell.route))
        .collect();
    // A header, the rows, an empty line and the total.
    assert_eq!(table.lines().count(), rows.len() + 3, "{table}");
}
