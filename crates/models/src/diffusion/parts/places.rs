//! Where the parts of a model are that makes pictures of texts with one transformer, one autoencoder and one or two text
//! encoders: in a diffusers folder, or in single files as used by ComfyUI.

use std::path::{Path, PathBuf};

use super::decoder;
use crate::Error;
use crate::diffusion::files::{PartFile, PartNames};
use crate::diffusion::{Arch, Expert, INDEXES, Part, PartPaths, index_of};
use crate::json::Object;
use crate::language::{DecoderConfig, keys_without_effect};
use crate::pretrained::warn_about_keys;

/// The parts that an index names beside those whose class is that of their config.
const OF_ANY_CLASS: [&str; 4] = ["text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"];

/// Where the parts are: each a folder or a file.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    pub(crate) transformer: PathBuf,
    pub(crate) vae: PathBuf,
    pub(crate) text_encoder: PathBuf,
    /// If such a model has two.
    pub(crate) text_encoder_2: Option<PathBuf>,
    /// A folder; with two text encoders, that of the folders of both tokenizers.
    pub(crate) tokenizer: PathBuf,
    /// The file that names the parts of a diffusers folder.
    pub(crate) index: Option<Object>,
}

impl Places {
    /// The parts of the diffusers folder at `path`, or the transformer's file `path`, with those that `parts` names.
    /// `classes` are the classes of the folder's parts that are supported, `keys` what else its index may have.
    ///
    /// # Errors
    /// If a part is missing or of another class.
    pub(crate) fn find(
        arch: &Arch,
        path: &Path,
        parts: &PartPaths,
        (classes, keys): (&[(&str, &[&str])], &[&str]),
    ) -> Result<Self, Error> {
        refuse_second(arch, parts)?;
        let mut places = match path.is_dir() {
            true => {
                let index = index_of(path).unwrap_or_else(|| path.join(INDEXES[0]));
                let index = Object::read(&index)?;
                check(&index, classes, keys)?;
                Self::of_folder(arch, path, parts, index)
            }
            false => Self::of_files(arch, path, parts)?,
        };
        // Its config is beside it.
        if places.tokenizer.ends_with("tokenizer.json") {
            places.tokenizer.pop();
        }
        Ok(places)
    }

    fn of_folder(arch: &Arch, folder: &Path, parts: &PartPaths, index: Object) -> Self {
        let part = |given: &Option<PathBuf>, name: &str| {
            given.clone().unwrap_or_else(|| folder.join(name))
        };
        Self {
            transformer: part(&parts.transformer, "transformer"),
            vae: part(&parts.vae, "vae"),
            text_encoder: part(&parts.text_encoder, "text_encoder"),
            text_encoder_2: arch
                .has_two_encoders()
                .then(|| part(&parts.text_encoder_2, "text_encoder_2")),
            tokenizer: match (&parts.tokenizer, arch.has_two_encoders()) {
                (None, true) => folder.to_owned(),
                (given, _) => part(given, "tokenizer"),
            },
            index: Some(index),
        }
    }

    /// The transformer's file `path`, with the others as they are named.
    fn of_files(arch: &Arch, path: &Path, parts: &PartPaths) -> Result<Self, Error> {
        if let Some(other) = &parts.transformer {
            let reason = format!(
                "is a transformer, and so is `{}`: give only one of them",
                other.display()
            );
            return Err(Error::file(path, reason));
        }
        let part = |given: &Option<PathBuf>, name: &str| {
            given.clone().ok_or_else(|| {
                let reason = format!(
                    "is the transformer of {} alone: name its {name}, too",
                    arch.title
                );
                Error::file(path, reason)
            })
        };
        let a_file = "a single file or a folder";
        let text_encoder = part(
            &parts.text_encoder,
            &format!("text encoder (`text_encoder`, {a_file})"),
        )?;
        let two = arch.has_two_encoders();
        let text_encoder_2 = match two {
            true => Some(part(
                &parts.text_encoder_2,
                &format!("second text encoder (`text_encoder_2`, {a_file})"),
            )?),
            false => None,
        };
        let beside = !two && text_encoder.join("tokenizer.json").is_file();
        let inside = match two {
            true => "the folders `tokenizer` and `tokenizer_2`",
            false => "`tokenizer.json` and `tokenizer_config.json`",
        };
        let tokenizer = match &parts.tokenizer {
            None if beside => text_encoder.clone(),
            given => part(
                given,
                &format!("tokenizer (`tokenizer`, a folder with {inside})"),
            )?,
        };
        Ok(Self {
            transformer: path.to_owned(),
            vae: part(&parts.vae, &format!("autoencoder (`vae`, {a_file})"))?,
            text_encoder,
            text_encoder_2,
            tokenizer,
            index: None,
        })
    }

    /// Where a part is; `None` if such a model has none.
    pub(crate) fn part(&self, part: Part) -> Option<PathBuf> {
        match part {
            Part::Denoiser(Expert::High) => Some(self.transformer.clone()),
            Part::Autoencoder => Some(self.vae.clone()),
            Part::TextEncoder(0) => Some(self.text_encoder.clone()),
            Part::TextEncoder(1) => self.text_encoder_2.clone(),
            Part::Denoiser(Expert::Low) | Part::TextEncoder(_) => None,
        }
    }

    /// Where the text encoders are; the second is the first if there is one.
    pub(crate) fn text_encoders(&self) -> [&Path; 2] {
        let first = self.text_encoder.as_path();
        [first, self.text_encoder_2.as_deref().unwrap_or(first)]
    }

    /// Fails if what the text encoder at `place` makes has another `width` than the transformer takes.
    pub(crate) fn check_width(&self, place: &Path, width: i64, wanted: i64) -> Result<(), Error> {
        if width == wanted {
            return Ok(());
        }
        let transformer = self.transformer.display();
        let reason = format!(
            "has a width of {width}, and the transformer in `{transformer}` takes one of {wanted}"
        );
        Err(Error::file(place, reason))
    }

    /// The transformer's config, as one function reads it or as another infers it from shapes.
    pub(crate) fn transformer<C>(
        &self,
        arch: &Arch,
        read: fn(&Path) -> Result<C, Error>,
        of_shapes: fn(&PartFile) -> Result<C, Error>,
    ) -> Result<C, Error> {
        config_at(&self.transformer, &arch.denoiser, read, of_shapes)
    }

    /// The language model's config.
    pub(crate) fn text(&self) -> Result<DecoderConfig, Error> {
        let read = |config: &Path| {
            warn_about_keys(config, &keys_without_effect(config)?);
            DecoderConfig::read(config)
        };
        let of_shapes = |file: &PartFile| DecoderConfig::of_shapes(file);
        config_at(&self.text_encoder, &decoder::NAMES, read, of_shapes)
    }
}

/// The config of the part at `path`: as one function reads it in a folder, or as another infers it from the shapes in a
/// file with these names.
///
/// # Errors
/// If a file is missing or damaged, or its content is not supported.
pub(crate) fn config_at<C>(
    path: &Path,
    names: &PartNames,
    read: impl FnOnce(&Path) -> Result<C, Error>,
    of_shapes: impl FnOnce(&PartFile) -> Result<C, Error>,
) -> Result<C, Error> {
    match path.is_dir() {
        true => read(&path.join("config.json")),
        false => of_shapes(&PartFile::open(names, path)?),
    }
}

/// Refuses a single file that is named like another model, which looks like the one that it is taken for.
pub(crate) fn refuse_named(path: &Path, part: &str, other: &str) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match path.is_file() && name.to_lowercase().contains(part) {
        true => Err(Error::file(path, format!("is named like {other}"))),
        false => Ok(()),
    }
}

/// Refuses a second transformer for a kind of model that has one.
pub(crate) fn refuse_second(arch: &Arch, parts: &PartPaths) -> Result<(), Error> {
    match &parts.transformer_2 {
        Some(other) => {
            let reason = format!("is given as second transformer, but {} has one", arch.title);
            Err(Error::file(other, reason))
        }
        None => Ok(()),
    }
}

/// Refuses parts of other classes in an index, and warns about keys without effect.
pub(crate) fn check(
    index: &Object,
    classes: &[(&str, &[&str])],
    keys: &[&str],
) -> Result<(), Error> {
    for (part, supported) in classes {
        let class = index.get(part).and_then(|part| part.get(1)?.as_str());
        if let Some(class) = class.filter(|class| !supported.contains(class)) {
            let reason = format!("is {class:?}: supported is {}", supported.join(" or "));
            return Err(index.error(part, reason));
        }
    }
    let parts = classes.iter().map(|(part, _)| *part);
    let known: Vec<_> = parts
        .chain(OF_ANY_CLASS)
        .chain(keys.iter().copied())
        .collect();
    index.warn_about_unknown_keys(&known);
    Ok(())
}
