//! JSON files.

use std::path::Path;

use serde_json::{Map, Value};

use super::columns::Keys;
use super::numbers;
use super::reader::{Located, at, not_json, record_of, whole};
use crate::Error;

/// The records of a JSON file: a list of them, a single one, or an object that contains them.
pub(super) fn records(path: &Path, mut keys: Keys) -> Result<Vec<Result<Located, Error>>, Error> {
    let text = whole(path)?;
    let mut value: Value = serde_json::from_str(&text)
        .map_err(|error| at(path, error.line() as u64, not_json(&error)))?;
    let (values, places) = match &mut value {
        Value::Array(list) => {
            let lines = element_lines(&text).into_iter();
            let places = lines.map(|line| format!("{}:{line}", path.display()));
            (std::mem::take(list), places.collect())
        }
        Value::Object(object) => held(path, std::mem::take(object), &mut keys)?,
        _ => return Err(at(path, 1, "neither a list of records nor an object")),
    };
    let mut records = Vec::new();
    let changed = numbers::changed(&text);
    for (value, place) in values.into_iter().zip(places) {
        let record = match value {
            Value::Object(object) => {
                record_of(object, &mut keys).and_then(|record| numbers::keep(record, changed))
            }
            _ => Err("not a JSON object".into()),
        };
        let stop = record.is_err();
        records.push(match record {
            Ok(record) => Ok(Located { record, place }),
            Err(reason) => Err(Error::Data(format!("{place}: {reason}"))),
        });
        if stop {
            break;
        }
    }
    keys.tell(path);
    Ok(records)
}

/// The line on which each element of a JSON list begins.
fn element_lines(text: &str) -> Vec<u64> {
    let (mut lines, mut line, mut depth) = (Vec::new(), 1, 0);
    let (mut quoted, mut escaped, mut expected) = (false, false, false);
    for byte in text.bytes() {
        if quoted {
            quoted = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        if expected && !byte.is_ascii_whitespace() && byte != b']' {
            lines.push(line);
            expected = false;
        }
        match byte {
            b'\n' => line += 1,
            b'"' => quoted = true,
            b'[' | b'{' => {
                depth += 1;
                expected = depth == 1;
            }
            b']' | b'}' => depth -= 1,
            b',' => expected = depth == 1,
            _ => {}
        }
    }
    lines
}

/// The records that an object is or contains, and their positions.
fn held(
    path: &Path,
    object: Map<String, Value>,
    keys: &mut Keys,
) -> Result<(Vec<Value>, Vec<String>), Error> {
    let record_keys = ["text", "prompt", "completion", "messages", "chosen"];
    let mut renamed = keys.columns().values();
    if record_keys.iter().any(|key| object.contains_key(*key))
        || renamed.any(|column| object.contains_key(column))
    {
        return Ok((vec![object.into()], vec![format!("{}:1", path.display())]));
    }
    let lists: Vec<_> = object
        .iter()
        .filter(|(_, value)| value.is_array())
        .collect();
    match lists.as_slice() {
        [(key, _)] => {
            let key = (*key).clone();
            let mut values = Vec::new();
            for (other, value) in object {
                match value {
                    Value::Array(list) => values = list,
                    _ => keys.note(&other),
                }
            }
            let place = |index: usize| format!("{}: `{key}[{index}]`", path.display());
            let places = (0..values.len()).map(place).collect();
            Ok((values, places))
        }
        // Records by identifier.
        [] if !object.is_empty() && object.values().all(Value::is_object) => {
            let place = |(key, value)| (value, format!("{}: `{key}`", path.display()));
            Ok(object.into_iter().map(place).unzip())
        }
        [] => Err(Error::Data(format!(
            "`{}` is a JSON object that is neither a record (`text`, `prompt` and `completion`, or \
            `messages`) nor contains a list of records",
            path.display()
        ))),
        several => {
            let names: Vec<_> = several.iter().map(|(key, _)| format!("`{key}`")).collect();
            Err(Error::Data(format!(
                "`{}` contains several lists, {}: put the records of one into a separate file",
                path.display(),
                names.join(", ")
            )))
        }
    }
}
