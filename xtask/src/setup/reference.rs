//! Python environments that setup creates: the reference with real PyTorch for benchmarks and heavy
//! tests, one with the newest PyTorch, and one with the tools that build the wheel.
//!
//! An environment cannot be moved (its scripts contain its path), so it is created in place. A stamp file
//! that is written at the very end records that it is complete and which
//! requirements it has. Without the right stamp pip runs again, and keeps installed packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::cache::Cache;
use super::fetch;
use super::python;
use crate::workspace;

/// Requirements of the benchmarks and of the trainer's reference values.
const REQUIREMENTS: [&str; 2] = ["bench/requirements.txt", "tests/reference/requirements.txt"];
/// Name of the environment with the newest PyTorch.
const NEWEST: &str = "venv-torch-newest";
const NEWEST_REQUIREMENTS: &str = "python/tests/requirements-newest.txt";
const STAMP: &str = "surefoot-requirements.txt";

/// The tools that build and check the wheel.
const DIST_REQUIREMENTS: &str = "xtask/src/dist/requirements.txt";

/// The cost of creating an environment.
struct Cost {
    /// Download size, for messages.
    download: &'static str,
    /// Free disk space needed, in bytes.
    space: u64,
}

/// Measured on x86-64: disk usage afterwards plus the largest wheel.
const TORCH: Cost = Cost {
    download: "2.5 GB",
    space: 5_600_000_000,
};
const DIST: Cost = Cost {
    download: "150 MB",
    space: 700_000_000,
};

/// The interpreter of the reference environment.
pub(crate) fn ensure(cache: &Cache) -> Result<PathBuf> {
    ensure_with(cache, "venv-torch-2.13", &REQUIREMENTS, &TORCH)
}

/// The interpreter of an environment with the newest PyTorch that `surefoot activate` was tested
/// with.
pub(crate) fn ensure_newest(cache: &Cache) -> Result<PathBuf> {
    let python = ensure_with(cache, NEWEST, &[NEWEST_REQUIREMENTS], &TORCH)?;
    if let Some(release) = newer_release(&python) {
        eprintln!(
            "PyPI has PyTorch {release}, newer than the one that is tested here: \
             `cargo xtask test --heavy --all --newest-torch` tests it, `{NEWEST_REQUIREMENTS}` names it"
        );
    }
    Ok(python)
}

/// Like [`ensure_newest`], but with the latest release on PyPI.
pub(crate) fn ensure_todays(cache: &Cache) -> Result<PathBuf> {
    let python = ensure_newest(cache)?;
    let _lock = cache.lock()?;
    // The stamp no longer applies; the next `ensure_newest` restores the pinned release.
    let stamp = cache.path(NEWEST).join(STAMP);
    fs::remove_file(&stamp).with_context(|| format!("cannot remove `{}`", stamp.display()))?;
    pip_install(&python, &["--upgrade"], &[PathBuf::from("torch")])?;
    Ok(python)
}

/// The interpreter of the environment that builds the wheel.
pub(crate) fn ensure_dist(cache: &Cache) -> Result<PathBuf> {
    ensure_with(cache, "venv-dist", &[DIST_REQUIREMENTS], &DIST)
}

/// The interpreter of the environment `name` with these requirements.
fn ensure_with(cache: &Cache, name: &str, requirements: &[&str], cost: &Cost) -> Result<PathBuf> {
    let files: Vec<_> = requirements
        .iter()
        .map(|file| workspace::root().join(file))
        .collect();
    let mut wanted = String::new();
    for file in &files {
        wanted += &fs::read_to_string(file)
            .with_context(|| format!("cannot read `{}`", file.display()))?;
    }
    let folder = cache.path(name);
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
        fetch::require_space(&cache.path("."), cost.space)?;
        let download = cost.download;
        eprintln!("creating the Python environment {name}: about {download} to download, once");
        python::make_reference_venv(&folder)?;
    }
    install(&python, &files)?;
    let stamp = folder.join(STAMP);
    fs::write(&stamp, wanted).with_context(|| format!("cannot write `{}`", stamp.display()))?;
    drop(lock);
    Ok(python)
}

/// A PyTorch release on PyPI that is newer than the installed one. `None` also if PyPI cannot be reached: a
/// new release is not a reason for a test to fail.
fn newer_release(python: &Path) -> Option<String> {
    let output = Command::new(python)
        .args(["-m", "pip", "index", "versions", "torch"])
        .args(["--disable-pip-version-check", "--no-input"])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    beyond_installed(&String::from_utf8_lossy(&output.stdout))
}

/// Parses the latest release from `pip index versions`, if it is not the installed one.
fn beyond_installed(said: &str) -> Option<String> {
    let named = |label: &str| {
        let lines = said.lines().map(str::trim);
        lines
            .filter_map(|line| line.strip_prefix(label))
            .map(|version| version.trim().to_owned())
            .next()
    };
    let (installed, latest) = (named("INSTALLED:")?, named("LATEST:")?);
    (installed != latest).then_some(latest)
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

/// pip shows its own progress on stderr.
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

#[cfg(test)]
mod tests {
    use super::beyond_installed;

    const SAID: &str = "torch (2.16.0)\nAvailable versions: 2.16.0, 2.15.0\n  INSTALLED: 2.15.0\n  LATEST:    2.16.0\n";

    #[test]
    fn a_newer_release_is_news() {
        assert_eq!(beyond_installed(SAID).as_deref(), Some("2.16.0"));
        let same = SAID.replace("LATEST:    2.16.0", "LATEST:    2.15.0");
        assert_eq!(beyond_installed(&same), None);
        assert_eq!(beyond_installed("ERROR: nobody answers"), None);
    }
}
