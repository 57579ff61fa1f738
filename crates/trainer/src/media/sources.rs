//! Finds media and their captions.
//!
//! Nothing is skipped silently: media without a caption, captions that are not text, and files of unknown
//! type are reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Problems;
use super::controls::{CONTROL_KEYS, control_number, controls_in};
use super::trim::{self, Trim};
use crate::Error;
use crate::config::{Confinement, DataConfig, LEADS_ELSEWHERE};
use crate::data::refuse_pointer;

/// Extensions of files that ffmpeg reads.
const VIDEOS: [&str; 12] = [
    "mp4", "mov", "mkv", "webm", "avi", "m4v", "mpg", "mpeg", "wmv", "flv", "ts", "ogv",
];
/// Extensions of still images.
pub(super) const IMAGES: [&str; 7] = ["png", "jpg", "jpeg", "bmp", "tif", "tiff", "avif"];
/// Extensions of possibly animated images.
const MOVING: [&str; 2] = ["gif", "webp"];

/// A source of frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// A still image.
    Image(PathBuf),
    /// A possibly animated image.
    Moving(PathBuf),
    /// A file that ffmpeg reads.
    Video(PathBuf),
    /// A folder of images, at the model's frame rate.
    Frames(PathBuf, Vec<PathBuf>),
}

impl Source {
    /// Its file or folder.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Image(path) | Self::Moving(path) | Self::Video(path) | Self::Frames(path, _) => {
                path
            }
        }
    }

    /// All files that it consists of.
    pub(crate) fn files(&self) -> Vec<&Path> {
        match self {
            Self::Frames(_, files) => files.iter().map(PathBuf::as_path).collect(),
            other => vec![other.path()],
        }
    }

    /// The type of `path`; `None` if unknown.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>, Error> {
        if path.is_dir() {
            let files = pictures_in(path)?;
            return Ok((!files.is_empty()).then(|| Self::Frames(path.to_owned(), files)));
        }
        // A pipe would block, and a device may never end.
        if path.exists() && !path.is_file() {
            return Ok(None);
        }
        let ending = ending(path);
        let is_in = |list: &[&str]| list.contains(&ending.as_str());
        Ok(match () {
            () if is_in(&VIDEOS) => Some(Self::Video(path.to_owned())),
            () if is_in(&IMAGES) => Some(Self::Image(path.to_owned())),
            () if is_in(&MOVING) => Some(Self::Moving(path.to_owned())),
            () => None,
        })
    }
}

/// What to do with a picture of a kind that nothing here decodes.
fn converted(path: &Path) -> Option<&'static str> {
    match ending(path).as_str() {
        "heic" | "heif" => Some(super::HEIC),
        "jxl" => Some("JPEG XL is not read; `djxl IN OUT.png` converts it"),
        _ => None,
    }
}

/// A medium with its caption.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// The control pictures that its line names.
    pub(crate) controls: Vec<PathBuf>,
    /// Where its frames come from.
    pub(crate) source: Source,
    /// Its caption, including the trigger word.
    pub(crate) caption: String,
    /// The part of it that is used.
    pub(crate) trim: Trim,
}

/// A medium with its caption, or with the problem with that.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Where its frames come from.
    pub(crate) source: Source,
    /// The file of its caption, which may not exist yet; `None` if it is in a line of JSON.
    pub(crate) caption_file: Option<PathBuf>,
    /// The caption as written, without the trigger word.
    pub(crate) caption: Result<String, String>,
    /// The part of it that is used.
    pub(crate) trim: Result<Trim, String>,
    /// The control pictures that its line names.
    pub(crate) controls: Vec<PathBuf>,
}

/// All media in a folder, or named in a file of JSON lines, in the order of their names or lines.
pub(crate) fn list(path: &Path, config: &DataConfig) -> Result<Vec<Item>, Error> {
    let found = find(path, config)?;
    let (mut items, mut wrong) = (Vec::new(), Problems::default());
    let mut trims = Problems::default();
    for Found {
        source,
        caption,
        trim,
        controls,
        ..
    } in found
    {
        let trim = trim.map_err(|complaint| trims.add(complaint));
        match caption {
            Ok(caption) => items.push(Item {
                controls,
                source,
                caption: with_trigger(&caption, config.trigger_word.as_deref()),
                trim: trim.unwrap_or_default(),
            }),
            Err(complaint) => wrong.add(complaint),
        }
    }
    trims.refuse(&format!("parts of videos in `{}`", path.display()))?;
    wrong.refuse(&format!(
        "captions in `{}` (an empty file is an empty caption; with `data.trigger_word`, what has none \
         gets that word)",
        path.display()
    ))?;
    Ok(items)
}

/// The same, including media whose caption is missing or not text.
pub(crate) fn find(path: &Path, config: &DataConfig) -> Result<Vec<Found>, Error> {
    find_within(path, config, Confinement::of_the_environment().as_ref())
}

fn find_within(
    path: &Path,
    config: &DataConfig,
    confinement: Option<&Confinement>,
) -> Result<Vec<Found>, Error> {
    let found = match (path.is_dir(), ending(path).as_str()) {
        (true, _) => in_folder(path, config, confinement)?,
        (false, "jsonl") => in_lines(path, confinement)?,
        (false, _) => {
            return Err(Error::Data(format!(
                "`{}` is neither a folder of videos and images nor a `.jsonl` file that names them",
                path.display()
            )));
        }
    };
    if found.is_empty() {
        return Err(Error::Data(format!(
            "there is no video and no image in `{}`; supported: .{}, folders of pictures, and .{}",
            path.display(),
            VIDEOS.join(" ."),
            [&IMAGES[..], &MOVING[..]].concat().join(" ."),
        )));
    }
    Ok(found)
}

/// Whether a file or folder is another one or inside it, whatever links lead there.
pub(super) fn is_inside(inner: &Path, outer: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(inner).starts_with(real(outer))
}

/// The pictures in a folder, in their natural order.
fn pictures_in(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = entries(folder)?;
    files.retain(|file| {
        let ending = ending(file);
        (IMAGES.contains(&&*ending) || ending == "webp") && file.is_file()
    });
    files.sort_by_key(|file| natural(file));
    Ok(files)
}

/// Whether the pictures in a folder are the frames of one clip: none has a caption, and the folder has one or their
/// names differ by their numbers only.
fn is_clip(folder: &Path, pictures: &[PathBuf], extension: &str) -> bool {
    let beside = |path: &Path, name: &std::ffi::OsStr| {
        let mut name = name.to_owned();
        name.push(extension);
        path.with_file_name(name).is_file()
    };
    let has_caption = |picture: &PathBuf| {
        let names = [picture.file_stem(), picture.file_name()];
        names
            .into_iter()
            .flatten()
            .any(|name| beside(picture, name))
    };
    if pictures.is_empty() || pictures.iter().any(has_caption) {
        return false;
    }
    let words = |path: &PathBuf| {
        let stem = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let has_number = stem.contains(|character: char| character.is_ascii_digit());
        let words: String = stem
            .chars()
            .filter(|character| !character.is_ascii_digit())
            .collect();
        has_number.then_some(words)
    };
    let first = words(&pictures[0]);
    folder.file_name().is_some_and(|name| beside(folder, name))
        || (first.is_some()
            && kohya(folder).is_none()
            && pictures.iter().all(|picture| words(picture) == first))
}

/// Of a folder `10_name` of kohya's scripts, how often each of its media is trained on, and the caption of those that
/// have none.
fn kohya(folder: &Path) -> Option<(u32, &str)> {
    let (times, name) = folder.file_name()?.to_str()?.split_once('_')?;
    Some((times.parse().ok()?, name.trim()))
}

/// How often the name of its folder asks for a medium in a pass; once where it does not.
pub(crate) fn repeats(medium: &Path) -> u32 {
    let times = medium.parent().and_then(kohya).map(|(times, _)| times);
    times.unwrap_or(1).max(1)
}

fn in_folder(
    folder: &Path,
    config: &DataConfig,
    confinement: Option<&Confinement>,
) -> Result<Vec<Found>, Error> {
    let named = folder.join("metadata.jsonl");
    if named.is_file() {
        tracing::info!("`{}` names the media of its folder", named.display());
        stay_within(confinement, &named).map_err(Error::Data)?;
        return in_lines(&named, confinement);
    }
    let extension = config.caption_extension.as_deref().unwrap_or(".txt");
    let (mut sources, mut captions, mut others) =
        (Vec::new(), BTreeMap::new(), Problems::default());
    let (mut nested, mut trims) = (Vec::new(), BTreeMap::new());
    for path in entries(folder)? {
        stay_within(confinement, &path).map_err(Error::Data)?;
        refuse_pointer(&path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let beside = [(trim::EXTENSION, &mut trims), (extension, &mut captions)];
        let beside = beside
            .into_iter()
            .find_map(|(extension, files)| Some((name.strip_suffix(extension)?.to_owned(), files)));
        if let Some((stem, files)) = beside.filter(|_| path.is_file()) {
            files.insert(stem, path);
            continue;
        }
        if path.is_dir() && kohya(&path).is_some_and(|(times, _)| times == 0) {
            others.add(format!("`{name}`: 0 times, as its name says"));
            continue;
        }
        if path.is_dir() {
            let pictures = pictures_in(&path)?;
            if !is_clip(&path, &pictures, extension) {
                let below = match path.is_symlink() {
                    // One to a folder above would never end.
                    true => Vec::new(),
                    false => in_folder(&path, config, confinement)?,
                };
                match below.is_empty() {
                    true => others.add(format!("`{name}`")),
                    false => nested.push((path, below)),
                }
                continue;
            }
        }
        match Source::of(&path)? {
            Some(source) => {
                let mut files = source.files().into_iter();
                files
                    .try_for_each(|file| stay_within(confinement, file))
                    .map_err(Error::Data)?;
                sources.push(source);
            }
            None => others.add(match converted(&path) {
                Some(how) => format!("`{name}`: {how}"),
                None => format!("`{name}`"),
            }),
        }
    }
    others.warn(&format!(
        "in `{}`, these are no videos, images, folders of pictures or captions (`*{extension}`), and \
         are not used",
        folder.display()
    ));
    let (mut all, mut used) = (Vec::new(), Vec::new());
    let namesakes = trim::namesakes(&sources);
    for source in sources {
        let trim = trim::beside(&mut trims, &source, &namesakes);
        let path = source.path();
        let whole = path.file_name().unwrap_or_default().to_string_lossy();
        let stem = match path.is_dir() {
            true => whole.clone(),
            false => path.file_stem().unwrap_or_default().to_string_lossy(),
        };
        // Both `a.txt` and `a.mp4.txt` can be the caption of `a.mp4`.
        let found = [&whole, &stem]
            .into_iter()
            .find(|name| captions.contains_key(&***name));
        let (file, caption) = match found {
            Some(name) => {
                used.push(name.to_string());
                let file = captions[&**name].clone();
                let caption = read_caption(&file);
                (file, caption)
            }
            None => {
                let caption = match (&config.trigger_word, kohya(folder)) {
                    (_, Some((_, name))) => Ok(name.to_owned()),
                    (Some(_), None) => Ok(String::new()),
                    (None, None) => Err(format!(
                        "`{whole}` has no caption `{stem}{extension}` beside it"
                    )),
                };
                (folder.join(format!("{stem}{extension}")), caption)
            }
        };
        all.push(Found {
            source,
            caption_file: Some(file),
            caption,
            trim,
            controls: Vec::new(),
        });
    }
    let mut orphans = Problems::default();
    for (stem, path) in trims
        .iter()
        .filter(|(stem, _)| !namesakes.contains_key(*stem))
    {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        orphans.add(format!("`{name}`: no video is called `{stem}`"));
    }
    for (stem, path) in captions.iter().filter(|(stem, _)| !used.contains(stem)) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        orphans.add(format!("`{name}`: no video or image is called `{stem}`"));
    }
    orphans.warn("captions and trim files without a video or image are not used");
    for (path, below) in nested {
        let repeats = kohya(&path).map(|(times, name)| match config.num_repeats {
            None => format!(
                "; as its name says, each is seen {times} times in a pass, and the caption of those without one is \
                 {name:?}"
            ),
            Some(repeats) => format!(
                "; as its name says, the caption of those without one is {name:?}; each is seen {repeats} times in a \
                 pass, as `data.num_repeats` says"
            ),
        });
        tracing::warn!(
            "the {} media in the folder `{}` are taken one by one, not as frames of a clip{}",
            below.len(),
            path.display(),
            repeats.unwrap_or_default()
        );
        all.extend(below);
    }
    Ok(all)
}

/// The place of a medium below its folder, or that of the file that names it, without the ending.
pub(super) fn stem_below(source: &Source, root: &Path) -> PathBuf {
    let path = source.path();
    let root = if root.is_dir() {
        Some(root)
    } else {
        root.parent()
    };
    let below = root
        .and_then(|root| path.strip_prefix(root).ok())
        .unwrap_or(path);
    match source {
        Source::Frames(..) => below.to_owned(),
        Source::Image(_) | Source::Moving(_) | Source::Video(_) => below.with_extension(""),
    }
}

/// A path for messages: relative to `root` if it is below.
pub(super) fn shown(path: &Path, root: &Path) -> String {
    let root = if root.is_dir() {
        Some(root)
    } else {
        root.parent()
    };
    let below = root.and_then(|root| path.strip_prefix(root).ok());
    below.unwrap_or(path).display().to_string()
}

/// Refuses a file that leads elsewhere, before anything is said of it.
pub(super) fn stay_within(confinement: Option<&Confinement>, path: &Path) -> Result<(), String> {
    match confinement {
        Some(confinement) if !confinement.allows(path) => {
            Err(format!("`{}` {LEADS_ELSEWHERE}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Keys for the file name, in the JSON lines of several programs.
const FILE_KEYS: [&str; 6] = [
    "file_name",
    "path",
    "video_path",
    "image_path",
    "video",
    "image",
];
/// Keys for the caption.
const CAPTION_KEYS: [&str; 2] = ["caption", "text"];
/// Keys for the part of a video that is used, in seconds.
const TRIM_KEYS: [&str; 2] = ["start", "end"];

fn in_lines(path: &Path, confinement: Option<&Confinement>) -> Result<Vec<Found>, Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::Data(format!("`{}` is not UTF-8 text", path.display())))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let (mut items, mut wrong) = (Vec::new(), Problems::default());
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        match in_line(folder, line, confinement) {
            Ok(item) => items.push(item),
            Err(complaint) => wrong.add(format!("line {}: {complaint}", number + 1)),
        }
    }
    wrong.refuse(&format!("`{}`", path.display()))?;
    Ok(items)
}

fn in_line(folder: &Path, line: &str, confinement: Option<&Confinement>) -> Result<Found, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))?;
    let object = value.as_object().ok_or("no JSON object")?;
    let text = |keys: &[&str]| -> Result<Option<String>, String> {
        let mut found = keys.iter().filter_map(|key| Some((key, object.get(*key)?)));
        match (found.next(), found.next()) {
            (None, _) => Ok(None),
            (Some((one, _)), Some((other, _))) => Err(format!("both `{one}` and `{other}`")),
            (Some((_, Value::String(text))), None) => Ok(Some(text.clone())),
            (Some((key, other)), None) => Err(format!("`{key}` is not text: {other}")),
        }
    };
    let known = |key: &&String| {
        FILE_KEYS.contains(&key.as_str())
            || [&CAPTION_KEYS[..], &TRIM_KEYS]
                .concat()
                .contains(&key.as_str())
    };
    let is_control = |key: &&String| control_number(key).is_some();
    if let Some(key) = object.keys().find(|key| !known(key) && !is_control(key)) {
        return Err(format!(
            "unknown key `{key}`; supported: {}, {}, {} and {}",
            FILE_KEYS.join(", "),
            CAPTION_KEYS.join(", "),
            TRIM_KEYS.join(", "),
            CONTROL_KEYS.join(", ")
        ));
    }
    let time = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(time) => Ok(Some(time)),
            None => Err(format!("`{key}` is no number of seconds: {value}")),
        },
    };
    let [start, end] = TRIM_KEYS.map(time);
    let trim = Trim {
        start: start?,
        end: end?,
    };
    let name = text(&FILE_KEYS)?.ok_or_else(|| format!("none of {}", FILE_KEYS.join(", ")))?;
    let caption = text(&CAPTION_KEYS)?.ok_or("neither `caption` nor `text`")?;
    let there = |name: &str| {
        let path = folder.join(name);
        stay_within(confinement, &path)?;
        match path.exists() {
            true => Ok(path),
            false => Err(format!("`{name}` does not exist")),
        }
    };
    let path = there(&name)?;
    let controls = controls_in(object)?.into_iter();
    let controls = controls
        .map(|name| there(&name))
        .collect::<Result<_, _>>()?;
    let source = Source::of(&path).map_err(|error| error.to_string())?;
    let source =
        source.ok_or_else(|| format!("`{name}` is not a video, image or folder of pictures"))?;
    let mut files = source.files().into_iter();
    files.try_for_each(|file| stay_within(confinement, file))?;
    Ok(Found {
        source,
        caption_file: None,
        caption: Ok(caption),
        trim: Ok(trim.checked()?),
        controls,
    })
}

/// The caption in a file, or the problem with it.
fn read_caption(path: &Path) -> Result<String, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let bytes = std::fs::read(path).map_err(|error| format!("`{name}` cannot be read: {error}"))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("`{name}` is not UTF-8 text (byte {at})")
    })?;
    if let Some(at) = text.find(['\0', '\u{fffd}']) {
        return Err(format!("`{name}` is not text (byte {at})"));
    }
    Ok(text.trim_start_matches('\u{feff}').trim().to_owned())
}

/// Replaces `[trigger]` with the trigger word, or puts it before the caption unless it already occurs there.
fn with_trigger(caption: &str, word: Option<&str>) -> String {
    let Some(word) = word else {
        return caption.to_owned();
    };
    let replaced = caption.replace("[trigger]", word);
    match (replaced.contains(word), replaced.is_empty()) {
        (true, _) => replaced,
        (false, true) => word.to_owned(),
        (false, false) => format!("{word}, {replaced}"),
    }
}

/// The contents of a folder, ordered by name, without hidden files.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error| Error::io("read", folder, error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

pub(super) fn ending(path: &Path) -> String {
    path.extension()
        .unwrap_or_default()
        .to_string_lossy()
        .to_lowercase()
}

/// A key for natural sorting: `frame2` before `frame10`.
pub(super) fn natural(path: &Path) -> Vec<(String, u64)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (mut parts, mut text, mut number) = (Vec::new(), String::new(), None::<u64>);
    for character in name.chars() {
        match (character.to_digit(10), number) {
            (Some(digit), so_far) => {
                let so_far = so_far.unwrap_or(0).saturating_mul(10);
                number = Some(so_far.saturating_add(digit.into()));
            }
            (None, None) => text.push(character),
            (None, Some(whole)) => {
                parts.push((std::mem::take(&mut text), whole));
                number = None;
                text.push(character);
            }
        }
    }
    parts.push((text, number.unwrap_or(0)));
    parts
}

#[cfg(test)]
mod tests;
