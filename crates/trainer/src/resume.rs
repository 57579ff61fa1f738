//! Resuming a run: from which checkpoint, and whether it is still the same run.
//!
//! A checkpoint holds the config that it was written under and the identity of the task
//! ([`Task::identity`](crate::task::Task::identity)). Changes that are not allowed are refused, the others are
//! reported, and `config.yaml` says from which step on each applies.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;
use crate::checkpoint::{self, Checkpoint, PlannedSteps};
use crate::config::{Config, OnResume, key};
use crate::run_folder::RunFolder;

/// A config key whose value changed when a run was resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The key, such as `train.learning_rate`.
    pub key: String,
    /// The earlier value.
    pub before: Value,
    /// The new value.
    pub now: Value,
}

impl std::fmt::Display for Change {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { key, before, now } = self;
        write!(out, "{key} {} → {}", shown(before), shown(now))
    }
}

/// A checkpoint to resume from, and the folder of its run.
pub(crate) struct Resumed {
    pub(crate) folder: RunFolder,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) changes: Vec<Change>,
}

impl Resumed {
    /// Opens the checkpoint that the config resumes from, if any: it must be intact, and `config` must be compatible
    /// with it.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>, Error> {
        let Some(from) = &config.train.resume_from_checkpoint else {
            return Ok(None);
        };
        let (folder, path) = RunFolder::resume(config, from)?;
        let checkpoint = Checkpoint::open(&path).map_err(|error| instead(error, &folder, &path))?;
        let changes = changes(checkpoint.config(), config)?;
        let (refused, told): (Vec<_>, Vec<_>) = changes
            .into_iter()
            .partition(|change| rule(&change.key).is_none_or(|rule| rule == OnResume::Fixed));
        if !refused.is_empty() {
            return Err(refusal(&checkpoint, refused.iter().map(differs)));
        }
        Ok(Some(Self {
            folder,
            checkpoint,
            changes: told,
        }))
    }

    /// Samples in a pass so far, where memory decided it.
    pub(crate) fn pass_size(&self) -> Option<u32> {
        self.checkpoint.state().micro_batch
    }

    /// Records a change of the number of processes, and of the samples per step that follow from
    /// it.
    pub(crate) fn note_ranks(&mut self, now: usize, config: &Config) {
        let before = self.checkpoint.state().ranks.unwrap_or(1);
        if before as usize == now {
            return;
        }
        let samples =
            |ranks: usize, config: &Config| Value::from(config.train.samples_in_step(ranks));
        let change = |key: &str, before: Value, now: Value| Change {
            key: key.to_owned(),
            before,
            now,
        };
        let (one, other) = (
            samples(before as usize, self.checkpoint.config()),
            samples(now, config),
        );
        self.changes
            .push(change("ranks", before.into(), now.into()));
        if one != other {
            self.changes.push(change("samples in a step", one, other));
        }
    }

    /// Refuses to resume if the task's identity differs from the run's.
    pub(crate) fn expect_identity(&self, now: &Value) -> Result<(), Error> {
        let mut found = Vec::new();
        compare("", &self.checkpoint.state().identity, now, &mut found);
        if found.is_empty() {
            return Ok(());
        }
        Err(refusal(&self.checkpoint, found.into_iter()))
    }
}

fn refusal(checkpoint: &Checkpoint, differences: impl Iterator<Item = String>) -> Error {
    let lines: String = differences.map(|line| format!("\n  {line}")).collect();
    Error::Resume(format!(
        "cannot resume from `{}`, since this would be a different run:{lines}\nkeep these as they were \
        (`--resume RUN` without a config uses the run's own), or start a new run",
        checkpoint.path().display()
    ))
}

/// Adds the newest older intact checkpoint to the error of a damaged one.
fn instead(error: Error, folder: &RunFolder, path: &std::path::Path) -> Error {
    let Error::Checkpoint { path: at, reason } = error else {
        return error;
    };
    let all = checkpoint::list(&folder.checkpoints()).unwrap_or_default();
    let step = checkpoint::step_of(path).unwrap_or(u64::MAX);
    let mut older = all.into_iter().rev().filter(|(other, _)| *other < step);
    let advice = match older.find(|(_, other)| Checkpoint::open(other).is_ok()) {
        Some((step, other)) => format!(
            "`{other}` is intact: `--resume {other}` resumes from it, and repeats the steps after {step}",
            other = other.display()
        ),
        None => "no older checkpoint is intact".into(),
    };
    let reason = format!("{reason}; {advice}");
    Error::Checkpoint { path: at, reason }
}

/// All keys whose values differ between `before` and `now`, except those that do not affect training.
fn changes(before: &Config, now: &Config) -> Result<Vec<Change>, Error> {
    let (mut before, mut now) = (before.leaves()?, now.leaves()?);
    // A section that is missing in one of them is one difference, not one for each of its keys.
    if before.contains_key("adapter") != now.contains_key("adapter") {
        for leaves in [&mut before, &mut now] {
            leaves.retain(|key, _| !key.starts_with("adapter."));
            leaves.entry("adapter").or_insert("set".into());
        }
    }
    let mut keys: Vec<&String> = before.keys().chain(now.keys()).collect();
    keys.sort();
    keys.dedup();
    let value = |leaves: &serde_json::Map<String, Value>, key: &str| {
        leaves.get(key).cloned().unwrap_or(Value::Null)
    };
    let changes = keys.into_iter().map(|key| Change {
        key: key.clone(),
        before: value(&before, key),
        now: value(&now, key),
    });
    let changes = changes.filter(|change| rule(&change.key) != Some(OnResume::Unrelated));
    Ok(changes.filter(|change| !same(change)).collect())
}

/// Whether a key may change.
fn rule(full_name: &str) -> Option<OnResume> {
    key(full_name).and_then(|key| key.on_resume())
}

/// Whether both values mean the same.
fn same(change: &Change) -> bool {
    // Hugging Face has two names for AdamW, and two for AdamW in eight bits.
    let optimizer = |value: &Value| {
        value
            .as_str()
            .map(|name| name.replace("_fused", "").replace("_bnb", ""))
    };
    match change.key.as_str() {
        "train.optim" => optimizer(&change.before) == optimizer(&change.now),
        _ => change.before == change.now,
    }
}

fn differs(change: &Change) -> String {
    let Change { key, before, now } = change;
    format!("`{key}` was {}, and is now {}", shown(before), shown(now))
}

/// A value on one line.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "unset".into(),
        value => value.to_string(),
    }
}

/// Adds a line for each difference between two values.
fn compare(path: &str, before: &Value, now: &Value, found: &mut Vec<String>) {
    if before == now {
        return;
    }
    match (before, now) {
        (Value::Object(one), Value::Object(other)) => {
            let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let dot = if path.is_empty() { "" } else { "." };
                let value = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or(Value::Null)
                };
                compare(
                    &format!("{path}{dot}{key}"),
                    &value(one),
                    &value(other),
                    found,
                );
            }
        }
        (Value::Array(one), Value::Array(other)) => {
            let without = |list: &[Value], all: &[Value]| {
                let left = list.iter().filter(|item| !all.contains(item));
                let left: Vec<String> = left.map(shown).collect();
                match left.as_slice() {
                    [] => "nothing".into(),
                    few if few.len() <= 4 => few.join(", "),
                    [first, ..] => format!("{first} and {} more", left.len() - 1),
                }
            };
            found.push(format!(
                "`{path}` had {}, which is missing now, and now has {}",
                without(one, other),
                without(other, one)
            ));
        }
        _ => found.push(format!(
            "`{path}` was {}, and is now {}",
            shown(before),
            shown(now)
        )),
    }
}

/// The run's config, with comments above it that list its changes and, if the length is given in epochs, the
/// number of steps.
pub(crate) fn config_text(
    config: &Config,
    planned: Option<PlannedSteps>,
    resumes: &[(u64, &[Change])],
) -> Result<String, Error> {
    let mut text = String::new();
    if let Some(planned) = planned {
        text += &format!(
            "# max_steps: {} ({} epochs)\n",
            planned.max_steps, planned.num_train_epochs
        );
    }
    if let Some((last, _)) = resumes.last() {
        text += &format!("# In force from step {} on. Changes so far:\n", last + 1);
        for (step, changes) in resumes {
            for change in *changes {
                text += &format!("#   from step {} on: {change}\n", step + 1);
            }
        }
    }
    Ok(text + &config.without_resume().to_yaml()?)
}

/// The newest run with this config's name that has a checkpoint.
///
/// # Errors
/// If there is none.
pub fn newest_run(config: &Config) -> Result<PathBuf, Error> {
    crate::run_folder::newest_run(config)
}

/// The config file of the run that `resume_from` names: a run folder, or a checkpoint in one.
pub fn config_of(resume_from: &std::path::Path) -> PathBuf {
    checkpoint::run_of(resume_from)
        .unwrap_or(resume_from)
        .join("config.yaml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_difference_is_listed_with_both_values() {
        let before = json!({"weights": "ab", "adapter": {"r": 2, "modules": ["q", "k"]}});
        let now = json!({"weights": "cd", "adapter": {"r": 4, "modules": ["q", "v"]}});
        let mut found = Vec::new();
        compare("", &before, &now, &mut found);
        assert_eq!(
            found,
            [
                "`adapter.modules` had \"k\", which is missing now, and now has \"v\"",
                "`adapter.r` was 2, and is now 4",
                "`weights` was \"ab\", and is now \"cd\"",
            ]
        );
    }
}
