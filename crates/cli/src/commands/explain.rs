//! `surefoot explain`: what an error message means.

use super::doctor::read;
use platform::explain::{Hints, explain_with};
use platform::report::explanation_text;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use surefoot_cli::live::{self, Python};
use surefoot_cli::output::{self, Failure, Outcome};

/// Explain the errors in a log: cause, remedy, source
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The log (`-`: stdin)
    #[arg(default_value = "-")]
    file: PathBuf,

    /// The log comes from this machine: judge its numbers by the RAM of this machine
    #[arg(long)]
    here: bool,
}

/// Explains a log.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    if args.file.as_os_str() == "-" && io::stdin().is_terminal() {
        eprintln!("surefoot: paste the messages, then press Ctrl-D");
    }
    let text = read(&args.file)?;
    let ram = if args.here {
        live::machine(&Python::Skip).memory.total
    } else {
        None
    };
    let explanation = explain_with(&text, Hints { ram });
    if json {
        output::print(&format!(
            "{}\n",
            serde_json::to_string_pretty(&explanation)?
        ))?;
    } else {
        output::print(&explanation_text(
            &explanation,
            output::wants_colour(&io::stdout()),
        ))?;
    }
    Ok(Outcome::Fine)
}
