//! Checkpoints: everything a run needs to continue as if it had never stopped.
//!
//! A checkpoint is a folder `step-000100` of weights, optimizer state and a
//! `state.json` that holds the checksums of the other two and is written last.
//! The folder is filled under a temporary name, forced to the disk, and renamed; so
//! a folder that has its name is whole, whatever killed the process in between.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::model::Parameters;
use crate::optim::{AdamW, Ema};
use crate::tensor_file::{self, TensorFile};

const FORMAT: u32 = 1;
const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";

/// What `state.json` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// Version of this format.
    pub format: u32,
    /// Optimizer steps done.
    pub step: u64,
    /// Units (tokens) trained on.
    pub units: u64,
    /// Seconds of training so far, over all resumes.
    pub train_seconds: f64,
    /// Steps that the optimizer took: those done less those that were skipped.
    #[serde(default)]
    pub optimizer_steps: Option<u64>,
    /// The best evaluation so far.
    #[serde(default)]
    pub best: Option<Best>,
    /// Samples in one pass, where memory was too short for what the config says.
    #[serde(default)]
    pub micro_batch: Option<u32>,
    /// Where the task stands in its data.
    pub data: Value,
    /// CRC-32C of each file.
    pub checksums: BTreeMap<String, u32>,
}

/// Progress that goes into a checkpoint.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Optimizer steps done.
    pub step: u64,
    /// Units (tokens) trained on.
    pub units: u64,
    /// Seconds of training so far.
    pub train_seconds: f64,
    /// The best evaluation so far; its checkpoint is kept.
    pub best: Option<Best>,
    /// Samples in one pass, where memory was too short for what the config says.
    pub micro_batch: Option<u32>,
    /// Where the task stands in its data.
    pub data: Value,
}

/// The best evaluation of a run, and so the checkpoint worth keeping.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Optimizer steps done.
    pub step: u64,
    /// Value of `train.metric_for_best_model`.
    pub value: f64,
}

/// What a checkpoint has the tensors of.
#[derive(Debug)]
pub struct Trained<'a> {
    /// The weights.
    pub parameters: &'a Parameters,
    /// The optimizer's moments.
    pub optimizer: &'a mut AdamW,
    /// The averages of the weights, if the run keeps them.
    pub ema: Option<&'a Ema>,
}

impl Trained<'_> {
    /// Everything but the weights, by name.
    fn state(&self) -> Vec<(String, &tch::Tensor)> {
        let mut state = self.optimizer.state(self.parameters);
        state.extend(self.ema.iter().flat_map(|ema| ema.state(self.parameters)));
        state
    }
}

/// Writes a checkpoint into `folder` (the run's `checkpoints`) and removes those beyond the
/// newest `keep` and the best. Returns its folder.
///
/// # Errors
/// When a file cannot be written; then nothing is removed and the older checkpoints stand.
pub fn save(
    folder: &Path,
    progress: Progress,
    trained: &Trained<'_>,
    keep: Option<u32>,
) -> Result<PathBuf, Error> {
    fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
    let name = format!("step-{:06}", progress.step);
    let best = progress.best;
    let (temporary, target) = (folder.join(format!(".{name}.tmp")), folder.join(&name));
    remove_if_there(&temporary)?;
    let result = fill(&temporary, progress, trained).and_then(|()| {
        // A run that was resumed from before this step writes it again.
        remove_if_there(&target)?;
        fs::rename(&temporary, &target).map_err(|error| Error::io("write", &target, error))?;
        sync_folder(folder)
    });
    if let Err(error) = result {
        let _ = fs::remove_dir_all(&temporary);
        return Err(error);
    }
    if let Some(keep) = keep {
        let whole = list(folder)?;
        for (step, old) in whole.iter().rev().skip(keep as usize) {
            if best.is_none_or(|best| best.step != *step) {
                remove_if_there(old)?;
            }
        }
    }
    Ok(target)
}

fn fill(folder: &Path, progress: Progress, trained: &Trained<'_>) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
    let weights: Vec<_> = trained
        .parameters
        .iter()
        .map(|p| (p.name.clone(), &p.tensor))
        .collect();
    let mut checksums = BTreeMap::new();
    for (name, tensors) in [(MODEL, weights), (OPTIMIZER, trained.state())] {
        checksums.insert(
            name.to_owned(),
            tensor_file::write(&folder.join(name), &tensors)?,
        );
    }
    let Progress {
        step,
        units,
        train_seconds,
        best,
        micro_batch,
        data,
    } = progress;
    let state = State {
        format: FORMAT,
        step,
        units,
        train_seconds,
        optimizer_steps: Some(trained.optimizer.steps()),
        best,
        micro_batch,
        data,
        checksums,
    };
    let text = serde_json::to_string_pretty(&state)
        .map_err(|error| Error::Internal(format!("checkpoint state: {error}")))?;
    let path = folder.join(STATE);
    File::create(&path)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())
                .and_then(|()| file.sync_all())
        })
        .map_err(|error| Error::io("write", &path, error))?;
    sync_folder(folder)
}

/// Fills parameters, optimizer and averages from the checkpoint at `path`, and returns the rest.
///
/// # Errors
/// When a file is missing or damaged, or belongs to a model of another shape; nothing has
/// been changed then.
pub fn load(path: &Path, trained: Trained<'_>) -> Result<State, Error> {
    let state = read_state(path)?;
    for (name, checksum) in &state.checksums {
        let file = path.join(name);
        if tensor_file::checksum(&file)? != *checksum {
            return Err(Error::checkpoint(
                &file,
                "it is damaged: its checksum differs",
            ));
        }
    }
    let mut weights = TensorFile::open(&path.join(MODEL))?;
    let mut moments = TensorFile::open(&path.join(OPTIMIZER))?;
    let targets: Vec<_> = trained
        .parameters
        .iter()
        .map(|p| (p.name.clone(), &p.tensor))
        .collect();
    let optimizer_targets = trained.state();
    check_shapes(&path.join(MODEL), &weights, &targets)?;
    check_shapes(&path.join(OPTIMIZER), &moments, &optimizer_targets)?;
    let _no_grad = tch::no_grad_guard();
    for (file, targets) in [(&mut weights, &targets), (&mut moments, &optimizer_targets)] {
        for (name, target) in targets {
            // Through a detached handle: the memory changes, the graph does not.
            target.f_detach()?.f_copy_(&file.read(name)?)?;
        }
    }
    drop(optimizer_targets);
    let steps = state.optimizer_steps.unwrap_or(state.step);
    trained.optimizer.set_steps(steps)?;
    Ok(state)
}

fn read_state(path: &Path) -> Result<State, Error> {
    let file = path.join(STATE);
    let text = fs::read_to_string(&file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::checkpoint(path, "it has no `state.json`"),
        _ => Error::io("read", &file, error),
    })?;
    let state: State = serde_json::from_str(&text)
        .map_err(|error| Error::checkpoint(&file, format!("it is damaged: {error}")))?;
    if state.format != FORMAT {
        return Err(Error::checkpoint(
            path,
            format!(
                "its format is {}, and this program reads {FORMAT}",
                state.format
            ),
        ));
    }
    Ok(state)
}

fn check_shapes(
    path: &Path,
    file: &TensorFile,
    targets: &[(String, &tch::Tensor)],
) -> Result<(), Error> {
    for (name, target) in targets {
        match file.shape(name) {
            Some(shape) if shape == target.size() => {}
            Some(shape) => {
                return Err(Error::checkpoint(
                    path,
                    format!(
                        "`{name}` is {shape:?} there and {:?} in this model: {}",
                        target.size(),
                        differs(path)
                    ),
                ));
            }
            None => {
                return Err(Error::checkpoint(
                    path,
                    format!(
                        "it has no `{name}`, which this run needs: {}",
                        differs(path)
                    ),
                ));
            }
        }
    }
    let extra = file
        .names()
        .into_iter()
        .find(|name| !targets.iter().any(|(ours, _)| ours == name));
    match extra {
        Some(name) => Err(Error::checkpoint(
            path,
            format!("it has `{name}`, which this run lacks: {}", differs(path)),
        )),
        None => Ok(()),
    }
}

/// What in the config makes the tensors of this file others.
fn differs(path: &Path) -> &'static str {
    match path.ends_with(OPTIMIZER) {
        true => "`model`, `train.optim` or `train.ema_decay` in the config differs from the run's",
        false => "`model` or `adapter` in the config differs from the run's",
    }
}

/// The whole checkpoints in `folder`, by step. Absent folders have none.
///
/// # Errors
/// When the folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", folder, error)),
    };
    let mut whole = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| Error::io("read", folder, error))?
            .path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let step = name
            .strip_prefix("step-")
            .and_then(|step| step.parse().ok());
        if let Some(step) = step
            && path.join(STATE).is_file()
        {
            whole.push((step, path));
        }
    }
    whole.sort();
    Ok(whole)
}

/// Removes a folder under another name, so that no half of it keeps the name of a whole one.
fn remove_if_there(folder: &Path) -> Result<(), Error> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let doomed = folder.with_file_name(format!(".{}.old", name.trim_start_matches('.')));
    let absent = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let remove = |folder: &Path| match fs::remove_dir_all(folder) {
        Err(error) if !absent(&error) => Err(Error::io("remove", folder, error)),
        _ => Ok(()),
    };
    remove(&doomed)?;
    match fs::rename(folder, &doomed) {
        Ok(()) => remove(&doomed),
        Err(error) if absent(&error) => Ok(()),
        Err(error) => Err(Error::io("remove", folder, error)),
    }
}

/// Forces a folder's entries to the disk; without it a rename may not survive a power cut.
fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| Error::io("write", folder, error))
}
