//! `surefoot models`: the models on this machine, for the page.

use std::path::PathBuf;

use platform::Bytes;
use surefoot_cli::output::{self, Failure, Outcome};
use trainer::found_models;

use super::train_environment;

/// List the models on this machine that can be trained
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folders to look in besides the caches
    folders: Vec<PathBuf>,
}

/// Lists them on stdout.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    train_environment::apply("auto", Vec::new());
    let found = found_models(&args.folders);
    let text = match json {
        true => serde_json::to_string_pretty(&found)? + "\n",
        false => {
            let line = |model: &trainer::FoundModel| {
                let size = Bytes(model.bytes);
                format!("{}: {}, {size}\n", model.name, model.architecture)
            };
            found.models.iter().map(line).collect()
        }
    };
    output::print(&text)?;
    Ok(Outcome::Fine)
}
