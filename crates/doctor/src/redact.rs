//! Anonymises a text: removes names of people and machines, addresses and serial
//! numbers.

use crate::Report;
use platform::snapshot::DUMP_HEADER;
use regex::{Captures, Regex};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Each pattern keeps its first group (the prefix), and its last one if there are two.
const PATTERNS: &[(&str, &str)] = &[
    // Home folders, on all systems.
    (
        r"(?i)((?:/home/|/Users/|[A-Z]:\\+Users\\+))([^/\\\s:\x22'<>]+)",
        "user",
    ),
    // The prompt of a shell, or a mail address.
    (r"([\[(\s]|^)[\w.+-]+@[\w.-]+", "user@host"),
    (
        r"(?i)(serial(?:[ _]number)?\W{1,4}|ASIC_SERIAL:\s*|unique id\W{1,6}0x)[0-9a-z]{6,}",
        "removed",
    ),
    (
        r"()\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b",
        "00:00:00:00:00:00",
    ),
    (
        r"()\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
        "00000000-0000-0000-0000-000000000000",
    ),
    (
        r"()\b(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(?:fe80|[23][0-9a-f]{3})::?(?:[0-9a-f]{0,4}:){1,6}[0-9a-f]{1,4})\b",
        "::",
    ),
];

static COMPILED: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    // Constant patterns: a test compiles every one of them.
    PATTERNS
        .iter()
        .filter_map(|(pattern, with)| Some((Regex::new(&format!("(?m){pattern}")).ok()?, *with)))
        .collect()
});

static ADDRESS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(^|[^\w.=+-])((?:\d{1,3}\.){3}\d{1,3})\b").ok());
static IDENTITY: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(GPU-|unique_id )([0-9a-f]{8,20})\b").ok());

static HOMES: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(PATTERNS[0].0).ok());

/// Names of home folders that identify nobody; many of them occur in reports in another meaning.
#[rustfmt::skip]
const NOBODY: &[&str] = &[
    "admin", "administrator", "amdgpu", "arch", "build", "builder", "cache", "comfy",
    "comfyui", "conda", "container", "data", "debian", "default", "developer", "docker",
    "fedora", "guest", "home", "jovyan", "jupyter", "kernel", "kohya", "linux", "local",
    "models", "nobody", "ollama", "owner", "public", "python", "pytorch", "radeon", "rocm",
    "root", "runner", "runneradmin", "server", "shared", "steam", "surefoot", "test", "torch",
    "training", "ubuntu", "user", "users", "venv", "vllm", "windows", "work", "workspace",
    "wsluser",
];

/// The user names from home folders in the text.
fn people(text: &str) -> Vec<String> {
    let mut people: Vec<String> = HOMES
        .iter()
        .flat_map(|pattern| pattern.captures_iter(text))
        .map(|found| found[2].to_lowercase())
        .filter(|name| name.len() > 2 && !NOBODY.contains(&name.as_str()))
        .collect();
    people.sort();
    people.dedup();
    people
}

/// The text without what identifies people and machines. `names` are those of this user and this
/// host, which are removed everywhere, as are the names of home folders in the text.
///
/// Unique ids of GPUs become numbers, the same for the same card, so that partitions of one
/// card are still recognisable.
#[must_use]
pub fn anonymous(text: &str, names: &[String]) -> String {
    let people = people(text);
    let mut text = text.to_owned();
    for (pattern, with) in &*COMPILED {
        text = pattern
            .replace_all(&text, |found: &Captures<'_>| {
                format!(
                    "{}{with}",
                    found.get(1).map_or("", |before| before.as_str())
                )
            })
            .into_owned();
    }
    if let Some(pattern) = &*ADDRESS {
        text = pattern
            .replace_all(&text, |found: &Captures<'_>| {
                let is_address = found[2].split('.').all(|part| part.parse::<u8>().is_ok());
                let tells_nothing = found[2].starts_with("127.") || &found[2] == "0.0.0.0";
                if is_address && !tells_nothing {
                    format!("{}0.0.0.0", &found[1])
                } else {
                    found[0].to_owned()
                }
            })
            .into_owned();
    }
    if let Some(pattern) = &*IDENTITY {
        let mut known: HashMap<String, usize> = HashMap::new();
        text = pattern
            .replace_all(&text, |found: &Captures<'_>| {
                let next = known.len() + 1;
                let number = *known.entry(found[2].to_owned()).or_insert(next);
                format!("{}{number:016}", &found[1])
            })
            .into_owned();
    }
    let own = names.iter().filter(|name| name.len() > 2);
    let own = own.map(|name| ("", name, "removed"));
    let others = people.iter().map(|name| ("(?i)", name, "user"));
    for (flags, name, with) in own.chain(others) {
        if let Ok(pattern) = Regex::new(&format!(r"{flags}\b{}\b", regex::escape(name))) {
            text = pattern.replace_all(&text, with).into_owned();
        }
    }
    text
}

/// What a maintainer needs, in one text to post: the diagnosis as comments above its source,
/// a dump or a posted text, anonymised. If the source is a dump,
/// the result is a dump, too.
#[must_use]
pub fn report_to_post(report: &Report, made_from: &str, names: &[String]) -> String {
    let (header, rest) = match made_from.strip_prefix(DUMP_HEADER) {
        Some(rest) => (DUMP_HEADER, rest.trim_start_matches('\n')),
        None => ("# a text, and what surefoot doctor finds in it", made_from),
    };
    let mut text = format!("{header}\n# surefoot {}\n#\n", env!("CARGO_PKG_VERSION"));
    for line in report.to_text(false).lines() {
        text.push_str("# ");
        text.push_str(line);
        text.push('\n');
    }
    text.push_str("#\n");
    anonymous(&(text + rest), names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        assert_eq!(COMPILED.len(), PATTERNS.len());
        assert!(ADDRESS.is_some() && IDENTITY.is_some());
    }

    #[test]
    fn names_addresses_and_serial_numbers_are_removed() {
        for (text, posted) in [
            ("/home/jane/venv/bin", "/home/user/venv/bin"),
            (r"C:\Users\Jane\x", r"C:\Users\user\x"),
            (
                "/home/jane/venv is Jane's, janet has none",
                "/home/user/venv is user's, janet has none",
            ),
            ("/home/rocm/x with rocm 7.2", "/home/user/x with rocm 7.2"),
            ("jane@tower:~$ ls", "user@host:~$ ls"),
            ("connected to 192.168.1.17:80", "connected to 0.0.0.0:80"),
            (
                "link/ether aa:bb:cc:dd:ee:ff",
                "link/ether 00:00:00:00:00:00",
            ),
            ("Serial Number: 692231A1B2", "Serial Number: removed"),
            ("tower kernel: amdgpu", "removed kernel: amdgpu"),
        ] {
            assert_eq!(anonymous(text, &["tower".to_owned()]), posted);
        }
    }

    #[test]
    fn a_report_of_a_dump_is_diagnosed_as_the_dump_is() {
        let dump = format!(
            "{DUMP_HEADER}\n== proc/sys/kernel/osrelease\n6.18.1\n== kfd/nodes/1/gpu_id\n1\n\
             == kfd/nodes/1/properties\nsimd_count 80\nvendor_id 4098\ngfx_target_version 110501\nunique_id 1234567890123\n"
        );
        let report = crate::diagnose_text(&dump).expect("a machine");
        let posted = report_to_post(&report, &dump, &[]);
        assert!(
            posted.contains("# ") && !posted.contains("1234567890123"),
            "{posted}"
        );
        let again = crate::diagnose_text(&posted).expect("a machine");
        assert_eq!(again.to_text(false), report.to_text(false));
    }

    #[test]
    fn versions_and_places_on_the_bus_stay() {
        for text in [
            "nvidia-cublas-cu12==12.1.3.1",
            "amdgpu 0000:c5:00.0: gfx1151",
            "HSA_OVERRIDE_GFX_VERSION=10.3.0",
            "listening on 127.0.0.1:8188",
            "driver 32.0.12045.1008",
        ] {
            assert_eq!(anonymous(text, &[]), text);
        }
    }

    #[test]
    fn cards_keep_their_differences() {
        let text = anonymous(
            "GPU-1111222233334444 GPU-5555666677778888 GPU-1111222233334444",
            &[],
        );
        let words: Vec<&str> = text.split(' ').collect();
        assert!(words[0] == words[2] && words[0] != words[1], "{text}");
        assert!(!text.contains("1111222"));
    }
}
