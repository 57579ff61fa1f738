//! `run.json`, in which the trainer writes what others need to know of a run: before the first step, during the run,
//! and at every end that leaves time for it.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::files::Folder;
use super::{MAX_TEXT_BYTES, Status, read_text};

/// The kind of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It continues texts.
    Language,
    /// It makes pictures and videos.
    Diffusion,
}

/// A command that uses the result of a run, and what it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadyCommand {
    /// What it does.
    pub what: String,
    /// The line for a shell.
    pub line: String,
}

/// What the trainer knows of a run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Facts {
    /// How the run ended, or `running`.
    pub ending: String,
    /// The error that ended it.
    pub error: Option<String>,
    /// The kind of its model.
    pub kind: Kind,
    /// The architecture, if `surefoot generate` can load it.
    pub architecture: Option<String>,
    /// The folder that relative paths in the config start from.
    #[serde(default)]
    pub folder: Option<PathBuf>,
    /// The device that the config names.
    pub device: String,
    /// The estimated memory of a step, in bytes.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub expected_memory: serde_json::Value,
    /// Arguments of `surefoot generate` that load the result, once there is one.
    pub generate: Option<Vec<String>>,
    /// The same for a checkpoint of a whole model, for whose folder `{checkpoint}` stands.
    #[serde(default)]
    pub generate_checkpoint: Option<Vec<String>>,
    /// The same for the model that an adapter was trained on.
    pub generate_base: Option<Vec<String>>,
    /// Commands that use the result.
    pub commands: Vec<ReadyCommand>,
}

/// The facts of the run in `folder`; `None` if it has not begun, or the file is damaged.
pub(super) fn of(folder: &Folder) -> Option<Facts> {
    let text = read_text(folder.file("run.json"), MAX_TEXT_BYTES).ok()?;
    serde_json::from_str(&text).ok()
}

/// How the run in `folder`, which is not running, ended.
pub(super) fn ending(folder: &Folder) -> Status {
    #[derive(Default, Deserialize)]
    struct Ended {
        ending: String,
        #[serde(default)]
        error: Option<String>,
    }
    // `summary.json`, which only a successful run writes, if `run.json` was removed.
    let mut ends = ["run.json", "summary.json"].iter().filter_map(|file| {
        let text = read_text(folder.file(file), MAX_TEXT_BYTES).ok()?;
        serde_json::from_str(&text).ok()
    });
    let Ended { ending, error } = ends.next().unwrap_or_default();
    match ending.as_str() {
        "completed" => Status::Completed,
        "stopped" => Status::Stopped,
        "failed" => Status::Failed { error },
        _ => Status::Interrupted,
    }
}
