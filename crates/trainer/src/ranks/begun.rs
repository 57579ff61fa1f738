//! The run of an earlier start, for processes that `torchrun` restarts.
//!
//! `torchrun` restarts all ranks when one of them fails or a machine joins or leaves, and does not tell them: its store may
//! be a new one, and its restart count is that of one agent. So each machine stores in its cache folder which run its
//! ranks belong to, and a file in the run folder identifies the run: on another machine, the same path may belong to a
//! different one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::process_group::{PAUSE, host_name};
use crate::stop::Stop;
use crate::{Error, checkpoint, run_folder};

/// The identifying file in the run folder.
const MARK: &str = ".torchrun";
/// `torchrun`'s name for a job that the user did not name.
const NO_NAME: &str = "none";

/// A run that an earlier start began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    /// Its folder, on the machine of rank 0.
    pub(super) path: PathBuf,
    /// The machine of rank 0.
    host: String,
    /// The contents of the identifying file.
    token: String,
}

impl Begun {
    /// The run in `folder` on this machine; `before` is the run that the ranks continued, if any.
    pub(super) fn new(folder: &Path, before: Option<&Self>) -> Result<Self, Error> {
        let path = std::path::absolute(folder).map_err(|error| Error::io("find", folder, error))?;
        let token = match before.filter(|before| before.path == path) {
            Some(before) => before.token.clone(),
            None => super::roster::nonce(),
        };
        Ok(Self {
            path,
            host: host_name(),
            token,
        })
    }

    /// Writes the identifying file.
    pub(super) fn mark(&self) -> Result<(), Error> {
        let file = self.path.join(MARK);
        fs::write(&file, &self.token).map_err(|error| Error::io("write", &file, error))
    }

    /// Removes its folder if that is on this machine, has no checkpoint, and contains only what a new start would write
    /// again. Returns whether it did.
    pub(super) fn remove_without_results(&self) -> Result<bool, Error> {
        match self.saved_here()? {
            Some(0) => run_folder::remove_without_results(&self.path, MARK),
            _ => Ok(false),
        }
    }

    /// The step of the newest checkpoint, or 0 if there is none; `None` if the folder is not on this machine.
    fn saved_here(&self) -> Result<Option<u64>, Error> {
        match fs::read_to_string(self.path.join(MARK)) {
            Ok(token) if token == self.token => {}
            _ => return Ok(None),
        }
        let checkpoints = checkpoint::list(&self.path.join("checkpoints"))?;
        Ok(Some(checkpoints.last().map_or(0, |(step, _)| *step)))
    }
}

/// What a rank, or all ranks together, know about the run of an earlier start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) begun: Option<Begun>,
    /// The step of its newest checkpoint, or 0 if it has none; `None` away from its folder.
    pub(super) saved: Option<u64>,
}

impl Known {
    /// The knowledge of this machine.
    pub(super) fn new(begun: Option<Begun>) -> Result<Self, Error> {
        let saved = match &begun {
            Some(begun) => begun.saved_here()?,
            None => None,
        };
        Ok(Self { begun, saved })
    }

    /// The knowledge of all ranks: that of the rank with the newest checkpoint.
    pub(super) fn of_all<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let known = all.filter(|known| known.begun.is_some());
        // On a tie, the first.
        let newest = known.reduce(|one, other| match other.saved > one.saved {
            true => other,
            false => one,
        });
        newest.cloned().unwrap_or_default()
    }

    /// The run to continue, if any. If its folder is on none of the machines, this waits to be restarted together with the
    /// machine that has it: a new start would lose the run.
    pub(super) fn chosen(self, timeout: Duration, stop: &Stop) -> Result<Option<Begun>, Error> {
        let (begun, saved) = (self.begun, self.saved);
        let Some(begun) = begun else {
            return Ok(None);
        };
        if saved.is_some() {
            return Ok(Some(begun));
        }
        let told = format!(
            "the run goes on in `{}` on {}, which is not among the machines that were started",
            begun.path.display(),
            begun.host
        );
        tracing::warn!("{told}: waiting for it");
        let until = Instant::now() + timeout;
        while Instant::now() < until && !stop.is_requested() {
            std::thread::sleep(PAUSE);
        }
        Err(Error::Ranks(format!(
            "{told}\nstart it there again, or let `output_dir` be a folder that all machines share"
        )))
    }
}

/// The file in which a machine stores the run of a job.
pub(super) struct Memory {
    file: PathBuf,
}

impl Memory {
    /// The file of the job in `torchrun`'s environment variables.
    pub(super) fn from_environment() -> Option<Self> {
        let job = job(|name| std::env::var(name).ok())?;
        let name = format!("{:08x}.json", crc32c::crc32c(job.as_bytes()));
        let folder = crate::data::cache_folder();
        Some(Self {
            file: folder.join("torchrun").join(name),
        })
    }

    pub(super) fn read(&self) -> Option<Begun> {
        let text = fs::read(&self.file).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn write(&self, begun: &Begun) -> Result<(), Error> {
        let text =
            serde_json::to_string(begun).map_err(|error| Error::Internal(error.to_string()))?;
        // All ranks of a machine write the same, possibly at the same time.
        let folder = self.file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        let write = || {
            let mut draft = tempfile::NamedTempFile::new_in(folder)?;
            draft.write_all(text.as_bytes())?;
            draft.persist(&self.file)?;
            Ok(())
        };
        write().map_err(|error| Error::io("write", &self.file, error))
    }

    pub(super) fn clear(&self) {
        // Another rank on this machine may have removed it already.
        let _ = fs::remove_file(&self.file);
    }
}

/// An identifier of this process's `torchrun` job on this machine, if it has one: the user's name for it (`--rdzv-id`),
/// which survives a reboot; otherwise the folder that the agent created for the ranks' output; otherwise the agent.
fn job(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let name = variable("TORCHELASTIC_RUN_ID")?;
    if !name.is_empty() && name != NO_NAME {
        return Some(format!("job {name}"));
    }
    // `…/none_abcdefgh/attempt_0/1/error.json`
    let file = variable("TORCHELASTIC_ERROR_FILE").map(PathBuf::from);
    let folder = file.as_deref().and_then(|file| file.ancestors().nth(3));
    match folder.filter(|folder| folder.parent().is_some()) {
        Some(folder) => Some(format!("folder {}", folder.display())),
        None => Some(format!("agent {}", agent())),
    }
}

#[cfg(unix)]
fn agent() -> String {
    let id = std::os::unix::process::parent_id();
    // With its start time, since process ids are reused. The name before that may contain spaces.
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let behind = stat.rsplit(')').next().unwrap_or_default();
    let start = behind.split_whitespace().nth(19).unwrap_or_default();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{id} {start} {}", boot.trim())
}

#[cfg(not(unix))]
fn agent() -> String {
    String::new()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    const SHORT: Duration = Duration::from_millis(10);

    #[test]
    fn a_folder_counts_where_it_is_that_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let begun = Begun::new(folder.path(), None).unwrap();
        assert_eq!(begun.saved_here().unwrap(), None);
        begun.mark().unwrap();
        assert_eq!(begun.saved_here().unwrap(), Some(0));
        fs::create_dir_all(folder.path().join("checkpoints/step-000012")).unwrap();
        assert_eq!(begun.saved_here().unwrap(), Some(12));
        // Gone on with, it is the same; another run in its place is not.
        let again = Begun::new(folder.path(), Some(&begun)).unwrap();
        assert_eq!(again, begun);
        Begun::new(folder.path(), None).unwrap().mark().unwrap();
        assert_eq!(begun.saved_here().unwrap(), None);
    }

    #[test]
    fn only_what_was_begun_and_has_no_results_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("run");
        let make = |files: &[&str]| {
            fs::create_dir_all(folder.join("checkpoints")).unwrap();
            for file in files {
                let file = folder.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "text").unwrap();
            }
            let begun = Begun::new(&folder, None).unwrap();
            begun.mark().unwrap();
            begun
        };
        let usual = [
            "config.yaml",
            "metrics.jsonl",
            "events.out.tfevents.1.surefoot.2",
            "run.json",
            "report.html",
            ".config.yaml.tmp",
            "checkpoints/.step-000003.tmp/state.json",
        ];
        let begun = make(&usual);
        // Another run has taken the place of this one.
        let other = Begun {
            token: "another".into(),
            ..begun.clone()
        };
        assert!(!other.remove_without_results().unwrap());
        // A run is active in it.
        let active = fs::File::open(&folder).unwrap();
        active.lock().unwrap();
        assert!(!begun.remove_without_results().unwrap());
        drop(active);
        assert!(begun.remove_without_results().unwrap());
        assert!(!folder.exists());
        assert!(!begun.remove_without_results().unwrap());

        for kept in [
            "notes.txt",
            "samples.txt",
            "samples/step-000001/0.mp4",
            "checkpoints/step-000003/state.json",
        ] {
            let begun = make(&usual);
            fs::create_dir_all(folder.join(kept).parent().unwrap()).unwrap();
            fs::write(folder.join(kept), "text").unwrap();
            assert!(!begun.remove_without_results().unwrap(), "{kept}");
            assert!(folder.join(kept).exists());
            assert!(folder.join("config.yaml").exists(), "{kept}");
            fs::remove_dir_all(&folder).unwrap();
        }
    }

    #[test]
    fn the_newest_checkpoint_is_gone_on_from() {
        let folder = tempfile::tempdir().unwrap();
        let begun = Begun::new(folder.path(), None).unwrap();
        let other = Begun::new(&folder.path().join("other"), None).unwrap();
        let known = |begun: &Begun, saved| Known {
            begun: Some(begun.clone()),
            saved,
        };
        let nothing = Known::default();
        let old = known(&other, Some(3));
        let new = known(&begun, Some(4));
        let all = Known::of_all([&nothing, &old, &new, &nothing].into_iter());
        assert_eq!(all, new);
        let stop = Stop::default();
        assert_eq!(all.chosen(SHORT, &stop).unwrap(), Some(begun));
        assert_eq!(nothing.clone().chosen(SHORT, &stop).unwrap(), None);
        // Whose folder is nowhere is not begun anew.
        let away = Known::of_all([&nothing, &known(&other, None)].into_iter());
        let told = away.chosen(SHORT, &stop).unwrap_err().to_string();
        assert!(told.contains("not among the machines"), "{told}");
    }

    #[test]
    fn a_job_is_known_by_its_name_or_by_its_agent() {
        let of = |variables: &[(&str, &str)]| {
            job(|name| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[]), None);
        let named = of(&[("TORCHELASTIC_RUN_ID", "night")]);
        assert_eq!(named.as_deref(), Some("job night"));
        let file = |attempt: u32, rank: u32| {
            format!("/tmp/torchelastic_x/none_y/attempt_{attempt}/{rank}/error.json")
        };
        for (attempt, rank) in [(0, 0), (2, 1)] {
            let found = of(&[
                ("TORCHELASTIC_RUN_ID", "none"),
                ("TORCHELASTIC_ERROR_FILE", &file(attempt, rank)),
            ]);
            assert_eq!(found.as_deref(), Some("folder /tmp/torchelastic_x/none_y"));
        }
        let unnamed = [("TORCHELASTIC_RUN_ID", "none")];
        assert!(of(&unnamed).unwrap().starts_with("agent "));
        assert_eq!(of(&unnamed), of(&unnamed));
    }
}
