//! `surefoot probe --placement`: what becomes of each fault on the way to a device.
//!
//! The matrix needs no GPU: it runs the decisions of the placement ladder against an
//! in-process device with faults to order. It lives in the trainer's binary because
//! the ladder does.

use surefoot_cli::output::{self, Failure, Outcome};

/// Show what becomes of each fault on the way to a device
#[derive(clap::Args)]
pub(crate) struct Args {}

/// The table, or JSON, goes to stdout. Exit code 1 when `always` takes wrong bytes for right.
pub(crate) fn run(_: &Args, json: bool) -> Result<Outcome, Failure> {
    let matrix = trainer::placement_matrix();
    if json {
        output::print(&format!("{}\n", serde_json::to_string_pretty(&matrix)?))?;
    } else {
        output::print(&matrix.to_string())?;
    }
    if matrix.missed > 0 {
        return Err(Failure::Job(anyhow::anyhow!(
            "{} wrong arrivals were taken for right ones",
            matrix.missed
        )));
    }
    Ok(Outcome::Fine)
}
