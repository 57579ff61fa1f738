//! The JSON that other programs rely on: every field, its type and its values, for every
//! text that we have. What is not known is null; nothing that is named is ever left out.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use surefoot_doctor::diagnose_text;
use surefoot_doctor::explain::explain;

/// All fixtures: dumps, outputs, reports and logs.
fn texts() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folders: [PathBuf; 3] = [root.clone(), root.join("synthetic"), root.join("forms")];
    let mut texts = Vec::new();
    for folder in folders {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "txt") {
                let bytes = fs::read(&path).expect("a text");
                texts.push((
                    path.display().to_string(),
                    surefoot_doctor::dump::decode(&bytes),
                ));
            }
        }
    }
    assert!(texts.len() > 80, "{}", texts.len());
    texts
}

fn is_number(value: &Value) -> bool {
    value.is_u64()
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

fn is_hexadecimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_gfx(value: &Value) -> bool {
    value
        .as_str()
        .and_then(|text| text.strip_prefix("gfx"))
        .is_some_and(|digits| (3..=4).contains(&digits.len()) && is_hexadecimal(digits))
}

fn is_class(value: &Value) -> bool {
    value == "apu" || value == "dgpu"
}

/// `0000:c5:00.0`
fn is_address(value: &Value) -> bool {
    value.as_str().is_some_and(|text| {
        let parts: Vec<&str> = text.split([':', '.']).collect();
        parts.iter().map(|part| part.len()).eq([4, 2, 2, 1])
            && parts.iter().all(|part| is_hexadecimal(part))
    })
}

fn is_render_node(value: &Value) -> bool {
    value
        .as_str()
        .and_then(|path| path.strip_prefix("/dev/dri/renderD"))
        .is_some_and(|number| number.parse::<u32>().is_ok())
}

/// `0x1586`
fn is_device_id(value: &Value) -> bool {
    value
        .as_str()
        .and_then(|text| text.strip_prefix("0x"))
        .is_some_and(|digits| digits.len() == 4 && is_hexadecimal(digits))
}

fn is_rule(value: &Value) -> bool {
    ["gtt", "carveout", "discrete", "unknown"]
        .iter()
        .any(|rule| value == rule)
}

fn is_one_of(value: &Value, words: [&str; 3]) -> bool {
    words.iter().any(|word| value == word)
}

fn is_list(value: &Value, is: fn(&Value) -> bool) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(is))
}

/// Name, test, whether it may be null.
type Field = (&'static str, fn(&Value) -> bool, bool);

fn check(object: &Value, fields: &[Field], name: &str) {
    for (field, is, may_be_null) in fields {
        let value = object
            .get(field)
            .unwrap_or_else(|| panic!("{name}: `{field}` is missing in {object}"));
        assert!(
            is(value) || *may_be_null && value.is_null(),
            "{name}: `{field}` is {value}"
        );
    }
}

#[test]
fn the_doctor_writes_what_was_promised() {
    const GPU: &[Field] = &[
        ("index", is_number, false),
        ("gfx", is_gfx, true),
        ("class", is_class, true),
        ("pci", is_address, true),
        ("render_node", is_render_node, true),
        ("compute_units", is_number, true),
        ("device_id", is_device_id, true),
        ("product", is_text, true),
        ("kfd_node", is_number, true),
        ("usable_bytes", is_number, true),
        ("memory_rule", is_rule, false),
    ];
    const REPORT: &[Field] = &[
        ("machine", Value::is_object, false),
        ("gpus", Value::is_array, false),
        ("pick", is_number, true),
        ("hide", |value| is_list(value, is_number), false),
        (
            "env",
            |value| {
                value
                    .as_object()
                    .is_some_and(|variables| variables.values().all(Value::is_string))
            },
            false,
        ),
        ("findings", Value::is_array, false),
    ];
    const FINDING: &[Field] = &[
        ("id", is_text, false),
        (
            "severity",
            |value| is_one_of(value, ["error", "warning", "info"]),
            false,
        ),
        ("title", is_text, false),
        ("why", Value::is_string, false),
        ("fix", |value| is_list(value, is_text), false),
        ("source", is_text, false),
    ];
    for (name, text) in texts() {
        let Ok(report) = diagnose_text(&text) else {
            continue;
        };
        let report = serde_json::to_value(&report).expect("JSON");
        check(&report, REPORT, &name);
        for (index, gpu) in report["gpus"].as_array().into_iter().flatten().enumerate() {
            check(gpu, GPU, &name);
            assert_eq!(gpu["index"], index, "{name}");
        }
        for finding in report["findings"].as_array().into_iter().flatten() {
            check(finding, FINDING, &name);
        }
    }
}

#[test]
fn the_explainer_writes_what_was_promised() {
    const MATCH: &[Field] = &[
        ("id", is_text, false),
        ("line", is_text, false),
        ("cause", is_text, false),
        ("fix", |value| is_list(value, is_text), false),
        ("source", is_text, false),
        (
            "confidence",
            |value| is_one_of(value, ["high", "medium", "low"]),
            false,
        ),
        (
            "numbers",
            |value| {
                value
                    .as_object()
                    .is_some_and(|numbers| numbers.values().all(Value::is_u64))
            },
            false,
        ),
    ];
    let mut seen = 0;
    for (name, text) in texts() {
        let explanation = serde_json::to_value(explain(&text)).expect("JSON");
        for found in explanation["matches"].as_array().expect("matches") {
            check(found, MATCH, &name);
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
}
