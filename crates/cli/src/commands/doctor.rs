//! `surefoot doctor`: what is wrong with this machine, and what to type to mend it.

use surefoot_cli::output::{Failure, Outcome};

/// Look for what would stop training on this machine
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the doctor.
pub(crate) fn run(_args: &Args, _json: bool) -> Result<Outcome, Failure> {
    Err(Failure::usage("`doctor` is being built"))
}
