//! `surefoot probe --placement`: what becomes of each fault on the way to a device.
//!
//! Twice: the decisions of verified transfer against an in-process device, which can do
//! everything wrong and needs no GPU; and the same faults on the routes of this machine's
//! own device (the CPU where there is no other). It is in the trainer's binary because
//! transfers need libtorch.

use placement::testing::matrix::{FaultMatrix, fault_matrix, fault_matrix_here};
use surefoot_cli::output::{self, Failure, Outcome};

/// Show what becomes of each fault on the way to a device
#[derive(clap::Args)]
pub(crate) struct Args {}

/// The tables, or JSON, go to stdout. Exit code 1 when `always` takes wrong bytes for right.
pub(crate) fn run(_: &Args, json: bool) -> Result<Outcome, Failure> {
    let in_process = fault_matrix();
    let here = fault_matrix_here()?;
    let missed = in_process.missed + here.missed;
    if json {
        let cells = in_process.cells.into_iter().chain(here.cells);
        let both = FaultMatrix::from_cells(cells.collect());
        output::print(&format!("{}\n", serde_json::to_string_pretty(&both)?))?;
    } else {
        let device = here
            .cells
            .first()
            .map_or("this machine", |cell| cell.device);
        output::print(&format!(
            "On a device in this process, which has every route:\n\n{in_process}\n\
             Through libtorch, to this machine's own device ({device}):\n\n{here}"
        ))?;
    }
    if missed > 0 {
        return Err(Failure::Job(anyhow::anyhow!(
            "{missed} wrong arrivals were taken for right ones"
        )));
    }
    Ok(Outcome::Fine)
}
