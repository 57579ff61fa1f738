//! A config as a tree in which every key and value has its position in the text.
//!
//! Typed deserialization would stop at the first problem and lose the positions of the rest. The tree keeps them,
//! merges `--set` overrides, and is then
//! checked as a whole.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::declared::alternatives;
use super::problem::{ConfigError, Problem, Source, SourceSpan};

/// A value and its position.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: SourceSpan,
}

/// A YAML value.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    String(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key of a mapping, its position and its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: SourceSpan,
    pub(crate) node: Node,
}

impl Node {
    /// The node at `path`, if the text has one.
    pub(crate) fn find(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| match &node.value {
            Value::Map(entries) => entries.iter().find(|e| e.key == *key).map(|e| &e.node),
            _ => None,
        })
    }

    /// The node below a key, to change it.
    pub(crate) fn find_mut(&mut self, key: &str) -> Option<&mut Node> {
        match &mut self.value {
            Value::Map(entries) => entries
                .iter_mut()
                .find(|e| e.key == key)
                .map(|e| &mut e.node),
            _ => None,
        }
    }

    /// The tree without positions.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Integer(value) => u64::try_from(*value)
                .map(Into::into)
                .or_else(|_| i64::try_from(*value).map(Into::into))
                .unwrap_or_else(|_| (*value as f64).into()),
            // `2.0` is 2, both where an integer and where any number is expected.
            Value::Float(value) => match whole_number(*value) {
                Some(whole) => whole.into(),
                None => (*value).into(),
            },
            Value::String(value) => value.clone().into(),
            Value::List(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.node.to_json()))
                .collect(),
        }
    }
}

/// A number without a fraction, if it is one and small enough to be exact.
pub(crate) fn whole_number(value: f64) -> Option<i64> {
    let exact = value.fract() == 0.0 && value.abs() <= (1_u64 << 53) as f64;
    exact.then_some(value as i64)
}

/// Parses the text of a config file. An empty file is an empty config.
pub(crate) fn parse_file(name: &str, text: &str) -> Result<Node, ConfigError> {
    let source = Source {
        name: name.into(),
        text: text.into(),
    };
    let node = parse(&source, text, 0)?;
    match node.value {
        Value::Map(_) => Ok(node),
        Value::Null => Ok(Node {
            value: Value::Map(Vec::new()),
            place: SourceSpan::start_of(&source),
        }),
        _ => Err(
            Problem::at(&node.place, "a config is a mapping of keys to values")
                .with_help("write lines such as `name: my-run`")
                .into(),
        ),
    }
}

/// The source name of overrides in messages.
pub(super) const OVERRIDE: &str = "--set";

/// Merges `a.b=value` into the tree; the value is YAML. `section_of` finds the section of a key without
/// one.
pub(crate) fn apply_override(
    tree: &mut Node,
    argument: &str,
    section_of: &dyn Fn(&str) -> Option<&'static str>,
) -> Result<(), ConfigError> {
    let source = Source {
        name: OVERRIDE.into(),
        text: argument.into(),
    };
    let Some((path, value)) = argument.split_once('=') else {
        return Err(Problem::at(
            &SourceSpan::start_of(&source),
            format!("`{argument}` has no `=`"),
        )
        .with_help("write `--set train.learning_rate=3e-4`")
        .into());
    };
    let mut keys: Vec<&str> = path.trim().split('.').collect();
    if let [key] = keys[..]
        && let Some(section) = section_of(key)
    {
        keys.insert(0, section);
    }
    if keys.iter().any(|key| key.is_empty()) {
        return Err(Problem::at(
            &SourceSpan::start_of(&source),
            format!("`{path}` is not a key"),
        )
        .with_help("write `--set train.learning_rate=3e-4`")
        .into());
    }
    let node = parse(&source, value, path.len() + 1)?;
    let set = !matches!(node.value, Value::Null);
    // Only one of these may be set: an override of one removes the others, unless they are overrides, too.
    for other in alternatives(&keys).filter(|_| set) {
        take_back(tree, &other.path());
    }
    insert(tree, &keys, node, &source);
    Ok(())
}

/// Removes the key at `path` if it comes from the config file.
fn take_back(tree: &mut Node, path: &[&str]) {
    let (Value::Map(entries), [key, rest @ ..]) = (&mut tree.value, path) else {
        return;
    };
    match rest {
        [] => entries.retain(|e| e.key != *key || *e.node.place.source.name == *OVERRIDE),
        rest => {
            let sections = entries.iter_mut().filter(|entry| entry.key == *key);
            sections.for_each(|entry| take_back(&mut entry.node, rest));
        }
    }
}

fn insert(tree: &mut Node, keys: &[&str], node: Node, source: &Source) {
    let Some((key, rest)) = keys.split_first() else {
        *tree = node;
        return;
    };
    if !matches!(tree.value, Value::Map(_)) {
        tree.value = Value::Map(Vec::new());
        tree.place = SourceSpan::start_of(source);
    }
    let Value::Map(entries) = &mut tree.value else {
        return;
    };
    let place = key_place(source, key);
    let index = entries.iter().position(|entry| entry.key == *key);
    let index = index.unwrap_or_else(|| {
        let value = Value::Map(Vec::new());
        let node = Node {
            value,
            place: place.clone(),
        };
        entries.push(Entry {
            key: (*key).into(),
            place,
            node,
        });
        entries.len() - 1
    });
    insert(&mut entries[index].node, rest, node, source);
}

/// The position of `key` in the `--set` argument.
fn key_place(source: &Source, key: &str) -> SourceSpan {
    let path_end = source.text.find('=').unwrap_or(source.text.len());
    let offset = source.text[..path_end].rfind(key).unwrap_or(0);
    SourceSpan {
        source: source.clone(),
        line: 1,
        column: source.text[..offset].chars().count() + 1,
        offset,
        length: key.len(),
    }
}

/// Parses `text`, which starts at byte `shift` of the source's text.
fn parse(source: &Source, text: &str, shift: usize) -> Result<Node, ConfigError> {
    let options = serde_saphyr::options! { with_snippet: false };
    let raw: Spanned<Raw> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let place = error.location().map_or_else(
                || SourceSpan::start_of(source),
                |location| place_of(source, &location, shift),
            );
            let message = error.without_snippet().to_string();
            // The message ends with the position in the parser's words; ours is at the front.
            let message = message.split(" at line ").next().unwrap_or_default();
            let (message, help) = in_words_of_a_config(message);
            let problem = Problem::at(&place, format!("not valid YAML: {message}"));
            match help {
                Some(help) => problem.with_help(help),
                None => problem,
            }
        })?;
    Ok(raw_to_node(raw, source, shift))
}

/// The parser's message without the terms of its grammar and options, and what to do about it.
fn in_words_of_a_config(message: &str) -> (String, Option<&'static str>) {
    const ALIKE: &str = "indent the keys of a section alike, and the items of a list";
    const QUOTES: &str = "put a text that begins with a sign of YAML's, as `@`, `%`, `*` or a backtick, \
                          in quotes";
    const WORDS: [(&str, &str, &str); 10] = [
        (
            "mapping values are not allowed",
            "a `:` is not allowed here",
            "put text that contains `: ` in quotes, and indent the keys of a section alike",
        ),
        (
            "simple key",
            "this line is not of the form `key: value`",
            "write a `:` and a space after the key",
        ),
        ("expected key", "a `key: value` should be here", ALIKE),
        (
            "'-' indicator",
            "a `- ` should be here, as before the other items of the list",
            ALIKE,
        ),
        ("unknown anchor", "`*` refers to nothing here", QUOTES),
        (
            "node content",
            "a value is missing, or cannot begin like this",
            QUOTES,
        ),
        ("<document start>", "a value cannot begin like this", QUOTES),
        (
            "unexpected character",
            "a value cannot begin like this",
            QUOTES,
        ),
        (
            "string scalar",
            "a key must be one word",
            "write lines such as `name: my-run`",
        ),
        (
            "invalid ",
            "the value does not match its tag",
            "remove the tag (`!!int`)",
        ),
    ];
    if let Some((_, rest)) = message.split_once("duplicate mapping key: ") {
        let key = rest.split(", set ").next().unwrap_or(rest);
        return (
            format!("the key `{key}` occurs twice"),
            Some("keep one of them"),
        );
    }
    let known = WORDS.iter().find(|(theirs, ..)| message.contains(theirs));
    if let Some((_, ours, help)) = known {
        return ((*ours).to_owned(), Some(help));
    }
    const GRAMMAR: [&str; 6] = [
        "while ",
        "expected",
        "mapping",
        "scalar",
        "token",
        "directive",
    ];
    match GRAMMAR.iter().any(|word| message.contains(word)) {
        true => ("this cannot be read".into(), Some(QUOTES)),
        false => (message.to_owned(), None),
    }
}

/// The tree as parsed, before its positions refer to a source.
enum Raw {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    String(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

fn raw_to_node(raw: Spanned<Raw>, source: &Source, shift: usize) -> Node {
    let place = place_of(source, &raw.referenced, shift);
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Bool(value) => Value::Bool(value),
        Raw::Integer(value) => Value::Integer(value),
        Raw::Float(value) => Value::Float(value),
        Raw::String(value) => Value::String(value),
        Raw::List(items) => Value::List(
            items
                .into_iter()
                .map(|item| raw_to_node(item, source, shift))
                .collect(),
        ),
        Raw::Map(entries) => Value::Map(
            entries
                .into_iter()
                .map(|(key, node)| Entry {
                    place: place_of(source, &key.referenced, shift),
                    key: key.value,
                    node: raw_to_node(node, source, shift),
                })
                .collect(),
        ),
    };
    Node { value, place }
}

fn place_of(source: &Source, location: &Location, shift: usize) -> SourceSpan {
    let number = |value: u64| usize::try_from(value).unwrap_or(0);
    let (line, column) = (
        number(location.line()).max(1),
        number(location.column()).max(1),
    );
    let span = location.span();
    let end = source.text.len();
    let offset = match span.byte_offset() {
        Some(offset) => number(offset) + shift,
        // The parser's errors contain only line and column.
        None => byte_offset(&source.text[shift..], line, column) + shift,
    };
    let offset = source.text.floor_char_boundary(offset.min(end));
    let length = number(span.byte_len().unwrap_or(0)).min(end - offset);
    let column = if line == 1 { column + shift } else { column };
    SourceSpan {
        source: source.clone(),
        line,
        column,
        offset,
        length,
    }
}

/// The byte offset of the character at `line` and `column`.
fn byte_offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text
        .split_inclusive('\n')
        .take(line - 1)
        .map(str::len)
        .sum();
    let characters = text[start..].chars().take(column - 1);
    start + characters.map(char::len_utf8).sum::<usize>()
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a YAML value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Integer(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Integer(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::String(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}
