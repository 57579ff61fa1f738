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
