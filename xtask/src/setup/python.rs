//! Finding a Python: one that has pip, one that can make an environment, one that has torch.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use super::cache::{Cache, Lock};

/// The oldest Python for which PyPI has wheels of all packages pinned for the reference environment.
const OLDEST_FOR_REFERENCE: (u32, u32) = (3, 11);

/// Prints the path of the torch package without importing it, which would take seconds.
const FIND_TORCH: &str = "import importlib.util as u; s = u.find_spec('torch'); \
                          print(s.submodule_search_locations[0] if s else '')";

/// A Python that runs `-m pip`; if no Python has pip, an environment is created in the cache.
pub(crate) fn with_pip(cache: &Cache, _lock: &Lock) -> Result<PathBuf> {
    let candidates = candidates();
    if let Some(python) = candidates.iter().find(|python| has_pip(python)) {
        return Ok(python.clone());
    }
    // Debian's python3 has no pip, but if `ensurepip` is installed, `venv` provides one.
    let folder = cache.path("venv-pip");
    let python = folder.join("bin/python");
    if has_pip(&python) {
        return Ok(python);
    }
    if candidates.iter().any(|python| make_venv(python, &folder)) && has_pip(&python) {
        return Ok(python);
    }
    if candidates.is_empty() {
        bail!(
            "no `python3` was found: it is needed once, for pip to download libtorch.\n\
             Install it (Debian, Ubuntu: `apt install python3-venv`), or set LIBTORCH."
        );
    }
    bail!(
        "no Python here has pip: it is needed once, to download libtorch.\n\
         Install it (Debian, Ubuntu: `apt install python3-venv`), or set LIBTORCH."
    )
}

/// Creates a virtual environment in `folder` with the first Python that is new enough and has `venv`.
pub(crate) fn make_reference_venv(folder: &Path) -> Result<()> {
    let candidates = candidates();
    let new_enough = |python: &&PathBuf| version(python) >= Some(OLDEST_FOR_REFERENCE);
    if (candidates.iter().filter(new_enough)).any(|python| make_venv(python, folder)) {
        return Ok(());
    }
    let (major, minor) = OLDEST_FOR_REFERENCE;
    bail!(
        "cannot make a Python environment: it takes Python {major}.{minor} or newer with `venv` \
         and `ensurepip`.\nInstall them (Debian, Ubuntu: `apt install python3-venv`)."
    )
}

/// The torch package of the active environment, or else of `python3`.
pub(crate) fn active_torch() -> Option<(PathBuf, PathBuf)> {
    let environment = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(env::var_os)
        .map(|folder| Path::new(&folder).join("bin/python"));
    environment
        .chain([PathBuf::from("python3")])
        .find_map(|python| {
            let printed = output(&python, &["-c", FIND_TORCH])?;
            let folder = printed.trim();
            (!folder.is_empty()).then(|| (python, PathBuf::from(folder)))
        })
}

/// The Python interpreters to try, the user's choice first.
fn candidates() -> Vec<PathBuf> {
    [
        "python3",
        "python",
        "/usr/bin/python3",
        "/usr/local/bin/python3",
    ]
    .map(PathBuf::from)
    .into_iter()
    .chain(
        (10..=14)
            .rev()
            .map(|minor| format!("python3.{minor}").into()),
    )
    .filter(|python| version(python).is_some())
    .collect()
}

/// The version of an interpreter, such as `(3, 11)`, if it runs and is a Python 3.
pub(super) fn version(python: &Path) -> Option<(u32, u32)> {
    let program = "import sys; print(sys.version_info.major, sys.version_info.minor)";
    let printed = output(python, &["-c", program])?;
    let (major, minor) = printed.trim().split_once(' ')?;
    let version = (major.parse().ok()?, minor.parse().ok()?);
    (version >= (3, 0)).then_some(version)
}

fn has_pip(python: &Path) -> bool {
    output(python, &["-m", "pip", "--version"]).is_some()
}

fn make_venv(python: &Path, folder: &Path) -> bool {
    let folder = folder.to_string_lossy();
    output(python, &["-m", "venv", "--clear", &folder]).is_some()
}

/// The standard output of a program that exits successfully.
fn output(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    (output.status.success()).then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
