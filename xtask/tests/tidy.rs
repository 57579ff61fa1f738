//! Rules that can be checked on the text of the files.

use crate::common::{assert_none, files, metadata, read};

/// One subject per file, and a reader who can hold it in mind.
const LONGEST_FILE: usize = 600;

/// Where `unsafe` may be: at the borders to C, C++ and the CPU. A folder ends with `/`.
const UNSAFE_ALLOWED: [&str; 28] = [
    "crates/hip-alloc/tests/stress_pools.rs", // writes what it allocates
    "crates/cli/src/windows.rs",              // calls Windows
    "crates/cli/src/commands/train_signals.rs", // as that
    "crates/cli/examples/",                   // is called by Python
    "crates/device-sim/",                     // is a C library
    "crates/hip-alloc/src/driver/",           // calls the GPU runtimes
    "crates/hip-alloc/src/ffi.rs",            // is called by PyTorch
    "crates/hip-alloc/src/ffi/cpp/",          // as that, with C++
    "crates/hip-alloc/src/ffi/pools.rs",      // as that
    "crates/hip-alloc/src/ffi/stacks.rs",     // as that, with functions of Python
    "crates/hip-alloc/src/system/",           // calls the operating system
    "crates/hip-alloc/src/shared_file/",      // locks a file
    "crates/hip-alloc/src/lock.rs",           // is a mutex
    "crates/hip-alloc/src/python_stacks.rs",  // calls Python
    "crates/hip-alloc/tests/gpu.rs",          // calls the simulated runtime
    "crates/hip-alloc/tests/stress.rs",       // writes what it allocates
    "crates/kernels/",                        // calls HIP
    "crates/models/src/fused/",               // launches kernels on tensors
    "crates/models/src/quant/kernels.rs",     // launches kernels on tensors
    "crates/models/src/tensor.rs",            // fills tensors from files
    "crates/harness/src/bin/on-device/simulator.rs", // calls device-sim
    "crates/placement/src/transfer/checksum.rs", // calls its own code, compiled for AVX2
    "crates/placement/src/transfer/checksum/tests.rs", // likewise
    "crates/placement/src/transfer/torch_transport/host_tensor.rs", // reads the bytes of tensors
    "crates/torch-abi/",                      // calls libtorch's C interface
    "crates/torch-ext/",                      // calls libtorch
    "crates/trainer/src/memory.rs",           // calls Windows
    "crates/ui/src/runs/handle_windows.rs",   // as that
];

/// Licences of our dependencies: all permissive. A new one is a decision, not an accident.
const LICENCES: [&str; 32] = [
    "BSD-3-Clause OR Apache-2.0",
    "MIT OR Apache-2.0 OR Zlib",
    "(Apache-2.0 OR MIT) AND BSD-3-Clause",
    "(MIT OR Apache-2.0) AND Unicode-3.0",
    "0BSD OR MIT OR Apache-2.0",
    "Apache-2.0 / MIT",
    "Apache-2.0 AND ISC",
    "Apache-2.0 OR BSL-1.0",
    "Apache-2.0 OR ISC OR MIT",
    "Apache-2.0 OR MIT OR Zlib",
    "Apache-2.0 OR MIT",
    "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
    "Apache-2.0",
    "Apache-2.0/MIT",
    "BSD-2-Clause OR Apache-2.0 OR MIT",
    "BSD-3-Clause AND BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "CDLA-Permissive-2.0", // the list of certificate authorities
    "ISC",
    "MIT AND BSD-3-Clause",
    "MIT OR BSD-3-Clause",
    "MIT OR Apache-2.0 OR LGPL-2.1-or-later", // taken under MIT
    "MIT OR Apache-2.0",
    "MIT OR Zlib OR Apache-2.0",
    "MIT",
    "MIT/Apache-2.0",
    "Unicode-3.0",
    "Unlicense OR MIT",
    "Unlicense/MIT",
    "Zlib OR Apache-2.0 OR MIT",
    "Zlib",
];

#[test]
fn no_source_file_is_longer_than_a_reader_can_hold() {
    let findings = sources().filter_map(|(path, text)| {
        let lines = text.lines().count();
        (lines > LONGEST_FILE).then(|| format!("{path}: {lines} lines"))
    });
    assert_none(
        "files of at most 600 lines, one subject each",
        findings.collect(),
    );
}

#[test]
fn every_module_says_what_it_is_for() {
    let findings = sources().filter_map(|(path, text)| {
        let opening: &[&str] = match path.rsplit_once('.')?.1 {
            // A crate may begin with its README.
            "rs" => &["//!", "#![doc = include_str!"],
            "py" => &["\"\"\"", "#!"],
            _ => &["//", "/*"],
        };
        let first = text.lines().next().unwrap_or("");
        let described = text.is_empty() || opening.iter().any(|mark| first.starts_with(mark));
        (!described).then_some(path)
    });
    assert_none("a file starts with what it is for", findings.collect());
}

#[test]
fn nothing_is_left_to_do_in_comments() {
    // Spelled in two parts, so that this line is not a finding.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
    ];
    let findings = sources().flat_map(|(path, text)| {
        let lines = text.lines().enumerate();
        let found = lines.filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
        let places: Vec<_> = found
            .map(|(index, _)| format!("{path}:{}", index + 1))
            .collect();
        places
    });
    assert_none(
        "what is left to do is an issue, not a comment",
        findings.collect(),
    );
}

#[test]
fn unsafe_code_stays_at_the_borders() {
    let findings = rust_sources().filter_map(|(path, text)| {
        let allowed = UNSAFE_ALLOWED.iter().any(|place| path.starts_with(place));
        let line = words(&text)
            .find(|(_, word)| *word == "unsafe")
            .map(|(line, _)| line);
        line.filter(|_| !allowed)
            .map(|line| format!("{path}:{line}"))
    });
    assert_none(
        "`unsafe` only where the list above allows it",
        findings.collect(),
    );
}

#[test]
fn platform_doctor_and_xtask_forbid_unsafe_code() {
    for path in [
        "crates/doctor/src/lib.rs",
        "crates/platform/src/lib.rs",
        "xtask/src/main.rs",
    ] {
        assert!(read(path).contains("#![forbid(unsafe_code)]"), "{path}");
    }
}

#[test]
fn dependencies_have_licences_that_were_agreed_to() {
    let metadata = metadata(&[]);
    let packages = metadata["packages"].as_array().unwrap().iter();
    let foreign = packages.filter(|package| !package["source"].is_null());
    let findings = foreign.filter_map(|package| {
        let licence = package["license"].as_str().unwrap_or("none");
        let agreed = LICENCES.contains(&licence);
        (!agreed).then(|| format!("{} {}: {licence}", package["name"], package["version"]))
    });
    assert_none("licences that nobody has agreed to", findings.collect());
}

#[test]
fn our_own_packages_are_under_both_licences() {
    let metadata = metadata(&["--no-deps"]);
    for package in metadata["packages"].as_array().unwrap() {
        assert_eq!(
            package["license"], "MIT OR Apache-2.0",
            "{}",
            package["name"]
        );
    }
    assert!(read("LICENSE-MIT").contains("Permission is hereby granted"));
    assert!(read("LICENSE-APACHE").contains("Version 2.0, January 2004"));
}

#[test]
fn a_config_key_is_declared_in_one_place() {
    let schema: serde_json::Value = serde_json::from_str(&read("configs/schema.json")).unwrap();
    let mut names = Vec::new();
    let mut findings = Vec::new();
    for (top, key) in schema["properties"].as_object().unwrap() {
        let reference = key["$ref"].as_str().or(key["anyOf"][0]["$ref"].as_str());
        let section = reference.and_then(|path| schema.pointer(path.strip_prefix('#')?));
        let below = section.and_then(|section| section["properties"].as_object());
        let below = below.into_iter().flatten();
        let below = below.map(|(name, key)| (format!("{top}.{name}"), key));
        for (name, key) in [(top.clone(), key)].into_iter().chain(below) {
            let declared = key["x-for"].is_string() && key["x-resume"].is_string();
            if !declared && key["deprecated"] != true {
                findings.push(format!("{name}: declare it with `section!`"));
            }
            names.extend(name.contains('.').then(|| format!("\"{name}\"")));
        }
    }
    assert!(names.len() > 100);
    let trainer = rust_sources()
        .filter(|(path, _)| path.starts_with("crates/trainer/src/") && !path.contains("/config"));
    findings.extend(trainer.filter_map(|(path, text)| {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let named: Vec<_> = names
            .iter()
            .filter(|name| text.contains(&***name))
            .collect();
        (named.len() > 3).then(|| format!("{path} lists {named:?}"))
    }));
    assert_none(
        "a key has its declaration (`crates/trainer/src/config/keys.rs`) and no other list",
        findings,
    );
}

#[test]
fn the_search_for_words_is_not_fooled() {
    let found = |text| words(text).any(|(_, word)| word == "unsafe");
    assert!(found("let x = 1; unsafe { f() }"));
    assert!(found("'\"'; \"\\\"\"; unsafe fn f() {}"));
    assert!(!found("#![forbid(unsafe_code)] // unsafe"));
    assert!(!found("/* unsafe */ \"unsafe\" r#\"unsafe\"#"));
}

#[test]
fn the_search_for_words_tells_the_line() {
    let found = words("/* a\nb */\n\"c\n\"\nd").collect::<Vec<_>>();
    assert_eq!(found, [(5, "d")]);
}

/// Path and text of every source file.
fn sources() -> impl Iterator<Item = (String, String)> {
    let paths = files(&["rs", "py", "cpp", "c", "h"]).into_iter();
    paths.map(|path| (path.to_string_lossy().into_owned(), read(&path)))
}

fn rust_sources() -> impl Iterator<Item = (String, String)> {
    sources().filter(|(path, _)| path.ends_with(".rs"))
}

/// The words of Rust code, each with its line; those in comments and strings are left out.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = text;
    let mut line = 1;
    std::iter::from_fn(move || {
        loop {
            let end = token_end(rest)?;
            let (token, after) = rest.split_at(end);
            let at = line;
            line += token.matches('\n').count();
            rest = after;
            if token.starts_with(|first: char| first.is_alphabetic() || first == '_') {
                return Some((at, token));
            }
        }
    })
}

/// Where the first token of `text` ends: a comment, a string, a word, or one character.
fn token_end(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    let until = |start: usize, mark: &str| {
        let found = text[start..].find(mark).map(|at| start + at + mark.len());
        found.unwrap_or(text.len())
    };
    let end = if text.starts_with("//") {
        text.find('\n').unwrap_or(text.len())
    } else if text.starts_with("/*") {
        until(2, "*/")
    } else if text.starts_with("r\"") {
        until(2, "\"")
    } else if text.starts_with("r#\"") {
        until(3, "\"#")
    } else if first == '"' {
        string_end(text)
    } else if text.starts_with("'\"'") {
        3
    } else if first.is_alphanumeric() || first == '_' {
        let word = |char: char| char.is_alphanumeric() || char == '_';
        text.find(|char| !word(char)).unwrap_or(text.len())
    } else {
        first.len_utf8()
    };
    Some(end)
}

/// Where a string ends, which starts `text`; a backslash protects the character after it.
fn string_end(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}
