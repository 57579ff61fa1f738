//! `surefoot probe --report`: how long what a step is made of takes on the first GPU, for the report.

use platform::timings::table;
use surefoot_cli::output::{self, Failure, Outcome};

/// Time what a step is made of
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The device, as in a config
    device: String,
}

/// Times it on a device, and prints a table, or JSON.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let timings = trainer::device::timings(&args.device)?;
    output::print(&match json {
        true => serde_json::to_string_pretty(&timings)? + "\n",
        false => table(&timings),
    })?;
    Ok(Outcome::Fine)
}
