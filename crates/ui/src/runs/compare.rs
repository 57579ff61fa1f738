//! The configs of several runs, key by key.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{Error, MAX_TEXT_BYTES, Overview, RunName, Runs, read_text};

/// A key whose value differs between the runs.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Difference {
    /// The key, such as `train.learning_rate`.
    pub key: String,
    /// Its value in each run, as JSON; unset if a run does not have the key.
    pub values: Vec<Option<String>>,
}

/// A comparison of several runs.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Comparison {
    /// The runs, in the requested order.
    pub runs: Vec<Overview>,
    /// The keys whose values differ.
    pub differences: Vec<Difference>,
    /// Runs whose config cannot be read, and why.
    pub unreadable: Vec<String>,
}

/// Compares runs.
///
/// # Errors
/// [`Error::NotFound`].
pub fn compare(runs: &Runs, names: &[RunName]) -> Result<Comparison, Error> {
    let mut overviews = Vec::new();
    let mut configs = Vec::new();
    let mut unreadable = Vec::new();
    for name in names {
        overviews.push(runs.overview(name)?);
        let text = runs.folder(name)?.file("config.yaml");
        let text = read_text(text, MAX_TEXT_BYTES).unwrap_or_default();
        let mut values = BTreeMap::new();
        match serde_saphyr::from_str::<Value>(&text) {
            Ok(config) => flatten("", &config, &mut values),
            Err(error) => unreadable.push(format!("{name}/config.yaml: {error}")),
        }
        configs.push(values);
    }
    let keys: BTreeSet<&String> = configs.iter().flat_map(BTreeMap::keys).collect();
    let differences = keys.into_iter().filter_map(|key| {
        let values: Vec<Option<String>> = configs
            .iter()
            .map(|config| config.get(key).cloned())
            .collect();
        let differ = values.windows(2).any(|pair| pair[0] != pair[1]);
        let key = key.clone();
        differ.then_some(Difference { key, values })
    });
    Ok(Comparison {
        differences: differences.collect(),
        runs: overviews,
        unreadable,
    })
}

/// Nested maps become dotted keys; lists are compared as a whole.
fn flatten(prefix: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let key = match prefix {
                    "" => key.clone(),
                    prefix => format!("{prefix}.{key}"),
                };
                flatten(&key, value, into);
            }
        }
        value => {
            into.insert(prefix.to_owned(), value.to_string());
        }
    }
}
