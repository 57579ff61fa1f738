//! The wheel with the trainer: one program for each of several releases of PyTorch.
//!
//! It holds no libtorch: a trainer runs on that of the environment, which `surefoot train` puts on its
//! search path, of the trainers the one for that release. `surefoot-trainer`, which `torchrun` starts, is a
//! script that does as `surefoot` does.
//!
//! Why a program for each, and not one that calls libtorch by its stable ABI: that has no automatic
//! differentiation, no hooks, no statistics of memory and no collectives, so each of them would be reached by
//! symbols that are promised to nobody, which is what a release of PyTorch changes. A program costs 10 MB.

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

/// What the C++ of tch needs: `<memory>` of g++ 12 asks glibc 2.32 whether there is one thread alone.
const GLIBC: &str = "2.34";
const TAG: &str = "manylinux_2_34_x86_64";
/// Starts the trainer for the PyTorch that is there, by the `surefoot` beside this file and not the first in the
/// search path, which may be another environment's; a link to this file may lie anywhere.
const SCRIPT: &str =
    "#!/bin/sh\nexec \"$(dirname -- \"$(readlink -f -- \"$0\")\")/surefoot\" \"$@\"\n";
/// The releases of Python in whose environments a trainer looks that is started by itself.
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
    // By the versions of symbols alone: libtorch, which no platform has, comes with the environment.
    check_tag(&shell, &wheel, "sym_tag", TAG)?;
    Ok(wheel)
}

/// The trainer for one release, under a name that says which.
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

/// A folder with the OpenMP of g++ alone, which torch-sys names to the linker and the trainer does not
/// need: zig has none, and would take more than that from the folder of g++.
fn openmp(shell: &Shell) -> Result<PathBuf> {
    let said = cmd!(shell, "g++ -print-file-name=libgomp.so")
        .quiet()
        .read()?;
    let library = fs::canonicalize(&said).context("g++ has no libgomp: is it installed whole?")?;
    let folder = super::empty(super::folder()?.join("openmp"))?;
    std::os::unix::fs::symlink(library, folder.join("libgomp.so"))?;
    Ok(folder)
}
