//! The folder that a trained or merged model is written to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use models::diffusion::{Diffusion, Expert as Which, Part, PartPaths};
use models::formats::{LazyTensor, TensorSource, write_safetensors};
use models::pretrained::copy;
use tch::{Device, Kind, Tensor};

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
    let named = named_parts(config.model.parts(), model);
    let named = named.into_iter().map(|(part, _)| part);
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

/// A denoiser's weights, under diffusers' names.
pub(crate) type Denoiser<'a> = (Option<Which>, &'a dyn TensorSource);

/// Writes `model`, some of whose `parts` may be named singly, with other weights of these denoisers, to the folder `to`. A
/// denoiser that is a single file becomes one of the same name and layout; otherwise all other parts are in the folder, too.
/// The weights are stored as `kind`, or in a single file as they are there, and in a folder in fp32.
///
/// # Errors
/// If a file cannot be read or written.
pub(crate) fn write_model(
    parts: PartPaths,
    model: &dyn Diffusion,
    denoisers: &[Denoiser<'_>],
    to: &Path,
    kind: Option<Kind>,
) -> Result<(), Error> {
    std::fs::create_dir_all(to).map_err(|error| Error::io("create", to, error))?;
    let path = |which: Option<Which>| {
        let path = model.part(Part::Denoiser(which.unwrap_or(Which::High)));
        path.unwrap_or_default()
    };
    let (files, folders): (Vec<_>, Vec<_>) = denoisers
        .iter()
        .partition(|(which, _)| path(*which).is_file());
    for (which, weights) in files {
        let file = model.weights(Part::Denoiser(which.unwrap_or(Which::High)))?;
        let name = file.path().file_name().unwrap_or_default();
        file.rewrite(weights, &to.join(name), kind)?;
    }
    if folders.is_empty() {
        return Ok(());
    }
    let trained: Vec<_> = folders
        .iter()
        .map(|(which, _)| folder_of(model, *which))
        .collect();
    let mut named = named_parts(parts, model);
    named.retain(|(_, name)| !trained.contains(name));
    let io = |error| Error::io("read", model.path(), error);
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
    for (which, weights) in folders {
        let part = Part::Denoiser(which.unwrap_or(Which::High));
        let folder = to.join(folder_of(model, which));
        std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, error))?;
        let (from, config) = (path(which).join("config.json"), folder.join("config.json"));
        std::fs::copy(from, &config).map_err(|error| Error::io("write", &config, error))?;
        let name = format!("{}.safetensors", model.names(part).stem);
        let kind = kind.unwrap_or(Kind::Float);
        let tensors = weights.names().into_iter().map(|name| {
            let tensor = LazyTensor::of(weights, &name, kind)?;
            Ok((name, tensor))
        });
        let tensors = tensors.collect::<Result<Vec<_>, models::Error>>()?;
        write_safetensors(&folder.join(name), tensors, None)?;
    }
    Ok(())
}

/// Fails if these weights of a denoiser are in several folders, since they are written to one.
pub(crate) fn expect_one_place(weights: &dyn TensorSource) -> Result<(), Error> {
    let files = weights.weight_files();
    let folders: BTreeSet<_> = files.iter().map(|file| file.parent()).collect();
    match folders.len() {
        0 | 1 => Ok(()),
        count => Err(Error::Data(format!(
            "the weights of `{}` are in {count} folders, of which one is written: take the single file of this model",
            weights.path().display()
        ))),
    }
}

/// Trained weights by their names.
pub(super) struct TrainedWeights<'a> {
    path: PathBuf,
    tensors: BTreeMap<String, &'a Tensor>,
}

impl<'a> TrainedWeights<'a> {
    /// Those of a denoiser of `model`.
    pub(super) fn of(model: &dyn Diffusion, expert: &'a Expert) -> Self {
        Self {
            path: model.path().to_owned(),
            tensors: expert.parameters.named().into_iter().collect(),
        }
    }
}

impl TensorSource for TrainedWeights<'_> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        self.tensors.get(name).map(|tensor| tensor.size())
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, models::Error> {
        let missing = || models::Error::Internal(format!("`{name}` is not trained"));
        let tensor = self.tensors.get(name).ok_or_else(missing)?;
        Ok(tensor.detach().f_to_device(Device::Cpu)?.f_to_kind(kind)?)
    }
}

/// What a denoiser is called in a model's folder.
fn folder_of(model: &dyn Diffusion, which: Option<Which>) -> &'static str {
    match which {
        None => model.arch().denoiser_folder(),
        which => component(which),
    }
}

/// Parts outside the model's folder, and what they are called in one.
fn named_parts(parts: PartPaths, model: &dyn Diffusion) -> Vec<(PathBuf, &'static str)> {
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
