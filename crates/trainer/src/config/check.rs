//! Checks a config tree against the JSON schema and reports all problems at once. This is our own checker
//! because the errors of the jsonschema crate (a JSON pointer and a keyword) would have to be converted to these
//! messages anyway, and JSON has no NaN to refuse.
//!
//! It supports the part of JSON Schema that the structs in `config` use:
//! `$ref`, `type`, `properties`, `items`, `enum`, `const`, `oneOf`, `anyOf`,
//! `pattern`, `additionalProperties` of maps, and the numeric and length bounds. A test ensures that.

use serde_json::Value as Schema;

use super::paths::resolve;
use super::problem::Problem;
use super::tree::{Entry, Node, Value, whole_number};
use super::words::translated;

/// All problems of `tree` under `schema`, in the order of the text.
pub(crate) fn against_schema(tree: &Node, schema: &Schema) -> Vec<Problem> {
    let mut checker = Checker {
        root: schema,
        problems: Vec::new(),
    };
    checker.node(tree, schema, &mut Vec::new());
    checker.problems
}

/// Makes `off` and `on` words again where a key has such words: YAML reads them as `false` and `true`.
pub(crate) fn restore_words(node: &mut Node, schema: &Schema, root: &Schema) {
    let schema = resolve(root, schema);
    match &mut node.value {
        Value::Bool(value) => {
            let word = if *value { "on" } else { "off" };
            let allowed = allowed_values(schema).unwrap_or_default();
            if allowed.iter().any(|allowed| *allowed == word) {
                node.value = Value::String(word.to_owned());
            }
        }
        Value::Map(entries) => {
            for entry in entries {
                restore_words(&mut entry.node, &schema["properties"][&entry.key], root);
            }
        }
        _ => {}
    }
}

struct Checker<'a> {
    root: &'a Schema,
    problems: Vec<Problem>,
}

impl<'a> Checker<'a> {
    fn node(&mut self, node: &Node, schema: &'a Schema, path: &mut Vec<String>) {
        let schema = self.resolve(schema);
        if let Some(variants) = schema.get("anyOf").and_then(Schema::as_array) {
            // `Option<T>` of a named type: null, or T.
            let inner = variants.iter().find(|variant| !is_null(variant));
            match (&node.value, inner) {
                (Value::Null, _) | (_, None) => {}
                (_, Some(inner)) => self.node(node, inner, path),
            }
            return;
        }
        if let Some(allowed) = allowed_values(schema) {
            return self.one_of(node, &allowed, path);
        }
        if !has_type(schema, &node.value) {
            let message = format!(
                "{} takes {}, not {}",
                title(path),
                expected(schema),
                describe(&node.value)
            );
            self.problems.push(Problem::at(&node.place, message));
            return;
        }
        match &node.value {
            Value::Integer(value) => self.bounds(node, *value as f64, schema, path),
            Value::Float(value) => self.bounds(node, *value, schema, path),
            Value::String(value) => self.text(node, value, schema, path),
            Value::List(items) => {
                if schema["minItems"]
                    .as_u64()
                    .is_some_and(|least| (items.len() as u64) < least)
                    || schema["minLength"]
                        .as_u64()
                        .is_some_and(|least| (items.len() as u64) < least)
                {
                    let message = format!("{} must not be empty", title(path));
                    self.problems.push(Problem::at(&node.place, message));
                }
                for item in items {
                    self.node(item, &schema["items"], path);
                }
            }
            Value::Map(entries) => {
                self.required(node, entries, schema, path);
                self.map(entries, schema, path);
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn required(&mut self, node: &Node, entries: &[Entry], schema: &Schema, path: &[String]) {
        let required = schema["required"].as_array().into_iter().flatten();
        let missing = required
            .filter_map(Schema::as_str)
            .filter(|key| entries.iter().all(|entry| entry.key != **key));
        for key in missing {
            let message = format!("{} has no `{key}`", title(path));
            self.problems.push(Problem::at(&node.place, message));
        }
    }

    fn map(&mut self, entries: &[Entry], schema: &'a Schema, path: &mut Vec<String>) {
        let Some(properties) = schema.get("properties").and_then(Schema::as_object) else {
            // A map with user-defined keys.
            let Some(values) = schema.get("additionalProperties") else {
                return;
            };
            for entry in entries {
                path.push(entry.key.clone());
                self.node(&entry.node, values, path);
                path.pop();
            }
            return;
        };
        for entry in entries {
            path.push(entry.key.clone());
            match properties.get(&entry.key) {
                Some(schema) => self.node(&entry.node, schema, path),
                None => {
                    path.pop();
                    let problem = self.unknown_key(entry, properties, path);
                    self.problems.push(problem);
                    continue;
                }
            }
            path.pop();
        }
    }

    fn unknown_key(
        &self,
        entry: &Entry,
        properties: &serde_json::Map<String, Schema>,
        path: &[String],
    ) -> Problem {
        let key = &entry.key;
        let place = match path {
            [] => "at the top of a config".to_owned(),
            path => format!("in `{}`", path.join(".")),
        };
        let problem = Problem::at(&entry.place, format!("unknown key `{key}` {place}"));
        let written = entry.node.to_json();
        if let Some((ours, value)) = translated(key, &written) {
            let ours = match value.filter(|value| *value != written) {
                Some(value) => format!("{ours}: {}", plain(&value)),
                None => ours.to_owned(),
            };
            return problem.with_help(format!("did you mean `{ours}`?"));
        }
        let known: Vec<&str> = properties.keys().map(String::as_str).collect();
        if let Some(near) = nearest(key, &known) {
            return problem.with_help(format!("did you mean `{near}`?"));
        }
        if let Some(elsewhere) = self.paths_of(key).first() {
            return problem.with_help(format!("did you mean `{elsewhere}`?"));
        }
        problem.with_help(format!("known keys: {}", known.join(", ")))
    }

    /// The full paths of the keys in all sections that are called `key`.
    fn paths_of(&self, key: &str) -> Vec<String> {
        let mut paths = Vec::new();
        let sections = self.root["properties"].as_object().into_iter().flatten();
        for (section, schema) in sections {
            let properties = self
                .resolve(schema)
                .get("properties")
                .and_then(Schema::as_object);
            let known: Vec<&str> = properties
                .into_iter()
                .flatten()
                .map(|(name, _)| name.as_str())
                .collect();
            if let Some(near) = nearest(key, &known) {
                paths.push(format!("{section}.{near}"));
            }
        }
        paths.sort_by_key(|path| strsim::levenshtein(key, path.rsplit('.').next().unwrap_or(path)));
        if known_at_top(self.root, key) {
            paths.insert(0, key.to_owned());
        }
        paths
    }

    fn one_of(&mut self, node: &Node, allowed: &[&Schema], path: &[String]) {
        if allowed.contains(&&node.to_json()) {
            return;
        }
        let words: Vec<String> = allowed.iter().map(|value| plain(value)).collect();
        let message = format!("{} cannot be {}", title(path), describe(&node.value));
        let near = match &node.value {
            Value::String(found) => {
                nearest(found, &words.iter().map(String::as_str).collect::<Vec<_>>())
            }
            _ => None,
        };
        let list = words
            .iter()
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(", ");
        let help = match near {
            Some(near) => format!("did you mean `{near}`? Allowed: {list}"),
            None => format!("allowed: {list}"),
        };
        self.problems
            .push(Problem::at(&node.place, message).with_help(help));
    }

    fn text(&mut self, node: &Node, value: &str, schema: &Schema, path: &[String]) {
        if schema["minLength"]
            .as_u64()
            .is_some_and(|least| (value.len() as u64) < least)
        {
            let message = format!("{} must not be empty", title(path));
            self.problems.push(Problem::at(&node.place, message));
        }
        let Some(pattern) = schema["pattern"].as_str() else {
            return;
        };
        let matches = regex::Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(value));
        if !matches {
            let message = format!("{} cannot be `{value}`", title(path));
            let problem = Problem::at(&node.place, message);
            let help = schema["description"]
                .as_str()
                .unwrap_or(pattern)
                .replace('\n', " ");
            self.problems.push(problem.with_help(help));
        }
    }

    fn bounds(&mut self, node: &Node, value: f64, schema: &Schema, path: &[String]) {
        let bound = |key: &str| schema[key].as_f64();
        let too_small = bound("minimum").is_some_and(|least| value < least)
            || bound("exclusiveMinimum").is_some_and(|floor| value <= floor);
        let unbounded = bound("maximum").or(bound("exclusiveMaximum")).is_none();
        let beyond = most(schema).filter(|most| unbounded && value >= *most as f64 + 1.0);
        let too_large = bound("maximum").is_some_and(|most| value > most)
            || beyond.is_some()
            || bound("exclusiveMaximum").is_some_and(|ceiling| value >= ceiling);
        if too_small || too_large || !value.is_finite() {
            let message = format!(
                "{} is {}, which is out of range",
                title(path),
                describe(&node.value)
            );
            let help = match beyond {
                Some(most) => format!("allowed: at most {most}"),
                None => format!("allowed: {}", range(schema)),
            };
            self.problems
                .push(Problem::at(&node.place, message).with_help(help));
        }
    }

    fn resolve(&self, schema: &'a Schema) -> &'a Schema {
        let reference = schema.get("$ref").and_then(Schema::as_str);
        let pointer = reference.and_then(|reference| reference.strip_prefix('#'));
        pointer
            .and_then(|pointer| self.root.pointer(pointer))
            .unwrap_or(schema)
    }
}

fn known_at_top(root: &Schema, key: &str) -> bool {
    root["properties"].get(key).is_some()
}

fn is_null(schema: &Schema) -> bool {
    schema["type"] == "null"
}

/// The values that an enum allows; `None` if the schema is not an enum.
fn allowed_values(schema: &Schema) -> Option<Vec<&Schema>> {
    if let Some(values) = schema.get("enum").and_then(Schema::as_array) {
        return Some(values.iter().collect());
    }
    let variants = schema.get("oneOf").and_then(Schema::as_array)?;
    variants
        .iter()
        .map(|variant| variant.get("const"))
        .collect()
}

/// A value as it is written in YAML.
fn plain(value: &Schema) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn types(schema: &Schema) -> Vec<&str> {
    match &schema["type"] {
        Schema::String(name) => vec![name],
        Schema::Array(names) => names.iter().filter_map(Schema::as_str).collect(),
        _ => Vec::new(),
    }
}

fn has_type(schema: &Schema, value: &Value) -> bool {
    let types = types(schema);
    types.is_empty()
        || types.iter().any(|name| {
            matches!(
                (*name, value),
                ("null", Value::Null)
                    | ("boolean", Value::Bool(_))
                    | ("integer" | "number", Value::Integer(_))
                    | ("number", Value::Float(_))
                    | ("string", Value::String(_))
                    | ("array", Value::List(_))
                    | ("object", Value::Map(_))
            ) || matches!((*name, value), ("integer", Value::Float(value)) if whole_number(*value).is_some())
        })
}

fn expected(schema: &Schema) -> String {
    let words: Vec<&str> = types(schema)
        .into_iter()
        .filter(|name| *name != "null")
        .map(|name| match name {
            "boolean" => "`true` or `false`",
            "integer" => "a whole number",
            "number" => "a number",
            "string" => "a text",
            "array" => "a list",
            "object" => "a section of keys",
            other => other,
        })
        .collect();
    words.join(" or ")
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".into(),
        Value::Bool(value) => format!("`{value}`"),
        Value::Integer(value) => format!("`{value}`"),
        Value::Float(value) => format!("`{value}`"),
        Value::String(value) => format!("the text `{value}`"),
        Value::List(_) => "a list".into(),
        Value::Map(_) => "a section of keys".into(),
    }
}

fn range(schema: &Schema) -> String {
    let bound = |key: &str| schema[key].as_f64();
    let lower = match (bound("exclusiveMinimum"), bound("minimum")) {
        (Some(floor), _) => Some(format!("more than {floor}")),
        (None, Some(least)) => Some(format!("at least {least}")),
        (None, None) => None,
    };
    let upper = match (bound("exclusiveMaximum"), bound("maximum")) {
        (Some(ceiling), _) => Some(format!("less than {ceiling}")),
        (None, Some(most)) => Some(format!("at most {most}")),
        (None, None) => None,
    };
    [lower, upper]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" and ")
}

/// The largest number of the type that a key is parsed as.
fn most(schema: &Schema) -> Option<u64> {
    match schema["format"].as_str()? {
        "uint32" => Some(u32::MAX.into()),
        "uint64" => Some(u64::MAX),
        _ => None,
    }
}

fn title(path: &[String]) -> String {
    match path {
        [] => "a config".into(),
        path => format!("`{}`", path.join(".")),
    }
}

/// The known word that `word` is most likely a misspelling of.
pub(crate) fn nearest<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    let word = word.to_lowercase();
    known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, candidate), *candidate))
        .filter(|(distance, candidate)| {
            *distance <= 2.max(candidate.len() / 4) && *distance < candidate.len()
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
