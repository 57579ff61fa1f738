//! Names of models and data sets on the hub, and how to tell them from paths.

use std::path::Path;

/// The kind of a repository on the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    DataSet,
}

/// `org/name`, and its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubName {
    pub(super) kind: Kind,
    /// `org/name`.
    pub(super) repository: String,
    /// A branch, a tag or a commit.
    pub(super) revision: String,
}

/// File extensions, which no model name has.
const MODEL_FILES: [&str; 5] = [".gguf", ".safetensors", ".json", ".bin", ".pt"];
/// File extensions, which no data set name has.
const DATA_FILES: [&str; 7] = [
    ".jsonl", ".ndjson", ".json", ".csv", ".txt", ".md", ".parquet",
];

impl HubName {
    /// Parses `name`, unless it may be a path: one that begins with `.`, `~` or `/`, has more or fewer slashes than
    /// one, has the extension of a file, or lies in an existing folder.
    pub(super) fn parse(name: &str, kind: Kind) -> Option<Self> {
        let (repository, revision) = match name.split_once('@') {
            Some((repository, revision)) => (repository, revision),
            None => (name, "main"),
        };
        let (organisation, model) = repository.split_once('/')?;
        let is_word = |word: &str| {
            let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            !word.is_empty()
                && word.len() <= 96
                && word.chars().all(allowed)
                && !word.starts_with(['.', '-'])
                && !word.ends_with(['.', '-'])
                && !word.contains("..")
                && !word.contains("--")
        };
        let is_revision = revision.split('/').all(|part| {
            let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.+".contains(letter);
            !part.is_empty() && part.chars().all(allowed) && !part.starts_with('.')
        });
        let endings = match kind {
            Kind::Model => &MODEL_FILES[..],
            Kind::DataSet => &DATA_FILES[..],
        };
        let is_file = endings.iter().any(|ending| model.ends_with(ending));
        let is_local = Path::new(organisation).exists();
        (is_word(organisation) && is_word(model) && is_revision && !is_file && !is_local).then(
            || Self {
                kind,
                repository: repository.to_owned(),
                revision: revision.to_owned(),
            },
        )
    }

    /// The name of its folder in the cache.
    pub(super) fn folder(&self) -> String {
        format!("{}--{}", self.plural(), self.repository.replace('/', "--"))
    }

    /// The hub's plural for this kind.
    pub(super) fn plural(&self) -> &'static str {
        match self.kind {
            Kind::Model => "models",
            Kind::DataSet => "datasets",
        }
    }

    /// The kind in messages.
    pub(super) fn noun(&self) -> &'static str {
        match self.kind {
            Kind::Model => "model",
            Kind::DataSet => "data set",
        }
    }

    /// The path of its page and files on the hub.
    pub(super) fn page(&self) -> String {
        match self.kind {
            Kind::Model => self.repository.clone(),
            Kind::DataSet => format!("datasets/{}", self.repository),
        }
    }

    /// Whether the revision is a commit, which never changes.
    pub(super) fn is_pinned(&self) -> bool {
        is_commit(&self.revision)
    }
}

/// Percent-encodes a part of an address.
pub(super) fn escaped(text: &str, keep_slashes: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte.into());
            }
            b'/' if keep_slashes => out.push('/'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Whether this is a full commit hash.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40
        && text
            .chars()
            .all(|letter| letter.is_ascii_hexdigit() && !letter.is_ascii_uppercase())
}

impl std::fmt::Display for HubName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.repository)?;
        match self.revision.as_str() {
            "main" => Ok(()),
            revision => write!(out, "@{revision}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_possible_path_is_not_a_name_on_the_hub() {
        let there = tempfile::tempdir_in(".").unwrap();
        let there = there.path().file_name().unwrap().to_str().unwrap();
        let below = format!("{there}/model");
        for path in [
            "model",
            "./org/model",
            "../org",
            "/org/model",
            "~/model",
            "~user/model",
            "a/b/c",
            "org/",
            "/model",
            "org//model",
            "runs/model.gguf",
            "org/model.safetensors",
            "C:\\org/model",
            "org/na me",
            "org/model@",
            "org/model@../x",
            "org/model@a//b",
            "org/..",
            "src/model",
            &below,
        ] {
            assert_eq!(HubName::parse(path, Kind::Model), None, "{path}");
        }
    }

    #[test]
    fn a_name_may_include_a_revision() {
        for (name, repository, revision) in [
            ("org/model", "org/model", "main"),
            (
                "HuggingFaceTB/SmolLM2-1.7B",
                "HuggingFaceTB/SmolLM2-1.7B",
                "main",
            ),
            ("org/model_v1.2@v2.0", "org/model_v1.2", "v2.0"),
            ("org/model@refs/pr/3", "org/model", "refs/pr/3"),
        ] {
            let found = HubName::parse(name, Kind::Model).unwrap();
            assert_eq!(
                (&*found.repository, &*found.revision),
                (repository, revision)
            );
        }
        let found = HubName::parse("org/model", Kind::Model).unwrap();
        assert_eq!(found.folder(), "models--org--model");
        assert!(!found.is_pinned());
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert!(
            HubName::parse(&format!("org/model@{commit}"), Kind::Model)
                .unwrap()
                .is_pinned()
        );
    }

    #[test]
    fn a_data_set_has_a_similar_name_and_its_own_folder() {
        let found = HubName::parse("org/texts@v1", Kind::DataSet).unwrap();
        assert_eq!(found.folder(), "datasets--org--texts");
        assert_eq!(found.page(), "datasets/org/texts");
        for path in ["org/texts.jsonl", "texts", "./org/texts", "src/texts"] {
            assert_eq!(HubName::parse(path, Kind::DataSet), None, "{path}");
        }
    }
}
