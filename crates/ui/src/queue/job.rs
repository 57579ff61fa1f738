//! A job: what it is to do, and how it stands.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::runs::{Process, RunName};

/// The number of a job in its queue; never used twice while the job is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// Begins a run.
    Train {
        /// The config, as YAML.
        config: String,
        /// What messages call it.
        source: String,
    },
    /// Goes on with one, from its newest checkpoint.
    Resume {
        /// Which.
        run: RunName,
    },
}

/// A job that is to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewJob {
    /// What the run is to be called; a number is added where there is one of this name.
    pub name: RunName,
    /// What it does.
    pub work: Work,
    /// Keys with other values than in the config, as `train.max_steps=50`.
    pub set: Vec<String>,
    /// The folder that paths in the config begin at.
    pub folder: PathBuf,
    /// The only folders that paths in the config may lead to; unset for whoever could read them anyway.
    pub confined_to: Option<Vec<PathBuf>>,
    /// Start it even where the check says that it cannot work.
    pub force: bool,
}

/// A job of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// Among those that wait, the least is next.
    pub order: u64,
    /// When it was added: seconds since 1970.
    pub added: u64,
    /// How often it was begun.
    pub attempts: u32,
    /// The device that was found for it, as a config names it; unset where the queue has one run at a time.
    #[serde(default)]
    pub device: Option<String>,
    /// Bytes that its check expects it to take of the device at most.
    #[serde(default)]
    pub expected: Option<u64>,
    /// Whether it waits for a device on which nobody else is, since it did not fit beside others.
    #[serde(default)]
    pub alone: bool,
    /// What it is to do.
    #[serde(flatten)]
    pub what: NewJob,
    /// How it stands.
    #[serde(flatten)]
    pub state: State,
}

/// How a job stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// Not begun.
    Waiting,
    /// A dry run looks whether it can work.
    Checking {
        /// The process, once it is there.
        process: Option<Process>,
    },
    /// It trains.
    Running {
        /// The process, once it is there.
        process: Option<Process>,
        /// Which start of the machine it was begun under.
        boot: String,
        /// The run.
        run: RunName,
    },
    /// It is over.
    Ended {
        /// How it ended.
        how: Ended,
        /// What went wrong.
        error: Option<String>,
        /// When: seconds since 1970.
        at: u64,
        /// The run, if it came to one.
        run: Option<RunName>,
    },
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All steps were done.
    Completed,
    /// Somebody stopped it.
    Stopped,
    /// It broke.
    Failed,
    /// It was never begun, since the check says that it cannot work.
    Refused,
}

impl State {
    /// The word for it.
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

    /// Whether a process may be at it.
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Checking { .. } | Self::Running { .. })
    }

    /// The process at it, once it is there.
    pub fn process(&self) -> Option<&Process> {
        match self {
            Self::Checking { process } | Self::Running { process, .. } => process.as_ref(),
            Self::Waiting | Self::Ended { .. } => None,
        }
    }

    /// The run that it made, or makes.
    pub fn run(&self) -> Option<&RunName> {
        match self {
            Self::Running { run, .. } => Some(run),
            Self::Ended { run, .. } => run.as_ref(),
            Self::Waiting | Self::Checking { .. } => None,
        }
    }
}

/// The name that a run of this config is to have: what is set last, else what the config says, else `run`.
///
/// # Errors
/// A sentence, when the config is no YAML or the name cannot be that of a run's folder.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_called_what_its_config_says_or_what_is_set() {
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
    fn a_number_of_a_job_is_digits() {
        assert_eq!("12".parse(), Ok(JobId(12)));
        for text in ["", "-1", "+1", "1e3", " 1", "1234567890", "１"] {
            assert!(text.parse::<JobId>().is_err(), "{text:?}");
        }
    }
}
