//! Names of models on the hub, and what is none.

use std::path::Path;

/// `org/name`, and which state of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubName {
    /// `org/name`.
    pub(super) repository: String,
    /// A branch, a tag or a commit.
    pub(super) revision: String,
}

/// Endings of files, which no model is called.
const FILES: [&str; 5] = [".gguf", ".safetensors", ".json", ".bin", ".pt"];

impl HubName {
    /// What `name` means, unless it can be meant as a path: one that begins with `.`, `~` or `/`, has
    /// another number of slashes than one, ends as files do, or lies in a folder that is there.
    pub(super) fn parse(name: &str) -> Option<Self> {
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
        let is_file = FILES.iter().any(|ending| model.ends_with(ending));
        let is_local = Path::new(organisation).exists();
        (is_word(organisation) && is_word(model) && is_revision && !is_file && !is_local).then(
            || Self {
                repository: repository.to_owned(),
                revision: revision.to_owned(),
            },
        )
    }

    /// The name of its folder in a cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}", self.repository.replace('/', "--"))
    }

    /// Whether the revision is a commit, which never changes.
    pub(super) fn is_pinned(&self) -> bool {
        is_commit(&self.revision)
    }
}

/// Whether this is the whole name of a commit.
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
    fn what_can_be_a_path_is_no_name_on_the_hub() {
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
            assert_eq!(HubName::parse(path), None, "{path}");
        }
    }

    #[test]
    fn a_name_may_say_a_revision() {
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
            let found = HubName::parse(name).unwrap();
            assert_eq!(
                (&*found.repository, &*found.revision),
                (repository, revision)
            );
        }
        let found = HubName::parse("org/model").unwrap();
        assert_eq!(found.folder(), "models--org--model");
        assert!(!found.is_pinned());
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert!(
            HubName::parse(&format!("org/model@{commit}"))
                .unwrap()
                .is_pinned()
        );
    }
}
