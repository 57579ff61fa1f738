//! Control pictures: which ones belong to a medium, and what the model takes of them.
//!
//! They are found by the names of the media, in one folder or in several, or named in the lines of a `.jsonl` file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use models::diffusion::parts::codec::MediaCodec;
use models::diffusion::{Conditions, Controls, Diffusion, Picture};
use serde_json::Value;
use tch::Device;

use super::cache::Cache;
use super::frames;
use super::masks::pictures_below;
use super::sources::{Source, stem_below};
use crate::Error;
use crate::config::DataConfig;

/// A control picture of a medium or a text.
#[derive(Debug, Clone)]
pub(super) struct Control {
    pub(super) path: PathBuf,
    pub(super) size: (u32, u32),
    /// A hash of its file.
    pub(super) content: String,
}

impl Control {
    /// The control pictures at these paths, or why one cannot be used.
    pub(super) fn open(
        paths: &[PathBuf],
        cache: &Cache,
    ) -> Result<Result<Vec<Self>, String>, Error> {
        let mut all = Vec::new();
        for path in paths {
            let shown = path.display();
            let facts = match Source::of(path)? {
                Some(source) => cache.facts(&source, 1.0)?,
                None => Err("neither a picture nor a video".into()),
            };
            match facts {
                Ok(facts) if facts.shape().still => all.push(Self {
                    path: path.clone(),
                    size: facts.shape().size,
                    content: facts.content.clone(),
                }),
                Ok(_) => return Ok(Err(format!("its control picture `{shown}` is a video"))),
                Err(reason) => return Ok(Err(format!("its control picture `{shown}`: {reason}"))),
            }
        }
        Ok(Ok(all))
    }
}

/// The pixels of a picture in a file.
pub(crate) fn picture_at(path: &Path) -> Result<Picture, Error> {
    let read = frames::picture(path);
    let read = read.map_err(|reason| Error::Data(format!("`{}`: {reason}", path.display())))?;
    Ok(Picture::new(read.dimensions(), read.into_raw())?)
}

/// The area at which control pictures are encoded.
pub(crate) fn area(data: &DataConfig, controls: Controls) -> u32 {
    match data.control_resolution.as_ref().map(|sides| sides.list()) {
        Some([width, height]) => width * height,
        Some([side, ..]) => side * side,
        _ => controls.area,
    }
}

/// The latents of control `pictures` as conditions, without a batch dimension.
///
/// # Errors
/// If the model takes none, or memory runs out.
pub(crate) fn latents_of(
    model: &dyn Diffusion,
    pictures: &[Picture],
    area: u32,
    codec: &dyn MediaCodec,
) -> Result<Conditions, Error> {
    let mut conditions = Conditions::default();
    for (number, picture) in pictures.iter().enumerate() {
        let controls = model.controls();
        let controls =
            controls.ok_or_else(|| Error::Internal("a model without control pictures".into()))?;
        let latents = codec.encode_frame(&controls.pixels(area, picture)?, None)?;
        let latents = latents
            .f_to_device(Device::Cpu)
            .map_err(models::Error::from)?;
        conditions.insert(&Controls::name(number), latents);
    }
    Ok(conditions)
}

/// Where the control pictures of a run are.
#[derive(Debug)]
pub(super) struct ControlFiles {
    /// Of each folder, by their places below it, without the ending.
    folders: Vec<BTreeMap<PathBuf, PathBuf>>,
    /// The places of the media.
    media: BTreeSet<PathBuf>,
}

impl ControlFiles {
    /// Those of the folders that `data` names, for `media` in the folder or the file `path`.
    ///
    /// # Errors
    /// If a folder does not exist, or its pictures would be trained on.
    pub(super) fn of<'a>(
        data: &DataConfig,
        path: &Path,
        media: impl Iterator<Item = &'a Source>,
    ) -> Result<Option<Self>, Error> {
        let Some(folders) = &data.control_path else {
            return Ok(None);
        };
        let folders = folders.list().iter();
        let folders = folders.map(|folder| pictures_below(folder, path, "control_path"));
        Ok(Some(Self {
            folders: folders.collect::<Result<_, _>>()?,
            media: media.map(|source| stem_below(source, path)).collect(),
        }))
    }

    /// The control pictures of a medium, in order: of its name, and in a single folder those with a number behind it
    /// (`cat_0.png`, `cat_1.png`), unless that is another medium's name.
    pub(super) fn of_medium(&self, source: &Source, path: &Path) -> Vec<PathBuf> {
        let own = stem_below(source, path);
        let named = self.folders.iter().filter_map(|folder| folder.get(&own));
        let mut found: Vec<PathBuf> = named.cloned().collect();
        if let [folder] = &self.folders[..] {
            let own = own.to_string_lossy();
            let number = |stem: &Path| -> Option<u32> {
                let stem = stem.to_string_lossy();
                stem.strip_prefix(&*own)?.strip_prefix('_')?.parse().ok()
            };
            let others = folder
                .iter()
                .filter(|(stem, _)| !self.media.contains(*stem));
            let others = others.filter_map(|(stem, file)| Some((number(stem)?, file)));
            let mut others: Vec<_> = others.collect();
            others.sort();
            found.extend(others.into_iter().map(|(_, file)| file.clone()));
        }
        found
    }
}

/// Keys for control pictures: a file or a list of files. Each may have a number behind it, as in `control_path_0`.
pub(super) const CONTROL_KEYS: [&str; 3] = ["control_path", "control_image", "edit_image"];

/// The number behind a key for control pictures.
pub(super) fn control_number(key: &str) -> Option<u32> {
    CONTROL_KEYS
        .iter()
        .find_map(|own| match key.strip_prefix(own)? {
            "" => Some(0),
            rest => rest.strip_prefix('_')?.parse().ok(),
        })
}

/// The control pictures that a line names, in the order of their keys' numbers.
pub(super) fn controls_in(object: &serde_json::Map<String, Value>) -> Result<Vec<String>, String> {
    let keys = object.iter();
    let mut keys: Vec<_> = keys
        .filter_map(|(key, value)| Some((control_number(key)?, key, value)))
        .collect();
    keys.sort_by_key(|(number, key, _)| (*number, *key));
    let mut files = Vec::new();
    for (_, key, value) in keys {
        let list = value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice);
        for file in list {
            let file = file.as_str();
            let file = file.ok_or_else(|| format!("`{key}` is not a file or a list of files"))?;
            files.push(file.to_owned());
        }
    }
    Ok(files)
}

/// The control pictures of a medium if the model takes so many.
pub(super) fn checked(
    controls: Vec<Control>,
    model: &dyn Diffusion,
) -> Result<Vec<Control>, String> {
    let (rule, title) = (model.controls(), model.arch().title);
    match (rule, controls.len()) {
        (None, 1..) => Err(format!("{title} takes no control pictures")),
        (Some(rule), 0) if rule.least > 0 => Err(format!(
            "{title} changes pictures, and it has no control picture: name their folder by `data.control_path`"
        )),
        (Some(rule), count) if count > rule.most => Err(format!(
            "{count} control pictures, where {title} takes {} at most",
            rule.most
        )),
        _ => Ok(controls),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Paths;

    #[test]
    fn control_pictures_are_found_by_the_names_of_the_media() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for file in [
            "one/a/1.png",
            "one/2_10.jpg",
            "one/2_9.png",
            "one/2.png",
            "one/2_1.png",
            "two/2.webp",
        ] {
            std::fs::create_dir_all(at(file).parent().unwrap()).unwrap();
            std::fs::write(at(file), "").unwrap();
        }
        std::fs::create_dir_all(at("data")).unwrap();
        let media =
            ["data/a/1.jpg", "data/2.png", "data/2_1.png"].map(|name| Source::Image(at(name)));
        let found = |folders: Paths| {
            let mut data = crate::Config::default().data;
            data.control_path = Some(folders);
            let files = ControlFiles::of(&data, &at("data"), media.iter())?.unwrap();
            Ok::<_, Error>(
                media
                    .each_ref()
                    .map(|medium| files.of_medium(medium, &at("data"))),
            )
        };
        let [nested, several, other] = found(Paths::One(at("one"))).unwrap();
        assert_eq!(nested, [at("one/a/1.png")]);
        assert_eq!(
            several,
            [at("one/2.png"), at("one/2_9.png"), at("one/2_10.jpg")]
        );
        assert_eq!(other, [at("one/2_1.png")]);
        let [nested, several, _] = found(Paths::List(vec![at("two"), at("one")])).unwrap();
        assert_eq!(nested, [at("one/a/1.png")]);
        assert_eq!(several, [at("two/2.webp"), at("one/2.png")]);
        for (folder, told) in [("data", "inside the data"), ("none", "not a folder")] {
            let reason = found(Paths::One(at(folder))).unwrap_err().to_string();
            assert!(
                reason.contains(told) && reason.contains("data.control_path"),
                "{reason}"
            );
        }
    }
}
