//! The wheel with the trainer, for one release of PyTorch.
//!
//! It holds no libtorch: the trainer runs on that of the environment, which `surefoot train` puts on its
//! search path; a trainer that is started by itself looks where pip would have put it. What it is
//! built against is the release that `cargo xtask setup` chose.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use xshell::{Shell, cmd};

use super::licences::Shipped;
use super::pack::{About, Wheel, check_tag, write_licences};
use super::wheel::{PROFILE, linking_shell};
use super::{TARGET, require_linux_on_x86_64};
use crate::setup::{self, Libtorch, TORCH_VERSION};
use crate::workspace;

/// What the C++ of tch needs: `<memory>` of g++ 12 asks glibc 2.32 whether there is one thread alone.
const GLIBC: &str = "2.34";
const TAG: &str = "manylinux_2_34_x86_64";
/// The releases of Python in whose environments a trainer looks that is started by itself.
const PYTHONS: std::ops::RangeInclusive<u32> = 10..=15;
const METADATA: &str = include_str!("METADATA-trainer");
const DESCRIPTION: &str = include_str!("trainer.md");
const SHIPPED: Shipped = Shipped {
    name: "surefoot-trainer",
    files: "`surefoot-trainer`",
    target: TARGET,
    options: &["--package", "surefoot", "--features", "torch"],
};

/// Builds the wheel, and checks its tag.
pub(super) fn build(libtorch: &Libtorch) -> Result<PathBuf> {
    require_linux_on_x86_64()?;
    let python = setup::dist_python()?;
    let shell = linking_shell(&python)?;
    setup::build_against(libtorch, &shell);
    let folders =
        PYTHONS.map(|minor| format!("$ORIGIN/../lib/python3.{minor}/site-packages/torch/lib"));
    shell.set_var("SUREFOOT_RUN_PATH", folders.collect::<Vec<_>>().join(":"));
    let openmp = openmp(&shell)?;
    let options = ["--locked", "--profile", PROFILE, "--target"];
    let platform = format!("{TARGET}.{GLIBC}");
    cmd!(
        shell,
        "cargo-zigbuild rustc --package surefoot --bin surefoot-trainer {options...} {platform}
         -- -Clink-arg=-Wl,--allow-shlib-undefined -Lnative={openmp}"
    )
    .run()?;
    let program = workspace::target(&shell)?
        .join(TARGET)
        .join(PROFILE)
        .join("surefoot-trainer");
    let (licences, sbom) = write_licences(&shell, &SHIPPED)?;
    let wheel = Wheel::begin("surefoot_trainer", TAG)?;
    wheel.add_program(&program)?;
    let about = About {
        metadata: METADATA.replace("{torch}", TORCH_VERSION),
        description: DESCRIPTION.replace("{torch}", TORCH_VERSION),
        licences,
        sbom,
    };
    let wheel = wheel.pack(&shell, &python, &about)?;
    // By the versions of symbols alone: libtorch, which no platform has, comes with the environment.
    check_tag(&shell, &wheel, "sym_tag", TAG)?;
    Ok(wheel)
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
