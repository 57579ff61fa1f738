//! The project's own commands, `cargo xtask …`: from a fresh clone to a trained
//! model, and the checks of the repository itself.
//!
//! One file per command; this one only parses and dispatches.

#![forbid(unsafe_code)]

mod bench;
mod dist;
mod fuzz;
mod gpu_check;
mod handbook;
mod kernels;
mod matrix;
mod references;
mod sanitize;
mod setup;
mod test;
mod tidy;
mod train;
mod ui;
mod windows;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Get what the build needs: libtorch and the training text
    Setup(setup::Setup),
    /// Set up, build in release, and train a model
    Train(train::Train),
    /// Set up, build, and run the tests
    Test(test::Test),
    /// Check the repository itself: format, lints, documentation, layers, modules
    Tidy(tidy::Tidy),
    /// Measure this project against its peers, on this machine
    Bench(bench::Bench),
    /// Feed the parsers random input, guided by coverage
    Fuzz(fuzz::Fuzz),
    /// Write the handbook's page of all config keys, from `configs/schema.json`
    Handbook(handbook::Handbook),
    /// Build the page of `surefoot ui` again, from `crates/ui/web`; needs node and npm
    Ui(ui::Ui),
    /// Compile the kernels for AMD GPUs again, or check them without a GPU
    Kernels(kernels::Kernels),
    /// Build the program for Windows and test it under wine
    Windows(windows::Windows),
    /// Build what people install: the Python wheels, archives, a Debian package, a program for Windows
    Dist(dist::Dist),
    /// Check the allocator on this machine's GPU, or bundle that check for another machine
    GpuCheck(gpu_check::GpuCheck),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Setup(setup) => setup.run(),
        Command::Train(train) => train.run(),
        Command::Test(test) => test.run(),
        Command::Tidy(tidy) => tidy.run(),
        Command::Bench(bench) => bench.run(),
        Command::Fuzz(fuzz) => fuzz.run(),
        Command::Handbook(handbook) => handbook.run(),
        Command::Ui(ui) => ui.run(),
        Command::Kernels(kernels) => kernels.run(),
        Command::Windows(windows) => windows.run(),
        Command::Dist(dist) => dist.run(),
        Command::GpuCheck(check) => check.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
