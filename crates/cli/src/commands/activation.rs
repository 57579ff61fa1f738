//! Switching hip-alloc on in a child: the Python part that this binary carries, the
//! library, and the variables.

use anyhow::Context;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use surefoot_cli::cache;
use surefoot_cli::output::Failure;

/// The folder `python/` of this project: path and content.
const FILES: &[(&str, &str)] = &[
    (
        "sitecustomize.py",
        include_str!("../../../../python/sitecustomize.py"),
    ),
    (
        "surefoot_activate/__init__.py",
        include_str!("../../../../python/surefoot_activate/__init__.py"),
    ),
    (
        "surefoot_activate/__main__.py",
        include_str!("../../../../python/surefoot_activate/__main__.py"),
    ),
    (
        "surefoot_activate/_answers.py",
        include_str!("../../../../python/surefoot_activate/_answers.py"),
    ),
    (
        "surefoot_activate/_errors.py",
        include_str!("../../../../python/surefoot_activate/_errors.py"),
    ),
    (
        "surefoot_activate/_features.py",
        include_str!("../../../../python/surefoot_activate/_features.py"),
    ),
    (
        "surefoot_activate/_history.py",
        include_str!("../../../../python/surefoot_activate/_history.py"),
    ),
    (
        "surefoot_activate/_hook.py",
        include_str!("../../../../python/surefoot_activate/_hook.py"),
    ),
    (
        "surefoot_activate/_install.py",
        include_str!("../../../../python/surefoot_activate/_install.py"),
    ),
    (
        "surefoot_activate/_installer.py",
        include_str!("../../../../python/surefoot_activate/_installer.py"),
    ),
    (
        "surefoot_activate/_library.py",
        include_str!("../../../../python/surefoot_activate/_library.py"),
    ),
    (
        "surefoot_activate/_refusals.py",
        include_str!("../../../../python/surefoot_activate/_refusals.py"),
    ),
    (
        "surefoot_activate/_summary.py",
        include_str!("../../../../python/surefoot_activate/_summary.py"),
    ),
    (
        "surefoot_placement/__init__.py",
        include_str!("../../../../python/surefoot_placement/__init__.py"),
    ),
    (
        "surefoot_placement/_checksum.py",
        include_str!("../../../../python/surefoot_placement/_checksum.py"),
    ),
    (
        "surefoot_placement/_ladder.py",
        include_str!("../../../../python/surefoot_placement/_ladder.py"),
    ),
    (
        "surefoot_placement/_mover.py",
        include_str!("../../../../python/surefoot_placement/_mover.py"),
    ),
    (
        "surefoot_placement/_parts.py",
        include_str!("../../../../python/surefoot_placement/_parts.py"),
    ),
    (
        "surefoot_placement/_prepare.py",
        include_str!("../../../../python/surefoot_placement/_prepare.py"),
    ),
    (
        "surefoot_placement/_report.py",
        include_str!("../../../../python/surefoot_placement/_report.py"),
    ),
    (
        "surefoot_placement/_wishes.py",
        include_str!("../../../../python/surefoot_placement/_wishes.py"),
    ),
];

/// Sets `HIP_ALLOC`, `HIP_ALLOC_LIB` and `PYTHONPATH` for a child.
pub(super) fn activate(command: &mut Command) -> Result<(), Failure> {
    let library = library()?;
    let folder = unpack()?;
    // Ours must come first: Python imports the first `sitecustomize` that it finds,
    // and ours runs the one that it hides.
    let mut paths = vec![folder];
    paths.extend(
        std::env::var_os("PYTHONPATH")
            .iter()
            .flat_map(std::env::split_paths),
    );
    let joined = std::env::join_paths(paths).context("PYTHONPATH")?;
    command
        .env("HIP_ALLOC", "1")
        .env("HIP_ALLOC_LIB", library)
        .env("PYTHONPATH", joined);
    Ok(())
}

/// `HIP_ALLOC_LIB`, else the library beside this executable.
pub(super) fn library() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("HIP_ALLOC_LIB").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(Failure::usage(format_args!(
                "HIP_ALLOC_LIB={}: there is no such file",
                path.display()
            )))
        };
    }
    let name = format!(
        "{}hip_alloc{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    let here = std::env::current_exe().context("cannot tell where this executable is")?;
    let candidates = [
        here.with_file_name(&name),
        here.with_file_name("deps").join(&name),
    ];
    candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        Failure::usage(format_args!("`{name}` is not beside `{}`: build it with `cargo build -p hip-alloc`, or set HIP_ALLOC_LIB", here.display()))
    })
}

/// Writes the Python files into the cache, once a version of this binary.
pub(super) fn unpack() -> Result<PathBuf, Failure> {
    let folder = cache::folder().join("python").join(fingerprint());
    if folder.join("sitecustomize.py").is_file() {
        return Ok(folder);
    }
    // Two runs may unpack at once: each into a folder of its own, then into place.
    let parent = folder.parent().unwrap_or(Path::new("."));
    let temporary = parent.join(format!("unpacking-{}", std::process::id()));
    for (path, text) in FILES {
        let path = temporary.join(path);
        let parent = path.parent().unwrap_or(&temporary);
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if fs::rename(&temporary, &folder).is_err() {
        // The other one was first; its files are the same.
        let _ = fs::remove_dir_all(&temporary);
    }
    if folder.join("sitecustomize.py").is_file() {
        Ok(folder)
    } else {
        Err(Failure::Job(anyhow::anyhow!(
            "cannot unpack the Python part into {}",
            folder.display()
        )))
    }
}

/// Changes with the files, so that an update never meets old ones.
fn fingerprint() -> String {
    cache::fingerprint(
        FILES
            .iter()
            .flat_map(|(path, text)| path.bytes().chain(text.bytes())),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_carries_every_file_of_the_folder() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
        let mut expected = vec!["sitecustomize.py".to_owned()];
        for package in ["surefoot_activate", "surefoot_placement"] {
            for entry in fs::read_dir(root.join(package)).expect("the folder") {
                let name = entry.expect("an entry").file_name();
                let name = name.into_string().expect("a name");
                if name.ends_with(".py") {
                    expected.push(format!("{package}/{name}"));
                }
            }
        }
        expected.sort();
        let mut carried: Vec<&str> = FILES.iter().map(|(path, _)| *path).collect();
        carried.sort_unstable();
        assert_eq!(carried, expected);
    }
}
