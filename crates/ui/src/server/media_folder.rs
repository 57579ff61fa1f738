//! A folder of pictures and videos with their captions, whether or not a config names it: listed, looked at, changed.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, State as Shared};
use axum::http::{Method, StatusCode, header, request};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_stream::StreamExt as _;

use super::api::{bad, blocking};
use super::choose::{IMAGES, Seen, TEXTS, VIDEOS, allowed_folder, has, is_run};
use super::data::{self, MAX_CAPTION_BYTES, Medium, Set, caption_now};
use super::describe::{Body, Upload};
use super::error::Refusal;
use super::trim::{self, Trim};
use super::{State, lock, thumbnails};
use crate::runs::{Folder, RunName};

type Answer<T> = Result<T, Refusal>;
type Of<T> = Shared<Arc<T>>;

/// The most pictures and videos of a folder, and how deep below it they are found.
const MAX_MEDIA: usize = 20_000;
const DEPTH: usize = 6;
/// How long one listing takes, how many entries of folders it looks at, and how many bytes of captions it has, at most.
const LISTING: Duration = Duration::from_secs(30);
const MAX_WALKED: usize = 200_000;
const MAX_CAPTIONS_BYTES: usize = 32 << 20;
/// How long one request looks at pictures.
const LOOKING: Duration = Duration::from_millis(800);
/// How many pictures are looked at by one request at most.
const MAX_LOOKED: usize = 500;
/// The largest file that is taken, in bytes.
const MAX_UPLOAD_BYTES: u64 = 4 << 30;
/// How long a piece of a file may take to arrive.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);
/// A file with this name says what the files beside it are, so it is none of them.
const NAMES_MEDIA: &str = "metadata.jsonl";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// An allowed folder.
    path: PathBuf,
    /// Whether the folders below it are left out.
    #[serde(default)]
    only_here: bool,
}

/// What a medium is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum MediaKind {
    Image,
    Video,
}

/// A picture or a video.
#[derive(Serialize, JsonSchema)]
pub(super) struct MediaFile {
    /// Its path in the folder.
    file: String,
    kind: MediaKind,
    bytes: u64,
    /// Of a picture, in pixels; null for a video, and for what is no picture.
    width: Option<u32>,
    height: Option<u32>,
    /// Null if there is no file of a caption.
    caption: Option<String>,
    /// The part of a video that is trained on; null for the whole.
    trim: Option<Trim>,
}

/// The pictures and videos in a folder and those below it.
#[derive(Serialize, JsonSchema)]
pub(super) struct MediaFolder {
    /// The number by which its files are asked for.
    set: u64,
    path: PathBuf,
    media: Vec<MediaFile>,
    /// Whether there are more than are listed.
    is_cut: bool,
}

/// Lists a folder.
pub(super) async fn open(
    Shared(state): Of<State>,
    Body(Wanted { path, only_here }): Body<Wanted>,
) -> Answer<Json<MediaFolder>> {
    let permit = state.scans.clone().acquire_owned().await.ok();
    blocking(move || {
        // Even if the browser disconnects.
        let _permit = permit;
        let allowed = &state.launch.allowed;
        let root = Folder::open(&allowed_folder(&path, allowed)?)?;
        // What was opened, should a link have taken its place meanwhile.
        let path = allowed_folder(&root.path()?, allowed)?;
        let mut walk = Walk {
            path: &path,
            root: &root,
            runs: state.runs.root(),
            media: Vec::new(),
            known: Vec::new(),
            entries: MAX_WALKED,
            caption_bytes: MAX_CAPTIONS_BYTES,
            until: Instant::now() + LISTING,
        };
        let depth = if only_here { 0 } else { DEPTH };
        let is_cut = !walk.add(FilePath::new(""), depth);
        let Walk { media, known, .. } = walk;
        let set = Set::new(&state, path.clone(), root, known, true);
        let set = lock(&state.sets).add(set);
        Ok(Json(MediaFolder {
            set,
            path,
            media,
            is_cut,
        }))
    })
    .await
}

/// A folder being listed, and what is left of what one listing may take.
struct Walk<'a> {
    path: &'a FilePath,
    root: &'a Folder,
    runs: &'a FilePath,
    media: Vec<MediaFile>,
    known: Vec<Medium>,
    entries: usize,
    caption_bytes: usize,
    until: Instant,
}

impl Walk<'_> {
    /// Adds what is in the folder `below` the first one; returns whether that is all.
    fn add(&mut self, below: &FilePath, depth: usize) -> bool {
        let seen = Seen::of(&self.path.join(below));
        let mut is_all = !seen.is_cut;
        let Some(left) = self.entries.checked_sub(seen.entries) else {
            return false;
        };
        self.entries = left;
        let root = self.root;
        let opened = |name: &str| root.file_below(&below.join(name)).ok();
        for (name, bytes) in &seen.files {
            let kind = match () {
                () if has(name, &IMAGES) => MediaKind::Image,
                () if has(name, &VIDEOS) => MediaKind::Video,
                () => continue,
            };
            if self.media.len() == MAX_MEDIA || Instant::now() >= self.until {
                return false;
            }
            // As the trainer looks for it: `a.png.txt`, else `a.txt`.
            let stem = name.rsplit_once('.').map_or(&**name, |(stem, _)| stem);
            let mut captions = [format!("{name}.txt"), format!("{stem}.txt")].into_iter();
            let caption_file = captions
                .find(|caption| seen.files.contains_key(caption))
                .unwrap_or_else(|| format!("{stem}.txt"));
            let caption = opened(&caption_file).map(caption_in);
            let length = caption.as_ref().map_or(0, String::len);
            let Some(left) = self.caption_bytes.checked_sub(length) else {
                return false;
            };
            self.caption_bytes = left;
            let size = match kind {
                MediaKind::Image => opened(name).and_then(thumbnails::size),
                MediaKind::Video => None,
            };
            let [long, short] = trim::files(FilePath::new(name));
            let is_there = |path: &PathBuf| {
                path.to_str()
                    .is_some_and(|path| seen.files.contains_key(path))
            };
            let is_alone = || {
                let mut others = seen
                    .files
                    .keys()
                    .filter(|other| *other != name && has(other, &VIDEOS));
                others.all(|other| trim::files(FilePath::new(other))[1] != short)
            };
            let trim = match is_there(&long) {
                true => Some(&long),
                false => Some(&short).filter(|short| is_there(short) && is_alone()),
            };
            self.media.push(MediaFile {
                file: below.join(name).to_string_lossy().into_owned(),
                kind,
                bytes: *bytes,
                width: size.map(|(width, _)| width),
                height: size.map(|(_, height)| height),
                caption,
                trim: trim.and_then(|trim| trim::read(root, &below.join(trim))),
            });
            self.known.push(Medium {
                file: below.join(name),
                frame_files: Vec::new(),
                caption_file: Some(below.join(caption_file)),
            });
        }
        for name in seen.folders.iter().filter(|_| depth > 0) {
            let below = below.join(name);
            if is_run(self.runs, &self.path.join(&below)) && !is_run(self.runs, self.path) {
                continue;
            }
            if Instant::now() >= self.until {
                return false;
            }
            is_all &= self.add(&below, depth - 1);
        }
        is_all
    }
}

fn caption_in(file: File) -> String {
    let mut bytes = Vec::new();
    // What cannot be read is empty here, and no longer the same when it is to be changed.
    let most = MAX_CAPTION_BYTES as u64;
    let _ = file.take(most).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    text.trim_start_matches('\u{feff}').trim().to_owned()
}

/// A small version of a picture.
pub(super) async fn thumbnail(
    Shared(state): Of<State>,
    Path((set, place)): Path<(String, String)>,
) -> Answer<Response> {
    let (set, place) = data::medium(&state, &set, &place)?;
    let turn = state.thumbnails.turns.clone().acquire_owned().await.ok();
    let look = blocking(move || {
        let _turn = turn;
        let missing = |error| Refusal::new(StatusCode::NOT_FOUND, error);
        looked_at(&state, &set, place).map_err(missing)
    });
    let kind = [(header::CONTENT_TYPE, "image/jpeg")];
    Ok((kind, look.await?.thumbnail.clone()).into_response())
}

fn looked_at(state: &State, set: &Set, place: usize) -> Result<Arc<thumbnails::Look>, String> {
    let path = set.folder.join(set.media[place].shown());
    let is_picture = has(&path.to_string_lossy(), &IMAGES);
    if !is_picture {
        return Err("it is no picture".into());
    }
    let file = set.open(place).map_err(|refusal| refusal.1)?;
    state.thumbnails.look(path, file)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LookFrom {
    /// The index of the first picture.
    from: usize,
}

/// How a picture looks.
#[derive(Serialize, JsonSchema)]
pub(super) struct Looks {
    /// Its index.
    medium: usize,
    /// 16 hexadecimal digits that differ in few bits for pictures that look alike; null for what is no picture.
    hash: Option<String>,
    /// The variance of the Laplacian at 512 pixels: small for blurred pictures.
    sharpness: Option<f32>,
    /// Why it cannot be read.
    problem: Option<String>,
}

/// How some pictures look.
#[derive(Serialize, JsonSchema)]
pub(super) struct Looked {
    looks: Vec<Looks>,
    /// Where the next request begins; null if these are the last.
    next: Option<usize>,
}

/// Looks at pictures for a while.
pub(super) async fn look(
    Shared(state): Of<State>,
    Path(set): Path<String>,
    Body(LookFrom { from }): Body<LookFrom>,
) -> Answer<Json<Looked>> {
    let set = data::set(&state, &set)?;
    let permit = state.scans.clone().acquire_owned().await.ok();
    let turn = state.thumbnails.turns.clone().acquire_owned().await.ok();
    blocking(move || {
        let _permits = (permit, turn);
        let began = Instant::now();
        let mut looks = Vec::new();
        let last = set.media.len().min(from.saturating_add(MAX_LOOKED));
        let mut next = from;
        while next < last && (next == from || began.elapsed() < LOOKING) {
            let is_video = has(&set.media[next].shown().to_string_lossy(), &VIDEOS);
            let look = (!is_video).then(|| looked_at(&state, &set, next));
            let (found, problem) = match look {
                Some(Ok(look)) => (Some(look), None),
                Some(Err(problem)) => (None, Some(problem)),
                None => (None, None),
            };
            looks.push(Looks {
                medium: next,
                hash: found.as_ref().map(|look| format!("{:016x}", look.hash)),
                sharpness: found.as_ref().map(|look| look.sharpness),
                problem,
            });
            next += 1;
        }
        let next = (next < set.media.len()).then_some(next);
        Ok(Json(Looked { looks, next }))
    })
    .await
}

/// A caption that is to be another.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CaptionChange {
    /// The index of its medium.
    medium: usize,
    /// The new caption; unset removes its file.
    text: Option<String>,
    /// The caption when it was read; unset if there was none.
    before: Option<String>,
}

/// A caption that was not changed.
#[derive(Serialize, JsonSchema)]
pub(super) struct UnchangedCaption {
    medium: usize,
    why: String,
}

/// Changes captions, and says which it left.
pub(super) async fn captions(
    Shared(state): Of<State>,
    Path(set): Path<String>,
    Body(changes): Body<Vec<CaptionChange>>,
) -> Answer<Json<Vec<UnchangedCaption>>> {
    let set = data::set(&state, &set)?;
    blocking(move || {
        let mut left = Vec::new();
        for CaptionChange {
            medium,
            text,
            before,
        } in changes
        {
            let done = match medium < set.media.len() {
                true => set.write_caption(medium, text.as_deref(), before.as_deref()),
                false => Err(bad("there is no such picture or video")),
            };
            left.extend(done.err().map(|refusal| UnchangedCaption {
                medium,
                why: refusal.1,
            }));
        }
        Ok(Json(left))
    })
    .await
}

/// What is removed with a medium.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Removal {
    /// The caption when it was read, whose file is removed with the medium unless it is another now, or that of
    /// another medium, too; unset leaves the file.
    before: Option<String>,
}

/// Removes a medium and its caption.
pub(super) async fn remove(
    Shared(state): Of<State>,
    Path((set, place)): Path<(String, String)>,
    Body(Removal { before }): Body<Removal>,
) -> Answer<StatusCode> {
    let (set, place) = data::medium(&state, &set, &place)?;
    blocking(move || {
        let medium = &set.media[place];
        if !medium.frame_files.is_empty() {
            return Err(bad("a folder of frames is removed in a file manager"));
        }
        set.change(&medium.file, |folder, name| {
            let is_medium = has(name, &IMAGES) || has(name, &VIDEOS);
            if !is_medium {
                return Err(bad("it is neither a picture nor a video"));
            }
            folder.remove(name).map_err(|error| {
                let text = format!("it cannot be removed: {error}");
                Refusal::new(StatusCode::CONFLICT, text)
            })?;
            // That of another medium of the same name stays.
            let [long, short] = trim::files(&medium.file);
            let mut others = set.media.iter().enumerate();
            let is_others = others.any(|(other, medium)| {
                trim::files(&medium.file)[1] == short && set.open(other).is_ok()
            });
            for path in [Some(long), (!is_others).then_some(short)] {
                let path = path.as_deref().and_then(FilePath::file_name);
                // Most have none.
                let _ = path
                    .and_then(|name| name.to_str())
                    .map(|name| folder.remove(name));
            }
            let Some(path) = &medium.caption_file else {
                return Ok(StatusCode::NO_CONTENT);
            };
            // The one that was removed cannot be opened any more.
            let is_shared = set.media.iter().enumerate().any(|(other, medium)| {
                medium.caption_file.as_ref() == Some(path) && set.open(other).is_ok()
            });
            if let Some(caption) = path.file_name().and_then(|caption| caption.to_str())
                && has(caption, &["txt"])
                && path.parent() == medium.file.parent()
                && !is_shared
                && before.is_some()
                && caption_now(folder, caption).is_ok_and(|now| now == before)
            {
                let _ = folder.remove(caption);
            }
            Ok(StatusCode::NO_CONTENT)
        })
    })
    .await
}

/// Whether a request brings a file, which is not read into memory.
pub(super) fn is_upload(parts: &request::Parts) -> bool {
    let mut path = parts.uri.path().split('/').skip(1);
    let path = [(); 6].map(|()| path.next());
    parts.method == Method::PUT
        && matches!(
            path,
            [
                Some("api"),
                Some("data"),
                Some(_),
                Some("files"),
                Some(_),
                None
            ]
        )
}

/// Whether a file of this name may be added to data.
pub(super) fn is_data_name(name: &str) -> bool {
    let known = [&IMAGES[..], &VIDEOS[..], &TEXTS[..]].concat();
    RunName::parse(name).is_ok() && has(name, &known) && !name.eq_ignore_ascii_case(NAMES_MEDIA)
}

/// A file in the making, which is gone unless it is kept.
struct Draft {
    folder: Folder,
    name: String,
}

impl Drop for Draft {
    fn drop(&mut self) {
        // If it was kept, there is none.
        let _ = self.folder.remove(&self.name);
    }
}

/// Adds a file to the folder of a data set.
pub(super) async fn upload(
    Shared(state): Of<State>,
    Path((set, name)): Path<(String, String)>,
    Upload(body): Upload,
) -> Answer<StatusCode> {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    if !is_data_name(&name) {
        return Err(bad(format!(
            "only files of data are added: .{}",
            [&IMAGES[..], &VIDEOS[..], &TEXTS[..]].concat().join(" .")
        )));
    }
    let taken = |name: &str| {
        let text = format!("there is already a file `{name}`: nothing is replaced");
        Refusal::new(StatusCode::CONFLICT, text)
    };
    let set = data::set(&state, &set)?;
    let _permit = state.files.acquire().await.ok();
    let wanted = name.clone();
    let (draft, mut file) = blocking(move || {
        set.change(FilePath::new(&wanted), |folder, _| {
            match folder.file(&wanted) {
                Ok(_) => Err(taken(&wanted)),
                Err(_) => Ok(()),
            }
        })?;
        let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{}-{number}.surefoot-upload", std::process::id());
        let folder = set.root.again()?;
        let file = folder.draft(&name)?;
        Ok((Draft { folder, name }, file))
    })
    .await?;
    let mut body = body.into_data_stream();
    let mut left = MAX_UPLOAD_BYTES;
    loop {
        let piece = tokio::time::timeout(PIECE_TIMEOUT, body.next()).await;
        let piece = match piece {
            Ok(None) => break,
            Ok(Some(Ok(piece))) => piece,
            _ => {
                let text = "the file did not arrive whole";
                return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, text));
            }
        };
        left = left.checked_sub(piece.len() as u64).ok_or_else(|| {
            let text = "a file has at most 4 GiB";
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
        })?;
        file = blocking(move || {
            file.write_all(&piece)?;
            Ok(file)
        })
        .await?;
    }
    blocking(move || {
        file.sync_all()?;
        let kept = draft.folder.keep(&draft.name, &name);
        kept.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => taken(&name),
            _ => error.into(),
        })?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_ends_when_what_it_may_take_is_spent() {
        let place = tempfile::tempdir().unwrap();
        for file in ["a.png", "a.txt", "more/b.png"] {
            let file = place.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "text").unwrap();
        }
        let root = Folder::open(place.path()).unwrap();
        let later = Instant::now() + LISTING;
        for (entries, caption_bytes, until, wanted) in [
            (4, 4, later, (true, 2)),
            (3, 4, later, (false, 1)),
            (4, 3, later, (false, 0)),
            (4, 4, Instant::now(), (false, 0)),
        ] {
            let mut walk = Walk {
                path: place.path(),
                root: &root,
                runs: FilePath::new("/nowhere"),
                media: Vec::new(),
                known: Vec::new(),
                entries,
                caption_bytes,
                until,
            };
            let is_all = walk.add(FilePath::new(""), DEPTH);
            assert_eq!((is_all, walk.media.len()), wanted);
        }
    }
}
