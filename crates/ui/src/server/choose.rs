//! What a new run can be made of: the models on this machine, and the data in the allowed folders.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Shared};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::State;
use super::api::{bad, blocking};
use super::describe::Body;
use super::error::Refusal;
use super::queue::permit;
use crate::queue::Asked;
use crate::runs::{Folder, RunName};

type Answer<T> = Result<T, Refusal>;
type Of<T> = Shared<Arc<T>>;

/// Timeout for looking through the folders of models.
const MODELS_TIMEOUT: Duration = Duration::from_secs(120);
/// The most entries of a folder that are looked at.
const MAX_ENTRIES: usize = 20_000;
/// The most folders and files that are listed.
const MAX_LISTED: usize = 500;

pub(super) const IMAGES: [&str; 6] = ["png", "jpg", "jpeg", "webp", "bmp", "gif"];
pub(super) const VIDEOS: [&str; 7] = ["mp4", "m4v", "mkv", "webm", "mov", "avi", "ogv"];
pub(super) const TEXTS: [&str; 6] = ["txt", "md", "jsonl", "json", "csv", "parquet"];

/// The models that can be trained, as `surefoot models --json` lists them.
pub(super) async fn models(Shared(state): Of<State>) -> Answer<Json<Asked>> {
    let permit = permit(&state).await?;
    blocking(move || {
        let _permit = permit;
        let launch = &state.launch;
        let asked = state
            .queue
            .ask_for_models(&launch.program, &launch.allowed, MODELS_TIMEOUT);
        Ok(Json(asked?))
    })
    .await
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Wanted {
    /// A folder inside those that are allowed; unset lists these.
    path: Option<PathBuf>,
}

/// What is right in a folder.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "FolderCounts")]
struct Counts {
    images: u64,
    videos: u64,
    /// Files of text, captions included.
    texts: u64,
    /// Images and videos with a file of text of the same name.
    captioned: u64,
}

/// A folder that can be opened.
#[derive(Serialize, JsonSchema)]
pub(super) struct SubFolder {
    name: String,
    path: PathBuf,
    #[serde(flatten)]
    counts: Counts,
}

/// A file with data of its own, which is no caption.
#[derive(Serialize, JsonSchema)]
pub(super) struct TextFile {
    name: String,
    path: PathBuf,
    bytes: u64,
}

/// The content of a folder for somebody who chooses data.
#[derive(Serialize, JsonSchema)]
pub(super) struct FolderContent {
    /// The folder; unset for the list of those that are allowed.
    path: Option<PathBuf>,
    /// The folder that contains it, if that is allowed, too.
    parent: Option<PathBuf>,
    folders: Vec<SubFolder>,
    files: Vec<TextFile>,
    #[serde(flatten)]
    counts: Counts,
    /// Whether there is more than is listed or counted.
    is_cut: bool,
}

pub(super) async fn folder(
    Shared(state): Of<State>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Answer<Json<FolderContent>> {
    let Query(Wanted { path }) = wanted.map_err(|error| bad(error.body_text()))?;
    blocking(move || {
        let roots = &state.launch.allowed;
        Ok(Json(match path {
            None => list_of(roots),
            Some(path) => content(&path, roots)?,
        }))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewFolder {
    /// An allowed folder, in which it is made.
    path: PathBuf,
    name: String,
}

/// Makes a folder for data.
pub(super) async fn make_folder(
    Shared(state): Of<State>,
    Body(NewFolder { path, name }): Body<NewFolder>,
) -> Answer<StatusCode> {
    let name = RunName::parse(&name).map_err(|_| {
        bad("a folder's name is 1 to 200 bytes without `/`, control or invisible characters, and begins with no `.`")
    })?;
    blocking(move || {
        let real = allowed_folder(&path, &state.launch.allowed)?;
        let folder = Folder::open(&real)?;
        // What was opened, should a link have taken its place meanwhile.
        let real = allowed_folder(&folder.path()?, &state.launch.allowed)?;
        refuse_run(state.runs.root(), &real)?;
        let made = folder.make_folder(name.as_str());
        made.map_err(|error| {
            let text = format!("the folder cannot be made: {error}");
            Refusal::new(StatusCode::CONFLICT, text)
        })?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// The allowed folders, without those inside others.
fn list_of(roots: &[PathBuf]) -> FolderContent {
    let mut real: Vec<_> = roots
        .iter()
        .filter_map(|root| root.canonicalize().ok())
        .collect();
    real.sort();
    real.dedup_by(|inner, outer| inner.starts_with(&*outer));
    let folders = real.into_iter().map(|path| SubFolder {
        name: path.display().to_string(),
        counts: Seen::of(&path).counts(),
        path,
    });
    FolderContent {
        path: None,
        parent: None,
        folders: folders.collect(),
        files: Vec::new(),
        counts: Counts::default(),
        is_cut: false,
    }
}

/// Whether a path whose links are followed is inside one of `roots`.
pub(super) fn is_allowed(real: &Path, roots: &[PathBuf]) -> bool {
    let mut roots = roots.iter().filter_map(|root| root.canonicalize().ok());
    roots.any(|root| real.starts_with(root))
}

/// Whether a folder without links is that of a run below `runs`, or inside one.
pub(super) fn is_run(runs: &Path, real: &Path) -> bool {
    // Where no run was made yet, there is no such folder.
    runs.canonicalize().is_ok_and(|runs| {
        let mut above = real.ancestors();
        above.any(|above| above.parent() == Some(&runs) && above.join("config.yaml").exists())
    })
}

/// A run's folder is as its training left it.
pub(super) fn refuse_run(runs: &Path, real: &Path) -> Answer<()> {
    match is_run(runs, real) {
        true => Err(Refusal::new(
            StatusCode::CONFLICT,
            "this is the folder of a run: nothing in it is changed",
        )),
        false => Ok(()),
    }
}

/// The folder `path` once all links are followed, if it is inside one of `roots` and not hidden there.
pub(super) fn allowed_folder(path: &Path, roots: &[PathBuf]) -> Answer<PathBuf> {
    let is_plain = path.is_absolute() && path.components().all(|part| part != Component::ParentDir);
    let real = path.canonicalize().ok().filter(|_| is_plain);
    let is_shown = |real: &PathBuf| {
        let roots = roots.iter().filter_map(|root| root.canonicalize().ok());
        let mut below = roots.filter_map(|root| real.strip_prefix(root).ok().map(Path::to_owned));
        let is_hidden = |part: Component<'_>| part.as_os_str().as_encoded_bytes().starts_with(b".");
        below.any(|below| !below.components().any(is_hidden))
    };
    // The same answer whether there is such a folder or not.
    let real = real
        .filter(is_shown)
        .ok_or_else(|| Refusal::new(StatusCode::FORBIDDEN, "this folder is not allowed here"))?;
    match real.is_dir() {
        true => Ok(real),
        false => Err(bad("this is not a folder")),
    }
}

/// What is in `path`, which must be inside one of `roots` once all links are followed.
fn content(path: &Path, roots: &[PathBuf]) -> Answer<FolderContent> {
    let real = allowed_folder(path, roots)?;
    let seen = Seen::of(&real);
    let counts = seen.counts();
    let mut is_cut = seen.is_cut || seen.folders.len() > MAX_LISTED;
    let folders = seen.folders.iter().take(MAX_LISTED).map(|name| {
        let path = real.join(name);
        SubFolder {
            name: name.clone(),
            counts: Seen::of(&path).counts(),
            path,
        }
    });
    let folders = folders.collect();
    // Beside pictures and videos, texts are captions.
    let is_data = counts.images + counts.videos == 0;
    let files = seen
        .files
        .iter()
        .filter(|(name, _)| is_data && has(name, &TEXTS));
    let files: Vec<_> = files
        .map(|(name, bytes)| TextFile {
            name: name.clone(),
            path: real.join(name),
            bytes: *bytes,
        })
        .take(MAX_LISTED)
        .collect();
    is_cut |= files.len() == MAX_LISTED;
    Ok(FolderContent {
        parent: real
            .parent()
            .filter(|parent| is_allowed(parent, roots))
            .map(Path::to_owned),
        path: Some(real),
        folders,
        files,
        counts,
        is_cut,
    })
}

pub(super) fn has(name: &str, extensions: &[&str]) -> bool {
    let extension = name
        .rsplit_once('.')
        .map(|(_, extension)| extension.to_ascii_lowercase());
    extension.is_some_and(|extension| extensions.contains(&&*extension))
}

/// The entries of a folder, without links and what is hidden.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) folders: Vec<String>,
    /// Names and sizes.
    pub(super) files: BTreeMap<String, u64>,
    pub(super) is_cut: bool,
    /// How many entries were looked at.
    pub(super) entries: usize,
}

impl Seen {
    pub(super) fn of(path: &Path) -> Self {
        let mut seen = Self::default();
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        for (number, entry) in entries.enumerate() {
            if number == MAX_ENTRIES {
                seen.is_cut = true;
                break;
            }
            seen.entries += 1;
            // A link is neither a folder nor a file here, so nothing leads out of the allowed folders.
            let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else {
                continue;
            };
            match kind {
                _ if name.starts_with('.') => {}
                kind if kind.is_dir() => seen.folders.push(name),
                kind if kind.is_file() => {
                    let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
                    seen.files.insert(name, bytes);
                }
                _ => {}
            }
        }
        seen.folders.sort();
        seen
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for name in self.files.keys() {
            let is_media = has(name, &IMAGES) || has(name, &VIDEOS);
            counts.images += u64::from(has(name, &IMAGES));
            counts.videos += u64::from(has(name, &VIDEOS));
            counts.texts += u64::from(has(name, &TEXTS));
            let stem = name.rsplit_once('.').map_or(&**name, |(stem, _)| stem);
            let has_caption = [name, stem]
                .into_iter()
                .any(|name| self.files.contains_key(&format!("{name}.txt")));
            counts.captioned += u64::from(is_media && has_caption);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    #[test]
    fn a_folder_is_counted_and_nothing_outside_is_listed() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().canonicalize().unwrap();
        let data = base.join("data");
        create_dir_all(data.join("cats")).unwrap();
        create_dir_all(base.join("secret/inner")).unwrap();
        create_dir_all(data.join(".hidden/inner")).unwrap();
        for (name, text) in [
            ("cats/1.PNG", ""),
            ("cats/1.txt", "a cat"),
            ("cats/2.jpg", ""),
            ("cats/2.jpg.txt", "a cat"),
            ("cats/film.mp4", ""),
            ("cats/.hidden.png", ""),
            ("notes.jsonl", "{}"),
        ] {
            write(data.join(name), text).unwrap();
        }
        let roots = [data.clone(), data.join("cats")];
        assert_eq!(list_of(&roots).folders.len(), 1);
        let found = content(&data, &roots).unwrap();
        assert_eq!(found.parent, None);
        assert_eq!(found.files[0].name, "notes.jsonl");
        let cats = content(&data.join("cats"), &roots).unwrap();
        assert_eq!(cats.parent.as_deref(), Some(&*data));
        assert!(cats.files.is_empty());
        let wanted = Counts {
            images: 2,
            videos: 1,
            texts: 2,
            captioned: 2,
        };
        assert_eq!(cats.counts, wanted);
        assert_eq!(found.folders[0].counts, wanted);
        for path in [
            "secret",
            "secret/inner",
            "missing",
            "data/../secret",
            "",
            "data/.hidden",
            "data/.hidden/inner",
        ] {
            let refused = content(&base.join(path), &roots)
                .err()
                .map(|refusal| refusal.0);
            assert_eq!(refused, Some(StatusCode::FORBIDDEN), "{path}");
        }
        assert!(content(Path::new("data"), &roots).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().canonicalize().unwrap();
        create_dir_all(base.join("data")).unwrap();
        create_dir_all(base.join("secret")).unwrap();
        write(base.join("secret/a.png"), "").unwrap();
        for (to, name) in [("../secret", "out"), ("../secret/a.png", "a.png")] {
            std::os::unix::fs::symlink(to, base.join("data").join(name)).unwrap();
        }
        let roots = [base.join("data")];
        let found = content(&roots[0], &roots).unwrap();
        assert!(found.folders.is_empty());
        assert_eq!(found.counts, Counts::default());
        assert!(content(&base.join("data/out"), &roots).is_err());
    }
}
