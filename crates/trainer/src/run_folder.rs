//! The folder of a run, which other programs read.
//!
//! ```text
//! runs/<name>/config.yaml                the complete config
//!             metrics.jsonl              one line per logged step or evaluation
//!             events.out.tfevents.*      the same for TensorBoard
//!             loss.svg  memory.svg       curves
//!             mlflow.json  trackio.json  which run it is there, with `train.report_to`
//!             run.json                   what it trains, how it ended, and how the result is used
//!             report.html                all of it on one page
//!             samples.txt                generated text
//!             samples/step-000100/       generated videos and pictures
//!             reference.safetensors          what the model said before the first step, where that is needed
//!             checkpoints/step-000100/   to resume from
//!             model/                     the exported model; `adapter/` for adapters,
//!                                        and `merged/` if requested
//!             summary.json               the run in numbers
//! ```

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::Config;
use crate::{Error, checkpoint};
use platform::files::{self, lock_of};

/// What the model said of the data before the first step.
pub(crate) const REFERENCE: &str = "reference.safetensors";

/// Files that are written or removed through a temporary name.
const FILES: [&str; 13] = [
    "config.yaml",
    "metrics.jsonl",
    "samples.txt",
    "summary.json",
    "run.json",
    "report.html",
    "loss.svg",
    "memory.svg",
    "mlflow.json",
    "trackio.json",
    REFERENCE,
    "adapter",
    "model",
];

/// What a run may have written before its first checkpoint that it would write again if it was begun anew: the same
/// numbers. Samples are not among it.
const BEFORE_CHECKPOINTS: [&str; 9] = [
    "config.yaml",
    "metrics.jsonl",
    "run.json",
    "report.html",
    "loss.svg",
    "memory.svg",
    "mlflow.json",
    "trackio.json",
    REFERENCE,
];
/// How the names of TensorBoard's files begin, which are likewise.
const EVENTS: &str = "events.out.tfevents.";

/// The folder of one run, locked against other runs while this exists.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
    /// Locked as long as it is open; the system releases the lock with the process, however that ends. `None`
    /// if the file system has no locks.
    _lock: Option<Arc<File>>,
    /// Whether this process writes to it: with several processes, only one does.
    is_written_here: bool,
}

impl RunFolder {
    /// Creates a new folder: `<output_dir>/<name>`, or `<name>-2`, `<name>-3`, ….
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn create(config: &Config) -> Result<Self, Error> {
        let parent = &config.output_dir;
        fs::create_dir_all(parent).map_err(|error| Error::io("create", parent, error))?;
        for number in 1.. {
            let path = parent.join(numbered(&config.name, number));
            // `create_dir` fails on an existing folder, so two runs cannot share one.
            match fs::create_dir(&path) {
                Ok(()) => {
                    let folder = Self::locked(path)?;
                    folder.write_config(&config.to_yaml()?)?;
                    return Ok(folder);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create", &path, error)),
            }
        }
        Err(Error::Internal("no free name for the run folder".into()))
    }

    /// The folder that [`RunFolder::create`] would create.
    pub(crate) fn planned(config: &Config) -> PathBuf {
        let paths = (1..).map(|number| config.output_dir.join(numbered(&config.name, number)));
        let mut free = paths.skip_while(|path| path.exists());
        free.next().unwrap_or_default()
    }

    /// The run folder and the checkpoint for `resume_from`: `latest`, a run folder, or a checkpoint folder.
    ///
    /// # Errors
    /// If there is no checkpoint.
    pub fn resume(config: &Config, resume_from: &str) -> Result<(Self, PathBuf), Error> {
        let path = match resume_from {
            "latest" => newest_run(config)?,
            path => PathBuf::from(path),
        };
        tell_other_names(config, &path);
        if let Some(run) = checkpoint::run_of(&path) {
            return Ok((Self::locked(run.to_owned())?, path));
        }
        let folder = Self::locked(path)?;
        let newest = checkpoint::list(&folder.checkpoints())?.pop();
        match newest {
            Some((_, checkpoint)) => Ok((folder, checkpoint)),
            None => Err(Error::checkpoint(
                &folder.checkpoints(),
                "there is no checkpoint to resume from",
            )),
        }
    }

    fn locked(path: PathBuf) -> Result<Self, Error> {
        // A missing folder is reported when something is read from it.
        let Ok(folder) = lock_of(&path) else {
            return Ok(Self::unlocked(path));
        };
        match files::try_lock(&folder) {
            Ok(()) => {
                if let Err(error) = platform::requests::note_holder(&path) {
                    tracing::debug!("nobody can stop the run in `{}`: {error}", path.display());
                }
                Ok(Self {
                    path,
                    _lock: Some(Arc::new(folder)),
                    is_written_here: true,
                })
            }
            Err(TryLockError::WouldBlock) => Err(Error::Data(format!(
                "a run is active in `{}`: wait until it ends, or use another `name`",
                path.display()
            ))),
            Err(TryLockError::Error(error)) => {
                tracing::debug!("`{}` is not locked: {error}", path.display());
                Ok(Self::unlocked(path))
            }
        }
    }

    fn unlocked(path: PathBuf) -> Self {
        Self {
            path,
            _lock: None,
            is_written_here: true,
        }
    }

    /// The folder that rank 0 writes to, possibly on another machine, for the other ranks, which do not
    /// access it.
    pub(crate) fn of_first_rank(path: PathBuf) -> Self {
        Self {
            is_written_here: false,
            ..Self::unlocked(path)
        }
    }

    /// Whether this process writes to it.
    pub(crate) fn is_written_here(&self) -> bool {
        self.is_written_here
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `config.yaml` atomically.
    pub(crate) fn write_config(&self, text: &str) -> Result<(), Error> {
        replace(&self.config(), text)
    }

    /// Removes what a killed process left half-written or half-removed.
    pub(crate) fn sweep(&self) -> Result<(), Error> {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let left = FILES.iter().any(|file| {
                let left = [".tmp", ".old", ".tmp.old"].map(|ending| format!("{file}{ending}"));
                let name = name.to_string_lossy();
                left.contains(&name.trim_start_matches('.').to_owned())
            });
            if left {
                let path = entry.path();
                let removed = match path.is_dir() {
                    true => fs::remove_dir_all(&path),
                    false => fs::remove_file(&path),
                };
                removed.map_err(|error| Error::io("remove", &path, error))?;
            }
        }
        checkpoint::sweep(&self.checkpoints())
    }

    /// Path of `config.yaml`.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.yaml")
    }

    /// Path of `metrics.jsonl`.
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// Path of the folder `checkpoints`.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Path of a file or folder in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Removes the folder of a run that has no results, for it to be begun anew in its place: one in which there is
/// nothing but `mark` and what a run writes before its first checkpoint. Returns whether it did.
///
/// # Errors
/// If it cannot be read or removed.
pub(crate) fn remove_without_results(path: &Path, mark: &str) -> Result<bool, Error> {
    // Who has the lock is still using it, and without locks nobody knows.
    let folder = match RunFolder::locked(path.to_owned()) {
        Ok(folder) if folder._lock.is_some() => folder,
        _ => return Ok(false),
    };
    folder.sweep()?;
    let failed = |error| Error::io("remove", path, error);
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (name, kind) = (entry.file_name(), entry.file_type().map_err(failed)?);
        let name = name.to_string_lossy();
        let is_known = BEFORE_CHECKPOINTS.contains(&&*name) || name.starts_with(EVENTS);
        match &*name {
            name if name == mark && kind.is_file() => {}
            _ if is_known && kind.is_file() => files.push(entry.path()),
            // Below, if it is empty.
            "checkpoints" if kind.is_dir() => {}
            _ => return Ok(false),
        }
    }
    match fs::remove_dir(folder.checkpoints()) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => return Ok(false),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    // The mark is the last: who is interrupted here goes on by it.
    files.push(path.join(mark));
    let mut removed = files.iter().map(fs::remove_file);
    removed.try_for_each(|removed| removed).map_err(failed)?;
    fs::remove_dir(path).map_err(failed)?;
    Ok(true)
}

/// Writes a file atomically: readers see all of the old or all of the new content.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), Error> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    fs::write(&temporary, text)
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|error| Error::io("write", path, error))
}

fn numbered(name: &str, number: u32) -> String {
    if number == 1 {
        name.to_owned()
    } else {
        format!("{name}-{number}")
    }
}

/// The last of `<name>`, `<name>-2`, … that has a checkpoint.
pub(crate) fn newest_run(config: &Config) -> Result<PathBuf, Error> {
    let mut newest = None;
    for number in 1.. {
        let path = config.output_dir.join(numbered(&config.name, number));
        if !path.exists() {
            break;
        }
        if !checkpoint::list(&path.join("checkpoints"))?.is_empty() {
            newest = Some(path);
        }
    }
    let base = config.output_dir.join(&config.name);
    newest.ok_or_else(|| Error::checkpoint(&base, "no run of this name has a checkpoint"))
}
/// Warns if the config names another folder than that of the resumed run.
fn tell_other_names(config: &Config, from: &Path) {
    let run = checkpoint::run_of(from).unwrap_or(from);
    let named = config.output_dir.join(&config.name);
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if canonical(run) != canonical(&named) {
        tracing::warn!(
            "`name` and `output_dir` (`{}`) have no effect: the run continues in `{}`",
            named.display(),
            run.display()
        );
    }
}
