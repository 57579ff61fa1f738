//! Runs one check of `surefoot probe --torch own` in this process; see `probe.rs`.

mod checks;

use surefoot_cli::output::{self, Failure, Outcome};

/// Run one check of the probe on our own libtorch
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The check, as `probe/check.rs` names its function
    function: String,

    /// `cuda` or `cpu`
    device: String,
}

/// Prints the answer as one line of JSON, like the Python checks.
pub(crate) fn run(args: &Args) -> Result<Outcome, Failure> {
    let answer = checks::run(&args.function, &args.device);
    output::print(&format!("{}\n", serde_json::to_string(&answer)?))?;
    Ok(Outcome::Fine)
}
