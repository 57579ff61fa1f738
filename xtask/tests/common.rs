//! Helpers shared by the repository's checks.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// All files of the repository with one of these extensions, as git lists them: tracked files, and new ones
/// that are not ignored.
pub(crate) fn files(extensions: &[&str]) -> Vec<PathBuf> {
    let output = run(Command::new("git").current_dir(root()).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
    ]));
    let wanted = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| extensions.contains(&extension))
    };
    let paths = output.lines().map(PathBuf::from).filter(wanted);
    // Git still lists a file that is deleted but not committed.
    paths.filter(|path| root().join(path).exists()).collect()
}

/// The text of a file of the repository.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The output of `cargo metadata`, with or without the dependency graph.
pub(crate) fn metadata(more: &[&str]) -> serde_json::Value {
    let mut cargo = cargo();
    cargo.args(["metadata", "--format-version=1"]).args(more);
    serde_json::from_str(&run(&mut cargo)).unwrap()
}

/// The cargo that runs this test.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root());
    cargo
}

/// The standard output of a command that must succeed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Fails if there are findings, and lists them one per line.
#[track_caller]
pub(crate) fn assert_none(rule: &str, findings: Vec<String>) {
    assert!(
        findings.is_empty(),
        "{rule}:\n  {}\n",
        findings.join("\n  ")
    );
}
