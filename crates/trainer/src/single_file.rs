//! Opening a model of pictures or videos: of a denoiser's single file, the other parts are found beside it as ComfyUI
//! keeps them, and the tokenizer, which ComfyUI has in its program, on the hub or in its cache.

use std::fs;
use std::path::{Path, PathBuf};

use models::diffusion::{self, Arch, Diffusion, PartPaths};

use crate::Error;
use crate::config::Confinement;
use crate::data::cache_folder;
use crate::hub::{self, ModelKind, Settings};

/// Opens the model at `path`, with the `parts` that are named singly; progress is passed to `report`.
///
/// # Errors
/// If a part is missing or damaged, its content is not supported, or a tokenizer cannot be fetched.
pub fn open(
    path: &Path,
    parts: &PartPaths,
    report: &mut dyn FnMut(&str),
) -> Result<Box<dyn Diffusion>, Error> {
    let settings = Settings::of_the_environment();
    let confinement = Confinement::of_the_environment();
    let is_allowed = |file: &Path| {
        confinement
            .as_ref()
            .is_none_or(|within| within.allows(file))
    };
    let parts = completed(path, parts, &settings, &is_allowed, report)?;
    Ok(diffusion::open(path, &parts)?)
}

/// The model at `path` if all of its parts are on this machine, those beside a single file inside `roots`. A tokenizer may
/// be missing, since it is small.
pub(crate) fn open_found(path: &Path, roots: &[PathBuf]) -> Option<Box<dyn Diffusion>> {
    let settings = Settings {
        offline: true,
        ..Settings::of_the_environment()
    };
    let is_allowed = |file: &Path| {
        let real = file.canonicalize();
        real.is_ok_and(|real| roots.iter().any(|root| real.starts_with(root)))
    };
    let parts = PartPaths::default();
    let parts = match completed(path, &parts, &settings, &is_allowed, &mut |_| ()) {
        Ok(parts) => parts,
        // What reads them is not asked here.
        Err(_) => {
            let fetched_later = PartPaths {
                tokenizer: Some(path.to_owned()),
                ..parts
            };
            diffusion::of_file(path)?.with_companions(path, &fetched_later, &is_allowed)
        }
    };
    diffusion::open(path, &parts).ok()
}

/// `parts` with those that were found and are not named.
fn completed(
    path: &Path,
    parts: &PartPaths,
    settings: &Settings,
    is_allowed: &dyn Fn(&Path) -> bool,
    report: &mut dyn FnMut(&str),
) -> Result<PartPaths, Error> {
    let Some(arch) = diffusion::of_file(path) else {
        return Ok(parts.clone());
    };
    let mut all = parts.clone();
    let has_its_own = parts.text_encoder.as_deref().is_some_and(Path::is_dir);
    if all.tokenizer.is_none() && !has_its_own {
        all.tokenizer = tokenizer(arch, path, settings, report)?;
    }
    let all = arch.with_companions(path, &all, is_allowed);
    let found = [
        ("text encoder", &parts.text_encoder, &all.text_encoder),
        (
            "second text encoder",
            &parts.text_encoder_2,
            &all.text_encoder_2,
        ),
        ("autoencoder", &parts.vae, &all.vae),
        ("tokenizer", &parts.tokenizer, &all.tokenizer),
    ];
    for (part, named, found) in found {
        if let (None, Some(found)) = (named, found) {
            tracing::info!(
                "{part}: `{}`, which was found for `{}`",
                found.display(),
                path.display()
            );
        }
    }
    Ok(all)
}

/// The tokenizer of this kind of model; `None` if it is in the text encoder's file.
fn tokenizer(
    arch: &Arch,
    path: &Path,
    settings: &Settings,
    report: &mut dyn FnMut(&str),
) -> Result<Option<PathBuf>, Error> {
    let mut found = Vec::new();
    for (folder, name) in arch.companions.tokenizers {
        let fetched = hub::fetch_named(name, ModelKind::Tokenizer, settings, report);
        let fetched = fetched.map_err(|error| {
            Error::Data(format!(
                "`{}` has no tokenizer, and that of {} is not here: {error}. `tokenizer` names the folder of one",
                path.display(),
                arch.title
            ))
        })?;
        found.push((*folder, fetched));
    }
    match &found[..] {
        [] => Ok(None),
        [("", only)] => Ok(Some(only.clone())),
        several => together(several, &cache_folder().join("tokenizers")).map(Some),
    }
}

/// A folder below `cache` with a copy of each of several tokenizers.
fn together(tokenizers: &[(&str, PathBuf)], cache: &Path) -> Result<PathBuf, Error> {
    let commits = tokenizers.iter().filter_map(|(_, path)| path.file_name());
    let commits: Vec<_> = commits.map(|name| name.to_string_lossy()).collect();
    let whole = cache.join(commits.join("-"));
    if whole.is_dir() {
        return Ok(whole);
    }
    let io = |error| Error::io("write", &whole, error);
    fs::create_dir_all(cache).map_err(io)?;
    let draft = tempfile::tempdir_in(cache).map_err(io)?;
    for (name, from) in tokenizers {
        models::pretrained::copy(from, &draft.path().join(name))?;
    }
    match fs::rename(draft.path(), &whole) {
        // Another process may have been first.
        Err(error) if !whole.is_dir() => Err(io(error)),
        _ => Ok(whole),
    }
}

#[cfg(test)]
pub(crate) mod tests;
