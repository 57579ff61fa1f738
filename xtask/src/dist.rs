//! `cargo xtask dist`: what people install, from this working tree.
//!
//! ```text
//! hip-alloc ──cargo-zigbuild──▶ libhip_alloc.so ─┐
//! surefoot ───cargo-zigbuild──▶ surefoot ────────┼─wheel pack──▶ the wheel ──auditwheel──▶ its tag
//! python/ ───────────────────────────────────────┘
//!    │
//!    └─▶ man pages, completions, licences ──▶ the archive, the Debian package ──▶ SHA256SUMS
//! surefoot ───cargo-zigbuild──▶ surefoot, for musl ───────▶ the same archive with a program that needs no library
//! surefoot ───cargo, mingw-w64▶ surefoot.exe ─────────────▶ a zip
//! surefoot ───cargo-zigbuild──▶ surefoot-trainer-2.13.0, surefoot-trainer-2.15.0 ──wheel pack──▶ the trainer's wheel
//! ```
//!
//! A trainer links libtorch, which nobody wants a second time: it runs on that of the environment
//! that it is installed into, and there is one for each of several releases of PyTorch, in a wheel of their own.
//!
//! zig links against the interface of glibc 2.28, which every Linux that PyTorch's own wheels run
//! on has, wherever this is built. The C++ of hip-alloc is compiled by g++ and linked to libstdc++ all
//! the same: it throws PyTorch's exceptions, and zig's own libc++ has other strings and another
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
use xshell::cmd;

use crate::workspace;

/// The triple that is built for; nothing else has been tried.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Build what people install: the Python wheels, archives, a Debian package, a program for Windows.
///
/// It all goes to `packages` in cargo's target folder, with its digests. Nothing is uploaded.
#[derive(clap::Args)]
pub(crate) struct Dist {
    /// The wheel of `surefoot` alone
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
            files.extend(windows_program::build(&folder)?);
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

/// Builds the wheels for their tests; returns pytest's options that name them and uv.
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

/// What was built, and where.
struct Built {
    wheel: PathBuf,
    program: PathBuf,
    library: PathBuf,
    /// The licences of all that is linked into the two, as one text.
    licences: PathBuf,
    /// The same packages as a bill of materials (CycloneDX).
    sbom: PathBuf,
}

/// The release, as `Cargo.toml` has it.
fn release() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// `packages` in cargo's target folder.
fn folder() -> Result<PathBuf> {
    make(workspace::target(&workspace::shell()?)?.join("packages"))
}

/// When the newest commit was made, in seconds: the time of all files, so that the same tree gives
/// the same archive. Zero outside of a repository.
fn commit_time() -> Result<String> {
    let shell = workspace::shell()?;
    let time = cmd!(shell, "git log -1 --format=%ct")
        .quiet()
        .ignore_stderr();
    Ok(time.read().unwrap_or_else(|_| "0".to_owned()))
}

/// Writes `SHA256SUMS`, as `sha256sum --check` reads it.
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
    name.with_context(|| format!("{} has no name that is text", file.display()))
}

/// An empty folder of this name, whatever was there.
fn empty(folder: PathBuf) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    make(folder)
}

/// A folder of this name.
fn make(folder: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Refuses machines that this was never tried on.
fn require_linux_on_x86_64() -> Result<()> {
    use std::env::consts::{ARCH, OS};
    if (OS, ARCH) != ("linux", "x86_64") {
        bail!("`cargo xtask dist` builds on Linux on x86-64 only, and this is {OS} on {ARCH}");
    }
    Ok(())
}
