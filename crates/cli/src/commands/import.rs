//! `surefoot import`: translates a config of another trainer.

use std::path::PathBuf;

use anyhow::Context;
use surefoot_cli::output::{self, Failure, Outcome};
use trainer::config::import::import;

/// Translate a config of another trainer
///
/// Reads YAML of axolotl, LLaMA-Factory, TRL and ai-toolkit (`.yaml`), TOML of kohya's sd-scripts and of musubi-tuner
/// (`.toml`), command lines of all of them (`.sh`, `.bat`, `.txt`), and the arguments in Python programs and notebooks with
/// TRL or unsloth (`.py`, `.ipynb`). A comment says what became of each key that has no counterpart.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The config, script or notebook
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The file to write; without it, the config is printed
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Replace the output if it exists
    #[arg(long)]
    force: bool,
}

/// Translates.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let imported = import(&args.file).map_err(|error| Failure::Usage(error.into()))?;
    if let Some(path) = &args.output {
        if path.exists() && !args.force {
            return Err(Failure::usage(format!(
                "`{}` exists: name another file, or add `--force`",
                path.display()
            )));
        }
        std::fs::write(path, &imported.config)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    let report = match (&args.output, json) {
        (_, true) => serde_json::to_string_pretty(&imported)? + "\n",
        (None, false) => imported.config,
        (Some(path), false) => {
            let fill_in = imported
                .fill_in
                .iter()
                .map(|line| format!("to fill in: {line}\n"));
            format!(
                "{}: {} keys of {}, {} left out with a reason each\n{}",
                path.display(),
                imported.set.len(),
                imported.origin.name(),
                imported.left_out.len(),
                fill_in.collect::<String>()
            )
        }
    };
    output::print(&report)?;
    Ok(Outcome::Fine)
}
