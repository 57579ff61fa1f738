//! Checkpoints: everything a run needs to continue as if it had never stopped.
//!
//! A checkpoint is a folder `step-000100` with weights, optimizer state, what the task adds for other
//! programs (an adapter in PEFT's format), and a `state.json`. The latter is written last and holds the
//! config in force, the checksums of all other files and one of itself. The folder is filled under a
//! temporary name, synced, and renamed; so a folder with the final name is complete, whenever the process was
//! killed.

mod integrity;
mod weights;
mod window;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::config::Config;
use crate::events::Best;
use crate::optim::{Ema, Optimizer};
use models::Parameters;
use models::formats::{SafetensorsFile, TensorSource, write_tensors};
use platform::files::sync;
pub(crate) use weights::{CheckpointWeights, Unread};
pub use window::Window;

const FORMAT: u32 = 2;
const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
/// Suffix of checkpoints that are later than the one a run was resumed from.
const ASIDE: &str = ".aside";

/// The contents of `state.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// Version of this format.
    pub format: u32,
    /// Optimizer steps done.
    pub step: u64,
    /// Units (tokens) trained on so far.
    pub units: u64,
    /// Seconds of training so far, including before resumes.
    pub train_seconds: f64,
    /// Steps since the last record.
    #[serde(default)]
    pub window: Window,
    /// Steps that the optimizer took: all steps except skipped ones.
    #[serde(default)]
    pub optimizer_steps: Option<u64>,
    /// The same for each group, if groups of parameters are trained in turns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turn_steps: Vec<u64>,
    /// The best evaluation so far.
    #[serde(default)]
    pub best: Option<Best>,
    /// Evaluations since then without an improvement.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waited: u32,
    /// The planned steps of a run whose length is given in epochs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<PlannedSteps>,
    /// Micro-batch size, if memory decided it: it was too short for the configured one, or that is `auto`.
    #[serde(default)]
    pub micro_batch: Option<u32>,
    /// Number of processes.
    #[serde(default)]
    pub ranks: Option<u32>,
    /// The task's position in its data.
    pub data: Value,
    /// What the training is based on and must not change: [`Task::identity`](crate::task::Task::identity).
    pub identity: Value,
    /// The config in force, as YAML.
    pub config: String,
    /// Records of this step in `metrics.jsonl`; later ones are written again.
    pub records: u64,
    /// CRC-32C of every other file, by name.
    pub checksums: BTreeMap<String, u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl State {
    /// Optimizer steps of each group that is trained in turns.
    pub(crate) fn steps_of_turns(&self) -> Vec<u64> {
        match self.turn_steps.is_empty() {
            true => vec![self.optimizer_steps.unwrap_or(self.step)],
            false => self.turn_steps.clone(),
        }
    }
}

/// The planned steps of a run whose length is given in epochs. A resumed run keeps them, unless what they
/// depend on has changed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlannedSteps {
    /// Passes over the data.
    pub num_train_epochs: f64,
    /// Samples per step.
    pub samples: u64,
    /// Optimizer steps of the whole run.
    pub max_steps: u64,
}

impl State {
    /// Units (tokens) that are covered by records.
    pub fn recorded_units(&self) -> u64 {
        self.units.saturating_sub(self.window.units)
    }

    /// Seconds of training that are covered by records.
    pub fn recorded_seconds(&self) -> f64 {
        (self.train_seconds - self.window.seconds).max(0.0)
    }
}

/// The progress of a run, for a checkpoint.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Optimizer steps done.
    pub step: u64,
    /// Units (tokens) trained on so far.
    pub units: u64,
    /// Seconds of training so far.
    pub train_seconds: f64,
    /// Steps since the last record.
    pub window: Window,
    /// The best evaluation so far; its checkpoint is kept.
    pub best: Option<Best>,
    /// Evaluations since then without an improvement.
    pub waited: u32,
    /// The planned steps of a run whose length is given in epochs.
    pub planned: Option<PlannedSteps>,
    /// Micro-batch size, if memory decided it: it was too short for the configured one, or that is `auto`.
    pub micro_batch: Option<u32>,
    /// Number of processes.
    pub ranks: u32,
    /// The task's position in its data.
    pub data: Value,
    /// What the training is based on.
    pub identity: Value,
    /// Records of this step so far.
    pub records: u64,
}

/// The tensors that go into a checkpoint.
#[derive(Debug)]
pub struct Trained<'a> {
    /// The trained weights.
    pub parameters: &'a Parameters,
    /// The optimizer's moments.
    pub optimizer: &'a mut Optimizer,
    /// The averaged weights, if the run keeps them.
    pub ema: Option<&'a Ema>,
}

impl Trained<'_> {
    /// All tensors: weights, moments, averages.
    pub(crate) fn tensors(&self) -> Vec<(String, &tch::Tensor)> {
        let mut tensors = self.parameters.named();
        tensors.extend(self.state());
        tensors
    }

    /// Everything except the weights, by name.
    pub(crate) fn state(&self) -> Vec<(String, &tch::Tensor)> {
        let mut state = self.optimizer.state(self.parameters);
        state.extend(self.ema.iter().flat_map(|ema| ema.state(self.parameters)));
        state
    }
}

/// A checkpoint that is being written. Dropping an unfinished one removes it.
#[derive(Debug)]
pub struct Draft {
    step: u64,
    path: PathBuf,
    target: PathBuf,
}

impl Draft {
    /// Starts the checkpoint of `step` in `folder` (the run's `checkpoints`).
    pub fn begin(folder: &Path, step: u64) -> Result<Self, Error> {
        let name = name(step);
        let (path, target) = (folder.join(format!(".{name}.tmp")), folder.join(&name));
        remove_if_there(&path)?;
        fs::create_dir_all(&path).map_err(|error| Error::io("create", &path, error))?;
        Ok(Self { step, path, target })
    }

    /// The folder to write further files into.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the state, renames the checkpoint to its final name, and removes all but the newest `keep` and
    /// the best. Returns its folder.
    ///
    /// # Errors
    /// If a file cannot be written; then no older checkpoint is removed.
    pub fn finish(
        self,
        config: &Config,
        progress: Progress,
        trained: &Trained<'_>,
        keep: Option<u32>,
    ) -> Result<PathBuf, Error> {
        let folder = self.target.parent().unwrap_or(Path::new("."));
        let best = progress.best;
        self.fill(config, progress, trained)?;
        // A run that was resumed from an earlier step writes it again.
        remove_if_there(&self.target)?;
        fs::rename(&self.path, &self.target)
            .map_err(|error| Error::io("write", &self.target, error))?;
        sync_folder(folder)?;
        remove_if_there(&aside(&self.target))?;
        if let Some(keep) = keep {
            let whole = list(folder)?;
            for (step, old) in whole.iter().rev().skip(keep as usize) {
                if best.is_none_or(|best| best.step != *step) {
                    remove_if_there(old)?;
                }
            }
        }
        Ok(self.target.clone())
    }

    fn fill(
        &self,
        config: &Config,
        progress: Progress,
        trained: &Trained<'_>,
    ) -> Result<(), Error> {
        // Includes files written by others, such as an adapter.
        let mut checksums = integrity::checksums(&self.path)?;
        for name in checksums.keys() {
            let file = self.path.join(name);
            sync(&file).map_err(|error| Error::io("write", &file, error))?;
        }
        let weights = trained.parameters.named();
        for (name, tensors) in [(MODEL, weights), (OPTIMIZER, trained.state())] {
            let checksum = write_tensors(&self.path.join(name), &tensors)?;
            checksums.insert(name.to_owned(), checksum);
        }
        let Progress {
            step,
            units,
            train_seconds,
            window,
            best,
            waited,
            planned,
            micro_batch,
            ranks,
            data,
            identity,
            records,
        } = progress;
        debug_assert_eq!(step, self.step);
        let state = State {
            format: FORMAT,
            step,
            units,
            train_seconds,
            window,
            optimizer_steps: Some(trained.optimizer.steps()),
            turn_steps: match trained.optimizer.steps_of_turns() {
                steps if steps.len() > 1 => steps,
                _ => Vec::new(),
            },
            best,
            waited,
            planned,
            micro_batch,
            ranks: Some(ranks),
            data,
            identity,
            // Without the key that says where this run was resumed from.
            config: config.without_resume().to_yaml()?,
            records,
            checksums,
        };
        let path = self.path.join(STATE);
        let text = integrity::with_checksum(&state)?;
        File::create(&path)
            .and_then(|mut file| {
                file.write_all(text.as_bytes())
                    .and_then(|()| file.sync_all())
            })
            .map_err(|error| Error::io("write", &path, error))?;
        sync_folder(&self.path)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After the rename there is nothing with this name.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// An intact checkpoint: all files are present and unchanged, and there are no others.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    state: State,
    config: Config,
}

impl Checkpoint {
    /// Reads the whole checkpoint in the folder `path` and verifies its checksums.
    ///
    /// # Errors
    /// If it is not intact, or from another version.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let state = integrity::read(path)?;
        let config = Config::parse(STATE, &state.config, &[]).map_err(|error| {
            let reason = format!("its config is from another version of Surefoot: {error}");
            Error::checkpoint(path, reason)
        })?;
        Ok(Self {
            path: path.to_owned(),
            state,
            config,
        })
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state of the run.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The config that was in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Restores parameters, optimizer and averages, and returns the rest.
    ///
    /// # Errors
    /// If it belongs to a model with other shapes; nothing is changed then.
    pub fn restore(self, trained: Trained<'_>) -> Result<State, Error> {
        let Self { path, state, .. } = self;
        let weights = open(&path.join(MODEL))?;
        let moments = open(&path.join(OPTIMIZER))?;
        let targets = trained.parameters.named();
        let optimizer_targets = trained.state();
        check_shapes(&path.join(MODEL), &weights, &targets)?;
        check_shapes(&path.join(OPTIMIZER), &moments, &optimizer_targets)?;
        let _no_grad = tch::no_grad_guard();
        for (file, targets) in [(&weights, &targets), (&moments, &optimizer_targets)] {
            for (name, target) in targets {
                // Through a detached handle, so that only the data changes and not the graph.
                target.f_detach()?.f_copy_(&file.read_stored(name)?)?;
            }
        }
        drop(optimizer_targets);
        trained.optimizer.set_steps(&state.steps_of_turns())?;
        Ok(state)
    }
}

/// Opens a file of tensors; errors are reported as the checkpoint's.
fn open(path: &Path) -> Result<SafetensorsFile, Error> {
    SafetensorsFile::open(path).map_err(|error| match error {
        models::Error::File { path, reason } => Error::checkpoint(&path, reason),
        other => other.into(),
    })
}

fn check_shapes(
    path: &Path,
    file: &SafetensorsFile,
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
            format!(
                "it has `{name}`, which this run does not have: {}",
                differs(path)
            ),
        )),
        None => Ok(()),
    }
}

/// Which part of the config determines the tensors of this file.
fn differs(path: &Path) -> &'static str {
    match path.ends_with(OPTIMIZER) {
        true => "`model`, `train.optim` or `train.ema_decay` in the config differs from the run's",
        false => "`model` or `adapter` in the config differs from the run's",
    }
}

fn name(step: u64) -> String {
    format!("step-{step:06}")
}

/// The step of a checkpoint, from its folder's name.
pub(crate) fn step_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(ASIDE).unwrap_or(name);
    name.strip_prefix("step-")?.parse().ok()
}

/// The run folder of the checkpoint `path`; `None` if that is not a checkpoint.
pub(crate) fn run_of(path: &Path) -> Option<&Path> {
    step_of(path)?;
    let parents = path.parent().and_then(Path::parent);
    Some(
        parents
            .filter(|path| !path.as_os_str().is_empty())
            .unwrap_or(Path::new(".")),
    )
}

/// The checkpoints in `folder`, ordered by step. A missing folder has none.
pub fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", folder, error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| Error::io("read", folder, error))?
            .path();
        if let Some(step) = step_of(&path)
            && path.is_dir()
            && path.extension().is_none()
        {
            found.push((step, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Renames checkpoints later than `step` when a run returns to it: as `step-000200.aside` they are kept, but
/// are never taken for the newest. Returns their steps.
pub(crate) fn set_aside_after(folder: &Path, step: u64) -> Result<Vec<u64>, Error> {
    let mut steps = Vec::new();
    for (later, path) in list(folder)? {
        if later > step {
            let target = aside(&path);
            remove_if_there(&target)?;
            fs::rename(&path, &target).map_err(|error| Error::io("write", &target, error))?;
            steps.push(later);
        }
    }
    Ok(steps)
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ASIDE);
    name.into()
}

/// Removes what a killed process left half-written or half-removed in `folder`.
pub(crate) fn sweep(folder: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(".step-") && (name.ends_with(".tmp") || name.ends_with(".old")) {
            let path = entry.path();
            fs::remove_dir_all(&path).map_err(|error| Error::io("remove", &path, error))?;
        }
    }
    Ok(())
}

/// Removes a folder after renaming it, so that a partly removed one never has the name of a complete one.
pub(crate) fn remove_if_there(folder: &Path) -> Result<(), Error> {
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

/// Syncs a folder's entries; without this a rename may not survive a power cut.
fn sync_folder(folder: &Path) -> Result<(), Error> {
    sync(folder).map_err(|error| Error::io("write", folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_another_model_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(MODEL);
        let tensor = |width| tch::Tensor::zeros([2, width], tch::kind::FLOAT_CPU);
        let (three, four) = (tensor(3), tensor(4));
        let named = |name: &str| name.to_owned();
        write_tensors(&path, &[(named("a"), &three), (named("b"), &three)]).unwrap();
        let file = open(&path).unwrap();
        for (targets, told) in [
            (vec![(named("a"), &four)], "`a` is [2, 3] there and [2, 4]"),
            (vec![(named("c"), &three)], "no `c`, which this run needs"),
            (
                vec![(named("a"), &three)],
                "`b`, which this run does not have",
            ),
        ] {
            let error = check_shapes(&path, &file, &targets)
                .unwrap_err()
                .to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
