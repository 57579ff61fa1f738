//! The threads of the allocator and of the simulated device under ThreadSanitizer and
//! AddressSanitizer.
//!
//! Sanitizers are unstable options of the stable compiler: RUSTC_BOOTSTRAP enables them.
//! The standard library is used precompiled, without instrumentation
//! (its source, which is needed to rebuild it, is not part of every toolchain), and the stress tests
//! are written such that this hides no error of ours.

use anyhow::Result;
use xshell::{Shell, cmd};

use crate::workspace;

/// Runs the stress tests of both under both sanitizers. They are built into
/// separate folders, so that the ordinary build is not affected.
pub(crate) fn run(shell: &Shell) -> Result<()> {
    let suppressions = workspace::root().join("crates/hip-alloc/tests/tsan.supp");
    // Forked children of the tests start threads, like those of real programs.
    let options = format!("suppressions={}:die_after_fork=0", suppressions.display());
    run_under(shell, "thread", "--cfg surefoot_tsan", &options)?;
    // Blocks of the allocator stay mapped until the program ends.
    run_under(shell, "address", "", "detect_leaks=0")
}

fn run_under(shell: &Shell, sanitizer: &str, configuration: &str, options: &str) -> Result<()> {
    let cargo = workspace::cargo();
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let folder = workspace::target(shell)?.join(format!("sanitize-{sanitizer}"));
    let flags = format!(
        "-Zsanitizer={sanitizer} -Cunsafe-allow-abi-mismatch=sanitizer \
         --cfg surefoot_sanitizer {configuration}"
    );
    let packages = ["--package", "hip-alloc", "--package", "device-sim"];
    let tests = ["stress", "stress_pools", "threads"];
    let tests = tests.into_iter().flat_map(|test| ["--test", test]);
    eprintln!(
        "sanitize  the threads of the allocator and the simulated device, under the {sanitizer} sanitizer"
    );
    cmd!(
        shell,
        "{cargo} test {packages...} --target {host} {tests...}"
    )
    .env("CARGO_TARGET_DIR", folder)
    // What is suppressed is known by its inlined functions.
    .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
    .env("RUSTC_BOOTSTRAP", "1")
    .env("RUSTFLAGS", flags)
    .env(
        format!("{}SAN_OPTIONS", &sanitizer[..1].to_uppercase()),
        options,
    )
    .run()?;
    Ok(())
}
