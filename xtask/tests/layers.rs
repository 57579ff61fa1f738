//! Rules that are checked on what cargo builds: the dependencies between packages, and what artefacts link
//! to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{assert_none, cargo, files, metadata, read, run};
use serde_json::Value;

/// The allowed dependencies between packages. Tests may also use `device-sim`.
const MAY_USE: [(&str, &[&str]); 15] = [
    ("alloc-lab", &["hip-alloc", "surefoot-platform"]),
    ("device-sim", &[]),
    ("harness", &["surefoot-placement", "torch-ext"]),
    ("hip-alloc", &["surefoot-platform"]),
    ("surefoot-placement", &["surefoot-platform", "torch-ext"]),
    (
        "surefoot",
        &[
            "alloc-lab",
            "hip-alloc",
            "surefoot-doctor",
            "surefoot-placement",
            "surefoot-platform",
            "surefoot-trainer",
            "surefoot-ui",
            "torch-ext",
        ],
    ),
    ("surefoot-doctor", &["surefoot-platform"]),
    ("surefoot-kernels", &["surefoot-platform"]),
    (
        "surefoot-models",
        &[
            "surefoot-kernels",
            "surefoot-placement",
            "surefoot-platform",
            "torch-ext",
        ],
    ),
    ("surefoot-platform", &[]),
    ("torch-ext", &["surefoot-platform", "torch-sys"]),
    ("torch-sys", &[]), // ours, which has the name of what it replaces
    (
        "surefoot-trainer",
        &[
            "surefoot-models",
            "surefoot-placement",
            "surefoot-platform",
            "torch-ext",
        ],
    ),
    ("surefoot-ui", &["surefoot-doctor", "surefoot-platform"]),
    ("xtask", &[]),
];

/// The only packages that may depend on libtorch, directly or not.
const MAY_REACH_LIBTORCH: [&str; 7] = [
    "harness",
    "surefoot-placement",
    "surefoot",
    "surefoot-models",
    "torch-ext",
    "surefoot-trainer",
    "torch-sys",
];

#[test]
fn packages_depend_only_on_whom_they_may() {
    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<&str> = packages
        .iter()
        .map(|package| text(&package["name"]))
        .collect();
    let mut findings = Vec::new();
    for package in packages {
        let name = text(&package["name"]);
        let Some((_, allowed)) = MAY_USE.iter().find(|(user, _)| *user == name) else {
            findings.push(format!("{name} is in no table"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = text(&dependency["name"]);
            // A crate's own tests may enable its features.
            let for_tests = dependency["kind"] == "dev" && [name, "device-sim"].contains(&used);
            if ours.contains(used) && !allowed.contains(&used) && !for_tests {
                findings.push(format!("{name} uses {used}"));
            }
        }
    }
    assert_none("dependencies that the design does not have", findings);
}

#[test]
fn only_the_crates_named_here_reach_libtorch() {
    let metadata = metadata(&[]);
    let graph = graph(&metadata);
    let members = metadata["workspace_members"].as_array().unwrap().iter();
    let findings = members.map(text).filter_map(|member| {
        let name = graph.names[member];
        let reaches = graph.reach(member).contains("torch-sys");
        (reaches && !MAY_REACH_LIBTORCH.contains(&name)).then(|| name.to_owned())
    });
    assert_none(
        "packages that must be built without libtorch",
        findings.collect(),
    );
}

#[test]
fn no_artefact_needs_a_hip_runtime() {
    // Two HIP runtimes in one process are a disaster, and a PyTorch wheel brings its own.
    for artefact in artefacts() {
        let needed = needed_libraries(&artefact);
        let hip = needed.iter().find(|library| library.contains("amdhip"));
        assert_eq!(hip, None, "{}", artefact.display());
    }
}

#[test]
fn the_allocator_needs_no_libtorch() {
    let needed = needed_libraries(&artefact("libhip_alloc.so"));
    let torch = needed
        .iter()
        .find(|library| library.contains("torch") || library.contains("c10"));
    assert_eq!(torch, None);
}

#[test]
fn the_doctor_starts_without_libtorch() {
    let needed = needed_libraries(&artefact("surefoot"));
    let torch = needed
        .iter()
        .find(|library| library.contains("torch") || library.contains("c10"));
    assert_eq!(torch, None);
}

#[test]
fn the_trainer_does_need_libtorch() {
    // Otherwise the two tests above would also pass on a misread `readelf`.
    let needed = needed_libraries(&artefact("surefoot-trainer"));
    assert!(
        needed.iter().any(|library| library.contains("torch")),
        "{needed:?}"
    );
}

#[test]
fn commands_in_the_documents_exist() {
    let programs = BTreeMap::from([
        ("cargo xtask ", PathBuf::from(env!("CARGO_BIN_EXE_xtask"))),
        ("surefoot ", artefact("surefoot")),
    ]);
    let mut findings = Vec::new();
    let mut checked = 0;
    for document in files(&["md"]) {
        let text = read(&document);
        for line in shell_lines(&text) {
            let Some((start, program)) =
                programs.iter().find(|(start, _)| line.starts_with(**start))
            else {
                continue;
            };
            checked += 1;
            let words = line[start.len()..]
                .split(['#', '|', '>'])
                .next()
                .unwrap_or("");
            if let Err(problem) = understands(program, words) {
                findings.push(format!("{}: `{line}`: {problem}", document.display()));
            }
        }
    }
    assert!(checked > 0, "no document shows a command");
    assert_none("commands that do not exist", findings);
}

/// The lines of shell blocks in a Markdown text.
fn shell_lines(markdown: &str) -> impl Iterator<Item = &str> {
    let mut shell = false;
    markdown.lines().map(str::trim).filter(move |line| {
        if let Some(language) = line.strip_prefix("```") {
            shell = !shell && ["sh", "bash", "console"].contains(&language);
            return false;
        }
        shell
    })
}

/// Whether `program` has the subcommand and the options of a command line.
fn understands(program: &Path, words: &str) -> Result<(), String> {
    let words: Vec<&str> = words
        .split_whitespace()
        .take_while(|word| *word != "--")
        .collect();
    let subcommand = words.first().ok_or("no subcommand")?;
    let has_subcommands = ["bench", "export", "runs"].contains(subcommand);
    let nested = words.get(1).filter(|_| has_subcommands);
    let help = Command::new(program)
        .arg(subcommand)
        .args(nested)
        .arg("--help")
        .output()
        .map_err(|error| error.to_string())?;
    if !help.status.success() {
        return Err("there is no such subcommand".to_owned());
    }
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let options = words.iter().filter(|word| word.starts_with("--"));
    let mut names = options.map(|option| option.split('=').next().unwrap_or(option));
    match names.find(|name| !help.contains(*name)) {
        Some(name) => Err(format!("`{name}` is not in its help")),
        None => Ok(()),
    }
}

/// Every program and shared library of ours, freshly built.
fn artefacts() -> Vec<PathBuf> {
    let messages = run(cargo().args(["build", "--workspace", "--message-format=json"]));
    let mut artefacts = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).unwrap();
        let ours = text(&message["package_id"]).starts_with("path+");
        for file in message["filenames"]
            .as_array()
            .into_iter()
            .flatten()
            .map(text)
        {
            if ours && (file.ends_with(".so") || message["executable"] == file) {
                artefacts.push(PathBuf::from(file));
            }
        }
    }
    // Build scripts are programs too, but they are not shipped.
    artefacts.retain(|file| !file.to_string_lossy().contains("build-script"));
    artefacts
}

fn artefact(name: &str) -> PathBuf {
    let all = artefacts();
    let found = all
        .iter()
        .find(|file| file.file_name().is_some_and(|file| file == name));
    found
        .unwrap_or_else(|| panic!("no `{name}` among {all:?}"))
        .clone()
}

/// The `DT_NEEDED` entries of an ELF file.
fn needed_libraries(file: &Path) -> Vec<String> {
    let dynamic = run(Command::new("readelf")
        .arg("--dynamic")
        .arg("--wide")
        .arg(file));
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let library = |line: &str| Some(line.rsplit_once('[')?.1.trim_end_matches(']').to_owned());
    let libraries: Vec<String> = needed.filter_map(library).collect();
    assert!(
        !libraries.is_empty(),
        "{} needs not even libc?",
        file.display()
    );
    libraries
}

/// Otherwise the trainer is compiled once to be run and once more to be tested.
#[test]
fn what_is_built_is_what_is_tested() {
    let units = |command: &str| -> BTreeSet<String> {
        // The graph is an unstable output of the stable cargo.
        let graph = run(cargo().env("RUSTC_BOOTSTRAP", "1").args([
            command,
            "--workspace",
            "-Zunstable-options",
            "--unit-graph",
        ]));
        let graph: Value = serde_json::from_str(&graph).unwrap();
        let built = graph["units"].as_array().unwrap().iter();
        let built = built.filter(|unit| unit["mode"] == "build");
        built
            .map(|unit| {
                let features = &unit["features"];
                format!("{}, {}", text(&unit["pkg_id"]), features)
            })
            .collect()
    };
    let tested = units("test");
    let findings = units("build").difference(&tested).cloned().collect();
    assert_none(
        "features that only `cargo test` enables: ask for them in crates/harness/Cargo.toml, too",
        findings,
    );
}

struct Graph<'a> {
    names: BTreeMap<&'a str, &'a str>,
    uses: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Graph<'a> {
    /// Names of all packages that the package `id` is built with, tests aside.
    fn reach(&self, id: &'a str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            if reached.insert(id) {
                open.extend(&self.uses[id]);
            }
        }
        reached.into_iter().map(|id| self.names[id]).collect()
    }
}

fn graph(metadata: &Value) -> Graph<'_> {
    let packages = metadata["packages"].as_array().unwrap().iter();
    let names = packages.map(|package| (text(&package["id"]), text(&package["name"])));
    let not_for_tests = |dependency: &&Value| {
        let kinds = dependency["dep_kinds"].as_array().unwrap();
        kinds.iter().any(|kind| kind["kind"] != "dev")
    };
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap().iter();
    let uses = nodes.map(|node| {
        let dependencies = node["deps"].as_array().unwrap().iter();
        let used = dependencies
            .filter(not_for_tests)
            .map(|dependency| text(&dependency["pkg"]));
        (text(&node["id"]), used.collect())
    });
    Graph {
        names: names.collect(),
        uses: uses.collect(),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}
