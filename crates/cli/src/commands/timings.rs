//! `surefoot probe --report`: how long what a step is made of takes on the first GPU, for the report.

use surefoot_cli::output::{self, Failure, Outcome};
use surefoot_cli::timings::{Timing, table};

/// Time what a step is made of
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The device, as in a config
    device: String,
}

/// Times it on a device.
pub(crate) fn measured(device: &str) -> Result<Vec<Timing>, Failure> {
    let timings = trainer::device::timings(device)?;
    Ok(serde_json::from_value(serde_json::to_value(timings)?)?)
}

/// Prints a table, or JSON.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let timings = measured(&args.device)?;
    output::print(&match json {
        true => serde_json::to_string_pretty(&timings)? + "\n",
        false => table(&timings),
    })?;
    Ok(Outcome::Fine)
}
