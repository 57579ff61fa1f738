//! A machine as a bundle of small text files.
//!
//! What `doctor` reads on a live machine, what `doctor --dump` writes and what people paste into bug reports
//! all have the same form: a list of paths with contents. [`Snapshot`] is that list, and every decision in
//! this crate is based on one.
//!
//! Paths are stored in one short form (`kfd/nodes/1/properties`, `drm/renderD128/device/vendor`,
//! `module/ttm/parameters/pages_limit`, `proc/cmdline`), whatever prefix they came with.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The first line of a file written by `doctor --dump`.
pub const DUMP_HEADER: &str = "# surefoot dump 1";

/// Paths with their contents, or with the reason why they could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    files: BTreeMap<String, Content>,
}

/// The result of reading a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The text of the file.
    Text(String),
    /// The name of the error, such as `EACCES`.
    Error(String),
}

impl Snapshot {
    /// Adds a file, under the short form of its path. A later one replaces it.
    pub fn insert(&mut self, path: &str, content: Content) {
        self.files.insert(canonical(path), content);
    }

    /// Adds a readable file.
    pub fn insert_text(&mut self, path: &str, text: impl Into<String>) {
        self.insert(path, Content::Text(text.into()));
    }

    /// The text of a file.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        match self.files.get(path)? {
            Content::Text(text) => Some(text),
            Content::Error(_) => None,
        }
    }

    /// The trimmed text of a file; `None` if that is empty.
    #[must_use]
    pub fn value(&self, path: &str) -> Option<&str> {
        self.text(path)
            .map(str::trim)
            .filter(|text| !text.is_empty())
    }

    /// The number in a file that contains only that.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        self.value(path)?.parse().ok()
    }

    /// Why a file could not be read.
    #[must_use]
    pub fn error(&self, path: &str) -> Option<&str> {
        match self.files.get(path)? {
            Content::Text(_) => None,
            Content::Error(name) => Some(name),
        }
    }

    /// Whether a file exists, readable or not.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    /// Whether nothing was collected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// All paths that start with `prefix`.
    pub fn paths_under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        let from = self.files.range(prefix.to_owned()..);
        from.map(|(path, _)| path.as_str())
            .take_while(move |path| path.starts_with(prefix))
    }

    /// The names directly below a folder (`"kfd/nodes/"`), with numbers in numeric order: node 10 comes after
    /// node 9.
    #[must_use]
    pub fn children<'a>(&'a self, folder: &'a str) -> Vec<&'a str> {
        let mut names: Vec<&str> = self
            .paths_under(folder)
            .filter_map(|path| path[folder.len()..].split('/').next())
            .collect();
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), *name));
        names.dedup();
        names
    }

    /// Parses a flattened tree in any of the forms that people paste:
    ///
    /// | form | from |
    /// |---|---|
    /// | `== path` followed by the content | `doctor --dump` |
    /// | `==> path <==` followed by the content | `head`, `tail` |
    /// | `path:line` | `grep -r . folder` |
    /// | `path: value` | written by hand |
    /// | `$ cat path` followed by the content | a terminal |
    ///
    /// Text that belongs to no path is dropped. Never fails: what cannot be parsed is missing.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut snapshot = Self::default();
        let mut open: Option<(String, String)> = None;
        // Our own dumps have only one form, and contents that may look like another.
        let is_own = text.starts_with(DUMP_HEADER);
        for line in text.lines() {
            match header(line).filter(|header| !is_own || !matches!(header, Header::Other)) {
                Some(Header::File(path)) => {
                    snapshot.close(open.take());
                    open = Some((path.to_owned(), String::new()));
                }
                Some(Header::Unreadable(path, error)) => {
                    snapshot.close(open.take());
                    snapshot.insert(path, Content::Error(error.to_owned()));
                }
                Some(Header::Other) => snapshot.close(open.take()),
                None => match path_and_value(line).filter(|_| !is_own) {
                    Some((path, value)) => snapshot.append(path, value),
                    None => {
                        if let Some((_, content)) = &mut open {
                            content.push_str(line);
                            content.push('\n');
                        }
                    }
                },
            }
        }
        snapshot.close(open);
        snapshot
    }

    /// Writes the form that [`Snapshot::parse`] reads back.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{DUMP_HEADER}\n");
        for (path, content) in &self.files {
            // Writing to a `String` cannot fail.
            let _ = match content {
                Content::Error(name) => writeln!(text, "== {path} !{name}"),
                Content::Text(content) => {
                    let newline = if content.is_empty() || content.ends_with('\n') {
                        ""
                    } else {
                        "\n"
                    };
                    write!(text, "== {path}\n{content}{newline}")
                }
            };
        }
        text
    }

    fn close(&mut self, open: Option<(String, String)>) {
        if let Some((path, content)) = open {
            self.insert_text(&path, content);
        }
    }

    /// Adds a line to a file whose path is repeated on every line.
    fn append(&mut self, path: &str, line: &str) {
        let entry = self
            .files
            .entry(canonical(path))
            .or_insert_with(|| Content::Text(String::new()));
        if let Content::Text(text) = entry {
            text.push_str(line);
            text.push('\n');
        }
    }
}

enum Header<'a> {
    File(&'a str),
    Unreadable(&'a str, &'a str),
    /// Another terminal command, which ends the previous output.
    Other,
}

fn header(line: &str) -> Option<Header<'_>> {
    if let Some(path) = line
        .strip_prefix("==> ")
        .and_then(|rest| rest.trim_end().strip_suffix(" <=="))
    {
        return Some(Header::File(path));
    }
    if let Some(path) = line.strip_prefix("== ") {
        let path = path.trim();
        return Some(match path.rsplit_once(" !") {
            Some((path, error)) => Header::Unreadable(path.trim_end(), error),
            None => Header::File(path),
        });
    }
    let command = prompt(line)?;
    let mut words = command.split_whitespace().filter(|&word| word != "sudo");
    match (words.next(), words.next(), words.next()) {
        // `cat path | head -3` shows part of the same file.
        (Some("cat"), Some(path), None | Some("|")) => Some(Header::File(path)),
        (Some("uname"), Some("-r"), None) => Some(Header::File("proc/sys/kernel/osrelease")),
        _ => Some(Header::Other),
    }
}

/// The command after a shell prompt. A comment (`# cat the file`) looks like root's prompt, so only commands
/// that we understand are accepted after `#`.
fn prompt(line: &str) -> Option<&str> {
    if let Some(command) = line.strip_prefix("$ ") {
        return Some(command);
    }
    let (user, command) = line.split_once("$ ").or_else(|| line.split_once("# "))?;
    let is_prompt = user.contains('@') && !user.contains(' ') || user.is_empty();
    let is_cat = command.starts_with("cat /") || command.starts_with("sudo cat /");
    (is_prompt && (is_cat || user.contains('@'))).then_some(command)
}

/// `path:line`, for paths below known folders.
fn path_and_value(line: &str) -> Option<(&str, &str)> {
    const ROOTS: [&str; 6] = ["/sys/", "/proc/", "/etc/", "kfd/nodes/", "nodes/", "drm/"];
    if !ROOTS.iter().any(|root| line.starts_with(root)) {
        return None;
    }
    // A PCI address within a path contains colons too, which do not end the path.
    let end = line.match_indices(':').map(|(at, _)| at).find(|&at| {
        let (path, value) = (&line[..at], &line[at + 1..]);
        let inside_address = path.ends_with(|c: char| c.is_ascii_hexdigit())
            && value.chars().take(2).all(|c| c.is_ascii_hexdigit())
            && value[value.len().min(2)..].starts_with([':', '.'])
            && value.contains('/');
        !inside_address
    })?;
    let path = line[..end].trim_end();
    (!path.contains(char::is_whitespace)).then(|| (path, line[end + 1..].trim()))
}

/// The short form of a path.
fn canonical(path: &str) -> String {
    const PREFIXES: [(&str, &str); 8] = [
        ("sys/class/kfd/kfd/topology/", "kfd/"),
        ("sys/devices/virtual/kfd/kfd/topology/", "kfd/"),
        ("kfd/topology/", "kfd/"),
        ("topology/", "kfd/"),
        ("nodes/", "kfd/nodes/"),
        ("sys/class/drm/", "drm/"),
        ("sys/module/", "module/"),
        ("sys/bus/pci/devices/", "pci/"),
    ];
    let path = path.trim().trim_start_matches("./").trim_start_matches('/');
    if path == "system_properties" {
        return "kfd/system_properties".to_owned();
    }
    for (prefix, short) in PREFIXES {
        if let Some(rest) = path.strip_prefix(prefix) {
            return format!("{short}{rest}");
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATH: &str = "kfd/nodes/1/properties";

    #[test]
    fn every_form_gives_the_same_tree() {
        let forms = [
            "== nodes/1/properties\nsimd_count 80\nvendor_id 4098\n",
            "== kfd/nodes/1/properties\r\nsimd_count 80\r\nvendor_id 4098\r\n",
            "==> /sys/class/kfd/kfd/topology/nodes/1/properties <==\nsimd_count 80\nvendor_id 4098\n",
            "/sys/devices/virtual/kfd/kfd/topology/nodes/1/properties:simd_count 80\n\
             /sys/devices/virtual/kfd/kfd/topology/nodes/1/properties:vendor_id 4098\n",
            "me@box:~$ cat /sys/class/kfd/kfd/topology/nodes/1/properties\nsimd_count 80\nvendor_id 4098\nme@box:~$ ls\nx\n",
        ];
        for form in forms {
            assert_eq!(
                Snapshot::parse(form).text(PATH),
                Some("simd_count 80\nvendor_id 4098\n"),
                "{form}"
            );
        }
    }

    #[test]
    fn pci_addresses_within_paths_do_not_end_them() {
        let snapshot = Snapshot::parse("/sys/bus/pci/devices/0000:c5:00.0/vendor:0x1002\n");
        assert_eq!(snapshot.value("pci/0000:c5:00.0/vendor"), Some("0x1002"));
    }

    #[test]
    fn nodes_are_sorted_as_numbers() {
        let text: String = [10, 9, 64, 1]
            .iter()
            .map(|n| format!("== nodes/{n}/gpu_id\n1\n"))
            .collect();
        assert_eq!(
            Snapshot::parse(&text).children("kfd/nodes/"),
            ["1", "9", "10", "64"]
        );
    }

    #[test]
    fn comments_are_no_commands() {
        assert!(Snapshot::parse("# source: somewhere\n# cat the file\nx 1\n").is_empty());
    }

    #[test]
    fn unreadable_files_keep_their_reason() {
        let snapshot = Snapshot::parse("== kfd/nodes/1/gpu_id !EPERM\n");
        assert_eq!(snapshot.error("kfd/nodes/1/gpu_id"), Some("EPERM"));
    }

    fn file() -> impl Strategy<Value = (String, Content)> {
        let path = "(proc|etc|kfd/nodes/[0-9]{1,2})/[a-z_]{1,8}";
        // A line of a file that looks like a header cannot be distinguished from one.
        let text = "([a-z0-9 ]{0,12}\n){0,4}".prop_map(Content::Text);
        (
            path,
            prop_oneof![text, "E[A-Z]{3,6}".prop_map(Content::Error)],
        )
    }

    proptest! {
        #[test]
        fn round_trips(files in proptest::collection::vec(file(), 0..8)) {
            let mut snapshot = Snapshot::default();
            for (path, content) in files {
                snapshot.insert(&path, content);
            }
            prop_assert_eq!(Snapshot::parse(&snapshot.to_text()), snapshot);
        }

        #[test]
        fn never_panics(text in "((== |==> |/sys/|\\$ cat )?[^\\x00]{0,20}\n?){0,12}") {
            let snapshot = Snapshot::parse(&text);
            let _ = snapshot.children("kfd/nodes/");
        }
    }
}
