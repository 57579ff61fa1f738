//! The files of the queue: reading them, and changing them one at a time.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::job::{Ended, Job, JobId, NewJob, State};
use super::places::Chosen;
use super::{AtOnce, Listing, Queue, refuse_without_trainer};
use crate::runs::{Error, RunName, boot_id, signal_terminate};

/// Jobs that ended, of which the newest are kept.
const KEPT: usize = 100;
/// Jobs that wait at most.
const WAITING: usize = 1000;
/// Longest file of a job that is read: a config and its settings.
const LONGEST: u64 = 1 << 20;

/// What comes next for who works.
pub(super) enum Next {
    /// A job that is to be started, noted as begun.
    Start(Job),
    /// A job that somebody began.
    TakeOver(Job),
    /// What is there has to wait for others, or for those that were begun.
    Later,
    /// Nothing; the lock of the one that works is free again.
    Nothing,
}

/// Held while files are changed.
struct Changing {
    _lock: File,
}

impl Queue {
    /// The queue as it stands.
    ///
    /// # Errors
    /// When its folder is there and cannot be read.
    pub fn list(&self) -> Result<Listing, Error> {
        let (mut jobs, unreadable) = self.read()?;
        let now = now();
        jobs.sort_by_key(|job| match job.state {
            State::Checking { .. } | State::Running { .. } => (0, 0, job.id),
            State::Waiting => (1, job.order, job.id),
            // What is to come ended before the clock was set back.
            State::Ended { at, .. } => (2, u64::MAX - at.min(now), JobId(u64::MAX - job.id.0)),
        });
        Ok(Listing {
            paused: self.is_paused(),
            working: self.is_working(),
            at_once: self.at_once(),
            jobs,
            unreadable,
        })
    }

    /// One job.
    ///
    /// # Errors
    /// [`Error::NoJob`].
    pub fn job(&self, id: JobId) -> Result<Job, Error> {
        let (jobs, _) = self.read()?;
        let job = jobs.into_iter().find(|job| job.id == id);
        job.ok_or(Error::NoJob { job: id.0 })
    }

    /// Adds a job behind the others.
    ///
    /// # Errors
    /// When too many wait, or it cannot be written.
    pub fn add(&self, what: NewJob) -> Result<Job, Error> {
        refuse_without_trainer()?;
        let changing = self.change()?;
        let (mut jobs, _) = self.read()?;
        let waiting = jobs.iter().filter(|job| job.state == State::Waiting);
        if waiting.count() >= WAITING {
            return Err(Error::Refused(format!("{WAITING} jobs wait already")));
        }
        self.forget_oldest(&mut jobs);
        let job = Job {
            id: JobId(self.newest_number()? + 1),
            order: last_order(&jobs) + 1,
            added: now(),
            attempts: 0,
            device: None,
            expected: None,
            alone: false,
            what,
            state: State::Waiting,
        };
        self.write(&changing, &job)?;
        Ok(job)
    }

    /// Takes a job that nobody works at out of the list, with what it printed if it came to no run.
    ///
    /// # Errors
    /// [`Error::NoJob`], or [`Error::Refused`] while it runs.
    pub fn remove(&self, id: JobId) -> Result<(), Error> {
        let _changing = self.change()?;
        let job = self.job(id)?;
        if job.state.is_active() {
            return Err(Error::Refused(format!(
                "job {id} is running: stop it first"
            )));
        }
        let path = self.path(id);
        fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
        let _ = fs::remove_file(self.log_path(id));
        Ok(())
    }

    /// Puts a job that waits at a place among those that wait, 0 being next.
    ///
    /// # Errors
    /// [`Error::NoJob`], or [`Error::Refused`] when it does not wait.
    pub fn move_to(&self, id: JobId, place: usize) -> Result<(), Error> {
        let changing = self.change()?;
        let job = self.job(id)?;
        if job.state != State::Waiting {
            return Err(Error::Refused(format!("job {id} does not wait")));
        }
        let (mut jobs, _) = self.read()?;
        jobs.retain(|other| other.state == State::Waiting && other.id != id);
        jobs.sort_by_key(|job| (job.order, job.id));
        jobs.insert(place.min(jobs.len()), job);
        for (order, mut job) in (1..).zip(jobs) {
            if job.order != order {
                job.order = order;
                self.write(&changing, &job)?;
            }
        }
        Ok(())
    }

    /// Puts a job that ended behind those that wait; with `force` it is started whatever the check says.
    ///
    /// # Errors
    /// [`Error::NoJob`], or [`Error::Refused`] when it has not ended.
    pub fn retry(&self, id: JobId, force: bool) -> Result<Job, Error> {
        refuse_without_trainer()?;
        let changing = self.change()?;
        let mut job = self.job(id)?;
        if !matches!(job.state, State::Ended { .. }) {
            return Err(Error::Refused(format!("job {id} has not ended")));
        }
        let (jobs, _) = self.read()?;
        job.order = last_order(&jobs) + 1;
        job.attempts = 0;
        job.state = State::Waiting;
        (job.device, job.expected, job.alone) = (None, None, false);
        job.what.force = force;
        self.write(&changing, &job)?;
        Ok(job)
    }

    /// Asks the process of a job to stop: a check ends at once, a run finishes its step and saves.
    ///
    /// # Errors
    /// [`Error::NoJob`], or [`Error::Refused`] when it does not run.
    pub fn stop(&self, id: JobId) -> Result<(), Error> {
        match self.job(id)?.state {
            State::Running {
                process: Some(process),
                ..
            } => self.runs().stop_process(&process, false).map(drop),
            State::Checking {
                process: Some(process),
            } => signal_terminate(&process),
            _ => Err(Error::Refused(format!("job {id} is not running"))),
        }
    }

    /// Whether no further job is started.
    pub fn is_paused(&self) -> bool {
        self.folder.join("paused").exists()
    }

    /// Has no further job started, or starts them again. What runs goes on.
    ///
    /// # Errors
    /// When that cannot be noted.
    pub fn pause(&self, paused: bool) -> Result<(), Error> {
        let _changing = self.change()?;
        let path = self.folder.join("paused");
        let done = match paused {
            true => File::create(&path).map(drop),
            false => match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done,
            },
        };
        done.map_err(|error| Error::io("write", &path, error))
    }

    /// How many runs go on at once; one, where nobody has said anything that can be read.
    pub fn at_once(&self) -> AtOnce {
        let text = crate::runs::read_text(File::open(self.settings()), LONGEST);
        let read = text.and_then(|text| Ok(serde_json::from_str::<Settings>(&text)?));
        read.unwrap_or_default().at_once
    }

    /// Says how many runs go on at once. What runs goes on.
    ///
    /// # Errors
    /// When that cannot be noted.
    pub fn set_at_once(&self, at_once: AtOnce) -> Result<(), Error> {
        let _changing = self.change()?;
        replace(&self.settings(), &Settings { at_once })
    }

    fn settings(&self) -> PathBuf {
        self.folder.join("settings.json")
    }

    /// What is next for the one that works, who has these jobs in hand; `choose` says which of those that wait can
    /// begin, and where. Lets go of its lock when that is nothing, before somebody can add a job and see that it is
    /// taken care of.
    pub(super) fn next(
        &self,
        work_lock: &mut Option<File>,
        in_hand: &HashSet<JobId>,
        choose: impl FnOnce(&[Job]) -> Result<Option<Chosen>, Error>,
    ) -> Result<Next, Error> {
        let changing = self.change()?;
        let (mut jobs, _) = self.read()?;
        jobs.sort_by_key(|job| (job.order, job.id));
        let is_left = |job: &Job| job.state.is_active() && !in_hand.contains(&job.id);
        if let Some(begun) = jobs.iter().position(is_left) {
            return Ok(Next::TakeOver(jobs.swap_remove(begun)));
        }
        let waits = !self.is_paused() && jobs.iter().any(|job| job.state == State::Waiting);
        let chosen = waits.then(|| choose(&jobs)).transpose()?;
        if let Some((id, device)) = chosen.flatten()
            && let Some(chosen) = jobs.iter().position(|job| job.id == id)
        {
            let mut job = jobs.swap_remove(chosen);
            job.attempts += 1;
            job.device = device;
            job.state = State::Checking { process: None };
            self.write(&changing, &job)?;
            return Ok(Next::Start(job));
        }
        if waits || !in_hand.is_empty() {
            return Ok(Next::Later);
        }
        *work_lock = None;
        Ok(Next::Nothing)
    }

    /// Notes how a job stands now.
    pub(super) fn note(&self, job: &mut Job, state: State) -> Result<(), Error> {
        let changing = self.change()?;
        job.state = state;
        self.write(&changing, job)
    }

    /// Notes that a job runs, under a name that no run has.
    pub(super) fn note_running(&self, job: &mut Job, run: RunName) -> Result<(), Error> {
        let boot = boot_id();
        self.note(
            job,
            State::Running {
                process: None,
                boot,
                run,
            },
        )
    }

    fn change(&self) -> Result<Changing, Error> {
        let path = self.folder.join("lock");
        let io = |error| Error::io("lock", &path, error);
        fs::create_dir_all(&self.folder).map_err(io)?;
        let file = File::create(&path).map_err(io)?;
        file.lock().map_err(io)?;
        Ok(Changing { _lock: file })
    }

    /// All jobs, and the files that are none.
    fn read(&self) -> Result<(Vec<Job>, Vec<String>), Error> {
        let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
        for (id, path) in self.files()? {
            let job = crate::runs::read_text(File::open(&path), LONGEST);
            let job = job.and_then(|text| Ok(serde_json::from_str::<Job>(&text)?));
            match job {
                Ok(job) if job.id == id => jobs.push(job),
                Ok(job) => unreadable.push(format!("{}: it says job {}", path.display(), job.id)),
                // Taken away meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => unreadable.push(format!("{}: {error}", path.display())),
            }
        }
        Ok((jobs, unreadable))
    }

    fn files(&self) -> Result<Vec<(JobId, PathBuf)>, Error> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &self.folder, error)),
        };
        let files = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let id = name.strip_prefix("job-")?.strip_suffix(".json")?;
            Some((id.parse().ok()?, entry.path()))
        });
        Ok(files.collect())
    }

    fn newest_number(&self) -> Result<u64, Error> {
        let numbers = self.files()?.into_iter().map(|(id, _)| id.0);
        Ok(numbers.max().unwrap_or(0))
    }

    fn path(&self, id: JobId) -> PathBuf {
        self.folder.join(format!("job-{:06}.json", id.0))
    }

    /// Where a job prints to until its run has a folder.
    pub(super) fn log_path(&self, id: JobId) -> PathBuf {
        self.folder.join(format!("job-{:06}.log", id.0))
    }

    fn write(&self, _changing: &Changing, job: &Job) -> Result<(), Error> {
        replace(&self.path(job.id), job)
    }

    fn forget_oldest(&self, jobs: &mut Vec<Job>) {
        let now = now();
        let ended = |job: &Job| match job.state {
            // Or a clock that was set back would have the newest forgotten.
            State::Ended { at, .. } => Some(at.min(now)),
            _ => None,
        };
        jobs.sort_by_key(|job| (ended(job).is_none(), ended(job), job.id));
        let count = jobs.iter().filter(|job| ended(job).is_some()).count();
        for job in jobs.drain(..count.saturating_sub(KEPT - 1)) {
            let _ = fs::remove_file(self.path(job.id));
            let _ = fs::remove_file(self.log_path(job.id));
        }
    }
}

/// What is set for all jobs.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Settings {
    at_once: AtOnce,
}

/// Replaces a file: whoever reads it sees the old one or the new one.
fn replace(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let draft = path.with_extension("tmp");
    let text = serde_json::to_string_pretty(value);
    let written = text.map_err(io::Error::from).and_then(|text| {
        let mut file = File::create(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    });
    written.map_err(|error| {
        // A full disk is not to be made fuller.
        let _ = fs::remove_file(&draft);
        Error::io("write", path, error)
    })
}

fn last_order(jobs: &[Job]) -> u64 {
    jobs.iter().map(|job| job.order).max().unwrap_or(0)
}

pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// The end of a job.
pub(super) fn ended(how: Ended, error: Option<String>, run: Option<RunName>) -> State {
    State::Ended {
        how,
        error,
        at: now(),
        run,
    }
}

/// Whether a run has something to go on from.
pub(super) fn has_checkpoint(run: &Path) -> bool {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten();
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("step-")
    })
}
