//! The handbook is complete, and no link in the documents is broken.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::common::{assert_none, files, read, root, run};

#[test]
fn the_config_reference_is_what_the_schema_gives() {
    run(Command::new(env!("CARGO_BIN_EXE_xtask")).args(["handbook", "--check"]));
}

#[test]
fn the_summary_lists_every_page_of_the_handbook() {
    let summary = read("docs/SUMMARY.md");
    let listed: BTreeSet<PathBuf> = links(&summary)
        .map(|(_, link)| PathBuf::from("docs").join(link))
        .collect();
    let pages = files(&["md"]);
    let pages: BTreeSet<PathBuf> = pages
        .into_iter()
        .filter(|path| path.parent() == Some(Path::new("docs")) && !path.ends_with("SUMMARY.md"))
        .collect();
    assert_eq!(listed, pages);
}

#[test]
fn links_between_files_lead_somewhere() {
    let mut findings = Vec::new();
    let mut checked = 0;
    for document in files(&["md"]) {
        let text = read(&document);
        for (line, link) in links(&text) {
            let file = link.split('#').next().unwrap_or_default();
            if link.contains("://") || file.is_empty() {
                continue;
            }
            checked += 1;
            let target = document.parent().unwrap().join(file);
            if !root().join(&target).exists() || leaves_the_repository(&target) {
                findings.push(format!("{}:{line}: {link}", document.display()));
            }
        }
    }
    assert!(checked > 0, "no document has a link");
    assert_none("links that lead nowhere", findings);
}

#[test]
fn links_are_found() {
    let found: Vec<_> = links("[a](b.md)\n```sh\n[c](d)\n```\n`[e](f)` ![g](h.svg)").collect();
    assert_eq!(found, [(1, "b.md"), (5, "h.svg")]);
}

/// The targets of links and pictures in a Markdown text, each with its line. Code has none.
fn links(markdown: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    let lines = markdown.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    lines.flat_map(|(number, line)| {
        // Between back-ticks is code: the odd pieces.
        let prose = line.split('`').step_by(2);
        prose.flat_map(move |piece| {
            let targets = piece.split("](").skip(1);
            targets.filter_map(move |target| Some((number + 1, target.split_once(')')?.0)))
        })
    })
}

/// Whether a path goes up beyond the folder that it starts in.
fn leaves_the_repository(path: &Path) -> bool {
    let mut depth = 0_i32;
    path.components().any(|component| {
        depth += match component {
            Component::ParentDir => -1,
            Component::Normal(_) => 1,
            _ => 0,
        };
        depth < 0
    })
}
