//! `cargo xtask windows`: the program for Windows, built with mingw-w64 and tested under wine.
//!
//! It is `surefoot` without libtorch: doctor, env, explain, run, replay, runs and ui. `surefoot_trainer.dll` is what trains, in
//! the Python that has PyTorch. The tests add the display
//! adapters of a machine to wine's registry, and compile a `hipInfo.exe` that answers like AMD's.
//!
//! With `--torch`, `hip_alloc.dll` is tested under the real PyTorch for Windows, in
//! Windows' Python, on the simulated runtime; and the trainer on that PyTorch, also as it is installed.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use xshell::{Shell, cmd};

use crate::dist;
use crate::setup;
use crate::workspace;

/// The target triple. The one of Microsoft's compiler would need its SDK.
pub(crate) const TARGET: &str = "x86_64-pc-windows-gnu";

/// The trainer as a library, which is an example of its package to cargo.
const TRAINER: &str = "surefoot_trainer";

/// It has the name of the bindings whose place it takes, so that its name alone is not enough.
const TORCH_ABI: &str = "crates/torch-abi/Cargo.toml";

/// Build the program and the allocator for Windows and test them under wine.
#[derive(clap::Args)]
pub(crate) struct Windows {
    /// Only the packages, the allocator and the trainer under the real PyTorch for Windows, which takes some minutes (250 MB to
    /// download the first time, 1.4 GB on the disk)
    #[arg(long)]
    torch: bool,
}

impl Windows {
    pub(crate) fn run(self) -> Result<()> {
        let shell = workspace::shell()?;
        if let Some(missing) = missing_to_build(&shell).or_else(|| missing_to_test(&shell)) {
            bail!("{missing}");
        }
        let python = setup::reference_python()?;
        match self.torch {
            true => test_torch(&shell, &python),
            false => test(&shell, &python),
        }
    }
}

/// Tests the allocator under PyTorch for Windows with the pytest of `python`; if that is not possible, says what is missing.
pub(crate) fn test_torch_if_possible(shell: &Shell, python: &Path) -> Result<()> {
    match missing_to_build(shell).or_else(|| missing_to_test(shell)) {
        Some(missing) => eprintln!("not run: the tests under PyTorch for Windows: {missing}"),
        None => test_torch(shell, python)?,
    }
    Ok(())
}

/// Checks the allocator and `torch-abi` for Windows, where Rust's library for it and a C compiler are there; nothing is downloaded.
pub(crate) fn check_if_possible(shell: &Shell) -> Result<()> {
    let installed = cmd!(shell, "rustup target list --installed")
        .quiet()
        .ignore_stderr();
    let is_there = installed.read().is_ok_and(|list| list.contains(TARGET));
    if !is_there || missing_to_build(shell).is_some() {
        eprintln!(
            "not run: the check of the allocator for Windows, which needs mingw-w64 and Rust's {TARGET}"
        );
        return Ok(());
    }
    let cargo = workspace::cargo();
    let packages = ["--package", "hip-alloc", "--package", "device-sim"];
    cmd!(
        shell,
        "{cargo} clippy --target {TARGET} {packages...} --lib -- -D warnings"
    )
    .run()?;
    cmd!(
        shell,
        "{cargo} clippy --target {TARGET} --manifest-path {TORCH_ABI} --lib -- -D warnings"
    )
    .run()?;
    Ok(())
}

/// What is distributed for Windows.
pub(crate) struct Built {
    pub(crate) program: PathBuf,
    pub(crate) trainer: PathBuf,
    pub(crate) allocator: PathBuf,
}

/// Builds all of it in this cargo profile.
pub(crate) fn build_all(shell: &Shell, profile: &str) -> Result<Built> {
    add_target(shell)?;
    let trainer = build_hosted(shell, profile, Some(TARGET), &["--bin", "surefoot"])?;
    let folder = trainer.ancestors().nth(2).unwrap_or(&trainer);
    Ok(Built {
        program: folder.join("surefoot.exe"),
        allocator: build_libraries(shell, profile)?.join("hip_alloc.dll"),
        trainer,
    })
}

fn test_torch(shell: &Shell, python: &Path) -> Result<()> {
    let pythons = setup::windows_pythons()?;
    let windows_python = &pythons[0];
    let built = build_all(shell, "dev")?;
    let packages = dist::windows_packages(shell, &built)?;
    let Built {
        program, trainer, ..
    } = built;
    let libraries = folder(shell, "dev")?;
    let cargo = workspace::cargo();
    let example = ["--manifest-path", TORCH_ABI, "--example", "01-train"];
    cmd!(
        shell,
        "{cargo} build --locked --target {TARGET} {example...}"
    )
    .run()?;
    cmd!(
        shell,
        "{python} -m pytest python/tests/test_windows_packages.py --windows-packages {packages}
        --windows-libraries {libraries} --windows-python {windows_python}"
    )
    .run()?;
    for windows_python in &pythons {
        cmd!(
            shell,
            "{python} -m pytest python/tests/test_hosted_trainer.py --hosted-launcher {program}
            --hosted-trainer {trainer} --windows-python {windows_python}"
        )
        .run()?;
    }
    cmd!(
        shell,
        "{python} -m pytest python/tests/test_windows_torch.py --windows-program {program}
        --windows-libraries {libraries} --windows-python {windows_python}"
    )
    .run()?;
    Ok(())
}

/// Builds the trainer as a library over PyTorch's C interface for this machine, and what `others` name, in this cargo profile;
/// returns its path.
pub(crate) fn build_trainer(shell: &Shell, profile: &str, others: &[&str]) -> Result<PathBuf> {
    build_hosted(shell, profile, None, others)
}

fn build_hosted(
    shell: &Shell,
    profile: &str,
    target: Option<&str>,
    others: &[&str],
) -> Result<PathBuf> {
    let cargo = workspace::cargo();
    let platform = target.map(|target| ["--target", target]);
    let platform = platform.as_ref().map_or(&[][..], |options| options);
    let folder = workspace::with_torch_abi(shell, |options, folder| {
        cmd!(
            shell,
            "{cargo} build {options...} {platform...} --profile {profile} --package surefoot --features hosted
            --example {TRAINER} {others...}"
        )
        .run()?;
        Ok(folder.to_owned())
    })?;
    let name = match target {
        Some(_) => format!("{TRAINER}.dll"),
        None => format!("lib{TRAINER}.so"),
    };
    let built = folder
        .join(target.unwrap_or_default())
        .join(folder_of(profile));
    Ok(built.join("examples").join(name))
}

/// Builds `hip_alloc.dll` and `device_sim.dll` in this cargo profile, and returns their folder.
fn build_libraries(shell: &Shell, profile: &str) -> Result<PathBuf> {
    let cargo = workspace::cargo();
    let options = ["--locked", "--profile", profile, "--target", TARGET];
    cmd!(
        shell,
        "{cargo} build --package hip-alloc --package device-sim {options...}"
    )
    .run()?;
    folder(shell, profile)
}

/// Builds the program in this cargo profile, and returns its path.
pub(crate) fn build(shell: &Shell, profile: &str) -> Result<PathBuf> {
    add_target(shell)?;
    let cargo = workspace::cargo();
    let options = ["--locked", "--profile", profile, "--target", TARGET];
    cmd!(
        shell,
        "{cargo} build --package surefoot --bin surefoot --no-default-features {options...}"
    )
    .run()?;
    Ok(folder(shell, profile)?.join("surefoot.exe"))
}

fn add_target(shell: &Shell) -> Result<()> {
    let add = cmd!(shell, "rustup target add {TARGET}");
    Ok(add.quiet().ignore_stderr().run()?)
}

/// The folder of what is built in this cargo profile.
fn folder(shell: &Shell, profile: &str) -> Result<PathBuf> {
    Ok(workspace::target(shell)?
        .join(TARGET)
        .join(folder_of(profile)))
}

fn folder_of(profile: &str) -> &str {
    if profile == "dev" { "debug" } else { profile }
}

/// Tests it with the pytest of `python`; if that is not possible, says what is missing.
pub(crate) fn test_if_possible(shell: &Shell, python: &Path) -> Result<()> {
    match missing_to_build(shell).or_else(|| missing_to_test(shell)) {
        Some(missing) => eprintln!("not run: the tests of the program for Windows: {missing}"),
        None => test(shell, python)?,
    }
    Ok(())
}

fn test(shell: &Shell, python: &Path) -> Result<()> {
    let program = build(shell, "dev")?;
    cmd!(
        shell,
        "{python} -m pytest python/tests/test_windows.py --windows-program {program}"
    )
    .run()?;
    Ok(())
}

/// What a build for Windows needs and this machine lacks.
pub(crate) fn missing_to_build(shell: &Shell) -> Option<&'static str> {
    let compiler = "x86_64-w64-mingw32-gcc";
    let is_there = cmd!(shell, "{compiler} --version")
        .quiet()
        .ignore_stdout()
        .ignore_stderr()
        .run()
        .is_ok();
    let is_added = cmd!(shell, "rustup --version")
        .quiet()
        .ignore_stdout()
        .ignore_stderr()
        .run()
        .is_ok();
    match (is_there, is_added) {
        (false, _) => Some("it needs mingw-w64 (on Debian: apt install gcc-mingw-w64-x86-64)"),
        (_, false) => Some("it needs rustup, to add Rust's library for Windows"),
        _ => None,
    }
}

fn missing_to_test(shell: &Shell) -> Option<&'static str> {
    // Debian's package installs it outside PATH.
    let places = ["wine64", "/usr/lib/wine/wine64", "wine"];
    let is_there = places.iter().any(|program| {
        cmd!(shell, "{program} --version")
            .quiet()
            .ignore_stdout()
            .ignore_stderr()
            .run()
            .is_ok()
    });
    (!is_there).then_some("it needs wine (on Debian: apt install wine64)")
}
