//! `cargo xtask dist`: builds the distributions from this working tree.
//!
//! ```text
//! hip-alloc ──cargo-zigbuild──▶ libhip_alloc.so ─┐
//! surefoot ───cargo-zigbuild──▶ surefoot ────────┼─wheel pack──▶ the wheel ──auditwheel──▶ its tag
//! python/ ───────────────────────────────────────┘
//!    │
//!    └─▶ man pages, completions, licences ──▶ the archive, the Debian package ──▶ SHA256SUMS
//! surefoot ───cargo-zigbuild──▶ surefoot, for musl ───────▶ the same archive with a static program
//! surefoot, hip-alloc ──cargo, mingw-w64▶ surefoot.exe, surefoot_trainer.dll, hip_alloc.dll ──▶ a wheel, a zip
//! surefoot ───cargo-zigbuild──▶ surefoot-trainer-2.13.0, surefoot-trainer-2.15.0 ──wheel pack──▶ the trainer's wheel
//! ```
//!
//! The trainer links libtorch, which is too large to include: it uses the libtorch of the environment that it is
//! installed in. There is one trainer for each of several PyTorch releases, all in a separate wheel.
//!
//! zig links against the symbols of glibc 2.28, which is available on every Linux that PyTorch's own wheels run
//! on, whatever machine this is built on. The C++ code of hip-alloc is still compiled by g++ and linked with libstdc++,
//! since it throws PyTorch's exceptions, and zig's libc++ has a different string layout and a different
//! unwinder.

mod archive;
mod licences;
mod pack;
mod static_program;
mod trainer_wheel;
mod wheel;
mod windows_program;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use xshell::{Shell, cmd};

use crate::windows;
use crate::workspace;

/// The target triple; no other has been tried.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Build the distributions: Python wheels, archives, a Debian package.
///
/// They are written to `packages` in cargo's target folder, with their digests. Nothing is uploaded.
#[derive(clap::Args)]
pub(crate) struct Dist {
    /// Only the wheel `surefoot`
    #[arg(long)]
    wheel_only: bool,
}

impl Dist {
    pub(crate) fn run(self) -> Result<()> {
        let built = wheel::build()?;
        let folder = folder()?;
        let mut files = vec![built.wheel.clone()];
        if !self.wheel_only {
            let tree = archive::tree(&built, &built.program, "", &folder)?;
            files.push(archive::tar(&tree, &folder)?);
            files.extend(archive::deb(&tree, &folder)?);
            let program = static_program::build()?;
            let tree = archive::tree(&built, &program, "-static", &folder)?;
            files.push(archive::tar(&tree, &folder)?);
            files.extend(windows_program::build_if_possible(&folder)?);
            files.push(trainer_wheel::build()?);
        }
        write_digests(&folder, &files)?;
        for file in &files {
            let bytes = fs::metadata(file)?.len();
            println!("{:>9.2} MB  {}", bytes as f64 / 1e6, file.display());
        }
        Ok(())
    }
}

/// Packs the wheel and the zip for Windows, for their tests; returns their folder.
pub(crate) fn windows_packages(shell: &Shell, built: &windows::Built) -> Result<PathBuf> {
    let folder = make(folder()?.join("windows-tested"))?;
    windows_program::pack(shell, &folder, built)?;
    Ok(folder)
}

/// Builds the wheels for their tests; returns the pytest options with their paths and that of uv.
pub(crate) fn test_options(python: &Path) -> Result<Vec<OsString>> {
    let wheel = wheel::build()?.wheel;
    let trainer = trainer_wheel::build()?;
    let uv = python.with_file_name("uv");
    Ok(vec![
        "--wheel".into(),
        wheel.into(),
        "--trainer-wheel".into(),
        trainer.into(),
        "--uv".into(),
        uv.into(),
    ])
}

/// The program and the library, and the files about their licences.
struct Built {
    wheel: PathBuf,
    program: PathBuf,
    library: PathBuf,
    /// The licences of all packages linked into them, as one text.
    licences: PathBuf,
    /// The same packages as a software bill of materials (CycloneDX).
    sbom: PathBuf,
}

/// The release number from `Cargo.toml`.
fn release() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// `packages` in cargo's target folder.
fn folder() -> Result<PathBuf> {
    make(workspace::target(&workspace::shell()?)?.join("packages"))
}

/// The time of the newest commit, in seconds. All files get this time, so that the same tree gives
/// the same archive. Zero outside a repository.
fn commit_time() -> Result<String> {
    let shell = workspace::shell()?;
    let time = cmd!(shell, "git log -1 --format=%ct")
        .quiet()
        .ignore_stderr();
    Ok(time.read().unwrap_or_else(|_| "0".to_owned()))
}

/// Writes `SHA256SUMS` in the format of `sha256sum --check`.
fn write_digests(folder: &Path, files: &[PathBuf]) -> Result<()> {
    let mut lines = String::new();
    for file in files {
        let digest = Sha256::digest(fs::read(file)?);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        lines.push_str(&format!("{digest}  {}\n", name_of(file)?));
    }
    fs::write(folder.join("SHA256SUMS"), lines)?;
    Ok(())
}

fn name_of(file: &Path) -> Result<&str> {
    let name = file.file_name().and_then(|name| name.to_str());
    name.with_context(|| format!("the name of {} is not valid UTF-8", file.display()))
}

/// An empty folder of this name; previous contents are removed.
fn empty(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    make(folder)
}

/// A folder of this name.
fn make(folder: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Refuses machines on which this was never tried.
fn require_linux_on_x86_64() -> Result<()> {
    use std::env::consts::{ARCH, OS};
    if (OS, ARCH) != ("linux", "x86_64") {
        bail!("`cargo xtask dist` builds on Linux on x86-64 only, and this is {OS} on {ARCH}");
    }
    Ok(())
}
