//! Which part of a video is trained on: a file `.trim.json` beside it, which the trainer obeys.

use std::io::Read as _;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::State;
use super::api::{bad, blocking};
use super::choose::{VIDEOS, has};
use super::data::{self, Set, conflict};
use super::describe::Body;
use super::error::Refusal;
use crate::runs::Folder;

/// The longest such file that is read, in bytes.
const MAX_BYTES: u64 = 4 << 10;

/// A part of a video, in seconds from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Trim {
    /// Where it begins; null: where the video does.
    #[serde(default)]
    pub(super) start: Option<f64>,
    /// Where it ends; null: where the video does.
    #[serde(default)]
    pub(super) end: Option<f64>,
}

/// A part of a video that is to be another.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TrimChange {
    /// The new part; unset is the whole video.
    trim: Option<Trim>,
    /// The part when it was read; unset if it was the whole.
    before: Option<Trim>,
}

/// The files that may say so of the medium `file`; the trainer looks for them in this order, and reads the second if no other
/// video has that one.
pub(super) fn files(file: &FilePath) -> [PathBuf; 2] {
    let beside = |name: Option<&std::ffi::OsStr>| {
        let mut name = name.unwrap_or_default().to_owned();
        name.push(".trim.json");
        file.with_file_name(name)
    };
    [beside(file.file_name()), beside(file.file_stem())]
}

/// What such a file says; nothing if there is none, or the trainer would refuse it.
pub(super) fn read(root: &Folder, path: &FilePath) -> Option<Trim> {
    let mut text = String::new();
    let file = root.file_below(path).ok()?;
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Changes the part of a video that is trained on, unless it has been changed meanwhile.
pub(super) async fn trim(
    Shared(state): Shared<Arc<State>>,
    Path((set, place)): Path<(String, String)>,
    Body(TrimChange { trim, before }): Body<TrimChange>,
) -> Result<StatusCode, Refusal> {
    let (set, place) = data::medium(&state, &set, &place)?;
    blocking(move || {
        write(&set, place, trim, before)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

fn write(set: &Set, place: usize, trim: Option<Trim>, before: Option<Trim>) -> Result<(), Refusal> {
    let medium = &set.media[place];
    if !has(&medium.file.to_string_lossy(), &VIDEOS) {
        return Err(bad("only videos are trimmed"));
    }
    if let Some(Trim { start, end }) = trim {
        let from = start.unwrap_or(0.0);
        let is_part = (0.0..1e6).contains(&from) && end.is_none_or(|end| end > from && end < 1e6);
        if !is_part || (start, end) == (None, None) {
            return Err(bad(
                "`start` and `end` are seconds from 0 on, the one before the other",
            ));
        }
    }
    let [long, short] = files(&medium.file);
    let mut others = set.media.iter().enumerate();
    let is_shared = others.any(|(other, medium)| {
        other != place
            && has(&medium.file.to_string_lossy(), &VIDEOS)
            && files(&medium.file)[1] == short
    });
    let path = match is_shared || set.root.file_below(&long).is_ok() {
        true => long,
        false => short,
    };
    set.change(&path, |folder, name| {
        set.open(place)?;
        let exists = folder.file(name).is_ok();
        let now = read(folder, FilePath::new(name));
        if now != before || exists != now.is_some() {
            return Err(conflict(
                "the part has changed meanwhile: show the data again",
            ));
        }
        let done = match trim {
            Some(trim) => folder.replace(name, format!("{}\n", json!(trim)).as_bytes()),
            None if exists => folder.remove(name),
            None => Ok(()),
        };
        done.map_err(|error| {
            let text = format!("cannot write the part: {error}");
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        })
    })
}
