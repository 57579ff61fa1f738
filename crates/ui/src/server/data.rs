//! What a config would train on: rows of text, or pictures and videos with editable captions.
//!
//! Paths never come from the network. The trainer knows which paths a config names and where they may lead, and
//! lists the files; the page refers to them by their index in that list.

use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::api::{bad, blocking};
use super::describe::Body;
use super::error::Refusal;
use super::queue::{DRY_RUN_TIMEOUT, Look, Wanted, ask};
use super::{State, lock, media};
use crate::queue::{Asked, Question};
use crate::runs::Folder;

type Answer<T> = Result<T, Refusal>;
type Of<T> = Shared<Arc<T>>;

/// How many rows or media files are shown by default, and at most.
const DEFAULT_ROWS: u64 = 20;
const MAX_ROWS: u64 = 1000;
/// How many data sets are kept.
const MAX_DATA_SETS: usize = 8;
/// What files of captions are called that are changed from the page; a config may call anything a caption.
const CAPTION_EXTENSIONS: [&str; 3] = ["txt", "caption", "tags"];
/// The longest caption, in bytes.
const MAX_CAPTION_BYTES: usize = 64 << 10;

/// The most recently viewed data sets, by number.
#[derive(Default)]
pub(crate) struct Sets {
    next: u64,
    sets: VecDeque<(u64, Arc<Set>)>,
}

/// The media files that the trainer listed.
pub(crate) struct Set {
    folder: PathBuf,
    media: Vec<Medium>,
    /// Folders in which captions may be changed: those that configs from the page may name.
    is_writable: bool,
    /// Held while a caption is changed.
    changing: Mutex<()>,
}

#[derive(Deserialize)]
struct Medium {
    file: PathBuf,
    #[serde(default)]
    frame_files: Vec<PathBuf>,
    caption_file: Option<PathBuf>,
}

/// What a config would train on.
pub(super) async fn look(Shared(state): Of<State>, Body(asked): Body<Look>) -> Answer<Json<Asked>> {
    let (wanted, rows) = Wanted::look(asked)?;
    let question = Question::Data(rows.unwrap_or(DEFAULT_ROWS).clamp(1, MAX_ROWS));
    let mut answer = ask(&state, wanted, question, DRY_RUN_TIMEOUT).await?;
    answer.found = match answer.found {
        Some(Value::Object(mut found)) if found.contains_key("media") => {
            let set = Set::new(&state, &found)?;
            found.insert("editable".into(), set.is_writable.into());
            let mut sets = lock(&state.sets);
            sets.next += 1;
            let number = sets.next;
            sets.sets.push_front((number, Arc::new(set)));
            sets.sets.truncate(MAX_DATA_SETS);
            found.insert("set".into(), number.into());
            Some(json!({ "media": found }))
        }
        Some(Value::Object(mut found)) => {
            without_ids(&mut found);
            Some(json!({ "text": found }))
        }
        other => other,
    };
    Ok(Json(answer))
}

/// Removes the token ids, which the page does not show and which make up most of an answer.
fn without_ids(found: &mut serde_json::Map<String, Value>) {
    let below = |value: &mut Value, key: &str| -> Vec<Value> {
        value[key]
            .as_array_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    };
    let Some(rows) = found.get_mut("rows").and_then(Value::as_array_mut) else {
        return;
    };
    for row in rows {
        let mut examples = below(row, "examples");
        for example in &mut examples {
            let mut pieces = below(example, "pieces");
            for piece in pieces.iter_mut().filter_map(Value::as_object_mut) {
                piece.remove("ids");
            }
            example["pieces"] = pieces.into();
        }
        row["examples"] = examples.into();
    }
}

impl Set {
    fn new(state: &State, found: &serde_json::Map<String, Value>) -> Answer<Self> {
        let strange = |_| {
            let text =
                "this version of `surefoot ui` does not know the form of the trainer's answer";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        };
        let media = found.get("media").cloned().unwrap_or_default();
        let media: Vec<Medium> = serde_json::from_value(media).map_err(strange)?;
        let folder = found.get("folder").cloned().unwrap_or_default();
        let folder: PathBuf = serde_json::from_value(folder).map_err(strange)?;
        let real = folder.canonicalize()?;
        let mut allowed = state.launch.allowed.iter();
        let is_writable = allowed.any(|allowed| {
            allowed
                .canonicalize()
                .is_ok_and(|allowed| real.starts_with(allowed))
        });
        Ok(Self {
            folder,
            media,
            is_writable,
            changing: Mutex::default(),
        })
    }
}

/// A media file of a data set that was viewed.
fn medium(state: &State, set: &str, medium: &str) -> Answer<(Arc<Set>, usize)> {
    let missing = || {
        Refusal::new(
            StatusCode::NOT_FOUND,
            "show the data again: these are no longer known",
        )
    };
    let number: u64 = set.parse().map_err(|_| missing())?;
    let place: usize = medium.parse().map_err(|_| missing())?;
    let sets = lock(&state.sets);
    let found = sets.sets.iter().find(|(known, _)| *known == number);
    let found = found.map(|(_, set)| set.clone()).ok_or_else(missing)?;
    match place < found.media.len() {
        true => Ok((found, place)),
        false => Err(missing()),
    }
}

/// A picture or a video; for a folder of frames, its first.
pub(super) async fn file(
    Shared(state): Of<State>,
    Path((set, place)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer<Response> {
    let (set, place) = medium(&state, &set, &place)?;
    let medium = &set.media[place];
    let path = medium.frame_files.first().unwrap_or(&medium.file).clone();
    let name = path.to_string_lossy().into_owned();
    let opened = blocking(move || {
        let opened = Folder::open(&set.folder).and_then(|folder| folder.file_below(&path));
        opened.map_err(|error| {
            Refusal::new(StatusCode::NOT_FOUND, format!("it cannot be read: {error}"))
        })
    })
    .await?;
    media::send(state, opened, &name, &headers).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Caption {
    text: String,
    /// The caption when it was read; unset if there was none.
    before: Option<String>,
}

/// Changes a caption, unless it has been changed meanwhile.
pub(super) async fn caption(
    Shared(state): Of<State>,
    Path((set, place)): Path<(String, String)>,
    Body(Caption { text, before }): Body<Caption>,
) -> Answer<StatusCode> {
    if text.len() > MAX_CAPTION_BYTES || text.contains(['\0', '\u{fffd}']) {
        return Err(bad("a caption is a text of at most 64 KiB"));
    }
    let (set, place) = medium(&state, &set, &place)?;
    blocking(move || {
        let refused = |text: &str| Refusal::new(StatusCode::CONFLICT, text);
        let Some(path) = set.media[place].caption_file.clone() else {
            return Err(refused("this caption is in a file of JSON lines: change it there"));
        };
        let extension = path.extension().and_then(|extension| extension.to_str());
        if !extension.is_some_and(|extension| CAPTION_EXTENSIONS.contains(&extension)) {
            let known = CAPTION_EXTENSIONS.join(", .");
            return Err(refused(&format!("captions are changed in files that end with .{known}")));
        }
        if !set.is_writable {
            return Err(refused(
                "captions are changed in the folder that `surefoot ui` was started in, that of the runs, and \
                 those that `--data` names",
            ));
        }
        let _changing = lock(&set.changing);
        let (folder, name) = Folder::open(&set.folder)
            .and_then(|root| Ok((root.way_to(&path)?, root)))
            .map(|((folder, name), root)| (folder.unwrap_or(root), name))?;
        // Another server may be using the same folder.
        folder
            .try_lock()
            .map_err(|_| refused("another program is changing the folder: try again"))?;
        let now = match folder.file(&name) {
            Ok(file) => {
                let mut bytes = Vec::new();
                file.take(MAX_CAPTION_BYTES as u64 + 1).read_to_end(&mut bytes)?;
                let now = String::from_utf8(bytes).map_err(|_| refused("the file of the caption is not text"))?;
                now.trim_start_matches('\u{feff}').trim().to_owned()
            }
            // A missing caption, or an empty one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(refused(&format!("it cannot be changed: {error}"))),
        };
        if now != before.unwrap_or_default() {
            return Err(refused("the caption has changed meanwhile: show the data again"));
        }
        folder
            .replace(&name, format!("{}\n", text.trim()).as_bytes())
            .map_err(|error| {
                Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the caption: {error}"))
            })?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
