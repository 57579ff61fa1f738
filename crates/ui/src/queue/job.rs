//! A job: what to do, and its state.

use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use doctor::restart::Restarts;

use crate::runs::{Process, RunName};

/// The number of a job in its queue; not reused while the job is listed.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
#[schemars(inline)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl std::str::FromStr for JobId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits =
            (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        let number = number.ok_or_else(|| format!("{text:?} is not the number of a job"))?;
        Ok(Self(number))
    }
}

/// What a job does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// Starts a run.
    Train {
        /// The config, as YAML; the page does not get it.
        #[schemars(skip)]
        config: String,
        /// How messages refer to the config.
        source: String,
    },
    /// Resumes a run from its newest checkpoint.
    Resume {
        /// Its name.
        run: RunName,
    },
}

/// A job to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "JobWork")]
pub struct NewJob {
    /// The name of the run; a number is appended if that is taken.
    pub name: RunName,
    /// What to do.
    pub work: Work,
    /// Keys that override the config, such as `train.max_steps=50`.
    pub set: Vec<String>,
    /// The folder that relative paths in the config start from.
    pub folder: PathBuf,
    /// The only folders that paths in the config may lead to; `None` for a user who can read all files anyway.
    #[schemars(skip)]
    pub confined_to: Option<Vec<PathBuf>>,
    /// Start it even if the check says that it cannot work.
    pub force: bool,
}

/// A job of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// Of the waiting jobs, the one with the lowest number is next.
    pub order: u64,
    /// When it was added: seconds since 1970.
    pub added: u64,
    /// How often it was started.
    pub attempts: u32,
    /// How often its run went on after a page fault on the GPU.
    #[serde(default, skip_serializing_if = "Restarts::are_none")]
    #[schemars(skip)]
    pub restarts: Restarts,
    /// The device chosen for it, by its name in a config; unset if only one run trains at a time.
    #[serde(default)]
    pub device: Option<String>,
    /// The peak of device memory that its check expects, in bytes.
    #[serde(default)]
    pub expected: Option<u64>,
    /// Whether it waits for a device to itself, since it did not fit beside other runs.
    #[serde(default)]
    pub alone: bool,
    /// What to do.
    #[serde(flatten)]
    pub what: NewJob,
    /// Its state.
    #[serde(flatten)]
    pub state: State,
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
#[schemars(rename = "JobState")]
pub enum State {
    /// Not started yet.
    Waiting,
    /// A dry run checks whether it can work.
    Checking {
        /// Its process, once started.
        process: Option<Process>,
    },
    /// It is training.
    Running {
        /// Its process, once started.
        process: Option<Process>,
        /// The boot id of the machine when it was started.
        boot: String,
        /// The run.
        run: RunName,
    },
    /// It is over.
    Ended {
        /// How it ended.
        how: Ended,
        /// The error message.
        error: Option<String>,
        /// When: seconds since 1970.
        at: u64,
        /// The run, if one was started.
        run: Option<RunName>,
    },
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "JobEnding")]
pub enum Ended {
    /// All steps were done.
    Completed,
    /// Somebody stopped it.
    Stopped,
    /// It ended with an error.
    Failed,
    /// It was never started, since the check says that it cannot work.
    Refused,
}

impl State {
    /// The name of the state in JSON and on the page.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Checking { .. } => "checking",
            Self::Running { .. } => "running",
            Self::Ended { how, .. } => match how {
                Ended::Completed => "completed",
                Ended::Stopped => "stopped",
                Ended::Failed => "failed",
                Ended::Refused => "refused",
            },
        }
    }

    /// Whether it was started and has not ended.
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Checking { .. } | Self::Running { .. })
    }

    /// Its process, once started.
    pub fn process(&self) -> Option<&Process> {
        match self {
            Self::Checking { process } | Self::Running { process, .. } => process.as_ref(),
            Self::Waiting | Self::Ended { .. } => None,
        }
    }

    /// The run that it trains or has trained.
    pub fn run(&self) -> Option<&RunName> {
        match self {
            Self::Running { run, .. } => Some(run),
            Self::Ended { run, .. } => run.as_ref(),
            Self::Waiting | Self::Checking { .. } => None,
        }
    }
}

/// The name of a run of this config: the last `name=` in `set`, else the config's, else `run`.
///
/// # Errors
/// A message, if the config is not YAML or the name cannot be the name of a run's folder.
pub fn name_of(config: &str, set: &[String]) -> Result<RunName, String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Named {
        name: Option<String>,
    }
    let read = |text: &str| {
        let named = serde_saphyr::from_str::<Option<Named>>(text);
        named.map_err(|error| format!("the config cannot be read: {error}"))
    };
    let mut named = read(config)?.unwrap_or_default().name;
    for set in set {
        if let Some(value) = set.strip_prefix("name=") {
            named = read(&format!("name: {value}"))?.unwrap_or_default().name;
        }
    }
    RunName::parse(named.as_deref().unwrap_or("run")).map_err(|error| error.to_string())
}

/// Where a config or `--set` names an `output_dir` other than `root`, in which the queue puts all runs. Relative paths
/// start from `folder`; one with variables is taken for the same.
pub fn output_elsewhere(
    config: &str,
    set: &[String],
    folder: &Path,
    root: &Path,
) -> Option<String> {
    #[derive(Deserialize)]
    struct Placed {
        output_dir: Option<String>,
    }
    let real = |path: PathBuf| path.canonicalize().unwrap_or(path);
    let is_elsewhere = |config: &str| {
        let placed = serde_saphyr::from_str::<Placed>(config).ok();
        let written = placed.and_then(|placed| placed.output_dir);
        let written = written.unwrap_or_else(|| root.display().to_string());
        let has_variables = written.starts_with('~') || written.replace("$$", "").contains('$');
        let there = real(folder.join(written.replace("$$", "$")));
        !has_variables && there != real(folder.join(root))
    };
    let mut set = set.iter().filter_map(|set| set.strip_prefix("output_dir="));
    if set.any(|set| is_elsewhere(&format!("output_dir: {set}"))) {
        return Some("`--set`".into());
    }
    let mut lines = config.lines();
    let line = lines.position(|line| line.starts_with("output_dir"));
    is_elsewhere(config).then(|| format!("line {}", line.unwrap_or_default() + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_folder_of_runs_is_found_in_its_line() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("runs");
        for (config, line) in [
            ("name: a", None),
            ("output_dir: runs", None),
            ("output_dir: ./runs/", None),
            ("output_dir: $X/runs", None),
            ("name: a\noutput_dir: out", Some("line 2")),
            ("output_dir: /tmp", Some("line 1")),
            ("output_dir: $$X", Some("line 1")),
            ("{", None),
        ] {
            let found = output_elsewhere(config, &[], place.path(), &root);
            assert_eq!(found.as_deref(), line, "{config}");
        }
        let written = format!("output_dir: {}", root.display());
        let found = output_elsewhere(&written, &[], place.path(), &root);
        assert_eq!(found, None);
        let set = ["train.x=1".to_owned(), "output_dir=\"x\"".to_owned()];
        let found = output_elsewhere("", &set, place.path(), &root);
        assert_eq!(found.as_deref(), Some("`--set`"));
    }

    #[test]
    fn a_run_is_named_by_set_or_else_by_its_config() {
        let name = |config: &str, set: &[&str]| {
            let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
            name_of(config, &set).map(|name| name.to_string())
        };
        for (config, set, wanted) in [
            ("", &[][..], "run"),
            ("# nothing\n", &[], "run"),
            ("train: {max_steps: 3}", &[], "run"),
            ("name: y\n", &[], "y"),
            ("name: 'a b'\n", &["train.name=x"], "a b"),
            ("name: a\n", &["name=b", "name=\"c\""], "c"),
        ] {
            assert_eq!(name(config, set).as_deref(), Ok(wanted), "{config} {set:?}");
        }
        for config in ["name: ../x", "name: [a]", "name: .x", "name: {", "name: ''"] {
            assert!(name(config, &[]).is_err(), "{config}");
        }
    }

    #[test]
    fn a_job_number_consists_of_digits() {
        assert_eq!("12".parse(), Ok(JobId(12)));
        for text in ["", "-1", "+1", "1e3", " 1", "1234567890", "１"] {
            assert!(text.parse::<JobId>().is_err(), "{text:?}");
        }
    }
}
