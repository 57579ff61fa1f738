//! The cases of `tests/corpus`: posted texts and what is known about them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

pub(super) const FOLDER: &str = "tests/corpus";

/// Maximum size of a text, in bytes. Longer ones must be shortened.
const LONGEST_TEXT: usize = 16 << 10;

/// A posted text and the truth about it.
pub(super) struct Case {
    pub(super) slug: String,
    pub(super) text: Vec<u8>,
    pub(super) truth: Truth,
    /// Not read while rules are written.
    pub(super) held_out: bool,
}

/// What a thread confirmed, and how an answer is judged.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Truth {
    pub(super) source: String,
    pub(super) kind: Kind,
    pub(super) system: System,
    pub(super) topic: String,
    pub(super) cause: String,
    #[allow(dead_code)] // For readers of the file.
    pub(super) cure: String,
    #[allow(dead_code)] // Likewise.
    pub(super) certainty: Certainty,
    #[allow(dead_code)] // Likewise.
    #[serde(default)]
    pub(super) completed: bool,
    #[serde(deserialize_with = "rules")]
    pub(super) must_say: Vec<Regex>,
    #[serde(deserialize_with = "rules")]
    pub(super) must_not_say: Vec<Regex>,
    #[serde(default)]
    pub(super) expect: Expect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Error,
    Dump,
    Healthy,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Error, Self::Dump, Self::Healthy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Dump => "dump",
            Self::Healthy => "healthy",
        }
    }
}

/// The system that the text comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum System {
    Linux,
    Wsl,
    Windows,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Certainty {
    /// Confirmed in the thread by the reporter or a maintainer.
    Confirmed,
    /// Established by several threads or by documentation.
    Established,
}

/// What `doctor --from` must find.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expect {
    /// The architectures of all GPUs, in any order.
    pub(super) gpus: Option<Vec<String>>,
    /// The architecture to train on.
    pub(super) pick: Option<String>,
    pub(super) verdict: Option<Verdict>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// Training is possible.
    Train,
    /// Something prevents training.
    Mend,
}

fn rules<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Regex>, D::Error> {
    let rules = Vec::<String>::deserialize(from)?;
    let compile = |rule: &String| RegexBuilder::new(rule).case_insensitive(true).build();
    rules
        .iter()
        .map(|rule| compile(rule).map_err(serde::de::Error::custom))
        .collect()
}

impl Case {
    /// The part of the name before the number.
    pub(super) fn project(&self) -> &str {
        project(&self.slug).unwrap_or(&self.slug)
    }
}

fn project(slug: &str) -> Option<&str> {
    let mut end = 0;
    for part in slug.split('-') {
        if end > 0 && !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(&slug[..end - 1]);
        }
        end += part.len() + 1;
    }
    None
}

/// Whether a case is held out. Only its name decides, so that nobody chooses.
pub(super) fn is_held_out(slug: &str) -> bool {
    Sha256::digest(slug.as_bytes())[0].is_multiple_of(3)
}

/// All cases of the corpus, or of another folder of fresh texts, of which none is held out; sorted by name.
///
/// Fails at the first one that is not as `tests/corpus/README.md` asks.
pub(super) fn load(texts: Option<&str>) -> Result<Vec<Case>> {
    let folder = texts.map_or_else(|| super::root().join(FOLDER), Into::into);
    let shown = folder.display();
    let mut slugs = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read `{shown}`"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            let slug = path.file_stem().and_then(|name| name.to_str());
            slugs.push(
                slug.with_context(|| format!("not ASCII: {}", path.display()))?
                    .to_owned(),
            );
        }
    }
    slugs.sort();
    let cases = slugs.into_iter().map(|slug| {
        let mut case = read(&folder, &slug).with_context(|| format!("{shown}/{slug}"))?;
        case.held_out &= texts.is_none();
        Ok(case)
    });
    cases.collect()
}

fn read(folder: &Path, slug: &str) -> Result<Case> {
    let is_slug = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    ensure!(
        slug.bytes().all(is_slug) && project(slug).is_some(),
        "a name is `project-number-keyword`"
    );
    let text = fs::read(folder.join(format!("{slug}.txt")))?;
    ensure!(
        text.len() <= LONGEST_TEXT,
        "{} bytes of text: shorten it",
        text.len()
    );
    let truth =
        fs::read_to_string(folder.join(format!("{slug}.json"))).context("no truth (`.json`)")?;
    let truth: Truth = serde_json::from_str(&truth).context("the truth cannot be read")?;
    ensure!(
        truth.source.starts_with("https://") || truth.source.starts_with("http://"),
        "no source"
    );
    ensure!(
        !truth.cause.is_empty() && !truth.topic.is_empty(),
        "no cause, or no topic"
    );
    let expects = truth.expect.gpus.is_some()
        || truth.expect.pick.is_some()
        || truth.expect.verdict.is_some();
    let is_judged = truth.kind == Kind::Healthy || !truth.must_say.is_empty() || expects;
    ensure!(is_judged, "nothing that must be said");
    if let Some(name) = personal(&doctor::dump::decode(&text)) {
        anyhow::bail!("names a person or a machine: {name}");
    }
    Ok(Case {
        slug: slug.to_owned(),
        text,
        truth,
        held_out: is_held_out(slug),
    })
}

/// Finds a home folder or an e-mail address.
fn personal(text: &str) -> Option<String> {
    let home =
        Regex::new(r"(?i)(?:/home/|/Users/|[A-Z]:\\+Users\\+)([^/\\\s:\x22'<>()\[\],;]+)").ok()?;
    let allowed = [
        "user", "ubuntu", "runner", "public", "root", "app", "jovyan", "...",
    ];
    let owner = home
        .captures_iter(text)
        .find(|found| !allowed.contains(&found[1].to_lowercase().as_str()));
    let mail = Regex::new(r"[A-Za-z0-9._+-]+@[A-Za-z0-9-]+\.(?:com|org|net|de|edu|io)\b").ok()?;
    owner
        .map(|found| found[0].to_owned())
        .or_else(|| mail.find(text).map(|found| found.as_str().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_is_as_its_readme_says() {
        let cases = load(None).expect("well-formed cases");
        assert!(cases.iter().any(|case| case.held_out) || cases.len() < 10);
        for entry in fs::read_dir(crate::root().join(FOLDER)).expect("the folder") {
            let path = entry.expect("an entry").path();
            let is_truth = path
                .extension()
                .is_some_and(|extension| extension == "json");
            let has_text = path.with_extension("txt").exists() || path.ends_with("scores.json");
            assert!(!is_truth || has_text, "{} has no text", path.display());
        }
    }

    #[test]
    fn the_project_is_what_stands_before_the_number() {
        assert_eq!(project("ai-toolkit-210-no-hip"), Some("ai-toolkit"));
        assert_eq!(project("rocm-6-4"), Some("rocm"));
        assert_eq!(project("rocm-error"), None);
    }

    #[test]
    fn home_folders_and_mail_addresses_are_seen() {
        assert!(personal("File \"/home/user/a.py\"\nC:\\Users\\user\\x git@gitlab").is_none());
        assert_eq!(
            personal("in /home/jane/a.py").as_deref(),
            Some("/home/jane")
        );
        assert_eq!(
            personal("C:\\Users\\Jane Doe\\x").as_deref(),
            Some("C:\\Users\\Jane")
        );
        assert_eq!(
            personal("by jane@example.com").as_deref(),
            Some("jane@example.com")
        );
    }

    #[test]
    fn names_put_a_third_aside() {
        let names = (0..3000).map(|number| format!("rocm-{number}-x"));
        let held_out = names.filter(|name| is_held_out(name)).count();
        assert!((900..1100).contains(&held_out), "{held_out}");
        // A name always stays in the same part.
        assert!(is_held_out("rocm-1-x") && !is_held_out("rocm-2-x"));
    }
}
