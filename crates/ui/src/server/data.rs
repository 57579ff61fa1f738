//! What a config would train on: rows of text, or pictures and videos with editable captions.
//!
//! Paths never come from the network. The trainer knows which paths a config names and where they may lead, and
//! lists the files; the page refers to them by their index in that list.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::api::{bad, blocking};
use super::choose::{is_allowed, refuse_run};
use super::describe::Body;
use super::error::Refusal;
use super::queue::{DRY_RUN_TIMEOUT, Look, Wanted, ask};
use super::{State, lock, media};
use crate::queue::{Asked, Question};
use crate::runs::Folder;

type Answer<T> = Result<T, Refusal>;
type Of<T> = Shared<Arc<T>>;

/// How many rows or media files are shown by default, and at most: media are short, and rows are not.
const DEFAULT_ROWS: u64 = 20;
const MAX_ROWS: u64 = 10_000;
/// How many data sets are kept.
const MAX_DATA_SETS: usize = 16;
/// What files of captions are called that are changed from the page; a config may call anything a caption.
const CAPTION_EXTENSIONS: [&str; 3] = ["txt", "caption", "tags"];
/// The longest caption, in bytes.
pub(super) const MAX_CAPTION_BYTES: usize = 64 << 10;
/// Why a change may succeed a little later.
pub(super) const BUSY: &str = "another program is changing the folder: try again";
/// Held while a file of any set is changed: several sets may be of one folder.
static CHANGING: Mutex<()> = Mutex::new(());

/// The most recently viewed data sets, by number.
#[derive(Default)]
pub(crate) struct Sets {
    next: u64,
    sets: VecDeque<(u64, Arc<Set>)>,
}

impl Sets {
    /// Keeps a data set; returns its number.
    pub(super) fn add(&mut self, set: Set) -> u64 {
        self.next += 1;
        self.sets.push_front((self.next, Arc::new(set)));
        self.sets.truncate(MAX_DATA_SETS);
        self.next
    }
}

/// The media files of a folder, as the trainer or the server listed them.
pub(crate) struct Set {
    pub(super) folder: PathBuf,
    /// The folder as it was when that was decided what may be done in it, whatever has its name now.
    pub(super) root: Folder,
    pub(super) media: Vec<Medium>,
    /// Folders in which captions may be changed: those that configs from the page may name.
    pub(super) is_writable: bool,
    /// The folder of the runs, which are not changed.
    runs: PathBuf,
}

#[derive(Deserialize)]
pub(super) struct Medium {
    pub(super) file: PathBuf,
    #[serde(default)]
    pub(super) frame_files: Vec<PathBuf>,
    pub(super) caption_file: Option<PathBuf>,
}

impl Medium {
    /// The file to look at; of a folder of frames, the first.
    pub(super) fn shown(&self) -> &FilePath {
        self.frame_files.first().unwrap_or(&self.file)
    }
}

/// What a config would train on.
pub(super) async fn look(Shared(state): Of<State>, Body(asked): Body<Look>) -> Answer<Json<Asked>> {
    let (wanted, rows) = Wanted::look(asked)?;
    let question = Question::Data(rows.unwrap_or(DEFAULT_ROWS).clamp(1, MAX_ROWS));
    let mut answer = ask(&state, wanted, question, DRY_RUN_TIMEOUT).await?;
    answer.found = match answer.found {
        Some(Value::Object(mut found)) if found.contains_key("media") => {
            let set = Set::listed(&state, &found)?;
            found.insert("editable".into(), set.is_writable.into());
            found.insert("set".into(), lock(&state.sets).add(set).into());
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

/// Puts the number of tokens in the place of their ids, which the page does not show and which make up most of an answer.
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
            let ids = |piece: &Value| piece["ids"].as_array().map_or(0, Vec::len);
            example["tokens"] = pieces.iter().map(ids).sum::<usize>().into();
            for piece in pieces.iter_mut().filter_map(Value::as_object_mut) {
                piece.remove("ids");
            }
            example["pieces"] = pieces.into();
        }
        row["examples"] = examples.into();
    }
}

impl Set {
    /// What the trainer lists.
    fn listed(state: &State, found: &serde_json::Map<String, Value>) -> Answer<Self> {
        let strange = |_| {
            let text =
                "this version of `surefoot ui` does not know the form of the trainer's answer";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
        };
        let media = found.get("media").cloned().unwrap_or_default();
        let media: Vec<Medium> = serde_json::from_value(media).map_err(strange)?;
        let folder = found.get("folder").cloned().unwrap_or_default();
        let folder: PathBuf = serde_json::from_value(folder).map_err(strange)?;
        let root = Folder::open(&folder)?;
        let is_writable = is_allowed(&root.path()?, &state.launch.allowed);
        Ok(Self::new(state, folder, root, media, is_writable))
    }

    pub(super) fn new(
        state: &State,
        folder: PathBuf,
        root: Folder,
        media: Vec<Medium>,
        is_writable: bool,
    ) -> Self {
        Self {
            folder,
            root,
            media,
            is_writable,
            runs: state.runs.root().to_owned(),
        }
    }

    /// Opens a medium; of a folder of frames, its first.
    pub(super) fn open(&self, place: usize) -> Answer<File> {
        let path = self.media[place].shown();
        self.root.file_below(path).map_err(|error| {
            Refusal::new(StatusCode::NOT_FOUND, format!("it cannot be read: {error}"))
        })
    }

    /// Opens the folder of a file of this set to change something there; nobody else changes it meanwhile.
    pub(super) fn change<T>(
        &self,
        path: &FilePath,
        change: impl FnOnce(&Folder, &str) -> Answer<T>,
    ) -> Answer<T> {
        if !self.is_writable {
            return Err(conflict(
                "files are changed in the folder that `surefoot ui` was started in, that of the runs, and those that \
                 `--data` names",
            ));
        }
        let _changing = lock(&CHANGING);
        let (folder, name) = self
            .root
            .again()
            .and_then(|root| Ok((root.way_to(path)?, root)))
            .map(|((folder, name), root)| (folder.unwrap_or(root), name))?;
        refuse_run(&self.runs, &folder.path()?)?;
        // Another server may be using the same folder.
        folder.try_lock().map_err(|_| conflict(BUSY))?;
        change(&folder, &name)
    }

    /// Whether a medium has a caption that can be written, and none is there or an empty one.
    pub(super) fn has_no_caption(&self, place: usize) -> bool {
        let Some(path) = &self.media[place].caption_file else {
            return false;
        };
        match self.root.file_below(path) {
            Ok(file) => {
                let mut text = String::new();
                let read = file
                    .take(MAX_CAPTION_BYTES as u64)
                    .read_to_string(&mut text);
                read.is_ok() && text.trim_start_matches('\u{feff}').trim().is_empty()
            }
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Changes a caption, unless it has been changed meanwhile.
    pub(super) fn write_caption(
        &self,
        place: usize,
        text: Option<&str>,
        before: Option<&str>,
    ) -> Answer<()> {
        let text = text.map(str::trim);
        if text
            .is_some_and(|text| text.len() > MAX_CAPTION_BYTES || text.contains(['\0', '\u{fffd}']))
        {
            return Err(bad("a caption is a text of at most 64 KiB"));
        }
        let Some(path) = &self.media[place].caption_file else {
            return Err(conflict(
                "this caption is in a file of JSON lines: change it there",
            ));
        };
        let extension = path.extension().and_then(|extension| extension.to_str());
        if !extension.is_some_and(|extension| CAPTION_EXTENSIONS.contains(&extension)) {
            let known = CAPTION_EXTENSIONS.join(", .");
            let text = format!("captions are changed in files that end with .{known}");
            return Err(conflict(&text));
        }
        self.change(path, |folder, name| {
            if text.is_some() {
                let gone = |_| conflict("its picture or video is gone: show the data again");
                self.open(place).map_err(gone)?;
            }
            let now = caption_now(folder, name)?;
            if now.as_deref().unwrap_or_default() != before.unwrap_or_default() {
                return Err(conflict(
                    "the caption has changed meanwhile: show the data again",
                ));
            }
            let done = match text {
                Some(text) => folder.replace(name, format!("{text}\n").as_bytes()),
                None if now.is_some() => folder.remove(name),
                None => Ok(()),
            };
            done.map_err(|error| {
                let text = format!("cannot write the caption: {error}");
                Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text)
            })
        })
    }
}

/// The text of a file of a caption, if there is one.
pub(super) fn caption_now(folder: &Folder, name: &str) -> Answer<Option<String>> {
    let file = match folder.file(name) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(conflict(&format!("it cannot be changed: {error}"))),
    };
    let mut bytes = Vec::new();
    file.take(MAX_CAPTION_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() > MAX_CAPTION_BYTES {
        return Err(conflict("the file is longer than a caption"));
    }
    let now =
        String::from_utf8(bytes).map_err(|_| conflict("the file of the caption is not text"))?;
    Ok(Some(now.trim_start_matches('\u{feff}').trim().to_owned()))
}

pub(super) fn conflict(text: &str) -> Refusal {
    Refusal::new(StatusCode::CONFLICT, text)
}

/// A data set that was viewed.
pub(super) fn set(state: &State, set: &str) -> Answer<Arc<Set>> {
    let number = set.parse::<u64>().ok();
    let sets = lock(&state.sets);
    let mut known = sets.sets.iter();
    let found = known.find(|(known, _)| Some(*known) == number);
    found.map(|(_, set)| set.clone()).ok_or_else(missing)
}

fn missing() -> Refusal {
    let text = "show the data again: these are no longer known";
    Refusal::new(StatusCode::NOT_FOUND, text)
}

/// A media file of a data set that was viewed.
pub(super) fn medium(state: &State, number: &str, medium: &str) -> Answer<(Arc<Set>, usize)> {
    let found = set(state, number)?;
    let place = medium.parse().map_err(|_| missing())?;
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
    let name = set.media[place].shown().to_string_lossy().into_owned();
    let opened = blocking(move || set.open(place)).await?;
    media::send(state, opened, &name, &headers).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Caption {
    /// The new caption; unset removes its file.
    text: Option<String>,
    /// The caption when it was read; unset if there was none.
    before: Option<String>,
}

/// Changes a caption, unless it has been changed meanwhile.
pub(super) async fn caption(
    Shared(state): Of<State>,
    Path((set, place)): Path<(String, String)>,
    Body(Caption { text, before }): Body<Caption>,
) -> Answer<StatusCode> {
    let (set, place) = medium(&state, &set, &place)?;
    blocking(move || {
        set.write_caption(place, text.as_deref(), before.as_deref())?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}
