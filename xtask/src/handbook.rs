//! `cargo xtask handbook`: the generated parts of `docs/`.
//!
//! The handbook is an mdBook: `mdbook serve docs` shows it. Nothing here needs mdBook.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

use crate::workspace;

const SCHEMA: &str = "configs/schema.json";
const PAGE: &str = "docs/config-reference.md";

/// Write the handbook's page of all config keys, from `configs/schema.json`.
#[derive(clap::Args)]
pub(crate) struct Handbook {
    /// Write nothing; fail if the page does not match the schema
    #[arg(long)]
    check: bool,
}

impl Handbook {
    pub(crate) fn run(self) -> Result<()> {
        let root = workspace::root();
        let schema = fs::read_to_string(root.join(SCHEMA)).context(SCHEMA)?;
        let page = page(&serde_json::from_str(&schema)?)?;
        let path = root.join(PAGE);
        if !self.check {
            return fs::write(path, page).context(PAGE);
        }
        if fs::read_to_string(path).context(PAGE)? != page {
            bail!("{PAGE} does not match {SCHEMA}: run `cargo xtask handbook`");
        }
        Ok(())
    }
}

/// The page of all keys: a table for the config itself and one for each section.
fn page(schema: &Value) -> Result<String> {
    let mut page = String::from(
        "# Config reference\n\n\
         Every key of a training config, made from `configs/schema.json` by `cargo xtask handbook`. \
         An editor that knows YAML schemas shows the same text as you type, if the first line of the \
         config is `# yaml-language-server: $schema=` and the path of that file. Every key can also be \
         given on the command line, as `--set learning_rate=1e-4` or `--set model.name_or_path=FOLDER`.\n\n\
         A key that is *unset* by default may be left out or set to `null`. *For* says in which runs a key has an \
         effect, if not in all: on language or diffusion (video) models, published ones or from scratch. *Resume* says \
         whether a run may be resumed with another value: a change of a *free* key is reported, of a *fixed* one refused.\n",
    );
    let keys = properties(schema)?;
    let definitions = schema["$defs"].as_object().context("no $defs")?;
    page.push_str("\n## Top level\n\n");
    let plain = keys
        .iter()
        .filter(|(_, key)| section(key, definitions).is_none());
    table(&mut page, plain, definitions);
    for (name, key) in keys {
        let Some(definition) = section(key, definitions) else {
            continue;
        };
        let _ = write!(page, "\n## `{name}`\n\n{}\n\n", describe(key, definition));
        table(&mut page, properties(definition)?.iter(), definitions);
    }
    let nested = definitions.iter().filter(|(name, definition)| {
        definition["properties"].is_object() && !name.ends_with("Config")
    });
    for (name, definition) in nested {
        let _ = write!(
            page,
            "\n## {}\n\n{}\n\n",
            heading(name),
            sentence(definition)
        );
        table(&mut page, properties(definition)?.iter(), definitions);
    }
    Ok(page)
}

fn properties(schema: &Value) -> Result<&Map<String, Value>> {
    schema["properties"].as_object().context("no properties")
}

/// The definition that a key refers to, even if it may be null.
fn definition<'a>(
    key: &'a Value,
    definitions: &'a Map<String, Value>,
) -> Option<(&'a str, &'a Value)> {
    let reference = key["$ref"].as_str().or_else(|| {
        let choices = key["anyOf"].as_array()?;
        choices.iter().find_map(|choice| choice["$ref"].as_str())
    })?;
    let name = reference.strip_prefix("#/$defs/")?;
    Some((name, definitions.get(name)?))
}

/// The definition of a section of the config, such as `train`.
fn section<'a>(key: &'a Value, definitions: &'a Map<String, Value>) -> Option<&'a Value> {
    let (name, definition) = definition(key, definitions)?;
    name.ends_with("Config").then_some(definition)
}

fn describe(key: &Value, definition: &Value) -> String {
    match (sentence(key), sentence(definition)) {
        (key, definition) if key == definition || definition.is_empty() => key,
        (key, definition) => format!("{key} {definition}"),
    }
}

fn table<'a>(
    page: &mut String,
    keys: impl Iterator<Item = (&'a String, &'a Value)>,
    definitions: &Map<String, Value>,
) {
    page.push_str("| key | values | default | for | resume | |\n|---|---|---|---|---|---|\n");
    for (name, key) in keys {
        let default = match &key["default"] {
            Value::Null => "unset".to_owned(),
            default => format!("`{default}`"),
        };
        let mut text = sentence(key);
        for (value, meaning) in choices(key, definitions) {
            let _ = write!(text, "<br>`{value}`: {meaning}");
        }
        let _ = writeln!(
            page,
            "| `{name}` | {} | {default} | {} | {} | {} |",
            values(key, definitions),
            declared(key, "x-for", "any"),
            declared(key, "x-resume", "unrelated"),
            text.replace('|', "\\|")
        );
    }
}

/// The words of a declaration beside a key, except those that go without saying.
fn declared(key: &Value, word: &str, usual: &str) -> String {
    let text = key[word].as_str().filter(|text| *text != usual);
    text.unwrap_or_default().replace('-', " ")
}

/// The type of a key, in a word or two.
fn values(key: &Value, definitions: &Map<String, Value>) -> String {
    if let Some((name, definition)) = definition(key, definitions) {
        if definition["properties"].is_object() {
            let title = heading(name);
            return format!("[{title}](#{})", title.to_lowercase().replace(' ', "-"));
        }
        if definition["oneOf"].is_array() {
            return "one of these".to_owned();
        }
        return values(definition, definitions);
    }
    if let Some(values) = key["enum"].as_array() {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    if key["type"] == "array" {
        return match definition(&key["items"], definitions) {
            Some((name, _)) => {
                let title = heading(name);
                format!(
                    "list of [{title}](#{})",
                    title.to_lowercase().replace(' ', "-")
                )
            }
            None => "list".to_owned(),
        };
    }
    let types = match &key["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        Value::String(one) => vec![one.as_str()],
        _ => Vec::new(),
    };
    let word = |name: &&str| match *name {
        "boolean" => "`true` or `false`".to_owned(),
        "string" => "text".to_owned(),
        "object" => "map".to_owned(),
        "array" => "list".to_owned(),
        other => other.to_owned(),
    };
    let types = types.iter().filter(|name| **name != "null");
    let mut values = types.map(word).collect::<Vec<_>>().join(" or ");
    let bounds = [
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ];
    for (bound, sign) in bounds {
        if let Some(limit) = key.get(bound) {
            let _ = write!(values, ", {sign} {limit}");
        }
    }
    values
}

/// The values that a key may have and what each means.
fn choices<'a>(
    key: &'a Value,
    definitions: &'a Map<String, Value>,
) -> impl Iterator<Item = (&'a str, String)> {
    let choices = definition(key, definitions).and_then(|(_, found)| found["oneOf"].as_array());
    let choices = choices.into_iter().flatten();
    choices.filter_map(|choice| Some((choice["const"].as_str()?, sentence(choice))))
}

/// The description, on one line.
fn sentence(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Splits a name into words: `MemoryLimits` gives "Memory limits".
fn heading(name: &str) -> String {
    let mut heading = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !heading.is_empty() {
            heading.push(' ');
            heading.extend(character.to_lowercase());
        } else {
            heading.push(character);
        }
    }
    heading
}
