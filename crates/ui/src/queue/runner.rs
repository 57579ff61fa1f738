//! Runs one job: checks it, trains it and follows it to its end, or takes it over from an earlier worker.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde::Deserialize;

use super::job::{Ended, Job, State, Work};
use super::log::{OUTPUT, plain};
use super::scheduler::{self, Assignment, CPU, Concurrency, Device, DeviceUse, WaitingJob};
use super::store::ended;
use super::worker::{Callbacks, InterruptedRun};
use super::{Queue, check, verdict};
use crate::runs::{
    Error, Process, RunName, Status, boot_id, is_asked, newest_checkpoint, wait_for,
};

/// How often to look for the folder of a starting run, and at a run of another process.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Starts of a job that ended with neither a result nor an error. After that many, the job is taken for the cause.
const MAX_ATTEMPTS: u32 = 3;
/// The most that is read of an error, from the end of a log, in bytes.
const MAX_ERROR_BYTES: u64 = 4 << 10;

/// The outcome of a check.
enum CheckOutcome {
    /// The run may start.
    Passed,
    /// Not now: other runs use the memory that it needs.
    Deferred,
    /// The job has ended: refused or stopped.
    End(State),
}

/// Runs the jobs of a queue.
pub(super) struct JobRunner<'a> {
    pub(super) queue: &'a Queue,
    pub(super) program: &'a Path,
    pub(super) callbacks: &'a Callbacks<'a>,
    devices: OnceLock<Vec<Device>>,
}

/// A run that is training, whoever started it.
struct ActiveRun {
    run: RunName,
    process: Option<Process>,
    device_use: DeviceUse,
}

impl<'a> JobRunner<'a> {
    pub(super) fn new(queue: &'a Queue, program: &'a Path, callbacks: &'a Callbacks<'a>) -> Self {
        Self {
            queue,
            program,
            callbacks,
            devices: OnceLock::new(),
        }
    }

    /// The devices of this machine, determined at the first call.
    fn devices(&self) -> &[Device] {
        self.devices
            .get_or_init(|| scheduler::devices(&(self.callbacks.diagnose)()))
    }

    /// The device of a run whose config names none.
    fn first_device(&self, at_once: Concurrency) -> String {
        // With one run at a time nothing depends on it.
        let first = (at_once != Concurrency::One).then(|| self.devices().first());
        first
            .flatten()
            .map_or_else(|| CPU.to_owned(), |device| device.name.clone())
    }

    /// All runs in the folder that are training.
    fn active_runs(&self, at_once: Concurrency) -> Result<Vec<ActiveRun>, Error> {
        let runs = self.queue.runs();
        let active_runs = runs.list()?.into_iter().filter_map(|run| {
            let Status::Running { process, .. } = run.status else {
                return None;
            };
            let detail = (at_once != Concurrency::One).then(|| runs.detail(&run.name).ok());
            let detail = detail.flatten();
            let device = detail
                .as_ref()
                .and_then(|detail| named_device(&detail.config, &[]));
            let expected = detail.and_then(|detail| detail.facts?.expected_memory["peak"].as_u64());
            Some(ActiveRun {
                run: run.name,
                process,
                device_use: DeviceUse {
                    device: device.unwrap_or_else(|| self.first_device(at_once)),
                    expected,
                },
            })
        });
        Ok(active_runs.collect())
    }

    /// What uses the devices: started jobs, and training runs that belong to none of them.
    fn device_uses(
        &self,
        at_once: Concurrency,
        jobs: &[Job],
        active_runs: &[ActiveRun],
    ) -> Vec<DeviceUse> {
        let begun: Vec<&Job> = jobs.iter().filter(|job| job.state.is_active()).collect();
        let ours = |active_runs: &&ActiveRun| {
            begun.iter().any(|job| {
                let is_its = job.state.process().is_some()
                    && job.state.process() == active_runs.process.as_ref();
                is_its || job.state.run() == Some(&active_runs.run)
            })
        };
        let of_job = |job: &&Job| DeviceUse {
            device: job
                .device
                .clone()
                .unwrap_or_else(|| self.first_device(at_once)),
            expected: job.expected,
        };
        let others = active_runs.iter().filter(|active_runs| !ours(active_runs));
        begun
            .iter()
            .map(of_job)
            .chain(others.map(|active_runs| active_runs.device_use.clone()))
            .collect()
    }

    /// The next job to start, and its device.
    pub(super) fn choose(
        &self,
        at_once: Concurrency,
        jobs: &[Job],
    ) -> Result<Option<Assignment>, Error> {
        let device_uses = self.device_uses(at_once, jobs, &self.active_runs(at_once)?);
        let waiting = jobs.iter().filter(|job| job.state == State::Waiting);
        let waiting_jobs: Vec<WaitingJob> = waiting
            .map(|job| WaitingJob {
                id: job.id,
                device: self.device_of(job),
                expected: job.expected,
                // Without a check its memory use is unknown.
                alone: job.alone || job.what.force,
            })
            .collect();
        let devices = match at_once {
            Concurrency::One => &[],
            _ => self.devices(),
        };
        Ok(scheduler::choose(
            at_once,
            devices,
            &device_uses,
            &waiting_jobs,
        ))
    }

    /// The device that a job's config names.
    fn device_of(&self, job: &Job) -> Option<String> {
        match &job.what.work {
            Work::Train { config, .. } => named_device(config, &job.what.set),
            Work::Resume { run } => {
                let detail = self.queue.runs().detail(run).ok()?;
                named_device(&detail.config, &job.what.set)
            }
        }
    }

    /// The device to pass to the trainer: none if the config names one, or if there is only one.
    fn device_argument<'b>(&self, job: &'b Job) -> Option<&'b str> {
        let device = job.device.as_deref()?;
        let is_choice = self.device_of(job).is_none() && self.devices().len() > 1;
        is_choice.then_some(device)
    }

    /// What else uses the device that a job is to start on.
    fn others(&self, job: &Job) -> Result<Vec<DeviceUse>, Error> {
        let at_once = self.queue.at_once();
        if at_once != Concurrency::Memory {
            return Ok(Vec::new());
        }
        let mut jobs = self.queue.list()?.jobs;
        jobs.retain(|other| other.id != job.id);
        let mut device_uses = self.device_uses(at_once, &jobs, &self.active_runs(at_once)?);
        device_uses.retain(|other| Some(&other.device) == job.device.as_ref());
        Ok(device_uses)
    }

    /// Checks a job, and trains it.
    pub(super) fn start(&self, mut job: Job) -> Result<(), Error> {
        if let Work::Resume { run } = &job.what.work
            && !self.queue.runs().exists(run)
        {
            let error = format!("there is no run `{run}` any more");
            return self
                .queue
                .note(&mut job, ended(Ended::Refused, Some(error), None));
        }
        if !job.what.force {
            match self.check(&mut job)? {
                CheckOutcome::Passed => {}
                CheckOutcome::Deferred => {
                    job.attempts = job.attempts.saturating_sub(1);
                    job.device = None;
                    return self.queue.note(&mut job, State::Waiting);
                }
                CheckOutcome::End(end) => return self.queue.note(&mut job, end),
            }
        }
        self.train(job)
    }

    /// A dry run, and on a GPU the doctor's findings about it.
    fn check(&self, job: &mut Job) -> Result<CheckOutcome, Error> {
        let name = job.what.name.clone();
        let refused = |error: String| CheckOutcome::End(ended(Ended::Refused, Some(error), None));
        let others = self.others(job)?;
        let spawned = self.spawn(job, &name, true);
        let (mut child, log) = match spawned {
            Ok(spawned) => spawned,
            Err(error) => return Ok(refused(format!("cannot start the check: {error}"))),
        };
        let log_start = log.metadata().map_or(0, |log| log.len());
        self.queue.note(
            job,
            State::Checking {
                process: Process::of(child.id()),
            },
        )?;
        // Something else may keep the output open after a check that was stopped, as Wine's console does.
        let output = child.stdout.take();
        let output = std::thread::spawn(move || check::read(output));
        let io = |error| Error::io("wait for", self.program, error);
        let status = child.wait().map_err(io)?;
        if !status.success() {
            if let Some(2 | 15) = signal(status) {
                return Ok(CheckOutcome::End(ended(Ended::Stopped, None, None)));
            }
            let failure = failure(&log, log_start, status);
            if !others.is_empty() && verdict::is_out_of_memory(&failure) {
                job.alone = true;
                return Ok(CheckOutcome::Deferred);
            }
            return Ok(refused(verdict::explained(failure)));
        }
        let found = output.join().unwrap_or_default();
        let found: serde_json::Value = serde_json::from_str(&found).unwrap_or_default();
        job.expected = found["memory_estimate"]["peak"].as_u64();
        let advice = found["advice"].as_array().into_iter().flatten();
        let advice: Vec<&str> = advice.filter_map(|advice| advice.as_str()).collect();
        if !self.has_room(job, &others, advice.is_empty()) {
            job.alone = job.expected.is_none() || !advice.is_empty();
            return Ok(CheckOutcome::Deferred);
        }
        if !advice.is_empty() {
            return Ok(refused(verdict::too_large(&advice)));
        }
        let device = found["environment"]["device"].as_str().unwrap_or_default();
        if device.starts_with("GPU")
            && let Some(objections) = verdict::objections(
                &(self.callbacks.diagnose)(),
                job.device.as_deref().unwrap_or(device),
            )
        {
            return Ok(refused(objections));
        }
        Ok(CheckOutcome::Passed)
    }

    /// Whether the memory of the device is enough for a job beside what already uses it. A job that has the device
    /// to itself always has room.
    fn has_room(&self, job: &Job, others: &[DeviceUse], fits: bool) -> bool {
        if others.is_empty() {
            return true;
        }
        let mut devices = self.devices().iter();
        let device = devices.find(|device| Some(&device.name) == job.device.as_ref());
        let capacity = device.and_then(|device| device.capacity);
        let expected = job.expected;
        fits && expected.is_some_and(|expected| scheduler::fits_beside(capacity, others, expected))
    }

    fn train(&self, mut job: Job) -> Result<(), Error> {
        let run = match &job.what.work {
            Work::Train { .. } => self.free_name(&job.what.name)?,
            Work::Resume { run } => run.clone(),
        };
        self.queue.note_running(&mut job, run.clone())?;
        let (mut child, log) = match self.spawn(&job, &run, false) {
            Ok(spawned) => spawned,
            Err(error) => {
                let error = format!("cannot start the trainer: {error}");
                return self
                    .queue
                    .note(&mut job, ended(Ended::Failed, Some(error), None));
            }
        };
        let log_start = log.metadata().map_or(0, |log| log.len());
        let process = Process::of(child.id());
        let state = State::Running {
            process: process.clone(),
            boot: boot_id(),
            run: run.clone(),
        };
        self.queue.note(&mut job, state)?;
        let run = match &process {
            Some(process) => self.follow(&mut job, process, run)?,
            None => run,
        };
        let status = child.wait();
        let status = status.map_err(|error| Error::io("wait for", self.program, error))?;
        self.move_log(&job, &run);
        let end = self.ending(&run, Some((status, &log, log_start)));
        let end = self.after_fault(&mut job, &run, end, (&log, log_start));
        self.queue.note(&mut job, end)?;
        self.report_interruption(&job, &run);
        Ok(())
    }

    /// Reports a run that could not report its own end, unless somebody stopped it.
    fn report_interruption(&self, job: &Job, run: &RunName) {
        let has_failed = matches!(&job.state, State::Ended { how, .. } if *how == Ended::Failed);
        let Ok(detail) = self.queue.runs().detail(run) else {
            return;
        };
        if has_failed && detail.overview.status == Status::Interrupted {
            (self.callbacks.on_interrupted)(&InterruptedRun {
                run: run.clone(),
                step: detail.overview.latest.step,
                notify_url: notify_url(&detail.config),
            });
        }
    }

    /// Waits for a training process to end, and finds out meanwhile which run it trains.
    fn follow(
        &self,
        job: &mut Job,
        process: &Process,
        expected_run: RunName,
    ) -> Result<RunName, Error> {
        let (mut run, mut is_found) = (expected_run, false);
        while !wait_for(process, (!is_found).then_some(POLL_INTERVAL)).unwrap_or(true) {
            let Some(found) = self.run_of(process, &run)? else {
                continue;
            };
            is_found = true;
            self.move_log(job, &found);
            if found != run {
                run = found;
                let state = State::Running {
                    process: Some(process.clone()),
                    boot: process.boot.clone(),
                    run: run.clone(),
                };
                self.queue.note(job, state)?;
            }
        }
        Ok(run)
    }

    /// Continues a job that another worker started.
    pub(super) fn take_over(&self, mut job: Job) -> Result<(), Error> {
        match job.state.clone() {
            State::Running { process, boot, run } => {
                let run = match &process {
                    Some(process) => self.follow(&mut job, process, run)?,
                    None => run,
                };
                // The process may have started without having been recorded.
                while let Some(Status::Running { process, .. }) = self.status(&run) {
                    wait(process.as_ref(), POLL_INTERVAL);
                }
                self.move_log(&job, &run);
                let mut end = self.ending(&run, None);
                let is_unexplained = matches!(
                    end,
                    State::Ended {
                        how: Ended::Failed,
                        ..
                    }
                ) && !matches!(self.status(&run), Some(Status::Failed { .. }));
                let was_cut_off = is_unexplained && boot != boot_id();
                // It was asked to stop before it could do anything else.
                if is_unexplained
                    && process.is_some_and(|process| is_asked(self.queue.runs(), &process))
                {
                    end = ended(Ended::Stopped, None, self.status(&run).map(|_| run.clone()));
                }
                if !was_cut_off || job.attempts >= MAX_ATTEMPTS {
                    self.queue.note(&mut job, end)?;
                    self.report_interruption(&job, &run);
                    return Ok(());
                }
                if newest_checkpoint(&self.queue.runs().root().join(run.as_str())).is_some() {
                    job.what.work = Work::Resume { run };
                    job.what.set.clear();
                }
                self.queue.note(&mut job, State::Waiting)
            }
            State::Checking { process } => {
                if let Some(process) = &process {
                    let _ = wait_for(process, None);
                }
                if job.attempts < MAX_ATTEMPTS {
                    return self.queue.note(&mut job, State::Waiting);
                }
                let error = format!("its check was cut off {MAX_ATTEMPTS} times");
                self.queue
                    .note(&mut job, ended(Ended::Refused, Some(error), None))
            }
            State::Waiting | State::Ended { .. } => Ok(()),
        }
    }

    fn status(&self, run: &RunName) -> Option<Status> {
        self.queue.runs().overview(run).ok().map(|run| run.status)
    }

    /// How a run ended, from its exit code and its log if they are known, and from its folder.
    fn ending(&self, run: &RunName, exit: Option<(ExitStatus, &File, u64)>) -> State {
        let status = self.status(run);
        let there = status.is_some().then(|| run.clone());
        let failed = |error| ended(Ended::Failed, Some(error), there.clone());
        match (status, exit) {
            (Some(Status::Failed { error: Some(error) }), _) => failed(error),
            (_, Some((exit, ..))) if matches!(signal(exit), Some(2 | 15)) => {
                ended(Ended::Stopped, None, there)
            }
            (_, Some((exit, log, log_start))) if !exit.success() => {
                failed(failure(log, log_start, exit))
            }
            (Some(Status::Completed), _) => ended(Ended::Completed, None, there),
            (Some(Status::Stopped | Status::Running { .. }), _) => {
                ended(Ended::Stopped, None, there)
            }
            (Some(Status::Failed { error: None }), _) => failed("the run failed".into()),
            (Some(Status::Interrupted), _) => {
                failed("it ended without a message: it was killed, or the machine went down".into())
            }
            (None, _) => failed("it ended before its run began".into()),
        }
    }

    /// The run that a process trains: usually the expected one.
    fn run_of(&self, process: &Process, expected_run: &RunName) -> Result<Option<RunName>, Error> {
        let is_its = |status: &Status| matches!(status, Status::Running { process: Some(holder), .. } if holder == process);
        if self.status(expected_run).as_ref().is_some_and(is_its) {
            return Ok(Some(expected_run.clone()));
        }
        let runs = self.queue.runs().list()?;
        let mut its = runs.into_iter().filter(|run| is_its(&run.status));
        Ok(its.next().map(|run| run.name))
    }

    /// The first free name of `name`, `name-2`, …
    fn free_name(&self, name: &RunName) -> Result<RunName, Error> {
        let root = self.queue.runs().root();
        for number in 1_u32.. {
            let text = match number {
                1 => name.to_string(),
                _ => format!("{name}-{number}"),
            };
            let free = RunName::parse(&text).map_err(|error| Error::Refused(error.to_string()))?;
            if root.join(free.as_str()).symlink_metadata().is_err() {
                return Ok(free);
            }
        }
        Err(Error::Refused(format!("no free name like `{name}`")))
    }

    /// Starts `surefoot train`, whose output goes to the job's log, which is returned; the result of a check is piped.
    fn spawn(&self, job: &Job, run: &RunName, is_check: bool) -> io::Result<(Child, File)> {
        let device = self.device_argument(job);
        let mut command = check::command(self.queue, self.program, &job.what, run, device)?;
        let log = self.log(job)?;
        command.env("SUREFOOT_RESTARTS", job.restarts.count().to_string());
        command.stderr(log.try_clone()?);
        match is_check {
            true => command.args(["--dry-run", "--json"]).stdout(Stdio::piped()),
            false => command.stdout(log.try_clone()?),
        };
        Ok((check::spawn(command, &job.what)?, log))
    }

    /// The job's log, opened for appending: in the run's folder if a run is resumed, else beside the job.
    fn log(&self, job: &Job) -> io::Result<File> {
        let path = match &job.what.work {
            Work::Train { .. } => self.queue.log_path(job.id),
            Work::Resume { run } => self.queue.runs().root().join(run.as_str()).join(OUTPUT),
        };
        // Never follow a symbolic link in the run's folder.
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        #[cfg(unix)]
        {
            let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
            std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags);
        }
        let log = options.open(path)?;
        match log.metadata()?.is_file() {
            true => Ok(log),
            false => Err(io::Error::other("the log is not a regular file")),
        }
    }

    /// Moves the log of a job into the folder of its run. A process that writes to it is not affected.
    fn move_log(&self, job: &Job, run: &RunName) {
        let folder = self.queue.runs().root().join(run.as_str());
        let target = folder.join(OUTPUT);
        if self.queue.runs().exists(run) && target.symlink_metadata().is_err() {
            // If this fails, it is read from its old place.
            let _ = std::fs::rename(self.queue.log_path(job.id), target);
        }
    }
}

/// Waits for a process to end, or for `at_most` if the process is not known.
fn wait(process: Option<&Process>, at_most: Duration) {
    let ended = process.and_then(|process| wait_for(process, Some(at_most)).ok());
    if ended.is_none() {
        std::thread::sleep(at_most);
    }
}

/// The device that a config or `--set` names; `auto` and `gpu` name none.
fn named_device(config: &str, set: &[String]) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Named {
        device: Option<String>,
    }
    let read = |text: &str| serde_saphyr::from_str::<Option<Named>>(text).ok().flatten();
    let mut device = read(config).and_then(|named| named.device);
    for set in set.iter().filter_map(|set| set.strip_prefix("device=")) {
        device = read(&format!("device: {set}")).and_then(|named| named.device);
    }
    device.filter(|device| !matches!(&**device, "auto" | "gpu"))
}

/// `notify.url` of a config.
fn notify_url(config: &str) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Notify {
        url: Option<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Config {
        notify: Notify,
    }
    let config = serde_saphyr::from_str::<Config>(config).ok()?;
    config.notify.url
}

/// The signal that ended a process; on Windows, which has exit codes only, that of Ctrl-C.
fn signal(status: ExitStatus) -> Option<i32> {
    #[cfg(unix)]
    {
        std::os::unix::process::ExitStatusExt::signal(&status)
    }
    #[cfg(windows)]
    {
        const SIGINT: i32 = 2;
        let code = status.code().map(i32::cast_unsigned);
        (code == Some(platform::requests::ENDED_BY_CTRL_C)).then_some(SIGINT)
    }
}

/// The last error in the log after byte `log_start`, or else how the process ended.
fn failure(log: &File, log_start: u64, status: ExitStatus) -> String {
    let text = last_output(log, log_start);
    let said = match text.rfind("surefoot: ") {
        Some(at) => &text[at + "surefoot: ".len()..],
        None => "",
    };
    match (said.trim(), signal(status)) {
        ("", Some(9)) => "it was killed, as the kernel does when memory runs out".to_owned(),
        (_, Some(signal)) => format!("it was killed by signal {signal}"),
        ("", None) => format!("it ended with exit code {}", status.code().unwrap_or(1)),
        (said, None) => said.to_owned(),
    }
}

/// The end of what the log has after byte `log_start`.
pub(super) fn last_output(mut log: &File, log_start: u64) -> String {
    let mut bytes = Vec::new();
    let end = log.seek(SeekFrom::End(0)).unwrap_or(0);
    let from = log_start.max(end.saturating_sub(MAX_ERROR_BYTES));
    let _ = log.seek(SeekFrom::Start(from));
    let _ = log.take(MAX_ERROR_BYTES).read_to_end(&mut bytes);
    plain(&String::from_utf8_lossy(&bytes))
}
