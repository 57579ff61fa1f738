//! The `surefoot-trainer` binary: the subcommands that need libtorch.
//!
//! Users call it as `surefoot train …`; `main.rs` explains why it is a separate binary. A subcommand is one file in
//! `commands/` and one variant here.

mod commands {
    //! The files of `commands/` that belong to this binary.
    pub(crate) mod cache_clips;
    pub(crate) mod chat;
    pub(crate) mod config_report;
    pub(crate) mod convert_lora;
    pub(crate) mod encode;
    pub(crate) mod eval;
    pub(crate) mod export;
    pub(crate) mod extract_lora;
    pub(crate) mod fault_matrix;
    pub(crate) mod generate;
    pub(crate) mod generate_video;
    pub(crate) mod import;
    pub(crate) mod merge;
    pub(crate) mod model_options;
    pub(crate) mod models;
    pub(crate) mod timings;
    pub(crate) mod train;
    pub(crate) mod train_data;
    pub(crate) mod train_environment;
    #[cfg(unix)]
    pub(crate) mod train_ranks;
    pub(crate) mod train_report;
    pub(crate) mod train_signals;
    pub(crate) mod tune;
}

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use surefoot_cli::output::{self, Failure, Outcome};

/// The training part of surefoot.
#[derive(Parser)]
#[command(name = "surefoot", version, propagate_version = true)]
struct Cli {
    /// Print the result as JSON, if the subcommand has one
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Started by `surefoot probe --placement`
    #[command(hide = true)]
    FaultMatrix(commands::fault_matrix::Args),
    /// Started by `surefoot cache CONFIG`
    #[command(hide = true)]
    Cache(commands::cache_clips::Args),
    /// Started by `surefoot ui`
    #[command(hide = true)]
    Models(commands::models::Args),
    /// Started by `surefoot probe --report`
    #[command(hide = true)]
    Timings(commands::timings::Args),
    Train(commands::train::Args),
    Tune(commands::tune::Args),
    Eval(commands::eval::Args),
    Generate(Box<commands::generate::Args>),
    Chat(commands::chat::Args),
    Encode(commands::encode::Args),
    ConvertLora(commands::convert_lora::Args),
    ExtractLora(commands::extract_lora::Args),
    Merge(commands::merge::Args),
    Export(commands::export::Args),
    Import(commands::import::Args),
}

fn main() -> ExitCode {
    output::exit_code(run())
}

pub(crate) fn run() -> Result<Outcome, Failure> {
    output::init_logging();
    load_device_library();
    let (program, arguments) = surefoot_cli::itself()?;
    let Cli { json, command } =
        Cli::parse_from(std::iter::once(program.into_os_string()).chain(arguments));
    match command {
        Command::FaultMatrix(args) => commands::fault_matrix::run(&args, json),
        Command::Cache(args) => commands::cache_clips::run(&args, json),
        Command::Models(args) => commands::models::run(&args, json),
        Command::Timings(args) => commands::timings::run(&args, json),
        Command::Train(args) => commands::train::run(&args, json),
        Command::Tune(args) => commands::tune::run(&args, json),
        Command::Eval(args) => commands::eval::run(&args, json),
        Command::Generate(args) => commands::generate::run(&args, json),
        Command::Chat(args) => commands::chat::run(&args, json),
        Command::Encode(args) => commands::encode::run(&args, json),
        Command::ConvertLora(args) => commands::convert_lora::run(&args, json),
        Command::ExtractLora(args) => commands::extract_lora::run(&args, json),
        Command::Merge(args) => commands::merge::run(&args, json),
        Command::Export(args) => commands::export::run(&args, json),
        Command::Import(args) => commands::import::run(&args, json),
    }
}

/// Loads the library that the launcher names (`libtorch_hip.so`), which registers itself with libtorch, before
/// anything asks for devices.
fn load_device_library() {
    let named = std::env::var_os(surefoot_cli::DEVICE_LIBRARY).filter(|path| !path.is_empty());
    let Some(path) = named.map(std::path::PathBuf::from) else {
        return;
    };
    if let Err(error) = torch_ext::accelerator::load_device_library(&path) {
        eprintln!("surefoot: {error}; continuing without the GPU");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_launcher_names_the_release_that_this_is_built_for() {
        let libtorch = trainer::device::describe_libtorch();
        let release = libtorch.split(',').next();
        assert_eq!(release, Some(surefoot_cli::TRAINER_TORCH));
    }
}
