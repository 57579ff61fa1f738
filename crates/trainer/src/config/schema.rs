//! The JSON schema of a config, generated from the structs.

use std::sync::OnceLock;

use serde_json::Value;

use super::keys::keys;
use super::words;

/// What other trainers call a key, so that editors find it by those words.
const ALIASES: &str = "x-aliases";

/// The schema, built once.
pub(crate) fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let mut schema = schemars::schema_for!(super::Config).to_value();
        for (key, aliases) in words::entries() {
            let Some(pointer) = pointer_to(&schema, key) else {
                continue;
            };
            if let Some(Value::Object(declared)) = schema.pointer_mut(&pointer) {
                let known = declared
                    .entry(ALIASES)
                    .or_insert_with(|| Value::Array(<_>::default()));
                if let Value::Array(known) = known {
                    known.extend(aliases.map(Value::from));
                }
            }
        }
        schema
    })
}

/// The JSON pointer of a key, such as `train.max_steps`.
fn pointer_to(schema: &Value, key: &str) -> Option<String> {
    let Some((section, key)) = key.split_once('.') else {
        return Some(format!("/properties/{key}"));
    };
    let section = &schema["properties"][section];
    // A section that may be absent is one of two variants.
    let mut variants = section["anyOf"]
        .as_array()
        .into_iter()
        .flatten()
        .chain([section]);
    let reference = variants.find_map(|variant| variant["$ref"].as_str())?;
    Some(format!(
        "{}/properties/{key}",
        reference.trim_start_matches('#')
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_others_is_at_its_key() {
        for (key, aliases) in words::entries() {
            let pointer = pointer_to(schema(), key);
            let declared = pointer.as_deref().and_then(|at| schema().pointer(at));
            let known = declared.and_then(|declared| declared[ALIASES].as_array());
            for alias in aliases {
                let is_known = known.is_some_and(|known| known.contains(&alias.into()));
                assert!(is_known, "{key}: {alias}");
            }
        }
    }
}
