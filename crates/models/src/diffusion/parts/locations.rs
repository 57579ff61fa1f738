//! Where the parts of a model with one denoiser and one text encoder are: a folder as diffusers saves it, or single files.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::diffusion::PartPaths;
use crate::json::Object;

/// Where the parts are.
#[derive(Debug, Clone)]
pub(crate) struct Locations {
    pub(crate) transformer: PathBuf,
    pub(crate) vae: PathBuf,
    pub(crate) text_encoder: PathBuf,
    /// A folder.
    pub(crate) tokenizer: PathBuf,
}

impl Locations {
    /// Those of the folder or the transformer's file `path` of the model `title`, with the others as they are named.
    ///
    /// # Errors
    /// If one is missing, or named twice.
    pub(crate) fn find(path: &Path, parts: &PartPaths, title: &str) -> Result<Self, Error> {
        if let Some(other) = &parts.transformer_2 {
            let reason = format!("is given as second transformer, but {title} has one");
            return Err(Error::file(other, reason));
        }
        let mut locations = match path.is_dir() {
            true => Self::of_folder(path, parts),
            false => Self::of_files(path, parts, title)?,
        };
        // Its config is beside it.
        if locations.tokenizer.ends_with("tokenizer.json") {
            locations.tokenizer.pop();
        }
        Ok(locations)
    }

    fn of_folder(folder: &Path, parts: &PartPaths) -> Self {
        let part = |given: &Option<PathBuf>, name: &str| {
            given.clone().unwrap_or_else(|| folder.join(name))
        };
        Self {
            transformer: part(&parts.transformer, "transformer"),
            vae: part(&parts.vae, "vae"),
            text_encoder: part(&parts.text_encoder, "text_encoder"),
            tokenizer: part(&parts.tokenizer, "tokenizer"),
        }
    }

    fn of_files(path: &Path, parts: &PartPaths, title: &str) -> Result<Self, Error> {
        if let Some(other) = &parts.transformer {
            let reason = format!(
                "is a transformer, and so is `{}`: give only one of them",
                other.display()
            );
            return Err(Error::file(path, reason));
        }
        let part = |given: &Option<PathBuf>, name: &str| {
            given.clone().ok_or_else(|| {
                let reason = format!("is the transformer of {title} alone: name its {name}, too");
                Error::file(path, reason)
            })
        };
        let a_file = "a single file or a folder";
        let text_encoder = part(
            &parts.text_encoder,
            &format!("text encoder (`text_encoder`, {a_file})"),
        )?;
        let beside = text_encoder.join("tokenizer.json").is_file();
        let tokenizer = match &parts.tokenizer {
            None if beside => text_encoder.clone(),
            given => part(
                given,
                "tokenizer (`tokenizer`, a folder with `tokenizer.json` and `tokenizer_config.json`)",
            )?,
        };
        Ok(Self {
            transformer: path.to_owned(),
            vae: part(&parts.vae, &format!("autoencoder (`vae`, {a_file})"))?,
            text_encoder,
            tokenizer,
        })
    }
}

/// The config of a part that is a folder.
pub(crate) fn config_of(part: &Path) -> Option<PathBuf> {
    part.is_dir().then(|| part.join("config.json"))
}

/// Refuses parts that an index names with other classes than these, of which an empty list is any, and warns about keys
/// without effect.
///
/// # Errors
/// The error names the part and the supported classes.
pub(crate) fn check_classes(index: &Object, parts: &[(&str, &[&str])]) -> Result<(), Error> {
    for (part, supported) in parts {
        let class = index.get(part).and_then(|part| part.get(1)?.as_str());
        if let Some(class) =
            class.filter(|class| !supported.is_empty() && !supported.contains(class))
        {
            let reason = format!("is {class:?}: supported is {}", supported.join(", "));
            return Err(index.error(part, reason));
        }
    }
    let known: Vec<_> = parts.iter().map(|(part, _)| *part).collect();
    index.warn_about_unknown_keys(&known);
    Ok(())
}
