//! Data sets as other trainers name them.

use serde_json::{Map, Value, json};

use super::meaning::Meaning;
use crate::config::words::needless;

/// Whether this is what `datasets` calls a form of files.
pub(super) fn is_form(name: &Value) -> bool {
    ["json", "csv", "parquet", "text"]
        .iter()
        .any(|form| name == form)
}

/// Whether this is a text, or a list of them.
pub(super) fn is_text(value: &Value) -> bool {
    let list = value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice);
    !list.is_empty() && list.iter().all(Value::is_string)
}

/// Files as data sets.
pub(super) fn files(value: &Value) -> Vec<Meaning> {
    let list = value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice);
    sets(
        &list.iter().map(|file| json!({ "path": file })).collect(),
        false,
    )
}

/// A name on the hub with its revision, unless that is the usual one.
pub(super) fn with_revision(name: Value, revision: Option<&Value>) -> Value {
    match (name.as_str(), revision.and_then(Value::as_str)) {
        (Some(name), Some(revision)) if revision != "main" => format!("{name}@{revision}").into(),
        _ => name,
    }
}

/// One data set, or a mixture of several.
pub(super) fn sets(value: &Value, held_out: bool) -> Vec<Meaning> {
    /// The keys of a set with its keys here.
    const KEYS: [(&str, &str); 3] = [("path", "path"), ("name", "subset"), ("split", "split")];
    const COLUMNS: [(&str, &str); 9] = [
        ("field_prompt", "prompt"),
        ("field_chosen", "chosen"),
        ("field_rejected", "rejected"),
        ("field_messages", "messages"),
        ("field_instruction", "instruction"),
        ("field_input", "input"),
        ("field_output", "output"),
        ("field_system", "system"),
        ("field", "text"),
    ];
    // Files that a set consists of, which are sets here.
    let whole = |set: &Value| match (&set["data_files"], is_form(&set["path"])) {
        (files, true) if is_text(files) => {
            let files = files
                .as_array()
                .cloned()
                .unwrap_or_else(|| vec![files.clone()]);
            let of = |file| {
                let mut set = set.clone();
                set["path"] = file;
                set.as_object_mut()
                    .map(|keys| keys.shift_remove("data_files"));
                set
            };
            files.into_iter().map(of).collect()
        }
        _ => vec![set.clone()],
    };
    let list: Vec<Value> = value
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(whole)
        .collect();
    let (mut found, mut mixture) = (Vec::new(), Vec::new());
    for (index, set) in list.iter().enumerate() {
        let (mut own, mut columns) = (Map::new(), Map::new());
        let nested = set["type"].as_object().into_iter().flatten();
        for (key, value) in set.as_object().into_iter().flatten().chain(nested) {
            let same = |table: &[(&str, &'static str)]| {
                let mut table = table.iter();
                table
                    .find(|(theirs, _)| theirs == key)
                    .map(|(_, ours)| *ours)
            };
            // ShareGPT's and OpenAI's records are known by these.
            let is_usual = *value == "messages" || *value == "conversations";
            if key == "field_messages" && is_usual {
                found.push(Meaning::Nothing(format!(
                    "`[{index}].{key}`: these records are recognised"
                )));
            } else if let Some(ours) = same(&KEYS) {
                own.insert(ours.into(), value.clone());
            } else if let Some(column) = same(&COLUMNS) {
                columns.insert(column.into(), value.clone());
            } else if !(key == "type" && value.is_object() || key == "revision") {
                let reason = needless(key).unwrap_or("there is no counterpart");
                let value = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                found.push(Meaning::Nothing(format!(
                    "`[{index}].{key}: {value}`: {reason}"
                )));
            }
        }
        if !columns.is_empty() {
            own.insert("columns".into(), columns.into());
        }
        if let Some(path) = own.get_mut("path") {
            *path = with_revision(path.take(), set.get("revision"));
        }
        mixture.push(own);
    }
    if held_out {
        for (index, mut own) in mixture.into_iter().enumerate() {
            match (index, own.remove("path")) {
                (0, Some(path)) => {
                    found.push(Meaning::Set("data.eval_dataset", path));
                    found.extend(
                        own.remove("split")
                            .map(|split| Meaning::Set("data.eval_split", split)),
                    );
                }
                (_, path) => found.push(Meaning::Nothing(format!(
                    "there is one held-out data set: `{}` is left out",
                    path.unwrap_or_default().as_str().unwrap_or_default()
                ))),
            }
        }
        return found;
    }
    match &mixture[..] {
        [one] => {
            for (key, ours) in [
                ("path", "data.path"),
                ("subset", "data.subset"),
                ("split", "data.split"),
                ("columns", "data.columns"),
            ] {
                found.extend(one.get(key).map(|value| Meaning::Set(ours, value.clone())));
            }
        }
        _ => found.push(Meaning::Set(
            "data.mixture",
            mixture.into_iter().map(Value::from).collect(),
        )),
    }
    found
}
