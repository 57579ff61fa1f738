//! AMD's HIP runtime, for tests on machines without a GPU.
//!
//! Debian and Ubuntu package it. Nothing is installed: `apt-get download` needs no
//! privileges, and the packages are unpacked into the cache. Only tests that add this
//! folder to their library path load them. apt verifies downloads with the signed lists of
//! the distribution, so there are no digests here; the cache entry records the
//! version of each package instead.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::cache::Cache;
use super::debian::{self, answers, output};

const NAME: &str = "hip-runtime";

/// Names of the package, newest first; the number is the ABI version.
const PACKAGES: [&str; 3] = ["libamdhip64-7", "libamdhip64-6", "libamdhip64-5"];

/// The folder to add to the library path; `None` on a machine without apt.
pub(crate) fn ensure(cache: &Cache) -> Result<Option<PathBuf>> {
    if !debian::has_apt() {
        return Ok(None);
    }
    let packages = needed()?;
    if let Some(entry) = cache.whole(NAME, &packages) {
        return Ok(Some(entry));
    }
    let lock = cache.lock()?;
    eprintln!("unpacking AMD's HIP runtime ({} packages)", packages.len());
    let (downloads, scratch) = (cache.staging()?, cache.staging()?);
    let pinned = packages
        .iter()
        .map(|(name, version)| format!("{name}={version}"));
    debian::download(pinned, downloads.path())?;
    let entry = cache.make(&lock, NAME, packages, |entry| {
        unpack(downloads.path(), scratch.path(), entry)
    })?;
    Ok(Some(entry))
}

/// The packages of the runtime and of its dependencies that are not installed here, with their versions.
fn needed() -> Result<BTreeMap<String, String>> {
    let known = |package: &&&str| answers(Command::new("apt-cache").args(["show", package]));
    let package = PACKAGES.iter().find(known).context(
        "apt finds no package of AMD's HIP runtime (libamdhip64-5 or newer): run `apt-get update`",
    )?;
    // A simulation lists what apt would install, and needs no privileges.
    let plan = output(Command::new("apt-get").args([
        "install",
        "--simulate",
        "--reinstall",
        "--no-install-recommends",
        package,
    ]))?;
    let packages = planned(&plan);
    ensure!(
        packages.contains_key(*package),
        "apt cannot install {package}:\n{plan}"
    );
    Ok(packages)
}

/// `Inst NAME (VERSION …)`, and `Inst NAME [OLD VERSION] (VERSION …)`.
fn planned(plan: &str) -> BTreeMap<String, String> {
    let installs = plan.lines().filter_map(|line| line.strip_prefix("Inst "));
    installs
        .filter_map(|line| {
            let (name, rest) = line.split_once(' ')?;
            let version = rest.split_once('(')?.1.split([' ', ')']).next()?;
            Some((name.to_owned(), version.to_owned()))
        })
        .collect()
}

/// Unpacks packages and collects all their libraries in one folder.
fn unpack(downloads: &Path, scratch: &Path, entry: &Path) -> Result<()> {
    debian::extract(downloads, scratch)?;
    // Debian names the folder after the architecture: `usr/lib/x86_64-linux-gnu`.
    let lib = scratch.join("usr/lib");
    let unreadable = || format!("cannot read `{}`", lib.display());
    for folder in lib.read_dir().with_context(unreadable)? {
        let folder = folder?.path();
        if !folder.is_dir() {
            continue;
        }
        for file in folder.read_dir().with_context(unreadable)? {
            let file = file?;
            let name = file.file_name();
            if name.to_string_lossy().contains(".so") {
                // A link by another name, so that an entry's sizes are those of its files.
                let library = file.path().canonicalize()?;
                fs::hard_link(library, entry.join(name))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::planned;

    #[test]
    fn a_plan_names_each_package_and_its_version() {
        let plan = "Reading package lists...\n\
                    Inst libllvm15 (1:15.0.6-4+b1 Debian:12.0/oldstable [amd64])\n\
                    Inst libz3-4 [4.8.12-3] (4.8.12-3.1 Debian:12.0/oldstable [amd64])\n\
                    Conf libllvm15 (1:15.0.6-4+b1 Debian:12.0/oldstable [amd64])\n";
        let packages: Vec<_> = planned(plan).into_iter().collect();
        let expected = [("libllvm15", "1:15.0.6-4+b1"), ("libz3-4", "4.8.12-3.1")];
        assert_eq!(
            packages,
            expected.map(|(name, version)| (name.to_owned(), version.to_owned()))
        );
    }
}
