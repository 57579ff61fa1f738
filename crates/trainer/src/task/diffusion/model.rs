//! The folder that a trained or merged model is written to.

use std::collections::BTreeMap;
use std::ffi::OsStr;
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
    let (files, folders): (Vec<Denoiser<'_>>, Vec<Denoiser<'_>>) = denoisers
        .iter()
        .copied()
        .partition(|(which, _)| path(*which).is_file());
    for (which, weights) in files {
        let file = model.weights(Part::Denoiser(which.unwrap_or(Which::High)))?;
        let name = file.path().file_name().unwrap_or_default();
        file.rewrite(weights, &to.join(name), kind)?;
    }
    if folders.is_empty() {
        return Ok(());
    }
    let mut trained = Vec::new();
    for denoiser in folders {
        trained.extend(written_parts(model, denoiser, &path(denoiser.0)));
    }
    let is_trained = |name: &OsStr| {
        trained
            .iter()
            .any(|part: &WrittenPart<'_>| name == &*part.name)
    };
    let mut named = named_parts(parts, model);
    named.retain(|(_, name)| !is_trained(OsStr::new(name)));
    let io = |error| Error::io("read", model.path(), error);
    for entry in std::fs::read_dir(model.path()).map_err(io)? {
        let (path, name) = entry
            .map(|entry| (entry.path(), entry.file_name()))
            .map_err(io)?;
        let is_named = named.iter().any(|(_, named)| name == *named);
        let is_hidden = name.to_string_lossy().starts_with('.');
        if !is_hidden && !is_named && !is_trained(&name) {
            copy(&path, &to.join(name))?;
        }
    }
    for (folder, name) in &named {
        copy(folder, &to.join(name))?;
    }
    for part in &trained {
        let folder = to.join(&part.name);
        std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, error))?;
        let (from, config) = (part.from.join("config.json"), folder.join("config.json"));
        std::fs::copy(from, &config).map_err(|error| Error::io("write", &config, error))?;
        let kind = kind.unwrap_or(Kind::Float);
        let tensors = part.tensors.iter().map(|name| {
            let tensor = LazyTensor::of(part.weights, name, kind)?;
            Ok((name[part.prefix..].to_owned(), tensor))
        });
        let tensors = tensors.collect::<Result<Vec<_>, models::Error>>()?;
        let file = folder.join(format!("{}.safetensors", part.stem));
        write_safetensors(&file, tensors, None)?;
    }
    Ok(())
}

/// A folder of weights that are written anew.
struct WrittenPart<'a> {
    /// What it is called, and where it is now.
    name: String,
    from: PathBuf,
    /// The name of the file there.
    stem: &'static str,
    weights: &'a dyn TensorSource,
    tensors: Vec<String>,
    /// So much is before their names in the file.
    prefix: usize,
}

/// The folders of a denoiser whose own is `main`: weights whose names begin with that of another folder of the model are there.
fn written_parts<'a>(
    model: &dyn Diffusion,
    (which, weights): Denoiser<'a>,
    main: &Path,
) -> Vec<WrittenPart<'a>> {
    let stem = model
        .names(Part::Denoiser(which.unwrap_or(Which::High)))
        .stem;
    let mut parts: BTreeMap<String, WrittenPart<'a>> = BTreeMap::new();
    for tensor in weights.names() {
        let first = tensor.split('.').next().unwrap_or_default().to_owned();
        let places = [main.parent(), Some(model.path())].into_iter().flatten();
        let mut places = places.map(|place| place.join(&first));
        let other = places.find(|place| place.join("config.json").is_file());
        let (name, prefix) = match &other {
            Some(_) => (first.clone(), first.len() + 1),
            None => (folder_of(model, which).to_owned(), 0),
        };
        let part = parts.entry(name.clone()).or_insert_with(|| WrittenPart {
            name,
            from: other.unwrap_or_else(|| main.to_owned()),
            stem,
            weights,
            tensors: Vec::new(),
            prefix,
        });
        part.tensors.push(tensor);
    }
    parts.into_values().collect()
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
