//! The folder that a model trained from scratch is exported to.

use std::path::{Path, PathBuf};

use models::diffusion::{Diffusion, Expert as Which, Part};
use models::formats::write_tensors;
use models::pretrained::copy;

use super::expert::Expert;
use super::plan::component;
use crate::Error;
use crate::config::Config;

/// The `config.json` of a denoiser that is trained from scratch; its folder may have weights, too.
///
/// # Errors
/// If the denoiser, or another part of the model, is not a folder, so that the export could not be one.
pub(super) fn config_file(
    config: &Config,
    model: &dyn Diffusion,
    which: Which,
) -> Result<PathBuf, Error> {
    let folder = model.part(Part::Denoiser(which)).unwrap_or_default();
    let named = named_parts(config, model).into_iter().map(|(part, _)| part);
    let mut folders = [model.path().to_owned(), folder.clone()]
        .into_iter()
        .chain(named);
    match folders.find(|path| !path.is_dir()) {
        None => Ok(folder.join("config.json")),
        Some(file) => Err(Error::Data(format!(
            "`model.from_config`: `{}` is not a folder: name the model, and each of its parts that is named singly, \
             as a folder of diffusers",
            file.display()
        ))),
    }
}

/// Writes a model with the trained `experts`, and the other parts of `model`, to the folder `to`.
pub(super) fn write_model(
    config: &Config,
    model: &dyn Diffusion,
    experts: &[Expert],
    to: &Path,
) -> Result<(), Error> {
    let trained: Vec<_> = experts
        .iter()
        .map(|expert| folder_of(model, expert.which))
        .collect();
    let mut named = named_parts(config, model);
    named.retain(|(_, name)| !trained.contains(name));
    let io = |error| Error::io("read", model.path(), error);
    std::fs::create_dir_all(to).map_err(|error| Error::io("create", to, error))?;
    for entry in std::fs::read_dir(model.path()).map_err(io)? {
        let (path, name) = entry
            .map(|entry| (entry.path(), entry.file_name()))
            .map_err(io)?;
        let mut others = named.iter().map(|(_, named)| named).chain(&trained);
        let is_hidden = name.to_string_lossy().starts_with('.');
        if !is_hidden && !others.any(|other| name == *other) {
            copy(&path, &to.join(name))?;
        }
    }
    for (folder, name) in &named {
        copy(folder, &to.join(name))?;
    }
    for expert in experts {
        let which = expert.which.unwrap_or(Which::High);
        let from = config_file(config, model, which)?;
        let folder = to.join(folder_of(model, expert.which));
        std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, error))?;
        let path = folder.join("config.json");
        std::fs::copy(from, &path).map_err(|error| Error::io("write", &path, error))?;
        let name = format!("{}.safetensors", model.names(Part::Denoiser(which)).stem);
        write_tensors(&folder.join(name), &expert.parameters.named())?;
    }
    Ok(())
}

/// What a denoiser is called in a model's folder.
fn folder_of(model: &dyn Diffusion, which: Option<Which>) -> &'static str {
    match which {
        None => model.arch().denoiser_folder(),
        which => component(which),
    }
}

/// Parts outside the model's folder, and what they are called in one.
fn named_parts(config: &Config, model: &dyn Diffusion) -> Vec<(PathBuf, &'static str)> {
    let parts = config.model.parts();
    let named = [
        (parts.transformer, model.arch().denoiser_folder()),
        (parts.transformer_2, "transformer_2"),
        (parts.vae, "vae"),
        (parts.text_encoder, "text_encoder"),
        (parts.text_encoder_2, "text_encoder_2"),
        (parts.tokenizer, "tokenizer"),
    ];
    let named = named.into_iter();
    named
        .filter_map(|(path, name)| Some((path?, name)))
        .collect()
}
