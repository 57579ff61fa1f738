//! The licences of all packages that are linked into the program and the library, and a list of these packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xshell::{Shell, cmd};

use crate::workspace;

/// Names of the files that licences require to be distributed.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// Packages of this workspace that are linked into a distribution.
pub(super) struct Shipped {
    /// The name of the distribution on PyPI.
    pub(super) name: &'static str,
    /// A description of its files with code.
    pub(super) files: &'static str,
    /// Its target triple.
    pub(super) target: &'static str,
    /// Cargo options that select the packages and their features.
    pub(super) options: &'static [&'static str],
}

/// A Markdown text: each package with its licence, then each licence text once with its packages.
///
/// # Errors
/// If a package has neither a licence in its manifest nor a licence file.
pub(super) fn text(shell: &Shell, shipped: &Shipped) -> Result<String> {
    let folders = folders(shell)?;
    let mut packages = String::new();
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (package, licence) in linked(shell, shipped)? {
        let folder = folders
            .get(&package)
            .with_context(|| format!("cargo lists no folder for {package}"))?;
        let files = licence_files(folder)?;
        ensure!(
            !licence.is_empty() || !files.is_empty(),
            "{package} does not state its licence"
        );
        packages.push_str(&format!("- {package}: {licence}\n"));
        for file in files {
            let text = String::from_utf8_lossy(&fs::read(&file)?).replace("\r\n", "\n");
            texts
                .entry(text.trim().to_owned())
                .or_default()
                .insert(package.clone());
        }
    }
    let mut all = format!(
        "# Licences of third parties\n\nRust packages that are linked into {}. \
         Where one offers a choice, it is used under the MIT licence if that is among them.\n\n{packages}",
        shipped.files
    );
    for (text, packages) in &texts {
        let names: Vec<&str> = packages.iter().map(String::as_str).collect();
        all.push_str(&format!(
            "\n## {}\n\n~~~text\n{text}\n~~~\n",
            names.join(", ")
        ));
    }
    Ok(all)
}

/// The same packages as a software bill of materials in CycloneDX format, as PEP 770 specifies for wheels.
pub(super) fn sbom(shell: &Shell, shipped: &Shipped) -> Result<String> {
    let name = shipped.name;
    let components: Vec<Value> = linked(shell, shipped)?
        .iter()
        .map(|(package, licence)| {
            let (name, version) = package.split_once(' ').unwrap_or((package, ""));
            // Older manifests write `MIT/Apache-2.0`, which is not a valid SPDX expression.
            let licence = licence.replace(" / ", " OR ").replace('/', " OR ");
            json!({
                "type": "library",
                "name": name,
                "version": version,
                "purl": format!("pkg:cargo/{name}@{version}"),
                "licenses": [{ "expression": licence }],
            })
        })
        .collect();
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "name": name,
            "version": super::release(),
            "purl": format!("pkg:pypi/{name}@{}", super::release()),
        } },
        "components": components,
    });
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

/// Each linked third-party package, as `name version`, and its licence.
fn linked(shell: &Shell, shipped: &Shipped) -> Result<BTreeMap<String, String>> {
    let cargo = workspace::cargo();
    let Shipped {
        options, target, ..
    } = *shipped;
    let format = "{p}|{l}";
    let tree = cmd!(
        shell,
        "{cargo} tree --locked {options...} --edges normal --target {target} --prefix none --no-dedupe --format {format}"
    );
    let said = tree.quiet().read()?;
    let lines = said.lines().filter_map(|line| line.split_once('|'));
    Ok(lines
        // Packages of this workspace are listed with their folder.
        .filter(|(package, _)| !package.contains("(/"))
        .map(|(package, licence)| (name_and_version(package), licence.to_owned()))
        .collect())
}

/// `serde 1.0.229` of `serde v1.0.229 (proc-macro)`.
fn name_and_version(package: &str) -> String {
    let mut words = package.split(' ');
    let name = words.next().unwrap_or_default();
    let version = words.next().unwrap_or_default().trim_start_matches('v');
    format!("{name} {version}")
}

/// The folder of each package in the output of `cargo metadata`, by `name version`.
fn folders(shell: &Shell) -> Result<BTreeMap<String, PathBuf>> {
    let cargo = workspace::cargo();
    let metadata = cmd!(shell, "{cargo} metadata --locked --format-version=1");
    let metadata: Value = serde_json::from_str(&metadata.quiet().read()?)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    packages
        .iter()
        .map(|package| {
            let text = |key: &str| package[key].as_str().context("cargo metadata has changed");
            let manifest = Path::new(text("manifest_path")?);
            Ok((
                format!("{} {}", text("name")?, text("version")?),
                manifest.parent().unwrap_or(manifest).to_owned(),
            ))
        })
        .collect()
}

fn licence_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_uppercase();
        if path.is_file() && NAMES.iter().any(|known| name.starts_with(known)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_known_by_name_and_version() {
        assert_eq!(name_and_version("serde v1.0.229"), "serde 1.0.229");
        assert_eq!(
            name_and_version("thiserror-impl v2.0.21 (proc-macro)"),
            "thiserror-impl 2.0.21"
        );
    }
}
