//! The wheel with the trainer: one program for each of several releases of PyTorch.
//!
//! It does not contain libtorch. `surefoot train` finds the libtorch of the environment, adds it to the library
//! search path and starts the program for that release. `surefoot-trainer`, which `torchrun` starts, is a
//! script that calls `surefoot`.
//!
//! There is a program for each release because libtorch's stable ABI has no autograd, hooks, memory statistics
//! or collectives. A single program would have to use unstable symbols for these, which change between releases of
//! PyTorch. Each program takes 10 MB.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use xshell::{Shell, cmd};

use super::licences::Shipped;
use super::pack::{About, Wheel, check_tag, write_licences};
use super::wheel::{PROFILE, linking_shell};
use super::{TARGET, require_linux_on_x86_64};
use crate::setup::{self, RELEASES, Release};
use crate::workspace;

/// Required by tch's C++ code: with g++ 12, `<memory>` uses a symbol of glibc 2.32 to check for a single thread.
const GLIBC: &str = "2.34";
const TAG: &str = "manylinux_2_34_x86_64";
/// Starts the trainer through the `surefoot` in the same folder, since the first one in PATH may belong to another
/// environment; symbolic links to this file are resolved.
const SCRIPT: &str =
    "#!/bin/sh\nexec \"$(dirname -- \"$(readlink -f -- \"$0\")\")/surefoot\" \"$@\"\n";
/// The Python releases whose environments are searched for libraries by a trainer that is started directly.
const PYTHONS: std::ops::RangeInclusive<u32> = 10..=15;
const METADATA: &str = include_str!("METADATA-trainer");
const DESCRIPTION: &str = include_str!("trainer.md");
const SHIPPED: Shipped = Shipped {
    name: "surefoot-trainer",
    files: "the programs `surefoot-trainer-…`",
    target: TARGET,
    options: &["--package", "surefoot", "--features", "torch"],
};

/// Builds the wheel, and checks its tag.
pub(super) fn build() -> Result<PathBuf> {
    require_linux_on_x86_64()?;
    let python = setup::dist_python()?;
    let shell = linking_shell(&python)?;
    let wheel = Wheel::begin("surefoot_trainer", TAG)?;
    for release in &RELEASES {
        wheel.add_program(&program(&shell, release)?)?;
    }
    wheel.add_script("surefoot-trainer", SCRIPT)?;
    let (licences, sbom) = write_licences(&shell, &SHIPPED)?;
    let newest = RELEASES.last().map_or("", |release| release.version);
    let all: Vec<&str> = RELEASES.iter().map(|release| release.version).collect();
    let filled = |text: &str| {
        text.replace("{newest}", newest)
            .replace("{releases}", &all.join(" and "))
    };
    let about = About {
        metadata: filled(METADATA),
        description: filled(DESCRIPTION),
        licences,
        sbom,
    };
    let wheel = wheel.pack(&shell, &python, &about)?;
    // Only by symbol versions: libtorch is not part of any platform, but of the environment.
    check_tag(&shell, &wheel, "sym_tag", TAG)?;
    Ok(wheel)
}

/// Builds the trainer for one release, with the release in its name.
fn program(shell: &Shell, release: &'static Release) -> Result<PathBuf> {
    let libtorch = setup::libtorch_of(release)?;
    eprintln!("trainer   for {libtorch}");
    setup::build_against(&libtorch, shell);
    let folders =
        PYTHONS.map(|minor| format!("$ORIGIN/../lib/python3.{minor}/site-packages/torch/lib"));
    shell.set_var("SUREFOOT_RUN_PATH", folders.collect::<Vec<_>>().join(":"));
    let openmp = openmp(shell)?;
    let options = ["--locked", "--profile", PROFILE, "--target"];
    let platform = format!("{TARGET}.{GLIBC}");
    cmd!(
        shell,
        "cargo-zigbuild rustc --package surefoot --bin surefoot-trainer {options...} {platform}
         -- -Clink-arg=-Wl,--allow-shlib-undefined -Lnative={openmp}"
    )
    .run()?;
    let built = workspace::target(shell)?.join(TARGET).join(PROFILE);
    let name = format!("surefoot-trainer-{}", release.version);
    let program = super::make(super::folder()?.join("trainers"))?.join(name);
    fs::copy(built.join("surefoot-trainer"), &program)
        .with_context(|| format!("cannot write {}", program.display()))?;
    Ok(program)
}

/// A folder that contains only g++'s OpenMP library, which torch-sys passes to the linker although the trainer does
/// not need it: zig does not have it, and would use other libraries too if it searched g++'s own folder.
fn openmp(shell: &Shell) -> Result<PathBuf> {
    let said = cmd!(shell, "g++ -print-file-name=libgomp.so")
        .quiet()
        .read()?;
    let library =
        fs::canonicalize(&said).context("g++ has no libgomp: is the installation complete?")?;
    let folder = super::empty(super::folder()?.join("openmp"))?;
    std::os::unix::fs::symlink(library, folder.join("libgomp.so"))?;
    Ok(folder)
}
