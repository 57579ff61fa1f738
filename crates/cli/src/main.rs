//! The `surefoot` command: diagnose, launch, explain, and start the trainer.
//!
//! This binary deliberately does not link libtorch. Loading libtorch takes about 180 ms, and fails on exactly the
//! machines that need a diagnosis. So the subcommands that train are in a second binary of this package,
//! `surefoot-trainer` (`trainer.rs`), and `surefoot train …` becomes that
//! process:
//!
//! ```text
//! surefoot ── doctor, env, run, activate, explain, probe, replay, cache, completions (platform, hip-alloc),
//!        │    runs, ui (ui)
//!        └─exec─▶ surefoot-trainer ── train, tune, eval, generate, encode, convert-lora, extract-lora, merge, import, cache CONFIG (trainer ▶ libtorch)
//! ```
//!
//! Exit codes: 0 success, 1 the job failed, 2 bad usage or config, 3 doctor found
//! errors. Results go to stdout, logs and progress to stderr.

mod commands;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;
use surefoot_cli::output;

/// Train on AMD consumer GPUs without the HIP errors, silent zeros and memory puzzles.
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
    Doctor(commands::doctor::Args),
    Env(commands::env::Args),
    Explain(commands::explain::Args),
    Run(commands::run::Args),
    Activate(commands::activate::Args),
    Probe(commands::probe::Args),
    Replay(commands::replay::Args),
    Cache(commands::cache::Args),
    Runs(commands::runs::Args),
    Ui(commands::ui::Args),
    Completions(commands::shell::Completions),
    ManPages(commands::shell::ManPages),
    /// List the models on this machine that can be trained
    #[command(disable_help_flag = true, hide = true)]
    Models(commands::delegate::Args),
    /// Train a model from a config
    #[command(disable_help_flag = true)]
    Train(commands::delegate::Args),
    /// Find the settings with which the steps of a config are fastest on this machine
    #[command(disable_help_flag = true)]
    Tune(commands::delegate::Args),
    /// Evaluate a trained model or adapter
    #[command(disable_help_flag = true)]
    Eval(commands::delegate::Args),
    /// Generate with a trained model or adapter
    #[command(disable_help_flag = true)]
    Generate(commands::delegate::Args),
    /// Talk to the result of a run, or to another language model
    #[command(disable_help_flag = true)]
    Chat(commands::delegate::Args),
    /// Encode or decode with a video model
    #[command(disable_help_flag = true)]
    Encode(commands::delegate::Args),
    /// Convert a LoRA for an image or video model to the form of another program
    #[command(disable_help_flag = true)]
    ConvertLora(commands::delegate::Args),
    /// Write what a model learned as a LoRA
    #[command(disable_help_flag = true)]
    ExtractLora(commands::delegate::Args),
    /// Write a model with LoRAs merged into it
    #[command(disable_help_flag = true)]
    Merge(commands::delegate::Args),
    /// Write a language model in the form of another program
    #[command(disable_help_flag = true)]
    Export(commands::delegate::Args),
    /// Translate a config of another trainer
    #[command(disable_help_flag = true)]
    Import(commands::delegate::Args),
}

fn main() -> ExitCode {
    output::init_logging();
    let Cli { json, command } = Cli::parse();
    let result = match command {
        Command::Doctor(args) => commands::doctor::run(&args, json),
        Command::Env(args) => commands::env::run(&args, json),
        Command::Explain(args) => commands::explain::run(&args, json),
        Command::Run(args) => commands::run::run(&args),
        Command::Activate(args) => commands::activate::run(&args, json),
        Command::Probe(args) => commands::probe::run(&args, json),
        Command::Replay(args) => commands::replay::run(&args, json),
        Command::Cache(args) => commands::cache::run(&args, json),
        Command::Runs(args) => commands::runs::run(&args, json),
        Command::Ui(args) => commands::ui::run(&args, json),
        Command::Completions(args) => commands::shell::completions(&args, Cli::command()),
        Command::ManPages(args) => commands::shell::man_pages(&args, Cli::command()),
        Command::Models(args) => commands::delegate::run("models", &args, json),
        Command::Train(args) => commands::delegate::run("train", &args, json),
        Command::Tune(args) => commands::delegate::run("tune", &args, json),
        Command::Eval(args) => commands::delegate::run("eval", &args, json),
        Command::Generate(args) => commands::delegate::run("generate", &args, json),
        Command::Chat(args) => commands::delegate::run("chat", &args, json),
        Command::Encode(args) => commands::delegate::run("encode", &args, json),
        Command::ConvertLora(args) => commands::delegate::run("convert-lora", &args, json),
        Command::ExtractLora(args) => commands::delegate::run("extract-lora", &args, json),
        Command::Merge(args) => commands::delegate::run("merge", &args, json),
        Command::Export(args) => commands::delegate::run("export", &args, json),
        Command::Import(args) => commands::delegate::run("import", &args, json),
    };
    output::exit_code(result)
}
