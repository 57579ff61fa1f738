//! The Python reference environment: real PyTorch, for benchmarks and heavy tests.
//!
//! An environment cannot be moved once it is made (its scripts hold its path), so it is
//! made in place, and a stamp written at the very end says that it is whole and which
//! requirements it has. Without the right stamp pip runs again, and keeps what is there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::cache::Cache;
use super::fetch;
use super::python;
use crate::workspace;

/// For the benchmarks, and for the trainer's reference numbers.
const REQUIREMENTS: [&str; 2] = ["bench/requirements.txt", "tests/reference/requirements.txt"];
const STAMP: &str = "surefoot-requirements.txt";

/// Measured on x86-64: what is on the disk afterwards, plus the largest wheel.
const SPACE: u64 = 5_600_000_000;

/// The interpreter of the reference environment.
pub(crate) fn ensure(cache: &Cache) -> Result<PathBuf> {
    let requirements = REQUIREMENTS.map(|file| workspace::root().join(file));
    let mut wanted = String::new();
    for file in &requirements {
        wanted += &fs::read_to_string(file)
            .with_context(|| format!("cannot read `{}`", file.display()))?;
    }
    let folder = cache.path("venv-torch-2.13");
    let python = folder.join("bin/python");
    let whole = || fs::read_to_string(folder.join(STAMP)).is_ok_and(|stamp| stamp == wanted);
    if whole() {
        return Ok(python);
    }
    let lock = cache.lock()?;
    if whole() {
        return Ok(python);
    }
    if !works(&python) {
        fetch::require_space(&cache.path("."), SPACE)?;
        eprintln!("making the Python reference environment: about 2.5 GB to download, once");
        python::make_reference_venv(&folder)?;
    }
    install(&python, &requirements)?;
    let stamp = folder.join(STAMP);
    fs::write(&stamp, wanted).with_context(|| format!("cannot write `{}`", stamp.display()))?;
    drop(lock);
    Ok(python)
}

/// The interpreter of an environment with the newest PyTorch on PyPI, for the activation,
/// which promises to work there too. Brought up to date each time.
pub(crate) fn ensure_newest(cache: &Cache) -> Result<PathBuf> {
    let folder = cache.path("venv-torch-newest");
    let python = folder.join("bin/python");
    let _lock = cache.lock()?;
    if !works(&python) {
        fetch::require_space(&cache.path("."), SPACE)?;
        eprintln!("making an environment with the newest PyTorch: about 2.5 GB to download, once");
        python::make_reference_venv(&folder)?;
    }
    let packages = ["torch", "numpy", "pytest"].map(PathBuf::from);
    pip_install(&python, &["--upgrade"], &packages)?;
    Ok(python)
}

fn works(python: &Path) -> bool {
    Command::new(python)
        .args(["-m", "pip", "--version"])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success())
}

fn install(python: &Path, requirements: &[PathBuf]) -> Result<()> {
    let files: Vec<PathBuf> = requirements
        .iter()
        .flat_map(|file| [PathBuf::from("--requirement"), file.clone()])
        .collect();
    pip_install(python, &[], &files)
}

/// pip's own progress is the best there is for many packages: it goes through to stderr.
fn pip_install(python: &Path, options: &[&str], what: &[PathBuf]) -> Result<()> {
    let status = Command::new(python)
        .args(["-m", "pip", "install", "--no-input", "--no-cache-dir"])
        .arg("--disable-pip-version-check")
        .args(options)
        .args(what)
        .env("PIP_RESUME_RETRIES", "5")
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("cannot run pip with `{}`", python.display()))?;
    if !status.success() {
        let names: Vec<_> = what.iter().map(|name| name.display().to_string()).collect();
        bail!(
            "pip could not install `{}` (its words are above). \
             Run the command again: it carries on with what is there.",
            names.join(" ")
        );
    }
    Ok(())
}
