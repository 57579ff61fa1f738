//! The packages that a change can reach: those of the files that differ, and all that depend on them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::workspace;

/// Files that belong to no package, or to others as well, by how their path begins: whose tests read them. All
/// other files outside packages (`Cargo.toml`, `third_party`) concern every package.
const ALSO: [(&str, &[&str]); 10] = [
    (".ci/", &[]),
    ("bench/", &[]),
    ("configs/", &["surefoot-trainer"]),
    ("crates/hip-alloc/", &["hip-alloc", "torch-ext"]),
    ("docs/transfer-vectors.json", &["surefoot-placement"]),
    ("docs/", &[]),
    ("fuzz/", &[]),
    ("python/", &["surefoot"]),
    ("tests/corpus/", &["surefoot-doctor"]),
    ("tests/reference/", &["surefoot-models"]),
];

/// Reads the whole repository.
const ALWAYS: &str = "xtask";

/// A package of the workspace.
struct Package {
    name: String,
    /// Its folder below the root, with a slash at the end.
    folder: String,
    /// The packages of the workspace that it or its tests depend on.
    uses: Vec<String>,
}

/// The names of the packages that the changes since `revision` can reach.
pub(super) fn packages(shell: &Shell, revision: &str) -> Result<BTreeSet<String>> {
    let changed = cmd!(shell, "git diff --name-only {revision} --").read()?;
    let new = cmd!(shell, "git ls-files --others --exclude-standard").read()?;
    let cargo = workspace::cargo();
    let metadata = cmd!(shell, "{cargo} metadata --format-version=1 --no-deps");
    let metadata: Value = serde_json::from_str(&metadata.quiet().read()?)?;
    let packages = read(&metadata, workspace::root()).context("the output of `cargo metadata`")?;
    Ok(reached(&packages, changed.lines().chain(new.lines())))
}

fn read(metadata: &Value, root: &Path) -> Option<Vec<Package>> {
    let packages = metadata["packages"].as_array()?.iter().map(|package| {
        let manifest = Path::new(package["manifest_path"].as_str()?);
        let folder = manifest.parent()?.strip_prefix(root).ok()?;
        let dependencies = package["dependencies"].as_array()?.iter();
        let ours = dependencies.filter(|dependency| !dependency["path"].is_null());
        Some(Package {
            name: package["name"].as_str()?.to_owned(),
            folder: format!("{}/", folder.display()),
            uses: ours
                .filter_map(|dependency| Some(dependency["name"].as_str()?.to_owned()))
                .collect(),
        })
    });
    packages.collect()
}

fn reached<'a>(packages: &[Package], files: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let mut reached = BTreeSet::from([ALWAYS.to_owned()]);
    for file in files {
        let owner = packages
            .iter()
            .find(|package| file.starts_with(&package.folder));
        if let Some((_, readers)) = ALSO.iter().find(|(start, _)| file.starts_with(start)) {
            reached.extend(readers.iter().map(|name| (*name).to_owned()));
        } else if let Some(owner) = owner {
            reached.insert(owner.name.clone());
        } else if !file.ends_with(".md") {
            return packages
                .iter()
                .map(|package| package.name.clone())
                .collect();
        }
    }
    loop {
        let users = packages.iter().filter(|package| {
            !reached.contains(&package.name)
                && package.uses.iter().any(|used| reached.contains(used))
        });
        let users: Vec<String> = users.map(|package| package.name.clone()).collect();
        if users.is_empty() {
            return reached;
        }
        reached.extend(users);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached_by(files: &[&str]) -> Vec<String> {
        let package = |name: &str, folder: &str, uses: &[&str]| Package {
            name: name.to_owned(),
            folder: folder.to_owned(),
            uses: uses.iter().map(|used| (*used).to_owned()).collect(),
        };
        let packages = [
            package("a", "crates/a/", &[]),
            package("b", "crates/b/", &["a"]),
            package("c", "crates/c/", &["b"]),
            package("surefoot", "crates/cli/", &["a"]),
            package("xtask", "xtask/", &[]),
        ];
        reached(&packages, files.iter().copied())
            .into_iter()
            .collect()
    }

    #[test]
    fn a_change_reaches_its_package_and_those_that_depend_on_it() {
        assert_eq!(reached_by(&["crates/c/src/lib.rs"]), ["c", "xtask"]);
        assert_eq!(reached_by(&["crates/b/a.rs"]), ["b", "c", "xtask"]);
        assert_eq!(reached_by(&["crates/a/a.rs"]).len(), 5);
    }

    #[test]
    fn files_outside_packages_reach_who_reads_them() {
        assert_eq!(reached_by(&["README.md", "docs/trainer.md"]), ["xtask"]);
        assert_eq!(
            reached_by(&["python/sitecustomize.py"]),
            ["surefoot", "xtask"]
        );
        assert_eq!(reached_by(&["docs/a.md", "Cargo.lock"]).len(), 5);
        assert_eq!(reached_by(&[]), ["xtask"]);
    }

    #[test]
    fn the_packages_named_here_exist() {
        let shell = workspace::shell().unwrap();
        let all = packages(&shell, "HEAD").unwrap();
        assert!(all.contains(ALWAYS));
        let cargo = workspace::cargo();
        let metadata = cmd!(shell, "{cargo} metadata --format-version=1 --no-deps");
        let metadata: Value = serde_json::from_str(&metadata.quiet().read().unwrap()).unwrap();
        let packages = read(&metadata, workspace::root()).unwrap();
        for name in ALSO.iter().flat_map(|(_, readers)| readers.iter()) {
            assert!(
                packages.iter().any(|package| package.name == *name),
                "{name}"
            );
        }
    }
}
