//! `surefoot probe --placement`: shows how each kind of transfer fault is handled.
//!
//! Two tables: how verified transfer decides on an APU that the CPU poses as, which has every route and needs no GPU; and
//! the same faults on this machine's own device (the CPU if there is no other). This is in the trainer's binary because
//! transfers need libtorch.

use placement::testing::matrix::{FaultMatrix, fault_matrix, fault_matrix_here};
use surefoot_cli::output::{self, Failure, Outcome};

/// Show how each kind of transfer fault is handled
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Prints the tables, or JSON. Exit code 1 if `always` accepts wrong bytes.
pub(crate) fn run(_: &Args, json: bool) -> Result<Outcome, Failure> {
    let apu = fault_matrix()?;
    let here = fault_matrix_here()?;
    let missed = apu.missed + here.missed;
    if json {
        let cells = apu.cells.into_iter().chain(here.cells);
        let both = FaultMatrix::from_cells(cells.collect());
        output::print(&format!("{}\n", serde_json::to_string_pretty(&both)?))?;
    } else {
        let device = here
            .cells
            .first()
            .map_or("this machine", |cell| cell.device);
        output::print(&format!(
            "On the CPU, posing as an APU that has every route:\n\n{apu}\n\
             Through libtorch, to this machine's own device ({device}):\n\n{here}"
        ))?;
    }
    if missed > 0 {
        return Err(Failure::Job(anyhow::anyhow!(
            "{missed} wrong copies were accepted as correct"
        )));
    }
    Ok(Outcome::Fine)
}
