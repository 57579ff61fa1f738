//! The page in the crate is the one that its sources gave.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn manifest(part: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(folder().join("bundle.json")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(manifest[part].clone()).unwrap()
}

/// SHA-256 of every file below a folder of the crate, by its path there.
fn hashes(name: &str) -> BTreeMap<String, String> {
    let root = folder().join(name);
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let digest = Sha256::digest(fs::read(&path).unwrap());
            let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let name = path.strip_prefix(&root).unwrap();
            found.insert(name.to_string_lossy().into_owned(), digest);
        }
    }
    found
}

#[test]
fn the_bundle_is_complete_and_unchanged() {
    let files = hashes("dist");
    assert!(files.contains_key("index.html"));
    assert_eq!(files, manifest("files"), "run `cargo xtask ui`");
}

#[test]
fn the_sources_are_those_that_the_bundle_was_made_from() {
    let sources: BTreeMap<String, String> = hashes("web/src")
        .into_iter()
        .map(|(path, hash)| (format!("src/{path}"), hash))
        .collect();
    let wanted = manifest("sources");
    for (path, hash) in &sources {
        assert_eq!(wanted.get(path), Some(hash), "{path}: run `cargo xtask ui`");
    }
    for (path, hash) in &wanted {
        let found = Sha256::digest(fs::read(folder().join("web").join(path)).unwrap());
        let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&found, hash, "{path}: run `cargo xtask ui`");
    }
}

#[test]
fn packages_are_pinned_and_no_registry_is_named() {
    let lock = fs::read_to_string(folder().join("web/package-lock.json")).unwrap();
    assert!(
        !lock.contains("resolved"),
        "package-lock.json names a registry"
    );
    let lock: Value = serde_json::from_str(&lock).unwrap();
    for (name, package) in lock["packages"].as_object().unwrap() {
        assert!(
            name.is_empty() || package["integrity"].is_string(),
            "{name} has no hash"
        );
    }
}

#[test]
fn text_is_never_markup() {
    let mut checked = 0;
    for path in hashes("web/src").keys() {
        let text = fs::read_to_string(folder().join("web/src").join(path)).unwrap();
        for way in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "eval(",
        ] {
            assert!(!text.contains(way), "{path} uses {way}");
        }
        checked += 1;
    }
    assert!(checked > 5);
}

#[test]
fn nothing_is_started_but_surefoot_and_the_server_starts_nothing() {
    let mut checked = 0;
    for path in hashes("src").keys() {
        let text = fs::read_to_string(folder().join("src").join(path)).unwrap();
        // Tests start what stands for a run.
        if path.starts_with("server/tests_") {
            continue;
        }
        // Where the queue starts its worker and the trainer, the program is the one that the command line gave.
        let may_start = matches!(
            path.as_str(),
            "queue.rs" | "queue/check.rs" | "queue/generate.rs"
        );
        for way in [
            "process::Command",
            "Command::new",
            "process::{Command",
            "execv",
        ] {
            assert!(may_start || !text.contains(way), "{path} uses {way}");
        }
        let starts = text.matches("Command::new(").count();
        assert_eq!(
            starts,
            text.matches("Command::new(program)").count(),
            "{path}"
        );
        assert!(!text.contains("\"sh\""), "{path} uses a shell");
        checked += 1;
    }
    assert!(checked > 10);
}
