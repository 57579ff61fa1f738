//! Reads files of other trainers as a list of keys with values: YAML, TOML, command lines, and calls in Python programs and
//! notebooks.

use std::path::Path;

use serde_json::{Map, Value};

use super::python;
use crate::config::ConfigError;
use crate::config::tree::parse_file;
use crate::config::words::keeps_maps;

/// A key as it is in the file, and its value.
#[derive(Debug, Clone)]
pub(super) struct Item {
    /// Where it is, such as `config.process[0].train.lr`.
    pub path: String,
    pub value: Value,
}

impl Item {
    pub(super) fn new(path: impl Into<String>, value: Value) -> Self {
        Self {
            path: path.into(),
            value,
        }
    }

    /// The last key of the path.
    pub(super) fn word(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or(&self.path)
    }

    /// The key above it, without its index.
    pub(super) fn section(&self) -> &str {
        let mut keys = self.path.rsplit('.').skip(1);
        let section = keys.next().unwrap_or_default();
        section.split('[').next().unwrap_or_default()
    }
}

/// All keys of the file at `path`.
///
/// # Errors
/// If it cannot be read, or is none of the known forms.
pub(super) fn items(path: &Path) -> Result<Vec<Item>, ConfigError> {
    let name = path.display().to_string();
    let wrong = |reason: String| ConfigError::of(&name, reason);
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| wrong(format!("the file cannot be read: {error}")))?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    let mut found = Vec::new();
    match extension.map(str::to_lowercase).as_deref() {
        Some("yaml" | "yml" | "json") => {
            flatten("", &parse_file(&name, &text)?.to_json(), &mut found);
        }
        Some("toml") => {
            let tree = toml::from_str::<Value>(&text).map_err(|error| wrong(error.to_string()))?;
            flatten("", &tree, &mut found);
        }
        Some("py") => found = python::items(&text),
        Some("ipynb") => found = python::items(&cells(&text).map_err(wrong)?),
        Some("sh" | "bash" | "bat" | "cmd" | "ps1" | "txt") => found = command(&text),
        _ => {
            return Err(wrong(
                "its name does not say what it is: `.yaml`, `.yml` and `.json` (axolotl, LLaMA-Factory, TRL, ai-toolkit), \
                 `.toml` (kohya, musubi-tuner), `.sh`, `.bat`, `.ps1` and `.txt` (command lines), `.py` and `.ipynb` \
                 (TRL, unsloth) are read"
                    .into(),
            ));
        }
    }
    match found.is_empty() {
        true => Err(wrong("no keys of a training were found in it".into())),
        false => Ok(found),
    }
}

/// Adds the leaves of a tree. Data sets of language models stay whole, and so do maps that are values here.
fn flatten(path: &str, value: &Value, found: &mut Vec<Item>) {
    let below = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    match value {
        Value::Object(keys) => {
            for (key, value) in keys {
                let is_value = keeps_maps(key) && value.is_object();
                let is_list = ["datasets", "pretraining_dataset"].contains(&key.as_str());
                match is_value || is_list && of_texts(value) || key == "test_datasets" {
                    true => found.push(Item::new(below(key), value.clone())),
                    false => flatten(&below(key), value, found),
                }
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (index, item) in items.iter().enumerate() {
                flatten(&format!("{path}[{index}]"), item, found);
            }
        }
        leaf => found.push(Item::new(path, leaf.clone())),
    }
}

/// Whether this is axolotl's list of data sets.
fn of_texts(value: &Value) -> bool {
    let mut sets = value.as_array().into_iter().flatten();
    sets.any(|set| set.get("path").is_some())
}

/// The code of a notebook.
fn cells(text: &str) -> Result<String, String> {
    let book: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let cells = book["cells"].as_array().ok_or("it has no `cells`")?.iter();
    let code = cells.filter(|cell| cell["cell_type"] == "code");
    let code = code.map(|cell| match &cell["source"] {
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect::<String>(),
        source => source.as_str().unwrap_or_default().to_owned(),
    });
    Ok(code.collect::<Vec<_>>().join("\n"))
}

/// The options of the command lines in a script. Those of `accelerate launch` come before the name of the program.
fn command(text: &str) -> Vec<Item> {
    let mut found: Vec<Item> = Vec::new();
    let mut joined = String::new();
    for line in text.lines() {
        let line = line.trim();
        let is_comment = ["#", "REM ", "rem ", "::", "@"]
            .iter()
            .any(|start| line.starts_with(start));
        let continued = line.strip_suffix(['\\', '^', '`']);
        if !is_comment {
            joined += continued.unwrap_or(line);
            joined.push(if continued.is_some() { ' ' } else { '\n' });
        }
    }
    for line in joined.lines() {
        let words = words(line);
        let program = words.iter().rposition(|word| {
            [".py", ".exe"].iter().any(|end| word.ends_with(end))
                || ["trl", "llamafactory-cli", "axolotl"].contains(&word.as_str())
        });
        // `trl dpo`, and TRL's own `dpo.py`.
        let called = program.and_then(|program| {
            let is_trl = words[program] == "trl";
            let name = words.get(program + usize::from(is_trl))?;
            let name = name.rsplit('/').next()?.trim_end_matches(".py");
            python::PREFERENCES.contains(&name).then(|| name.to_owned())
        });
        found.extend(called.map(|name| Item::new("command.rl", name.into())));
        let mut rest = words.iter().enumerate().peekable();
        while let Some((index, word)) = rest.next() {
            let Some(option) = word.strip_prefix("--") else {
                continue;
            };
            let is_launcher = program.is_some_and(|program| index < program);
            let (name, mut values) = match option.split_once('=') {
                Some((name, value)) => (name, vec![value.to_owned()]),
                None => (option, Vec::new()),
            };
            while values.is_empty() || !option.contains('=') {
                let ends =
                    |(at, word): &(usize, &String)| word.starts_with("--") || Some(*at) == program;
                match rest.next_if(|next| !ends(next)) {
                    Some((_, value)) => values.push(value.clone()),
                    None => break,
                }
            }
            let value = match &values[..] {
                [] => true.into(),
                [one] => scalar(one),
                several => several.iter().map(|word| scalar(word)).collect(),
            };
            let name = name.replace('-', "_");
            found.push(match is_launcher {
                true => Item::new(format!("launcher.{name}"), value),
                false => Item::new(name, value),
            });
        }
    }
    found
}

/// The words of a command line, without quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// The value that a word of a command line stands for.
pub(super) fn scalar(word: &str) -> Value {
    match word {
        "True" | "true" => true.into(),
        "False" | "false" => false.into(),
        "None" | "null" => Value::Null,
        word => match serde_json::from_str::<Value>(word) {
            Ok(number @ Value::Number(_)) => number,
            _ => word
                .parse::<f64>()
                .map_or_else(|_| word.into(), Value::from),
        },
    }
}

/// `a=1, b=2`, a list of those, or JSON, as a map.
pub(super) fn pairs(value: &Value) -> Map<String, Value> {
    let text = match value {
        Value::Object(map) => return map.clone(),
        Value::Array(items) => items
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join(" "),
        value => value.as_str().unwrap_or_default().to_owned(),
    };
    // Where a program takes JSON.
    if let Ok(map) = serde_json::from_str(&text) {
        return map;
    }
    // `betas=0.9,0.99` has a comma of its own.
    let mut map = Map::new();
    let mut rest = text.split([' ', ',']).filter(|part| !part.is_empty());
    let mut last: Option<String> = None;
    for part in rest.by_ref() {
        let part = part.trim_matches(['(', ')', '[', ']']);
        match (part.split_once('='), &last) {
            (Some((key, value)), _) => {
                let value = value.trim_matches(['(', ')', '[', ']', '"', '\'']);
                map.insert(key.to_owned(), scalar(value));
                last = Some(key.to_owned());
            }
            (None, Some(key)) => {
                let before = map.remove(key).unwrap_or_default();
                let mut items = match before {
                    Value::Array(items) => items,
                    one => vec![one],
                };
                items.push(scalar(part));
                map.insert(key.clone(), items.into());
            }
            (None, None) => drop(map.insert(part.to_owned(), true.into())),
        }
    }
    map
}
