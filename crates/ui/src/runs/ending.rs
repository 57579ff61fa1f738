//! How a run ended, from the last files that its process wrote.
//!
//! `report.html` is written before the first step, during the run, and at every end that leaves time for it, so it
//! knows more than `summary.json`, which only a successful run writes. However long the page is, only its
//! beginning (the summary) and its end (the error) are read.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use serde::Deserialize;
use serde_json::Value;

use super::files::Folder;
use super::{MAX_TEXT_BYTES, Status, read_text};

/// Marks the start of the page's data.
const DATA: &str = "id=\"data\">{\"summary\":";
/// Enough for frame, style, script and summary, in bytes.
const HEAD: u64 = 512 << 10;
/// Enough for placement report, error and config, in bytes.
const TAIL: u64 = 512 << 10;

/// How the run in `folder`, which is not running, ended.
pub(super) fn of(folder: &Folder) -> Status {
    let report = folder.file("report.html").ok().and_then(|file| {
        let summary = summary(&file).ok()??;
        Some((summary["ending"].as_str()?.to_owned(), file))
    });
    let Some((ending, file)) = report else {
        return by_summary(folder);
    };
    match ending.as_str() {
        "completed" => Status::Completed,
        "stopped" => Status::Stopped,
        "failed" => Status::Failed {
            error: error(file).ok().flatten(),
        },
        _ => Status::Interrupted,
    }
}

/// The same from `summary.json` alone, if the page was removed.
fn by_summary(folder: &Folder) -> Status {
    let text = read_text(folder.file("summary.json"), MAX_TEXT_BYTES).unwrap_or_default();
    let summary: Value = serde_json::from_str(&text).unwrap_or_default();
    match summary["ending"].as_str() {
        Some("completed") => Status::Completed,
        Some("stopped") => Status::Stopped,
        Some("failed") => Status::Failed { error: None },
        _ => Status::Interrupted,
    }
}

/// `memory_estimate` of the page, which it has from the first step on.
pub(super) fn expected_memory(folder: &Folder) -> Option<Value> {
    let file = folder.file("report.html").ok()?;
    let summary = summary(&file).ok()??;
    summary.get("memory_estimate").cloned()
}

fn summary(mut file: &File) -> io::Result<Option<Value>> {
    file.seek(SeekFrom::Start(0))?;
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head)?;
    let head = String::from_utf8_lossy(&head);
    let Some((_, data)) = head.split_once(DATA) else {
        return Ok(None);
    };
    let mut reader = serde_json::Deserializer::from_str(data);
    Ok(Value::deserialize(&mut reader).ok())
}

fn error(mut file: File) -> io::Result<Option<String>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    let tail = String::from_utf8_lossy(&tail);
    // Within a JSON string every quotation mark is escaped, so this must be a key.
    let Some((_, value)) = tail.rsplit_once(",\"error\":") else {
        return Ok(None);
    };
    let mut reader = serde_json::Deserializer::from_str(value);
    Ok(Option::<String>::deserialize(&mut reader).unwrap_or(None))
}
