//! What modules of a text model are called in PEFT's files: as in the model alone, or as in a larger model that it is the
//! text part of.

use std::collections::BTreeMap;

use indexmap::IndexMap;

/// How names begin: here, and in a file.
type Prefixes = &'static [(&'static str, &'static str)];

/// In transformers 5: `model.layers.0.mlp` is `model.language_model.layers.0.mlp`, and the head has the same name.
const PART: Prefixes = &[("model.", "model.language_model."), ("lm_head", "lm_head")];
/// In transformers 4, up to 4.51.
const OLD_PART: Prefixes = &[
    ("model.", "language_model.model."),
    ("lm_head", "language_model.lm_head"),
];

/// What modules are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Naming(Option<Prefixes>);

impl Naming {
    /// As in a model of text alone, which is how they are called here.
    pub const ALONE: Self = Self(None);
    /// As in a model with other parts.
    pub const PART: Self = Self(Some(PART));

    /// The one that names of modules in a file have.
    pub(super) fn of<'n>(mut names: impl Iterator<Item = &'n str>) -> Self {
        let found = names.find_map(|name| {
            let is_it = |naming: &Prefixes| name.starts_with(naming[0].1);
            [PART, OLD_PART].into_iter().find(is_it)
        });
        Self(found)
    }

    /// The name there of the module or tensor that is called `name` here.
    pub(super) fn theirs(self, name: &str) -> String {
        replaced(self.0, name, |(ours, theirs)| (ours, theirs)).unwrap_or_else(|| name.to_owned())
    }

    /// The name here of what is called `name` there; `None` if it is of another part.
    pub(super) fn ours(self, name: &str) -> Option<String> {
        match self.0 {
            None => Some(name.to_owned()),
            naming => replaced(naming, name, |(ours, theirs)| (theirs, ours)),
        }
    }
}

fn replaced(
    naming: Option<Prefixes>,
    name: &str,
    turned: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) -> Option<String> {
    let mut prefixes = naming?.iter().copied().map(turned);
    prefixes.find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)))
}

/// A regular expression that matches these names of modules and no others.
pub(super) fn exactly(names: &[String]) -> String {
    const LIST: &str = ".layers.";
    // What is in a block, and in which.
    let mut blocks: IndexMap<(String, String), Vec<String>> = IndexMap::new();
    let mut alternatives = Vec::new();
    for name in names {
        let place = name.split_once(LIST);
        match place.and_then(|(list, rest)| Some((list, rest.split_once('.')?))) {
            Some((list, (block, part))) => {
                let parts = blocks.entry((list.to_owned(), part.to_owned()));
                parts.or_default().push(block.to_owned());
            }
            None => alternatives.push(regex::escape(name)),
        }
    }
    // Parts that the same blocks have.
    let mut groups: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for ((list, part), blocks) in blocks {
        let group = groups.entry((list, blocks.join("|"))).or_default();
        group.push(regex::escape(&part));
    }
    for ((list, blocks), parts) in groups {
        let list = regex::escape(&format!("{list}{LIST}"));
        alternatives.push(format!("{list}(?:{blocks})\\.(?:{})", parts.join("|")));
    }
    alternatives.join("|")
}
