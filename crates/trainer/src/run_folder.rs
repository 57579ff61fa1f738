//! The folder of a run, which other programs read.
//!
//! ```text
//! runs/<name>/config.yaml                what was asked for, every key
//!             metrics.jsonl              one line for each logged step or evaluation
//!             events.out.tfevents.*      the same for TensorBoard
//!             loss.svg  memory.svg       curves
//!             report.html                all of it on one page
//!             samples.txt                generated text
//!             checkpoints/step-000100/   to continue from
//!             model/                     the result, for others to load; `adapter/` of adapters,
//!                                        and `merged/` if that was asked for
//!             summary.json               the run in numbers
//! ```

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::Config;
use crate::{Error, checkpoint};

/// The folder of one run, which nobody else runs in while this is there.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
    /// Locked for as long as it is open; the system lets go of it with the process, however
    /// that ends. `None` where the file system knows no locks.
    _lock: Option<Arc<File>>,
}

impl RunFolder {
    /// Makes a folder that did not exist: `<output_dir>/<name>`, or `<name>-2`, `<name>-3`, ….
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn create(config: &Config) -> Result<Self, Error> {
        let parent = &config.output_dir;
        fs::create_dir_all(parent).map_err(|error| Error::io("create", parent, error))?;
        for number in 1.. {
            let path = parent.join(numbered(&config.name, number));
            // `create_dir` fails on an existing folder, so two runs cannot share one.
            match fs::create_dir(&path) {
                Ok(()) => {
                    let folder = Self::locked(path)?;
                    let text = config.to_yaml()?;
                    let file = folder.config();
                    fs::write(&file, text).map_err(|error| Error::io("write", &file, error))?;
                    return Ok(folder);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create", &path, error)),
            }
        }
        Err(Error::Internal("no free name for the run folder".into()))
    }

    /// The folder that [`RunFolder::create`] would make.
    pub(crate) fn planned(config: &Config) -> PathBuf {
        let paths = (1..).map(|number| config.output_dir.join(numbered(&config.name, number)));
        let mut free = paths.skip_while(|path| path.exists());
        free.next().unwrap_or_default()
    }

    /// The run folder and the checkpoint that `resume_from` means: `latest`, a run folder,
    /// or a checkpoint folder.
    ///
    /// # Errors
    /// When there is no whole checkpoint.
    pub fn resume(config: &Config, resume_from: &str) -> Result<(Self, PathBuf), Error> {
        let path = match resume_from {
            "latest" => newest_run(config)?,
            path => PathBuf::from(path),
        };
        let is_checkpoint = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("step-"));
        if is_checkpoint {
            let run = path
                .parent()
                .and_then(Path::parent)
                .unwrap_or(Path::new("."));
            return Ok((Self::locked(run.to_owned())?, path));
        }
        let folder = Self::locked(path)?;
        let newest = checkpoint::list(&folder.checkpoints())?.pop();
        match newest {
            Some((_, checkpoint)) => Ok((folder, checkpoint)),
            None => Err(Error::checkpoint(
                &folder.checkpoints(),
                "there is no whole checkpoint to resume from",
            )),
        }
    }

    fn locked(path: PathBuf) -> Result<Self, Error> {
        // A folder that is not there is told by whoever looks for something in it.
        let Ok(folder) = File::open(&path) else {
            return Ok(Self { path, _lock: None });
        };
        match folder.try_lock() {
            Ok(()) => Ok(Self {
                path,
                _lock: Some(Arc::new(folder)),
            }),
            Err(TryLockError::WouldBlock) => Err(Error::Data(format!(
                "a run is going on in `{}`: wait for its end, or give this one another `name`",
                path.display()
            ))),
            Err(TryLockError::Error(error)) => {
                tracing::debug!("`{}` is not locked: {error}", path.display());
                Ok(Self { path, _lock: None })
            }
        }
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.yaml`
    pub fn config(&self) -> PathBuf {
        self.path.join("config.yaml")
    }

    /// `metrics.jsonl`
    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// `checkpoints`
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// A file or folder by its name.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

fn numbered(name: &str, number: u32) -> String {
    if number == 1 {
        name.to_owned()
    } else {
        format!("{name}-{number}")
    }
}

/// The last of `<name>`, `<name>-2`, … that exists and has a checkpoint.
fn newest_run(config: &Config) -> Result<PathBuf, Error> {
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
