//! No crate has a cycle between its top-level modules: each can be read, tested and replaced together with
//! only the modules below it. Files in one folder may depend on each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::{assert_none, files, metadata, read, root};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, UseTree};

/// For each top-level module, the modules that it uses, each with one place where it does.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

#[test]
fn modules_of_a_crate_form_no_cycle() {
    let mut findings = Vec::new();
    for (name, folder) in crates() {
        let uses = uses(&folder);
        for cycle in cycles(&uses) {
            let edges = cycle.iter().flat_map(|module| {
                let inside = uses[module]
                    .iter()
                    .filter(|(used, _)| cycle.contains(*used));
                inside.map(move |(used, place)| format!("    {module} uses {used}: {place}"))
            });
            let edges: Vec<String> = edges.collect();
            findings.push(format!("{name}:\n{}", edges.join("\n")));
        }
    }
    assert_none("cycles between the modules of a crate", findings);
}

/// A file that no `mod` names is never compiled, so errors in it go unnoticed, and tests in it do not run.
#[test]
fn every_source_file_belongs_to_a_crate() {
    let sources: Vec<String> = files(&["rs"])
        .iter()
        .filter_map(|path| path.to_str().map(str::to_owned))
        .filter(|path| !path.starts_with("fuzz/"))
        .collect();
    let roots = target_roots();
    let mut declared = roots.clone();
    for path in &sources {
        let file = syn::parse_file(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let folder = Path::new(path).parent().unwrap();
        let children = match path.ends_with("/mod.rs") || roots.contains(path) {
            true => folder.to_owned(),
            false => Path::new(path).with_extension(""),
        };
        declare(&file.items, &children, &mut declared);
    }
    let orphans = sources.into_iter().filter(|path| !declared.contains(path));
    assert_none("source files that no `mod` names", orphans.collect());
}

/// The file that each library, program, test, example and build script of the workspace begins with.
fn target_roots() -> BTreeSet<String> {
    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().unwrap().iter();
    let targets = packages.flat_map(|package| package["targets"].as_array().unwrap());
    let paths = targets.map(|target| Path::new(target["src_path"].as_str().unwrap()));
    paths
        .filter_map(|path| Some(path.strip_prefix(root()).ok()?.to_str()?.to_owned()))
        .collect()
}

/// The files that each `mod name;` of `items` may refer to.
fn declare(items: &[Item], children: &Path, declared: &mut BTreeSet<String>) {
    for item in items {
        let Item::Mod(module) = item else { continue };
        let name = module.ident.to_string();
        if let Some((_, items)) = &module.content {
            declare(items, &children.join(name), declared);
            continue;
        }
        let files = [
            children.join(format!("{name}.rs")),
            children.join(name).join("mod.rs"),
        ];
        declared.extend(files.iter().map(|file| file.display().to_string()));
    }
}

/// Name and source folder of each library of the workspace.
fn crates() -> Vec<(String, String)> {
    let roots = files(&["rs"]).into_iter().filter_map(|path| {
        let path = path.to_str()?.to_owned();
        path.strip_suffix("/src/lib.rs").map(str::to_owned)
    });
    roots
        .map(|folder| {
            (
                folder.rsplit('/').next().unwrap().to_owned(),
                format!("{folder}/src"),
            )
        })
        .collect()
}

/// The uses between the modules below `folder`, except in test code.
fn uses(folder: &str) -> Uses {
    let paths: Vec<String> = files(&["rs"])
        .iter()
        .filter_map(|path| path.to_str().map(str::to_owned))
        .filter(|path| path.starts_with(&format!("{folder}/")))
        .collect();
    let parsed: BTreeMap<&String, syn::File> = paths
        .iter()
        .map(|path| {
            let file = syn::parse_file(&read(path));
            (path, file.unwrap_or_else(|error| panic!("{path}: {error}")))
        })
        .collect();
    let root_path = format!("{folder}/lib.rs");
    let exports = parsed.get(&root_path).map(exports).unwrap_or_default();
    let for_tests: Vec<String> = parsed
        .iter()
        .flat_map(|(path, file)| test_files(path, file))
        .collect();
    let mut uses = Uses::new();
    for (path, file) in &parsed {
        let module = module_path(folder, path);
        let is_for_tests = for_tests.iter().any(|prefix| {
            *path == &format!("{prefix}.rs") || path.starts_with(&format!("{prefix}/"))
        });
        let Some(top) = module.first().filter(|_| !is_for_tests) else {
            continue;
        };
        let found = uses.entry(top.clone()).or_default();
        for name in names_at_root(&file.items, module.len()) {
            let target = exports.get(&name).unwrap_or(&name);
            if target != top {
                found
                    .entry(target.clone())
                    .or_insert_with(|| (*path).clone());
            }
        }
    }
    // Names that are not modules (functions of lib.rs, items of a binary) are not nodes.
    let modules: BTreeSet<String> = uses.keys().cloned().collect();
    for used in uses.values_mut() {
        used.retain(|name, _| modules.contains(name));
    }
    uses
}

/// `folder/a/b.rs` is module `a::b`; `folder/a/mod.rs` is `a`; `lib.rs` and `main.rs` are none.
fn module_path(folder: &str, path: &str) -> Vec<String> {
    let relative = path.strip_prefix(folder).unwrap().trim_start_matches('/');
    let parts = relative
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned);
    parts
        .filter(|part| !["lib", "main", "mod"].contains(&part.as_str()))
        .collect()
}

/// Names that `lib.rs` re-exports from its modules: name to module.
fn exports(file: &syn::File) -> BTreeMap<String, String> {
    fn leaves(tree: &UseTree, module: Option<&str>, found: &mut BTreeMap<String, String>) {
        match tree {
            UseTree::Path(path) => {
                let name = path.ident.to_string();
                leaves(&path.tree, module.or(Some(&name)), found);
            }
            UseTree::Group(group) => group
                .items
                .iter()
                .for_each(|tree| leaves(tree, module, found)),
            UseTree::Name(name) => record(&name.ident.to_string(), module, found),
            UseTree::Rename(rename) => record(&rename.rename.to_string(), module, found),
            UseTree::Glob(_) => {}
        }
    }
    fn record(name: &str, module: Option<&str>, found: &mut BTreeMap<String, String>) {
        if let Some(module) = module {
            found.insert(name.to_owned(), module.to_owned());
        }
    }
    let mut found = BTreeMap::new();
    for item in &file.items {
        if let Item::Use(item) = item {
            leaves(&item.tree, None, &mut found);
        }
    }
    found
}

/// Modules that a file declares for tests only, as paths without `.rs`.
fn test_files(path: &str, file: &syn::File) -> Vec<String> {
    let base = Path::new(path);
    let is_root = ["lib.rs", "main.rs", "mod.rs"]
        .iter()
        .any(|name| base.ends_with(name));
    let folder = if is_root {
        base.parent().unwrap().to_owned()
    } else {
        base.with_extension("")
    };
    let declared = file.items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() && is_for_tests(&module.attrs) => {
            Some(folder.join(module.ident.to_string()).to_str()?.to_owned())
        }
        _ => None,
    });
    declared.collect()
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .meta
                .to_token_stream()
                .to_string()
                .contains("test")
    })
}

/// The names directly below the crate's root that these items mention, by `crate::name` or by
/// enough `super::`; `depth` is how deep the module is below the root.
fn names_at_root(items: &[Item], depth: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for item in items {
        match item {
            Item::Mod(module) if is_for_tests(&module.attrs) => {}
            Item::Mod(module) => {
                if let Some((_, items)) = &module.content {
                    names.append(&mut names_at_root(items, depth + 1));
                }
            }
            Item::Fn(function) if is_for_tests(&function.attrs) => {}
            Item::Use(import) if is_for_tests(&import.attrs) => {}
            Item::Impl(block) if is_for_tests(&block.attrs) => {}
            item => scan(item.to_token_stream(), depth, &mut names),
        }
    }
    names
}

fn scan(tokens: TokenStream, depth: usize, names: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        if let TokenTree::Group(group) = &tokens[at] {
            scan(group.stream(), depth, names);
        }
        let (levels, next) = steps_up(&tokens, at, depth);
        if levels == depth && next > at {
            after_root(&tokens[next..], names);
        }
        at = next.max(at + 1);
    }
}

/// How many levels `crate::` or `super::super::…` at `at` goes up, and where the path continues.
fn steps_up(tokens: &[TokenTree], at: usize, depth: usize) -> (usize, usize) {
    let word = |at: usize, word: &str| {
        matches!(tokens.get(at), Some(TokenTree::Ident(ident)) if ident == word)
            && [1, 2].iter().all(
                |offset| matches!(tokens.get(at + offset), Some(TokenTree::Punct(mark)) if mark.as_char() == ':'),
            )
    };
    if word(at, "crate") {
        return (depth, at + 3);
    }
    let mut next = at;
    let mut levels = 0;
    while word(next, "super") {
        next += 3;
        levels += 1;
    }
    (levels, next)
}

/// The names that a path continues with: one, or those of a group in braces.
fn after_root(tokens: &[TokenTree], names: &mut BTreeSet<String>) {
    match tokens.first() {
        Some(TokenTree::Ident(name)) => drop(names.insert(name.to_string())),
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let mut is_first = true;
            for token in group.stream() {
                match token {
                    TokenTree::Ident(name) if is_first => {
                        names.insert(name.to_string());
                        is_first = false;
                    }
                    TokenTree::Punct(mark) if mark.as_char() == ',' => is_first = true,
                    _ => is_first = false,
                }
            }
        }
        _ => {}
    }
}

/// Sets of modules that reach each other.
fn cycles(uses: &Uses) -> Vec<BTreeSet<String>> {
    let reach = |start: &String| -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&String> = uses[start].keys().collect();
        while let Some(module) = open.pop() {
            if reached.insert(module.clone()) {
                open.extend(uses[module].keys());
            }
        }
        reached
    };
    let reaches: BTreeMap<&String, BTreeSet<String>> =
        uses.keys().map(|module| (module, reach(module))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (module, reached) in &reaches {
        if reached.contains(*module) && !found.iter().any(|cycle| cycle.contains(*module)) {
            let back = reached
                .iter()
                .filter(|other| reaches[other].contains(*module));
            found.push(back.cloned().collect());
        }
    }
    found
}

#[test]
fn the_search_for_uses_sees_what_the_compiler_sees() {
    let names = |code: &str, depth| names_at_root(&syn::parse_file(code).unwrap().items, depth);
    let set = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        names("use crate::{a::B, c}; fn f() { crate::d::g() }", 1),
        set(&["a", "c", "d"])
    );
    assert_eq!(
        names("use super::a::B; use super::super::c::D;", 1),
        set(&["a"])
    );
    assert_eq!(
        names("use super::a::B; use super::super::c::D;", 2),
        set(&["c"])
    );
    assert_eq!(
        names("mod inner { use super::super::a::B; }", 1),
        set(&["a"])
    );
    assert_eq!(
        names("fn f() { assert!(crate::a::g(&[super::b::H])) }", 1),
        set(&["a", "b"])
    );
    assert_eq!(
        names("#[cfg(test)] mod tests { use crate::a; }", 1),
        set(&[])
    );
}

#[test]
fn a_cycle_is_found() {
    let uses = |edges: &[(&str, &[&str])]| -> Uses {
        let edges = edges.iter().map(|(user, used)| {
            let used = used.iter().map(|used| ((*used).to_owned(), String::new()));
            ((*user).to_owned(), used.collect())
        });
        edges.collect()
    };
    assert!(cycles(&uses(&[("a", &["b"]), ("b", &["c"]), ("c", &[])])).is_empty());
    let found = cycles(&uses(&[
        ("a", &["b"]),
        ("b", &["c"]),
        ("c", &["b"]),
        ("d", &["a"]),
    ]));
    assert_eq!(found, [BTreeSet::from(["b".to_owned(), "c".to_owned()])]);
}

#[test]
fn the_crates_are_found() {
    assert!(
        root().join("crates").is_dir() && crates().len() > 5,
        "{:?}",
        crates()
    );
}
