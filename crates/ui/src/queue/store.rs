//! The files of the queue: reading them, and changing them under a lock.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::SystemTime;

use doctor::restart::Restarts;
use serde::{Deserialize, Serialize};

use super::job::{Ended, Job, JobId, NewJob, State, Work};
use super::scheduler::Assignment;
use super::{Concurrency, Listing, Queue};
use crate::runs::{Error, Overview, RunName, boot_id, identity, is_asked, signal_terminate};

/// How many ended jobs are kept.
const MAX_ENDED: usize = 100;
/// The most jobs that may wait.
const MAX_WAITING: usize = 1000;
/// The longest job file that is read, in bytes: a config and its settings.
const MAX_JOB_BYTES: u64 = 1 << 20;

/// What the worker does next.
pub(super) enum Next {
    /// Start this job, which is recorded as started.
    Start(Job),
    /// Take over this job, which an earlier worker started.
    TakeOver(Job),
    /// Wait for jobs to end.
    Wait,
    /// Nothing; the worker's lock has been released.
    Nothing,
}

/// Active while files are changed.
struct QueueLock {
    lock: File,
}

/// The jobs as they were read, shared until something changes.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// How often files had been changed under the lock, and what tells their files from others.
    stamp: Option<(u64, u64)>,
    jobs: Arc<Vec<Job>>,
    /// Files that are not readable jobs, each with the reason.
    unreadable: Arc<Vec<String>>,
    /// The highest number of a file.
    newest: u64,
    /// How often the files were read, for tests.
    #[cfg(test)]
    readings: u32,
}

impl Queue {
    /// The state of the queue.
    pub fn list(&self) -> Result<Listing, Error> {
        let known = self.read()?;
        let mut jobs = known.jobs.to_vec();
        let now = now();
        jobs.sort_by_key(|job| match job.state {
            State::Checking { .. } | State::Running { .. } => (0, 0, job.id),
            State::Waiting => (1, job.order, job.id),
            // A time in the future is from before the clock was set back.
            State::Ended { at, .. } => (2, u64::MAX - at.min(now), JobId(u64::MAX - job.id.0)),
        });
        Ok(Listing {
            paused: self.is_paused(),
            working: self.is_working(),
            at_once: self.at_once(),
            jobs,
            unreadable: known.unreadable.to_vec(),
        })
    }

    /// Whether a job is running and was asked to stop: it finishes its step.
    pub fn is_stopping(&self, job: &Job) -> bool {
        let process = job.state.process();
        process.is_some_and(|process| is_asked(self.runs(), process))
    }

    /// Whether there is a job that is so.
    pub(super) fn any(&self, is_so: impl Fn(&Job) -> bool) -> Result<bool, Error> {
        Ok(self.read()?.jobs.iter().any(is_so))
    }

    /// One job.
    pub fn job(&self, id: JobId) -> Result<Job, Error> {
        let known = self.read()?;
        let job = known.jobs.iter().find(|job| job.id == id);
        job.cloned().ok_or(Error::NoJob { job: id.0 })
    }

    /// Adds a job at the end of the queue.
    pub fn add(&self, what: NewJob) -> Result<Job, Error> {
        let (job, file) = self.add_unsynced(what)?;
        let path = self.path(job.id);
        file.sync_all()
            .map_err(|error| Error::io("write", &path, error))?;
        Ok(job)
    }

    /// Adds a job whose file is yet to be synced: a machine that loses its power before may forget it.
    pub(crate) fn add_unsynced(&self, what: NewJob) -> Result<(Job, File), Error> {
        let lock = self.lock()?;
        let mut known = match &what.work {
            Work::Train { .. } => self.read_under(&lock)?,
            // Refused by the states of others, which must be those of now.
            Work::Resume { .. } => self.read()?,
        };
        let is_waiting = |job: &&Job| job.state == State::Waiting;
        let is_full = |known: &Known| known.jobs.iter().filter(is_waiting).count() >= MAX_WAITING;
        if is_full(&known) {
            known = self.read()?;
        }
        let jobs = &*known.jobs;
        if is_full(&known) {
            return Err(Error::Refused(format!(
                "{MAX_WAITING} jobs are already waiting"
            )));
        }
        self.refuse_second_resume(jobs, &what)?;
        let mut id = JobId(known.newest + 1);
        while self.path(id).exists() {
            id.0 += 1;
        }
        let job = Job {
            id,
            order: last_order(jobs) + 1,
            added: now(),
            attempts: 0,
            restarts: Restarts::default(),
            device: None,
            expected: None,
            alone: false,
            what,
            state: State::Waiting,
        };
        let is_known = !self.forget_oldest(jobs);
        let file = replace(&self.path(job.id), &job, false)?;
        let added = self.path(job.id).metadata().ok();
        let added = added.map(|metadata| mark_of(job.id, &metadata));
        let count = lock.changed();
        // Nobody else changed anything: what is known now need not be read again.
        *self.known() = Known::default();
        if let (Some((_, marks)), Some(count), Some(added), true) =
            (known.stamp, count, added, is_known)
        {
            let stamp = (count, marks.wrapping_add(added));
            Arc::make_mut(&mut known.jobs).push(job.clone());
            known.newest = job.id.0;
            known.stamp = Some(stamp);
            *self.known() = known;
        }
        Ok((job, file))
    }

    /// Refuses to resume a run that is training, or that another job is to resume: it would start again once somebody
    /// stops it.
    fn refuse_second_resume(&self, jobs: &[Job], what: &NewJob) -> Result<(), Error> {
        let Work::Resume { run } = &what.work else {
            return Ok(());
        };
        let is_its = |job: &&Job| match &job.state {
            State::Ended { .. } => false,
            state => state.run() == Some(run) || job.what.work == what.work,
        };
        if let Some(job) = jobs.iter().find(is_its) {
            let id = job.id;
            return Err(Error::Refused(format!("job {id} already trains `{run}`")));
        }
        let is_running = |run: Overview| run.status.is_running();
        match self.runs().overview(run).is_ok_and(is_running) {
            true => Err(Error::Refused(format!("`{run}` is already running"))),
            false => Ok(()),
        }
    }

    /// Removes a job that is not active, with its log if it never had a run.
    ///
    /// # Errors
    /// [`Error::NoJob`], or [`Error::Refused`] while it runs.
    pub fn remove(&self, id: JobId) -> Result<(), Error> {
        let lock = self.lock()?;
        let job = self.job(id)?;
        if job.state.is_active() {
            return Err(Error::Refused(format!(
                "job {id} is running: stop it first"
            )));
        }
        let path = self.path(id);
        fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
        let _ = fs::remove_file(self.log_path(id));
        lock.changed();
        Ok(())
    }

    /// Moves a waiting job to a position among the waiting ones, where 0 is next.
    ///
    /// # Errors
    /// [`Error::NoJob`], or [`Error::Refused`] if it is not waiting.
    pub fn move_to(&self, id: JobId, place: usize) -> Result<(), Error> {
        let lock = self.lock()?;
        let job = self.job(id)?;
        if job.state != State::Waiting {
            return Err(Error::Refused(format!("job {id} is not waiting")));
        }
        let mut jobs = self.read()?.jobs.to_vec();
        jobs.retain(|other| other.state == State::Waiting && other.id != id);
        jobs.sort_by_key(|job| (job.order, job.id));
        jobs.insert(place.min(jobs.len()), job);
        for (order, mut job) in (1..).zip(jobs) {
            if job.order != order {
                job.order = order;
                self.write(&lock, &job)?;
            }
        }
        Ok(())
    }

    /// Puts an ended job at the end of the queue; with `force` it is started whatever the check says.
    ///
    /// # Errors
    /// [`Error::NoJob`], or [`Error::Refused`] if it has not ended.
    pub fn retry(&self, id: JobId, force: bool) -> Result<Job, Error> {
        let lock = self.lock()?;
        let mut job = self.job(id)?;
        if !matches!(job.state, State::Ended { .. }) {
            return Err(Error::Refused(format!("job {id} has not ended")));
        }
        let known = self.read()?;
        self.refuse_second_resume(&known.jobs, &job.what)?;
        job.order = last_order(&known.jobs) + 1;
        (job.attempts, job.restarts) = (0, Restarts::default());
        job.state = State::Waiting;
        (job.device, job.expected, job.alone) = (None, None, false);
        job.what.force = force;
        self.write(&lock, &job)?;
        Ok(job)
    }

    /// Asks the process of a job to stop: a check ends at once, a run finishes its step and saves.
    ///
    /// # Errors
    /// [`Error::NoJob`], or [`Error::Refused`] if it is not running.
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

    /// Whether the queue is paused.
    pub fn is_paused(&self) -> bool {
        self.folder.join("paused").exists()
    }

    /// Pauses or resumes the queue. Running jobs go on.
    pub fn pause(&self, paused: bool) -> Result<(), Error> {
        let _lock = self.lock()?;
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

    /// How many runs train at the same time; one if there is no readable setting.
    pub fn at_once(&self) -> Concurrency {
        let text = crate::runs::read_text(File::open(self.settings()), MAX_JOB_BYTES);
        let read = text.and_then(|text| Ok(serde_json::from_str::<Settings>(&text)?));
        read.unwrap_or_default().at_once
    }

    /// Sets how many runs train at the same time. Running jobs go on.
    pub fn set_at_once(&self, at_once: Concurrency) -> Result<(), Error> {
        let _lock = self.lock()?;
        replace(&self.settings(), &Settings { at_once }, true).map(drop)
    }

    fn settings(&self) -> PathBuf {
        self.folder.join("settings.json")
    }

    /// What the worker does next, given its active jobs; `choose` picks a waiting job that can start, and its device.
    /// If there is nothing to do, this releases the worker's lock while the queue is locked: whoever adds a job then
    /// sees that no worker is running.
    pub(super) fn next(
        &self,
        work_lock: &mut Option<File>,
        active: &HashSet<JobId>,
        choose: impl FnOnce(&[Job]) -> Result<Option<Assignment>, Error>,
    ) -> Result<Next, Error> {
        let lock = self.lock()?;
        let mut jobs = self.read()?.jobs.to_vec();
        jobs.sort_by_key(|job| (job.order, job.id));
        let is_left = |job: &Job| job.state.is_active() && !active.contains(&job.id);
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
            self.write(&lock, &job)?;
            return Ok(Next::Start(job));
        }
        if waits || !active.is_empty() {
            return Ok(Next::Wait);
        }
        *work_lock = None;
        Ok(Next::Nothing)
    }

    /// Records the new state of a job.
    pub(super) fn note(&self, job: &mut Job, state: State) -> Result<(), Error> {
        let lock = self.lock()?;
        job.state = state;
        self.write(&lock, job)
    }

    /// Records that a job is running, under a run name that is free.
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

    fn lock(&self) -> Result<QueueLock, Error> {
        let path = self.folder.join("lock");
        let io = |error| Error::io("lock", &path, error);
        fs::create_dir_all(&self.folder).map_err(io)?;
        let mut open = File::options();
        open.read(true).write(true).create(true).truncate(false);
        let lock = open.open(&path).map_err(io)?;
        lock.lock().map_err(io)?;
        Ok(QueueLock { lock })
    }

    #[cfg(test)]
    pub(crate) fn readings(&self) -> u32 {
        self.known().readings
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What changes with every change of a file: a count for those made under the lock, and a sum of marks for what
    /// somebody does by hand.
    fn stamp(&self) -> Option<(u64, u64)> {
        let count = File::open(self.folder.join("lock")).map_or(0, |lock| count_of(&lock));
        let mut marks = 0_u64;
        for entry in fs::read_dir(&self.folder).ok()?.flatten() {
            if let Some(id) = number_of(&entry.file_name()) {
                marks = marks.wrapping_add(mark_of(id, &entry.metadata().ok()?));
            }
        }
        Some((count, marks))
    }

    /// All jobs, where a look at the count is enough: with a thousand of them, one at each file takes longer than all
    /// else. What somebody does by hand is seen by [`read`](Self::read).
    fn read_under(&self, lock: &QueueLock) -> Result<Known, Error> {
        let known = self.known().clone();
        match known.stamp {
            Some((count, _)) if count == count_of(&lock.lock) => Ok(known),
            _ => self.read(),
        }
    }

    /// All jobs.
    fn read(&self) -> Result<Known, Error> {
        // Before the files, so that what changes meanwhile is seen the next time.
        let stamp = self.stamp();
        let known = self.known().clone();
        if stamp.is_some() && known.stamp == stamp {
            return Ok(known);
        }
        let read = Known {
            stamp,
            #[cfg(test)]
            readings: known.readings + 1,
            ..self.read_files()?
        };
        self.known().clone_from(&read);
        Ok(read)
    }

    fn read_files(&self) -> Result<Known, Error> {
        let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
        let files = self.files()?;
        let newest = files.iter().map(|(id, _)| id.0).max().unwrap_or(0);
        for (id, path) in files {
            let job = File::open(&path).and_then(|mut file| {
                self.jobs.get(id, &mut file, |file, _| {
                    let text = crate::runs::read_text(file.try_clone(), MAX_JOB_BYTES)?;
                    Ok(serde_json::from_str::<Job>(&text)?)
                })
            });
            match job {
                Ok(job) if job.id == id => jobs.push(job),
                Ok(job) => {
                    unreadable.push(format!("{}: it contains job {}", path.display(), job.id))
                }
                // Removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => unreadable.push(format!("{}: {error}", path.display())),
            }
        }
        Ok(Known {
            jobs: Arc::new(jobs),
            unreadable: Arc::new(unreadable),
            newest,
            ..Known::default()
        })
    }

    fn files(&self) -> Result<Vec<(JobId, PathBuf)>, Error> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &self.folder, error)),
        };
        let files = entries
            .flatten()
            .filter_map(|entry| Some((number_of(&entry.file_name())?, entry.path())));
        Ok(files.collect())
    }

    fn path(&self, id: JobId) -> PathBuf {
        self.folder.join(format!("job-{:06}.json", id.0))
    }

    /// The log of a job until its run has a folder.
    pub(super) fn log_path(&self, id: JobId) -> PathBuf {
        self.folder.join(format!("job-{:06}.log", id.0))
    }

    fn write(&self, lock: &QueueLock, job: &Job) -> Result<(), Error> {
        replace(&self.path(job.id), job, true)?;
        lock.changed();
        Ok(())
    }

    /// Removes what ended long ago; returns whether there was any.
    fn forget_oldest(&self, jobs: &[Job]) -> bool {
        let now = now();
        let ended = |job: &Job| match job.state {
            // Otherwise the newest would be removed after the clock was set back.
            State::Ended { at, .. } => Some(at.min(now)),
            _ => None,
        };
        let mut over: Vec<_> = jobs
            .iter()
            .filter_map(|job| Some((ended(job)?, job.id)))
            .collect();
        over.sort_unstable();
        over.truncate(over.len().saturating_sub(MAX_ENDED - 1));
        for (_, id) in &over {
            let _ = fs::remove_file(self.path(*id));
            let _ = fs::remove_file(self.log_path(*id));
        }
        !over.is_empty()
    }
}

/// How often something was changed under the lock; where nothing was yet, its file is empty.
fn count_of(mut lock: &File) -> u64 {
    let mut count = [0; 8];
    let read = lock.rewind().and_then(|()| lock.read_exact(&mut count));
    read.map_or(0, |()| u64::from_le_bytes(count))
}

/// The job that a file of this name is of.
fn number_of(name: &OsStr) -> Option<JobId> {
    let id = name.to_str()?.strip_prefix("job-")?.strip_suffix(".json")?;
    id.parse().ok()
}

/// What tells a file from others of the job, before and after.
fn mark_of(id: JobId, metadata: &fs::Metadata) -> u64 {
    let mut hasher = DefaultHasher::new();
    let file = (identity(metadata), metadata.len(), metadata.modified().ok());
    (id.0, file).hash(&mut hasher);
    hasher.finish()
}

impl QueueLock {
    /// Counts a change, and returns the count; `None` if that failed, as on a full disk.
    fn changed(&self) -> Option<u64> {
        let count = count_of(&self.lock).wrapping_add(1);
        let mut lock = &self.lock;
        lock.rewind().ok()?;
        lock.write_all(&count.to_le_bytes()).ok()?;
        Some(count)
    }
}

/// Settings of the queue.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Settings {
    at_once: Concurrency,
}

/// Replaces a file atomically; returns it, so that it can be synced if it is not yet.
fn replace(path: &Path, value: &impl Serialize, is_synced: bool) -> Result<File, Error> {
    let draft = path.with_extension("tmp");
    let text = serde_json::to_string_pretty(value);
    let written = text.map_err(io::Error::from).and_then(|text| {
        let mut file = File::create(&draft)?;
        file.write_all(text.as_bytes())?;
        if is_synced {
            file.sync_all()?;
        }
        fs::rename(&draft, path)?;
        Ok(file)
    });
    written.map_err(|error| {
        // Leave nothing behind on a full disk.
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
