//! Asks the trainer about a config without adding a job.

use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::job::{NewJob, Work};
use super::{Queue, plain, set_apart};
use crate::runs::{Error, Process, RunName, wait_for};

/// The most that is read of its output, in bytes.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// What to ask the trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// The mistakes in the config, with their positions.
    Config,
    /// The result of a dry run.
    DryRun,
    /// How its model fits into memory.
    Fits,
    /// What it would train on: this many rows or media files.
    Data(u64),
}

impl Question {
    fn arguments(self) -> Vec<String> {
        let question = match self {
            Self::Config => "--check".to_owned(),
            Self::DryRun => "--dry-run".to_owned(),
            Self::Fits => "--fits".to_owned(),
            Self::Data(count) => format!("--show-data={count}"),
        };
        vec![question, "--json".to_owned()]
    }
}

/// The trainer's answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Asked {
    /// Its JSON.
    pub found: Option<Value>,
    /// What it says of a failure.
    pub error: Option<String>,
}

impl Queue {
    /// The trainer's answer about a job that is not added.
    ///
    /// # Errors
    /// If it cannot be started, or takes longer than `at_most`.
    pub fn ask(
        &self,
        program: &Path,
        job: &NewJob,
        question: Question,
        at_most: Duration,
    ) -> Result<Asked, Error> {
        let io = |error| Error::io("start", program, error);
        let mut command = command(self, program, job, &job.name, None).map_err(io)?;
        command.args(question.arguments());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn(command, job).map_err(io)?;
        answer(child, program, at_most)
    }

    /// The models in the caches and below `folders` that can be trained.
    ///
    /// # Errors
    /// If the trainer cannot be started, or takes longer than `at_most`.
    pub fn ask_for_models(
        &self,
        program: &Path,
        folders: &[PathBuf],
        at_most: Duration,
    ) -> Result<Asked, Error> {
        let mut command = Command::new(program);
        command.args(["--json", "models"]).args(folders);
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let child = child.map_err(|error| Error::io("start", program, error))?;
        answer(child, program, at_most)
    }
}

/// What a process says until it ends, which it does in time or by force.
fn answer(mut child: Child, program: &Path, at_most: Duration) -> Result<Asked, Error> {
    let io = |error| Error::io("start", program, error);
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let output = std::thread::spawn(move || read(output));
    let errors = std::thread::spawn(move || read(errors));
    let in_time = Process::of(child.id())
        .is_none_or(|process| wait_for(&process, Some(at_most)).unwrap_or(true));
    if !in_time {
        let _ = child.kill();
    }
    let status = child.wait().map_err(io)?;
    if !in_time {
        let seconds = at_most.as_secs();
        return Err(Error::Refused(format!(
            "no answer within {seconds} seconds"
        )));
    }
    let found = output.join().unwrap_or_default();
    let found: Option<Value> = serde_json::from_str(&found).ok();
    let errors = plain(&errors.join().unwrap_or_default());
    let error = match (&found, status.success()) {
        (Some(_), _) => None,
        (None, _) => Some(match errors.rsplit_once("surefoot: ") {
            Some((_, error)) => error.trim().to_owned(),
            None => errors.trim().to_owned(),
        }),
    };
    Ok(Asked { found, error })
}

/// What is read from a stream until it is closed.
pub(super) fn read(stream: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let _ = stream.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `surefoot train` for a job whose run is to be called `run`, on `device` if one was chosen. Its output is not
/// redirected yet.
pub(super) fn command(
    queue: &Queue,
    program: &Path,
    job: &NewJob,
    run: &RunName,
    device: Option<&str>,
) -> io::Result<Command> {
    let root = std::path::absolute(queue.runs().root())?;
    let mut command = Command::new(program);
    let mut set = Vec::new();
    command.arg("train");
    match &job.work {
        Work::Train { source, .. } => {
            command.args(["-", "--source", source]);
            set.push(format!("name={}", quoted(run.as_str())));
            set.push(format!("output_dir={}", quoted_path(&root)?));
        }
        Work::Resume { .. } => {
            command.arg("--resume").arg(root.join(run.as_str()));
        }
    }
    set.extend(device.map(|device| format!("device={}", quoted(device))));
    for set in job.set.iter().chain(&set) {
        command.arg("--set").arg(set);
    }
    if let Some(folders) = &job.confined_to {
        let folders = std::env::join_paths(folders).map_err(io::Error::other)?;
        command.env("SUREFOOT_CONFIG_FOLDERS", folders);
    }
    command.current_dir(&job.folder);
    Ok(command)
}

/// Starts a command made by [`command`], and passes it the config.
pub(super) fn spawn(mut command: Command, job: &NewJob) -> io::Result<Child> {
    let config = match &job.work {
        Work::Train { config, .. } => Some(config),
        Work::Resume { .. } => None,
    };
    match config {
        Some(_) => command.stdin(Stdio::piped()),
        None => command.stdin(Stdio::null()),
    };
    set_apart(&mut command);
    let mut child = command.spawn()?;
    if let (Some(mut input), Some(config)) = (child.stdin.take(), config) {
        // If it ends before it has read everything, it says why.
        let _ = input.write_all(config.as_bytes());
    }
    Ok(child)
}

/// As a YAML string; a JSON string is one.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A path in a config, where `$$` is a `$`.
fn quoted_path(path: &Path) -> io::Result<String> {
    let text = path
        .to_str()
        .ok_or_else(|| io::Error::other(format!("`{}` is not UTF-8 text", path.display())))?;
    Ok(quoted(&text.replace('$', "$$")))
}
