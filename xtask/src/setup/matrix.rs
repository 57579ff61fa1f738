//! Interpreters of several releases of Python, and environments with several of PyTorch, for
//! `cargo xtask test --matrix`.
//!
//! uv creates the environments. It hard-links files that several of them have in common, so that the gigabytes
//! of dependencies of one PyTorch are on the disk only once for all Python releases.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::cache::Cache;
use super::{fetch, python};

/// The folder of the environments and of the downloads of uv.
const FOLDER: &str = "matrix";
/// Packages that the tests need besides PyTorch, in any version that supports the Python release.
const NEEDED: [&str; 3] = ["numpy", "pytest", "safetensors"];
/// Disk usage of one PyTorch for CUDA, including its wheels; measured with 2.13.
const SPACE: u64 = 8_000_000_000;

/// The folder of the matrix.
pub(crate) fn folder(cache: &Cache) -> PathBuf {
    cache.path(FOLDER)
}

/// An interpreter of Python 3.`minor` on this machine: in PATH, from pyenv, or from uv.
pub(crate) fn interpreter(minor: u32) -> Option<PathBuf> {
    let named = [
        format!("python3.{minor}"),
        "python3".to_owned(),
        "/usr/bin/python3".to_owned(),
    ];
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let pyenv = env::var_os("PYENV_ROOT").map_or(home.join(".pyenv"), PathBuf::from);
    let installed = [
        (pyenv.join("versions"), format!("3.{minor}.")),
        (
            home.join(".local/share/uv/python"),
            format!("cpython-3.{minor}."),
        ),
    ];
    let installed = installed
        .iter()
        .flat_map(|(folder, prefix)| folders_in(folder, prefix))
        .map(|folder| folder.join("bin/python3"));
    let mut all = named.into_iter().map(PathBuf::from).chain(installed);
    all.find(|candidate| python::version(candidate) == Some((3, minor)))
}

fn folders_in(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let found = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let mut found: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// The interpreter of an environment with this PyTorch, or the reason why it cannot be created.
///
/// # Errors
/// If uv cannot be run, or the disk is full.
pub(crate) fn make(
    cache: &Cache,
    uv: &Path,
    interpreter: &Path,
    (name, torch): (&str, &str),
) -> Result<Result<PathBuf, String>> {
    let _lock = cache.lock()?;
    let environment = folder(cache).join(name);
    let python = environment.join("bin/python");
    fetch::require_space(&cache.path("."), SPACE)?;
    let run = |arguments: &[&Path]| -> Result<Result<(), String>> {
        let output = Command::new(uv)
            .args(arguments)
            // The user's config could set another index, or another folder.
            .arg("--no-config")
            .env("UV_CACHE_DIR", folder(cache).join("uv"))
            // Use the system's certificates, as pip does.
            .env("UV_NATIVE_TLS", "1")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run `{}`", uv.display()))?;
        Ok(match output.status.success() {
            true => Ok(()),
            false => Err(last_words(&String::from_utf8_lossy(&output.stderr))),
        })
    };
    let made = run(&[
        "venv".as_ref(),
        "--clear".as_ref(),
        "--python".as_ref(),
        interpreter,
        &environment,
    ])?;
    if let Err(why) = made {
        return Ok(Err(why));
    }
    let torch = PathBuf::from(format!("torch=={torch}"));
    let mut arguments: Vec<&Path> = ["pip", "install", "--python"].map(Path::new).to_vec();
    arguments.extend([python.as_path(), torch.as_path()]);
    arguments.extend(NEEDED.map(Path::new));
    Ok(run(&arguments)?.map(|()| python))
}

/// The last output of a program, on one line.
fn last_words(said: &str) -> String {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<&str> = lines.collect();
    lines[lines.len().saturating_sub(3)..].join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_found_by_the_beginning_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["3.1.0", "3.11.7", "3.11.2", "3.12.1"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let found = folders_in(folder.path(), "3.11.");
        let names: Vec<_> = found.iter().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["3.11.2", "3.11.7"]);
        assert!(folders_in(&folder.path().join("gone"), "3.").is_empty());
    }

    #[test]
    fn the_last_words_are_one_line() {
        assert_eq!(last_words("a\nb\n\n  c\nd\n"), "b c d");
        assert_eq!(last_words(""), "");
    }
}
