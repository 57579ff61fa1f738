//! `surefoot cache CONFIG`: encodes the clips and captions of a run on videos without training.

use std::path::PathBuf;

use surefoot_cli::output::{self, Failure, Outcome};
use trainer::{Allocator, Config};

use super::model_options::failure;
use super::train::ProgressDisplay;
use super::{config_report, train_environment};

/// Encode the clips and captions of a config
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The config: a YAML file
    config: PathBuf,

    /// Override a key of the config; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Encodes; the result goes to stdout, progress to stderr.
pub(crate) fn run(args: &Args, json: bool) -> Result<Outcome, Failure> {
    let config = Config::load(&args.config, &args.set)
        .map_err(|error| Failure::Usage(config_report::render(&error)))?;
    train_environment::apply(&config.device, Vec::new());
    let mut display = ProgressDisplay::new();
    let done = Allocator::install(&config)
        .and_then(|allocator| trainer::encode(&config, &allocator, &mut display));
    display.clear();
    let done = done.map_err(failure)?;
    let what = config.data.media_words();
    let text = match json {
        true => serde_json::to_string_pretty(&done)?,
        false => format!(
            "{}: {} {what} to train on, {} held out; {} {what} and {} captions were encoded now",
            done.folder.display(),
            done.clips,
            done.held_out,
            done.encoded_clips,
            done.encoded_captions
        ),
    };
    output::print(&format!("{text}\n"))?;
    Ok(Outcome::Fine)
}
