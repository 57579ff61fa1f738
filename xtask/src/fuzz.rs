//! `cargo xtask fuzz`: coverage-guided fuzzing of the parsers of the allocator, the doctor and the page's
//! server.
//!
//! The targets are in `fuzz/`, a separate workspace. libFuzzer needs the coverage
//! instrumentation of LLVM, which the stable compiler has too: no nightly, no other tool.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use xshell::{Shell, cmd};

use crate::workspace;

/// Name of a target and its folders with seed input.
type Target = (&'static str, &'static [&'static str]);

const TARGETS: [Target; 6] = [
    ("allocator_settings", &["fuzz/seeds/allocator_settings"]),
    ("allocator_trace", &["fuzz/seeds/allocator_trace"]),
    ("explain", &["crates/doctor/tests/fixtures"]),
    ("machine_dump", &["crates/doctor/tests/fixtures"]),
    ("memory_snapshot", &["fuzz/seeds/memory_snapshot"]),
    ("ui_requests", &["fuzz/seeds/ui_requests"]),
];

/// The instrumentation that libFuzzer needs: counters on every edge, a table of them, and the operands of
/// comparisons.
const INSTRUMENTATION: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Feed the parsers random input, guided by coverage.
///
/// A crash, a hang of 25 seconds, or more than 2 GiB of memory ends it, and the input is kept
/// under target/fuzz/found. The corpus stays in target/fuzz/corpus, for the next time.
#[derive(clap::Args)]
pub(crate) struct Fuzz {
    /// One target only [default: all]
    target: Option<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

impl Fuzz {
    pub(crate) fn run(self) -> Result<()> {
        let wanted = |name| self.target.as_deref().is_none_or(|wanted| wanted == name);
        let chosen: Vec<Target> = TARGETS.into_iter().filter(|each| wanted(each.0)).collect();
        if chosen.is_empty() {
            let names = TARGETS.map(|target| target.0);
            bail!("no such target; there are {}", names.join(", "));
        }
        fuzz(&chosen, self.seconds)
    }
}

/// Runs every target briefly, as part of the heavy tests.
pub(crate) fn briefly() -> Result<()> {
    fuzz(&TARGETS, 10)
}

fn fuzz(targets: &[Target], seconds: u32) -> Result<()> {
    let shell = workspace::shell()?;
    let folder = workspace::target(&shell)?.join("fuzz");
    let programs = build(&shell, &folder)?;
    let mut commands = Vec::new();
    for &(name, seeds) in targets {
        let corpus = folder.join("corpus").join(name);
        let found = folder.join("found").join(name);
        shell.create_dir(&corpus)?;
        shell.create_dir(&found)?;
        let program = programs.join(name);
        let found = format!("-artifact_prefix={}/", found.display());
        let limit = format!("-max_total_time={seconds}");
        let command = cmd!(
            shell,
            "{program} {corpus} {seeds...} {found} {limit} -max_len=65536 -timeout=25 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1"
        );
        commands.push((name, Command::from(command)));
    }
    // A target uses one core.
    workspace::at_once(commands, |(name, mut command)| {
        eprintln!("fuzz      {name}, {seconds} s");
        let status = command
            .status()
            .with_context(|| format!("cannot start {name}"))?;
        ensure!(
            status.success(),
            "{name} failed ({status}); the input is named above"
        );
        Ok(())
    })
}

/// Builds the targets; returns the folder of the programs.
fn build(shell: &Shell, folder: &Path) -> Result<PathBuf> {
    let cargo = workspace::cargo();
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // With `--target`, build scripts are not instrumented.
    cmd!(
        shell,
        "{cargo} build --manifest-path fuzz/Cargo.toml --release --target {host}"
    )
    .env("CARGO_TARGET_DIR", folder)
    .env("RUSTFLAGS", INSTRUMENTATION)
    .run()?;
    Ok(folder.join(host).join("release"))
}
