//! Requirements of crates.io for the crates that can be published.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{assert_none, metadata};
use serde_json::Value;

/// The crates that are not published.
const PRIVATE: [&str; 4] = ["device-sim", "harness", "torch-sys", "xtask"];

#[test]
fn every_crate_but_the_private_ones_can_be_published() {
    let metadata = metadata(&["--no-deps"]);
    let mut private: Vec<&str> = packages(&metadata)
        .filter(|package| !package["publish"].is_null())
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    private.sort_unstable();
    assert_eq!(private, PRIVATE);
}

#[test]
fn published_crates_say_what_a_registry_shows() {
    let metadata = metadata(&["--no-deps"]);
    let mut findings = Vec::new();
    for package in published(&metadata) {
        let name = package["name"].as_str().unwrap();
        for key in ["description", "repository", "readme", "license"] {
            if package[key].as_str().is_none_or(str::is_empty) {
                findings.push(format!("{name} has no {key}"));
            }
        }
        for key in ["keywords", "categories"] {
            // crates.io accepts at most five of each.
            if !(1..=5).contains(&package[key].as_array().unwrap().len()) {
                findings.push(format!("{name} must have one to five {key}"));
            }
        }
        if !folder(package).join("README.md").is_file() {
            findings.push(format!("{name} has no README.md"));
        }
    }
    assert_none("crates with incomplete metadata", findings);
}

#[test]
fn the_readme_of_a_library_says_how_to_depend_on_it() {
    let metadata = metadata(&["--no-deps"]);
    let mut findings = Vec::new();
    for package in published(&metadata).filter(|package| package["default_run"].is_null()) {
        let name = package["name"].as_str().unwrap();
        let version = package["version"].as_str().unwrap();
        let minor = version.rsplit_once('.').unwrap().0;
        let readme = fs::read_to_string(folder(package).join("README.md")).unwrap();
        if !readme.contains(&format!("\n{name} = \"{minor}\"\n")) {
            findings.push(format!("{name}: no line `{name} = \"{minor}\"`"));
        }
    }
    assert_none("READMEs without the dependency", findings);
}

#[test]
fn dependencies_on_each_other_have_a_version() {
    let metadata = metadata(&["--no-deps"]);
    let mut findings = Vec::new();
    for package in published(&metadata) {
        for dependency in package["dependencies"].as_array().unwrap() {
            // Without a version, cargo leaves a dev-dependency out of the package.
            let for_tests = dependency["kind"] == "dev";
            if !dependency["path"].is_null() && dependency["req"] == "*" && !for_tests {
                findings.push(format!("{}: {}", package["name"], dependency["name"]));
            }
        }
    }
    assert_none("dependencies that a registry cannot resolve", findings);
}

#[test]
fn no_crate_includes_a_file_from_outside_its_folder() {
    let metadata = metadata(&["--no-deps"]);
    let mut findings = Vec::new();
    for package in published(&metadata) {
        let folder = folder(package);
        let mut sources = vec![folder.join("build.rs")];
        collect(&folder.join("src"), &mut sources);
        for source in sources.iter().filter(|source| source.is_file()) {
            let text = fs::read_to_string(source).unwrap();
            let calls = ["include_str!(", "include_bytes!(", "include!(", "#[path ="];
            for argument in calls.iter().flat_map(|call| text.split(call).skip(1)) {
                // The first string is the path, or its beginning.
                let path = argument.split('"').nth(1).unwrap_or_default();
                let depth = source.strip_prefix(&folder).unwrap().components().count() - 1;
                if path.matches("../").count() > depth {
                    findings.push(format!("{}: {path}", source.display()));
                }
            }
        }
    }
    assert_none("files that would be missing from a package", findings);
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().unwrap().iter()
}

fn published(metadata: &Value) -> impl Iterator<Item = &Value> {
    packages(metadata).filter(|package| package["publish"].is_null())
}

fn folder(package: &Value) -> PathBuf {
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    manifest.parent().unwrap().to_owned()
}

/// Every Rust file below a folder.
fn collect(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => collect(&path, sources),
            false if path.extension().is_some_and(|kind| kind == "rs") => sources.push(path),
            false => {}
        }
    }
}
