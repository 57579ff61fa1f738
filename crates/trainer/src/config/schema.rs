//! The JSON schema of a config, generated from the structs.

use std::sync::OnceLock;

use serde_json::Value;

/// The schema, built once.
pub(crate) fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| schemars::schema_for!(super::Config).to_value())
}

/// The schema as the text of `configs/schema.json`.
pub fn schema_json() -> String {
    format!("{:#}\n", schema())
}

/// The section with a key called `key`, if there is exactly one and it is not a top-level key.
pub(crate) fn section_of(key: &str) -> Option<&'static str> {
    let sections = schema()["properties"].as_object()?;
    if sections.contains_key(key) {
        return None;
    }
    let mut found = sections.iter().filter(|(_, section)| {
        // A section refers to its struct, or to a choice between that and null.
        let variants = section["anyOf"].as_array().into_iter().flatten();
        let mut references = variants
            .chain([*section])
            .filter_map(|v| v["$ref"].as_str());
        references.any(|reference| {
            let pointer = format!("{}/properties/{key}", reference.trim_start_matches('#'));
            schema().pointer(&pointer).is_some()
        })
    });
    match (found.next(), found.next()) {
        (Some((section, _)), None) => Some(section),
        _ => None,
    }
}
