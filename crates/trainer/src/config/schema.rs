//! The JSON schema of a config, generated from the structs.

use std::sync::OnceLock;

use serde_json::Value;

use super::keys::keys;

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
    let mut found = keys().iter().filter(|declared| declared.name == key);
    match (found.next(), found.next()) {
        (Some(one), None) => one.section,
        _ => None,
    }
}
