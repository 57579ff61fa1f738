//! `cargo xtask setup`: everything that the build and a first training run need.
//!
//! ```text
//!   libtorch::choose ──▶ LIBTORCH │ an active Python │ the cache ──▶ .cargo/libtorch.toml
//!                                                        │
//!   text::ensure ────────────────────────────────────────┤   fetch: pip, digests
//!   reference::ensure (--python) ────────────────────────┘   cache: complete or absent
//! ```
//!
//! Each step does nothing if its result already exists, so the other commands call
//! [`ensure`] each time they start.

mod archive;
mod cache;
mod cargo_config;
mod debian;
mod device_compiler;
mod fetch;
mod garments;
mod hip_runtime;
mod libtorch;
mod matrix;
mod model;
mod pins;
mod progress;
mod python;
mod reference;
mod text;
mod windows;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use xshell::Shell;

use crate::workspace;
use cache::Cache;
pub(crate) use libtorch::Libtorch;
pub(crate) use pins::{RELEASES, Release};

/// Download what the build needs: libtorch (2.13.0, or 2.15.0) and the training text.
///
/// Downloads go to the cache folder (`$SUREFOOT_CACHE`, else `$XDG_CACHE_HOME/surefoot`,
/// else `~/.cache/surefoot`). Files that already exist are reused.
#[derive(clap::Args)]
pub(crate) struct Setup {
    /// Also create the Python reference environment that the benchmarks and the heavy tests use
    /// (PyTorch 2.13.0; about 2.5 GB to download, 5 GB on the disk)
    #[arg(long)]
    python: bool,
    /// Also unpack AMD's HIP runtime, which the heavy tests load (from the packages of this machine's Debian or
    /// Ubuntu; about 50 MB to download, and nothing is installed)
    #[arg(long)]
    hip: bool,
    /// Also create what `configs/garments.yaml` trains (from Debian's package dataset-fashion-mnist; 31 MB to download, and
    /// nothing is installed)
    #[arg(long)]
    garments: bool,
    /// Build against the CPU libtorch of this release of PyTorch in the cache (2.13.0 or 2.15.0), until
    /// `.cargo/libtorch.toml` is deleted or LIBTORCH is set to another folder
    #[arg(long, value_name = "VERSION")]
    torch: Option<String>,
}

impl Setup {
    pub(crate) fn run(self) -> Result<()> {
        if let Some(version) = &self.torch {
            let libtorch = libtorch::chosen(&Cache::open()?, version)?;
            cargo_config::write(&libtorch)?;
            eprintln!("libtorch  {libtorch}");
            return Ok(());
        }
        ensure()?;
        if self.python {
            reference_python()?;
        }
        if self.hip && hip_runtime()?.is_none() {
            bail!(
                "setup downloads AMD's HIP runtime with apt-get, which this machine does not have"
            );
        }
        if self.garments {
            garments()?;
        }
        Ok(())
    }
}

/// A CPU libtorch of `release` in the cache, independent of what the workspace is built against.
pub(crate) fn libtorch_of(release: &'static Release) -> Result<Libtorch> {
    libtorch::of_release(&Cache::open()?, release)
}

/// Finds or creates what a build needs, and lists it on stderr.
pub(crate) fn ensure() -> Result<Libtorch> {
    let cache = Cache::open()?;
    let libtorch = libtorch::ensure(&cache)?;
    cargo_config::write(&libtorch)?;
    eprintln!("libtorch  {libtorch}");
    let text = text::ensure(&cache)?;
    eprintln!("text      Shakespeare, 42 works, in {}", text.display());
    Ok(libtorch)
}

/// The folder of the pictures of garments; creates them, and the parts of the small model that learns them.
pub(crate) fn garments() -> Result<PathBuf> {
    let (data, model) = garments::ensure(&Cache::open()?)?;
    eprintln!("garments  Fashion-MNIST, in {}", data.display());
    eprintln!("model     parts of a small Z-Image, in {}", model.display());
    Ok(data)
}

/// Provides the model that `config` fine-tunes and the data that it trains on, if setup can create them.
pub(crate) fn needed_by(config: &str) -> Result<()> {
    if config.contains(garments::NAME) {
        garments()?;
    }
    if config.contains(model::NAME) {
        let folder = model::ensure(&Cache::open()?)?;
        eprintln!("model     SmolLM2-135M-Instruct, in {}", folder.display());
    }
    Ok(())
}

/// The small published model as a Hugging Face folder, converted by `surefoot`.
pub(crate) fn published_model(surefoot: &Path) -> Result<PathBuf> {
    model::converted(&Cache::open()?, surefoot)
}

/// The interpreter of the reference environment, which is created if it does not exist.
pub(crate) fn reference_python() -> Result<PathBuf> {
    let python = reference::ensure(&Cache::open()?)?;
    eprintln!("python    reference environment: {}", python.display());
    Ok(python)
}

/// The interpreter of an environment with the newest PyTorch that is tested; `todays` uses
/// the latest release on PyPI instead.
pub(crate) fn newest_python(todays: bool) -> Result<PathBuf> {
    let cache = Cache::open()?;
    let python = match todays {
        true => reference::ensure_todays(&cache)?,
        false => reference::ensure_newest(&cache)?,
    };
    eprintln!("python    newest PyTorch: {}", python.display());
    Ok(python)
}

/// An interpreter of Python 3.`minor` on this machine.
pub(crate) fn matrix_interpreter(minor: u32) -> Option<PathBuf> {
    matrix::interpreter(minor)
}

/// The interpreter of a new environment of this name with this PyTorch, or the reason why it cannot be created.
pub(crate) fn matrix_environment(
    interpreter: &Path,
    name: &str,
    torch: &str,
) -> Result<Result<PathBuf, String>> {
    let uv = dist_python()?.with_file_name("uv");
    matrix::make(&Cache::open()?, &uv, interpreter, (name, torch))
}

/// Removes all environments of the matrix and their downloads.
pub(crate) fn remove_matrix() -> Result<()> {
    let folder = matrix::folder(&Cache::open()?);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove `{}`", folder.display()))?;
    }
    Ok(())
}

/// The interpreter of the environment with the tools that build and check the wheel.
pub(crate) fn dist_python() -> Result<PathBuf> {
    reference::ensure_dist(&Cache::open()?)
}

/// The folder of AMD's HIP runtime, for tests; `None` on a machine without apt.
pub(crate) fn hip_runtime() -> Result<Option<PathBuf>> {
    let folder = hip_runtime::ensure(&Cache::open()?)?;
    if let Some(folder) = &folder {
        eprintln!("hip       AMD's runtime: {}", folder.display());
    }
    Ok(folder)
}

/// The compiler of kernels for AMD GPUs.
pub(crate) fn device_compiler() -> Result<PathBuf> {
    device_compiler::ensure(&Cache::open()?)
}

/// The folders of Pythons for Windows, one with each release of PyTorch in `WINDOWS_TORCH`.
pub(crate) fn windows_pythons() -> Result<Vec<PathBuf>> {
    let cache = Cache::open()?;
    let folders = pins::WINDOWS_TORCH.iter().map(|torch| {
        let folder = windows::ensure(&cache, torch)?;
        eprintln!("windows   Python and PyTorch: {}", folder.display());
        Ok(folder)
    });
    folders.collect()
}

/// A shell in the workspace's root whose cargo builds against `libtorch`, whatever this
/// process was started with.
pub(crate) fn shell(libtorch: &Libtorch) -> Result<Shell> {
    let shell = workspace::shell()?;
    build_against(libtorch, &shell);
    Ok(shell)
}

/// Makes the cargo of `shell` build against `libtorch`.
pub(crate) fn build_against(libtorch: &Libtorch, shell: &Shell) {
    cargo_config::apply(libtorch, shell);
}
