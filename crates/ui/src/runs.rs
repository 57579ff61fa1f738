//! Training runs, read from their folders.
//!
//! There is no database. A run is a folder with a `config.yaml`, whoever started it. Whether it is running follows
//! from the lock that its process holds on the folder; how it ended, from the files that the process wrote.

mod cached;
mod compare;
mod curves;
mod facts;
mod files;
#[cfg(unix)]
mod handle;
#[cfg(windows)]
mod handle_windows;
#[cfg(unix)]
mod holders;
#[cfg(windows)]
mod holders_windows;
mod metrics;
mod name;
mod notes;
mod process;
mod stop;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;

pub use compare::{Comparison, Difference, compare};
pub use curves::{Curve, Curves, Range};
pub use facts::{Facts, Kind, ReadyCommand};
pub use metrics::{Event, Latest, Metrics, SampleSet, Text};
pub use name::{BadName, RunName};
pub use notes::{Notes, NotesChange};
pub use process::{Process, boot_id};
pub use stop::{Request, Stopping, wait, wait_for};

#[cfg(windows)]
use handle_windows as handle;
#[cfg(windows)]
use holders_windows as holders;

pub(crate) use cached::Cached;
pub(crate) use files::{Folder, identity};
#[cfg(windows)]
pub(crate) use handle::keep_streams;
pub(crate) use holders::is_locked;
pub(crate) use stop::{is_asked, signal_terminate};

/// The most that is read of a config, a summary or a log at once, in bytes.
pub const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Errors about runs and jobs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such run.
    #[error("there is no run `{run}` in `{folder}`")]
    NotFound {
        /// The requested name.
        run: String,
        /// The folder of runs.
        folder: String,
    },
    /// No such job.
    #[error("there is no job {job} in the queue")]
    NoJob {
        /// The requested number.
        job: u64,
    },
    /// The current state does not allow it.
    #[error("{0}")]
    Refused(String),
    /// An I/O error.
    #[error("cannot {action} `{path}`: {error}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// The file or folder.
        path: String,
        /// The error.
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, error: io::Error) -> Self {
        Self::Io {
            action,
            path: path.display().to_string(),
            error,
        }
    }
}

/// The status of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Status {
    /// A process trains in the folder.
    Running {
        /// The process, if it is known.
        process: Option<Process>,
        /// Whether it was asked to stop and is finishing its step.
        stopping: bool,
    },
    /// All steps were done.
    Completed,
    /// It was asked to stop.
    Stopped,
    /// It ended with an error.
    Failed {
        /// The error, if the run could write it down.
        error: Option<String>,
    },
    /// It ended without recording why: killed, or the machine went down.
    Interrupted,
}

impl Status {
    /// The name of the status in JSON and on the page.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Running { stopping: true, .. } => "stopping",
            Self::Running { .. } => "running",
            Self::Completed => "completed",
            Self::Stopped => "stopped",
            Self::Failed { .. } => "failed",
            Self::Interrupted => "interrupted",
        }
    }

    /// Whether a process is training in the folder.
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running { .. })
    }
}

/// The step of the newest checkpoint in a run's folder, from which the run would resume.
#[must_use]
pub fn newest_checkpoint(run: &Path) -> Option<u64> {
    checkpoints(run).pop()
}

/// The steps of the checkpoints in a run's folder, the newest last.
fn checkpoints(run: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(run.join("checkpoints"))
        .into_iter()
        .flatten();
    let step = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("step-")?.parse().ok()
    };
    let mut steps: Vec<u64> = entries.flatten().filter_map(step).collect();
    steps.sort_unstable();
    steps
}

/// Summary of a run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Overview {
    /// The name of its folder.
    pub name: RunName,
    /// Its status.
    #[serde(flatten)]
    pub status: Status,
    /// The latest numbers.
    pub latest: Latest,
    /// The number of steps in the config.
    pub max_steps: Option<u64>,
    /// When its metrics, or else its config, were last written, in seconds since 1970.
    pub changed: Option<u64>,
    /// What the user finds it by.
    pub tags: Vec<String>,
}

/// A run with everything but its curves.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Detail {
    /// Its summary.
    #[serde(flatten)]
    pub overview: Overview,
    /// Its folder.
    pub path: PathBuf,
    /// `config.yaml`.
    pub config: String,
    /// `summary.json`, if it exists.
    #[schemars(with = "Option<serde_json::Map<String, serde_json::Value>>")]
    pub summary: Option<serde_json::Value>,
    /// What the trainer knows of it, once it has begun.
    pub facts: Option<Facts>,
    /// The steps of its checkpoints, the newest last.
    pub checkpoints: Vec<u64>,
    /// What the user noted of it.
    pub notes: String,
}

/// The folder of all runs.
#[derive(Debug, Clone)]
pub struct Runs {
    root: PathBuf,
    /// The latest numbers, and how far the files were read.
    latest: Arc<Cached<RunName, (Latest, u64)>>,
}

impl Runs {
    /// The runs in `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let latest = Arc::default();
        Self { root, latest }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder for other state: the queue, and which processes were asked to stop.
    pub fn state_folder(&self) -> PathBuf {
        self.root.join(".surefoot")
    }

    /// All runs, the most recently changed first. Folders that are not runs or cannot be read are left out.
    ///
    /// # Errors
    /// If the folder exists but cannot be read.
    pub fn list(&self) -> Result<Vec<Overview>, Error> {
        let entries = match std::fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &self.root, error)),
        };
        let holders = holders::Holders::read();
        let names = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            RunName::parse(&name).ok()
        });
        let mut runs: Vec<Overview> = names
            .filter_map(|name| self.overview_with(&name, &holders).ok())
            .collect();
        runs.sort_by(|a, b| b.changed.cmp(&a.changed).then(a.name.cmp(&b.name)));
        Ok(runs)
    }

    /// Summary of one run.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn overview(&self, name: &RunName) -> Result<Overview, Error> {
        self.overview_with(name, &holders::Holders::read())
    }

    fn overview_with(&self, name: &RunName, holders: &holders::Holders) -> Result<Overview, Error> {
        let folder = self.folder(name)?;
        let config = read_text(folder.file("config.yaml"), MAX_TEXT_BYTES)
            .map_err(|_| self.not_found(name))?;
        let mut metrics = folder.file("metrics.jsonl").ok();
        let changed = metrics
            .as_ref()
            .and_then(modified)
            .or_else(|| folder.file("config.yaml").ok().as_ref().and_then(modified));
        Ok(Overview {
            name: name.clone(),
            status: self.status(&folder, holders),
            latest: metrics
                .as_mut()
                .and_then(|file| self.latest.get(name.clone(), file, Latest::read).ok())
                .unwrap_or_default()
                .0,
            max_steps: max_steps(&config),
            changed,
            tags: notes::of(&folder).tags,
        })
    }

    fn status(&self, folder: &Folder, holders: &holders::Holders) -> Status {
        if let Some(process) = holders.of(folder) {
            let stopping = process
                .as_ref()
                .is_some_and(|process| stop::is_asked(self, process));
            return Status::Running { process, stopping };
        }
        facts::ending(folder)
    }

    /// One run with its config and summary.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn detail(&self, name: &RunName) -> Result<Detail, Error> {
        let overview = self.overview(name)?;
        let folder = self.folder(name)?;
        let config = read_text(folder.file("config.yaml"), MAX_TEXT_BYTES).unwrap_or_default();
        let summary = read_text(folder.file("summary.json"), MAX_TEXT_BYTES).ok();
        let summary = summary.and_then(|text| serde_json::from_str(&text).ok());
        let path = self.root.join(name.as_str());
        Ok(Detail {
            overview,
            checkpoints: checkpoints(&path),
            path: std::path::absolute(path).unwrap_or_default(),
            config,
            summary,
            facts: facts::of(&folder),
            notes: notes::of(&folder).text,
        })
    }

    /// The folder that relative paths in the config of a run start from, if the run recorded it and it is there.
    pub fn origin(&self, name: &RunName) -> Option<PathBuf> {
        let folder = facts::of(&self.folder(name).ok()?)?.folder?;
        folder.is_dir().then_some(folder)
    }

    /// `metrics.jsonl` of a run; `None` if it does not exist yet.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such run.
    pub fn metrics_file(&self, name: &RunName) -> Result<Option<File>, Error> {
        self.file_of(name, "metrics.jsonl")
    }

    /// Whether there is such a run.
    pub fn exists(&self, name: &RunName) -> bool {
        self.folder(name).is_ok()
    }

    /// A file of a run; `None` if it does not exist.
    pub(crate) fn file_of(&self, name: &RunName, file: &str) -> Result<Option<File>, Error> {
        let folder = self.folder(name)?;
        match folder.file(file) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", &self.root.join(name.as_str()), error)),
        }
    }

    /// A file below the folder of a run, by a path that the run recorded.
    pub(crate) fn file_below(&self, name: &RunName, path: &Path) -> Result<File, Error> {
        let opened = self.folder(name)?.file_below(path);
        opened.map_err(|error| Error::io("read", &self.root.join(name.as_str()).join(path), error))
    }

    /// Removes a run and all its files.
    ///
    /// # Errors
    /// [`Error::Refused`] while it runs, [`Error::NotFound`], or an I/O error.
    pub fn remove(&self, name: &RunName) -> Result<(), Error> {
        let folder = self.folder(name)?;
        if self.overview(name)?.status.is_running() {
            return Err(Error::Refused(format!(
                "`{name}` is running: stop it first"
            )));
        }
        // A process that starts in the folder takes the lock, and so does this.
        folder.try_lock().map_err(|_| {
            Error::Refused(format!("a process is using `{name}`: wait until it ends"))
        })?;
        // Windows does not rename folders with open files.
        #[cfg(windows)]
        drop(folder);
        let path = self.root.join(name.as_str());
        // Hidden at once by a rename, so that it is never seen half removed.
        let doomed = self.root.join(format!(".{name}.removed"));
        let io = |error| Error::io("remove", &path, error);
        match std::fs::remove_dir_all(&doomed) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
        std::fs::rename(&path, &doomed).map_err(io)?;
        std::fs::remove_dir_all(&doomed).map_err(io)
    }

    fn folder(&self, name: &RunName) -> Result<Folder, Error> {
        // A folder without a config is not a run.
        let run = Folder::open(&self.root)
            .and_then(|root| root.folder(name.as_str()))
            .and_then(|run| run.file("config.yaml").map(|_| run));
        run.map_err(|_| self.not_found(name))
    }

    fn not_found(&self, name: &RunName) -> Error {
        Error::NotFound {
            run: name.to_string(),
            folder: self.root.display().to_string(),
        }
    }
}

/// The start of a file as text; invalid UTF-8 becomes U+FFFD.
pub(crate) fn read_text(file: io::Result<File>, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file?.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn modified(file: &File) -> Option<u64> {
    let time = file.metadata().ok()?.modified().ok()?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

/// `train.max_steps` of a config as the trainer writes it, one key per line. If the length of the run is given in
/// epochs, it is in a comment above the keys.
fn max_steps(config: &str) -> Option<u64> {
    let comments = config.lines().take_while(|line| line.starts_with('#'));
    let mut planned = comments.filter_map(|line| line.strip_prefix("# max_steps: "));
    if let Some(planned) = planned.next() {
        return planned.split(' ').next()?.parse().ok();
    }
    let mut lines = config.lines().skip_while(|line| *line != "train:").skip(1);
    lines
        .by_ref()
        .take_while(|line| line.starts_with([' ', '#']))
        .find_map(|line| line.strip_prefix("  max_steps:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests;
