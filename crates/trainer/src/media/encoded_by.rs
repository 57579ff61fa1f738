//! Imports clips that musubi-tuner or ai-toolkit has encoded.
//!
//! As in both trainers, files belong together by their names; their contents are checked against the model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use models::diffusion::parts::t5::TEXT_ROWS;
use models::diffusion::{ForeignCaches, Geometry};
use models::formats::{SafetensorsFile, TensorSource};
use tch::{Kind, Tensor};

use super::Problems;
use super::cache::{self, Cache};
use super::encode::Clip;
use super::sources::entries;
use crate::Error;
use crate::config::EncodedBy;
use crate::observer::Observer;

/// ai-toolkit's folders of latents and of texts, inside the media folder.
const AI_TOOLKIT: [&str; 2] = ["_latent_cache", "_t_e_cache"];
/// The suffix of its names after the medium's: `_`, an MD5 in base64, and this.
const ENDING: &str = ".safetensors";
/// Length of an MD5 in base64 without padding.
const DIGEST: usize = 22;

/// What clips must be like for a model.
#[derive(Debug)]
pub(super) struct ModelRequirements<'a> {
    /// The kind of model, for people.
    pub(super) title: &'static str,
    /// What other trainers call its caches.
    pub(super) caches: &'a ForeignCaches,
    /// Sizes of latents.
    pub(super) geometry: Geometry,
    /// Width of text embeddings.
    pub(super) width: i64,
    /// Whether first-frame conditions are needed.
    pub(super) with_first_frame: bool,
}

/// A word for keys: what the model makes videos from.
pub(super) fn pipeline(with_first_frame: bool) -> &'static str {
    match with_first_frame {
        true => "Image",
        false => "Text",
    }
}

/// The files of one clip.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    latents: PathBuf,
    text: PathBuf,
}

/// The header of a clip's file.
#[derive(Debug)]
struct Latents {
    file: SafetensorsFile,
    /// `[channels, frames, height, width]`, normalised.
    latents: NamedTensor,
    /// The first-frame condition: the same with mask and picture as channels.
    condition: Option<NamedTensor>,
}

/// A tensor in a file, with its shape including a frame dimension, which images may omit.
#[derive(Debug)]
struct NamedTensor {
    name: String,
    shape: [i64; 4],
}

/// Imports the clips that `by` has encoded in `folder` into `cache`.
pub(super) fn import(
    folder: &Path,
    by: EncodedBy,
    fit: &ModelRequirements<'_>,
    cache: &Cache,
    observer: &mut dyn Observer,
) -> Result<Vec<Clip>, Error> {
    let files = list(folder, by, fit)?;
    let (mut clips, mut wrong, mut unused) = (Vec::new(), Problems::default(), Problems::default());
    for (index, found) in files.iter().enumerate() {
        if index % 16 == 0 {
            let count = files.len();
            observer.preparing(&format!("reading encoded clips: {index} of {count}"));
        }
        match clip_of(found, by, fit, cache, &mut unused) {
            Ok(clip) => clips.push(clip),
            Err(Error::Data(reason)) => wrong.add(reason),
            Err(other @ Error::Model(_)) => wrong.add(other.to_string()),
            Err(other) => return Err(other),
        }
    }
    wrong.refuse(&format!(
        "caches in `{}` that cannot be used",
        folder.display()
    ))?;
    unused.warn("the model makes videos from text alone; the first frames in these are not used");
    Ok(clips)
}

/// Imports a clip. Its files are read completely the first time; later only their headers.
fn clip_of(
    files: &Files,
    by: EncodedBy,
    fit: &ModelRequirements<'_>,
    cache: &Cache,
    unused: &mut Problems,
) -> Result<Clip, Error> {
    let text = Text::open(&files.text, by, fit)?;
    if text.width != fit.width {
        let (width, needed) = (text.width, fit.width);
        let reason = format!("its rows have the width {width}, but the model needs {needed}");
        return Err(wrong(&files.text, &reason));
    }
    let kept_text = cache.text(&cache::key(&[
        "text of",
        &format!("{by:?}"),
        &cache.content_of(&files.text)?,
    ]));
    if !cache::has(&kept_text) {
        cache::write(&kept_text, &[("text".to_owned(), &text.rows()?)])?;
    }
    let found = Latents::open(&files.latents, by, fit)?;
    let [channels, count, height, width] = found.latents.shape;
    let needed = fit.geometry.channels;
    if channels != needed {
        let reason = format!("its latents have {channels} channels, but the model needs {needed}");
        return Err(wrong(&files.latents, &reason));
    }
    let patch = fit.geometry.patch;
    if count == 0 || height == 0 || width == 0 || height % patch != 0 || width % patch != 0 {
        let reason = format!(
            "{width} × {height} latents in {count} frames cannot be divided into tokens of {patch} × {patch}"
        );
        return Err(wrong(&files.latents, &reason));
    }
    let condition = match (fit.with_first_frame, &found.condition) {
        (false, None) => None,
        (false, Some(_)) => {
            unused.add(format!("`{}`", name(&files.latents)));
            None
        }
        (true, Some(condition)) => {
            let (channels, needed) = (condition.shape[0], needed + 4);
            if channels != needed {
                let reason = format!(
                    "its first frame has {channels} channels, but the model needs {needed} (including a mask of four)"
                );
                return Err(wrong(&files.latents, &reason));
            }
            Some(condition)
        }
        (true, None) => {
            let reason = match by {
                EncodedBy::Musubi => "it has no first frame: encode again with `--i2v`",
                EncodedBy::AiToolkit => {
                    "it has no first frame, which ai-toolkit encodes anew in each step: remove `data.encoded_by`"
                }
            };
            return Err(wrong(&files.latents, reason));
        }
    };
    let key = cache::key(&[
        "latents of",
        &format!("{by:?} {}", pipeline(fit.with_first_frame)),
        &cache.content_of(&files.latents)?,
    ]);
    let kept = cache.latents(&key);
    if !cache::has(&kept) {
        let latents = found.read(&found.latents)?;
        let condition = condition.map(|named| found.read(named)).transpose()?;
        let mut tensors = vec![("latents".to_owned(), &latents)];
        tensors.extend(
            condition
                .iter()
                .map(|tensor| ("condition".to_owned(), tensor)),
        );
        cache::write(&kept, &tensors)?;
    }
    let pixels = |latents: i64| (latents * fit.geometry.pixels) as u32;
    Ok(Clip {
        name: name(&files.latents),
        key,
        latents: kept,
        text: kept_text,
        orders: Vec::new(),
        shape: (pixels(width), pixels(height), (count as u32 - 1) * 4 + 1),
        tokens: (count * (height / patch) * (width / patch)) as u64,
        repeats: 1,
        is_regular: false,
        empty: None,
        controls: Vec::new(),
    })
}

/// The clips in `folder`, ordered by name.
///
/// # Errors
/// If a folder cannot be read or has no clips, or a clip has no text.
fn list(folder: &Path, by: EncodedBy, fit: &ModelRequirements<'_>) -> Result<Vec<Files>, Error> {
    let (found, hint) = match by {
        EncodedBy::Musubi => (
            musubi(folder, fit)?,
            {
                let [latents, texts] = fit.caches.programs;
                format!(
                    "`path` is to be the `cache_directory` of its data set, after `{latents}` and `{texts}`"
                )
            },
        ),
        EncodedBy::AiToolkit => (
            ai_toolkit(folder)?,
            "`path` is to be the `folder_path` of its data set, after a run with `cache_latents_to_disk` and \
             `cache_text_embeddings`"
                .to_owned(),
        ),
    };
    if found.is_empty() {
        return Err(Error::Data(format!(
            "there are no {} latents in `{}`: {hint}",
            fit.title,
            folder.display()
        )));
    }
    Ok(found)
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// `NAME[_START-FRAMES]_WIDTHxHEIGHT` and the ending of latents, and `NAME` and that of texts.
fn musubi(folder: &Path, fit: &ModelRequirements<'_>) -> Result<Vec<Files>, Error> {
    let [ending, of_text] = fit.caches.musubi;
    let (mut latents, mut texts) = (Vec::new(), BTreeMap::new());
    let (mut others, mut wrong) = (Problems::default(), Problems::default());
    for path in entries(folder)? {
        let file = name(&path);
        if let Some(of) = file.strip_suffix(of_text) {
            texts.insert(of.to_owned(), path);
        } else if let Some(clip) = file.strip_suffix(ending) {
            match clip.rsplit_once('_') {
                Some((rest, size)) if is_pair(size, 'x') => latents.push((rest.to_owned(), path)),
                _ => wrong.add(format!("`{file}`: no size before `{ending}`")),
            }
        } else {
            others.add(format!("`{file}`"));
        }
    }
    others.warn(&format!(
        "in `{}`, these are neither {} latents nor texts (`*{ending}`, `*{of_text}`) and are not used",
        folder.display(),
        fit.title
    ));
    let mut found = Vec::new();
    for (clip, path) in latents {
        // An image may have a name like that of a clip from a video.
        let video = clip.rsplit_once('_').filter(|(_, at)| is_pair(at, '-'));
        let names = video.map(|(video, _)| video).into_iter().chain([&*clip]);
        match names.filter_map(|name| texts.get(name)).next() {
            Some(text) => found.push(Files {
                latents: path,
                text: text.clone(),
            }),
            None => wrong.add(format!(
                "`{}` has no text `{}{of_text}` beside it",
                name(&path),
                video.map_or(&*clip, |(video, _)| video)
            )),
        }
    }
    wrong.refuse(&format!("caches of musubi-tuner in `{}`", folder.display()))?;
    Ok(found)
}

/// Two numbers separated by `between`.
fn is_pair(text: &str, between: char) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once(between)
        .is_some_and(|(one, other)| is_number(one) && is_number(other))
}

/// `_latent_cache/NAME_DIGEST.safetensors`, and `_t_e_cache/NAME_DIGEST.safetensors`.
fn ai_toolkit(folder: &Path) -> Result<Vec<Files>, Error> {
    let (mut others, mut wrong) = (Problems::default(), Problems::default());
    let mut named = |part: &str| -> Result<Vec<(String, PathBuf)>, Error> {
        let folder = folder.join(part);
        let mut files = Vec::new();
        for path in if folder.is_dir() {
            entries(&folder)?
        } else {
            Vec::new()
        } {
            let file = name(&path);
            match medium(&file) {
                Some(medium) => files.push((medium.to_owned(), path)),
                None => others.add(format!("`{part}/{file}`")),
            }
        }
        Ok(files)
    };
    let latents = named(AI_TOOLKIT[0])?;
    let mut texts: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (medium, path) in named(AI_TOOLKIT[1])? {
        texts.entry(medium).or_default().push(path);
    }
    others.warn(&format!(
        "in `{}`, these do not have names of ai-toolkit's caches and are not used",
        folder.display()
    ));
    let mut found = Vec::new();
    let mut older = Problems::default();
    for (medium, path) in latents {
        let mut of_medium = texts.get(&medium).cloned().unwrap_or_default();
        of_medium.sort_by_key(|path| (changed(path), path.clone()));
        match of_medium.pop() {
            Some(text) => {
                for path in of_medium {
                    older.add(format!("`{}`; `{}` is newer", name(&path), name(&text)));
                }
                found.push(Files {
                    latents: path,
                    text,
                });
            }
            None => wrong.add(format!(
                "`{}` has no text `{}/{medium}_….safetensors`",
                name(&path),
                AI_TOOLKIT[1]
            )),
        }
    }
    older.warn("ai-toolkit left several texts of one medium; not used");
    wrong.refuse(&format!("caches of ai-toolkit in `{}`", folder.display()))?;
    Ok(found)
}

/// The name before `_DIGEST.safetensors`.
fn medium(file: &str) -> Option<&str> {
    let stem = file.strip_suffix(ENDING)?;
    let at = stem.len().checked_sub(DIGEST + 1)?;
    let (medium, digest) = (stem.get(..at)?, stem.get(at..)?);
    let is_digest = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let fits = digest.starts_with('_') && digest[1..].bytes().all(is_digest);
    (fits && !medium.is_empty()).then_some(medium)
}

fn changed(path: &Path) -> SystemTime {
    let changed = path.metadata().and_then(|metadata| metadata.modified());
    changed.unwrap_or(SystemTime::UNIX_EPOCH)
}

impl Latents {
    /// Reads the header of a file of latents.
    ///
    /// # Errors
    /// When it holds something else.
    fn open(path: &Path, by: EncodedBy, fit: &ModelRequirements<'_>) -> Result<Self, Error> {
        let file = SafetensorsFile::open(path)?;
        if let Some(architecture) = file
            .metadata()
            .get("architecture")
            .filter(|name| *name != fit.caches.architecture)
        {
            return Err(wrong(
                path,
                &format!("it is for `{architecture}`, not for {}", fit.title),
            ));
        }
        let (mut latents, mut condition) = (None, None);
        for name in file.names() {
            let place = match by {
                EncodedBy::Musubi if of_shape(&name, "latents_image_") => &mut condition,
                EncodedBy::Musubi if of_shape(&name, "latents_") => &mut latents,
                EncodedBy::AiToolkit if name == "latent" => &mut latents,
                // The clip's length, and another copy of its first latent frame.
                EncodedBy::AiToolkit if name == "num_frames" || name == "first_frame_latent" => {
                    continue;
                }
                _ => {
                    return Err(wrong(
                        path,
                        &format!("`{name}` belongs to a kind of training that is not supported"),
                    ));
                }
            };
            if place.is_some() {
                return Err(wrong(path, &format!("`{name}` occurs twice")));
            }
            *place = Some(NamedTensor::of(path, &file, name)?);
        }
        let latents = latents.ok_or_else(|| wrong(path, "no latents are in it"))?;
        if let Some(condition) = &condition
            && condition.shape[1..] != latents.shape[1..]
        {
            return Err(wrong(path, "the first frame and the clip differ in size"));
        }
        Ok(Self {
            file,
            latents,
            condition,
        })
    }

    /// One of its tensors, `[channels, frames, height, width]`.
    ///
    /// # Errors
    /// If it has non-finite values.
    fn read(&self, named: &NamedTensor) -> Result<Tensor, Error> {
        Ok(numbers(&self.file, &named.name)?.f_reshape(named.shape)?)
    }
}

impl NamedTensor {
    fn of(path: &Path, file: &SafetensorsFile, name: String) -> Result<Self, Error> {
        let shape = file.shape(&name).unwrap_or_default();
        let shape = match shape[..] {
            [channels, frames, height, width] => [channels, frames, height, width],
            [channels, height, width] => [channels, 1, height, width],
            _ => {
                return Err(wrong(
                    path,
                    &format!(
                        "`{name}` has the shape {shape:?}, but latents are [channels, frames, height, width]"
                    ),
                ));
            }
        };
        Ok(Self { name, shape })
    }
}

/// Whether `name` is `PREFIX<frames>x<height>x<width>_<dtype>`.
fn of_shape(name: &str, prefix: &str) -> bool {
    let shape = name
        .strip_prefix(prefix)
        .and_then(|rest| rest.split_once('_'));
    shape.is_some_and(|(shape, _)| {
        let mut sizes = shape.split('x');
        sizes.clone().count() == 3 && sizes.all(|size| size.parse::<u32>().is_ok())
    })
}

/// The header of a text's file.
#[derive(Debug)]
struct Text {
    file: SafetensorsFile,
    name: String,
    /// Width of a row.
    width: i64,
}

impl Text {
    /// Reads the header of a file of a text.
    ///
    /// # Errors
    /// When it holds something else, or more rows than the model reads.
    fn open(path: &Path, by: EncodedBy, fit: &ModelRequirements<'_>) -> Result<Self, Error> {
        let file = SafetensorsFile::open(path)?;
        let names = file.names();
        let is_text = |name: &String| match by {
            EncodedBy::Musubi => name.starts_with(fit.caches.text),
            EncodedBy::AiToolkit => name == "text_embed",
        };
        let [name] = &names[..] else {
            return Err(wrong(
                path,
                &format!("a text is one tensor, but there are {names:?}"),
            ));
        };
        if !is_text(name) {
            return Err(wrong(
                path,
                &format!("`{name}` is not a {} text", fit.title),
            ));
        }
        let shape = file.shape(name).unwrap_or_default();
        match shape[..] {
            [rows, width] | [1, rows, width] if rows <= TEXT_ROWS => Ok(Self {
                name: name.clone(),
                file,
                width,
            }),
            _ => Err(wrong(
                path,
                &format!(
                    "`{name}` has the shape {shape:?}, but a text is [up to {TEXT_ROWS}, width]"
                ),
            )),
        }
    }

    /// `[tokens, width]`, without trailing zeros.
    ///
    /// # Errors
    /// If there are non-finite values.
    fn rows(&self) -> Result<Tensor, Error> {
        let rows = numbers(&self.file, &self.name)?.f_view([-1, self.width])?;
        let set = rows.f_ne(0)?.f_any_dim(1, false)?;
        let set = Vec::<bool>::try_from(&set)?;
        let length = set.iter().rposition(|set| *set).map_or(0, |last| last + 1);
        Ok(rows.f_narrow(0, 0, length as i64)?)
    }
}

fn numbers(file: &SafetensorsFile, name: &str) -> Result<Tensor, Error> {
    let tensor = file.read(name, Kind::Float)?;
    if !f64::try_from(&tensor.f_sum(Kind::Double)?)?.is_finite() {
        return Err(wrong(
            file.path(),
            &format!("`{name}` has non-finite values; encode it again"),
        ));
    }
    Ok(tensor)
}

fn wrong(path: &Path, what: &str) -> Error {
    Error::Data(format!("`{}`: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_cut_from_the_end_of_a_name() {
        let digest = "a-b_DEfgHIjkLMnoPQrsTU";
        for (file, wanted) in [
            (format!("x_{digest}.safetensors"), Some("x")),
            (format!("a_b c_{digest}.safetensors"), Some("a_b c")),
            (format!("ü_{digest}.safetensors"), Some("ü")),
            (format!("_{digest}.safetensors"), None),
            (format!("x{digest}.safetensors"), None),
            (format!("x_{digest}.json"), None),
            ("x_ü-b_DEfgHIjkLMnoPQrsT.safetensors".to_owned(), None),
            ("short.safetensors".to_owned(), None),
        ] {
            assert_eq!(medium(&file), wanted, "{file}");
        }
    }

    #[test]
    fn names_of_tensors_tell_shapes() {
        assert!(of_shape("latents_21x60x104_bfloat16", "latents_"));
        assert!(of_shape(
            "latents_image_21x60x104_float16",
            "latents_image_"
        ));
        for other in [
            "latents_image_21x60x104_float16",
            "latents_21x60_float16",
            "latents_mask",
            "latent",
        ] {
            assert!(!of_shape(other, "latents_"), "{other}");
        }
    }

    #[test]
    fn an_image_may_be_named_as_a_clip_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in [
            "a_00000-017_0832x0480_wan.safetensors",
            "a_wan_te.safetensors",
            "b_00000-017_0832x0480_wan.safetensors",
            "b_00000-017_wan_te.safetensors",
        ] {
            std::fs::write(path(name), "").unwrap();
        }
        let model = models::diffusion::REGISTRY[0];
        let fit = ModelRequirements {
            title: model.title,
            caches: model.caches.as_ref().unwrap(),
            geometry: Geometry {
                channels: 16,
                pixels: 8,
                patch: 2,
                frames: Some(4),
                fps: 16,
            },
            width: 4096,
            with_first_frame: false,
        };
        let texts: Vec<_> = musubi(folder.path(), &fit)
            .unwrap()
            .iter()
            .map(|files| name(&files.text))
            .collect();
        assert_eq!(
            texts,
            ["a_wan_te.safetensors", "b_00000-017_wan_te.safetensors"]
        );
    }
}
