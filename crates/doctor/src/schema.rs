//! The files of the catalogue as they are written, and what is checked in them.
//!
//! The build script reads the files of this crate, and `surefoot explain --catalogue` one more, by the same rules.

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::HashSet;
use std::fmt;
use toml::Spanned;

/// How bad an error or a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Training fails or computes wrongly.
    Error,
    /// Training may fail, or wastes much.
    Warning,
    /// Good to know.
    Info,
}

/// How sure it is that a cause is the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// The message has no other known cause.
    High,
    /// The usual cause.
    Medium,
    /// One of several causes.
    Low,
}

/// The checks of `surefoot probe`, which measure what a log cannot tell.
pub const CHECKS: [&str; 18] = [
    "import",
    "copy-small",
    "copy-image",
    "copy-mixed",
    "copy-loader",
    "copy-large",
    "matmul-fp32",
    "matmul-bf16",
    "matmul-bf16-rocblas",
    "autograd",
    "conv",
    "conv3d",
    "attention",
    "attention-fused",
    "attention-aotriton",
    "handles",
    "handles-uncached",
    "memory",
];

/// The systems on which the meaning of an entry applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// All of them.
    #[default]
    Anywhere,
    /// Linux with its own kernel and driver; also if the text does not show the system.
    BareMetal,
    /// All but Windows; also if the text does not show the system.
    NotWindows,
    /// Only where the text shows WSL.
    Wsl,
    /// Only where the text shows Windows.
    Windows,
}

/// A fact that a text shows, on which a step or a cause can depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fact {
    /// Linux with its own kernel.
    Linux,
    /// The Windows Subsystem for Linux.
    Wsl,
    /// Windows.
    Windows,
    /// Fedora and its relatives.
    Fedora,
    /// Arch and its relatives.
    Arch,
    /// openSUSE.
    Suse,
    /// NixOS.
    Nixos,
    /// A container, or a command that starts one.
    Container,
    /// `/dev/kfd` is open to everybody.
    KfdOpenToAll,
    /// `/dev/kfd` is open to root alone.
    KfdRootOnly,
    /// `HSA_OVERRIDE_GFX_VERSION` is set.
    Override,
    /// Its value is the one for the GPU, which PyTorch's own wheels need there.
    OverrideFits,
    /// Its value is none.
    OverrideInvalid,
    /// The wheel has no code for its value either.
    OverrideNotInWheel,
    /// A ROCm build of torch.
    RocmWheel,
    /// It has code for the GPU itself.
    WheelHasGpu,
    /// The program computes with JAX or TensorFlow, and not with PyTorch.
    OtherFramework,
    /// It computes with llama.cpp.
    Engine,
    /// The GPU of a processor beside a card.
    IntegratedBeside,
    /// GPUs of several architectures.
    SeveralArchitectures,
    /// `surefoot probe` ran the checks of this entry on the machine.
    Measured,
    /// It found copies that arrive broken.
    CopiesFail,
    /// Matrix products that are wrong.
    ProductsFail,
    /// Gradients that are wrong.
    GradientsFail,
    /// Attention that is wrong.
    AttentionFails,
    /// Attention without a fused kernel.
    AttentionUnfused,
}

/// A step, and on which facts it depends.
pub(crate) struct Step {
    pub(crate) when: Vec<Fact>,
    pub(crate) unless: Vec<Fact>,
    /// The architectures that it is for; all of them if empty.
    pub(crate) gpus: Vec<String>,
    /// Words of which the text must have one, in small letters.
    pub(crate) named: Vec<String>,
    /// Words of which it must have none: what was tried already, say.
    pub(crate) unnamed: Vec<String>,
    pub(crate) text: String,
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            #[serde(default)]
            when: Vec<Fact>,
            #[serde(default)]
            unless: Vec<Fact>,
            #[serde(default)]
            gpus: Vec<String>,
            #[serde(default)]
            named: Vec<String>,
            #[serde(default)]
            unnamed: Vec<String>,
            r#do: String,
        }
        struct TextOrTable;
        impl<'de> Visitor<'de> for TextOrTable {
            type Value = Step;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a text, or { when = [FACT], unless = [FACT], gpus = [ARCHITECTURE], named = [WORD], unnamed = [WORD], do = TEXT }")
            }

            fn visit_str<E>(self, text: &str) -> Result<Step, E> {
                Ok(Step {
                    when: Vec::new(),
                    unless: Vec::new(),
                    gpus: Vec::new(),
                    named: Vec::new(),
                    unnamed: Vec::new(),
                    text: text.to_owned(),
                })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Step, A::Error> {
                let Table {
                    when,
                    unless,
                    gpus,
                    named,
                    unnamed,
                    r#do: text,
                } = Table::deserialize(MapAccessDeserializer::new(map))?;
                let is_name = |name: &&String| {
                    let digits = name.strip_prefix("gfx").unwrap_or_default();
                    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
                };
                if let Some(name) = gpus.iter().find(|name| !is_name(name)) {
                    return Err(serde::de::Error::custom(format!(
                        "gpus: {name} is no architecture; one is gfx1100"
                    )));
                }
                let has_capitals = |word: &String| word.bytes().any(|b| b.is_ascii_uppercase());
                if let Some(word) = named.iter().chain(&unnamed).find(|word| has_capitals(word)) {
                    return Err(serde::de::Error::custom(format!(
                        "named, unnamed: {word} must be in small letters"
                    )));
                }
                Ok(Step {
                    when,
                    unless,
                    gpus,
                    named,
                    unnamed,
                    text,
                })
            }
        }
        deserializer.deserialize_any(TextOrTable)
    }
}

/// One known error, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) id: String,
    /// Set where it differs from that of the file.
    pub(crate) rank: Option<u16>,
    #[serde(default = "error")]
    pub(crate) severity: Severity,
    #[serde(default = "high")]
    pub(crate) confidence: Confidence,
    #[serde(default)]
    pub(crate) scope: Scope,
    #[serde(default = "once")]
    pub(crate) times: usize,
    /// It is a page fault on the GPU, after which a program may be started again.
    #[serde(default)]
    pub(crate) page_fault: bool,
    /// Its patterns are of sentences in which people complain, and not of what programs print.
    #[serde(default)]
    pub(crate) said: bool,
    /// It is found by its numbers or by several lines, and has no patterns.
    #[serde(default)]
    pub(crate) by_numbers: bool,
    #[serde(default)]
    pub(crate) patterns: Vec<String>,
    #[serde(default)]
    pub(crate) also: Vec<String>,
    #[serde(default)]
    pub(crate) absent: Vec<String>,
    #[serde(default)]
    pub(crate) covers: Vec<String>,
    pub(crate) cause: String,
    /// Other causes, by the fact that is then known.
    #[serde(default)]
    pub(crate) causes: Vec<Step>,
    #[serde(default)]
    pub(crate) fix: Vec<Step>,
    #[serde(default)]
    pub(crate) ask: Vec<Step>,
    #[serde(default)]
    pub(crate) probe: Vec<String>,
    pub(crate) source: String,
    pub(crate) seen: Vec<String>,
}

fn error() -> Severity {
    Severity::Error
}
fn once() -> usize {
    1
}
fn high() -> Confidence {
    Confidence::High
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rank: u16,
    entry: Vec<Spanned<Entry>>,
}

/// Reads files of the catalogue, each with its name, and returns their entries in the order of judgement.
///
/// `known` are ids of other entries. An error names the file, the line and the key.
pub(crate) fn read(
    files: &[(String, String)],
    known: &[&str],
    check_pattern: fn(&str) -> Result<(), String>,
) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for (name, text) in files {
        let file: File = toml::from_str(text).map_err(|error| format!("{name}: {error}"))?;
        for entry in file.entry {
            let line = 1 + text[..entry.span().start].matches('\n').count();
            let mut entry = entry.into_inner();
            entry.rank = entry.rank.or(Some(file.rank));
            entries.push((format!("{name}:{line}: {}", entry.id), entry));
        }
    }
    let mut ids: HashSet<&str> = known.iter().copied().collect();
    for (place, entry) in &entries {
        if !ids.insert(&entry.id) {
            return Err(format!("{place}: id: there is already an entry with it"));
        }
    }
    for (place, entry) in &entries {
        check(entry, &ids, check_pattern).map_err(|error| format!("{place}: {error}"))?;
    }
    entries.sort_by_key(|(_, entry)| entry.rank);
    Ok(entries.into_iter().map(|(_, entry)| entry).collect())
}

fn check(
    entry: &Entry,
    ids: &HashSet<&str>,
    check_pattern: fn(&str) -> Result<(), String>,
) -> Result<(), String> {
    let is_of_id = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if entry.id.is_empty() || !entry.id.chars().all(is_of_id) {
        return Err("id: lower-case letters, digits and dashes".to_owned());
    }
    for (key, text) in [("cause", &entry.cause), ("source", &entry.source)] {
        if text.trim().is_empty() {
            return Err(format!("{key}: it is empty"));
        }
    }
    for (key, texts) in [("patterns", &entry.patterns), ("seen", &entry.seen)] {
        if texts.is_empty() && !(entry.by_numbers && key == "patterns") {
            return Err(format!("{key}: there is none"));
        }
    }
    check_probe(&entry.probe)?;
    let patterns = [
        ("patterns", &entry.patterns),
        ("also", &entry.also),
        ("absent", &entry.absent),
    ];
    for (key, texts) in patterns {
        for text in texts {
            check_pattern(text).map_err(|error| format!("{key}: '{text}': {error}"))?;
        }
    }
    match entry
        .covers
        .iter()
        .find(|covered| !ids.contains(covered.as_str()) || **covered == entry.id)
    {
        Some(covered) => Err(format!("covers: there is no other entry {covered}")),
        None => Ok(()),
    }
}

/// Whether these are checks of `surefoot probe`.
pub(crate) fn check_probe(names: &[String]) -> Result<(), String> {
    match names.iter().find(|name| !CHECKS.contains(&name.as_str())) {
        Some(name) => Err(format!(
            "probe: there is no check {name}; the checks are {}",
            CHECKS.join(", ")
        )),
        None => Ok(()),
    }
}
