//! One job in hand: checked, trained, followed to its end, or taken over from whoever began it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde::Deserialize;

use super::job::{Ended, Job, State, Work};
use super::log::{OUTPUT, plain};
use super::places::{self, Asking, AtOnce, CPU, Chosen, Device, Occupant};
use super::store::{ended, has_checkpoint};
use super::worker::{Around, CutOff};
use super::{Queue, check, verdict};
use crate::runs::{Error, Process, RunName, Status, boot_id, is_asked, wait_for};

/// Between two looks for the folder of a run that begins, and at a run that is not ours.
const LOOK: Duration = Duration::from_millis(200);
/// Beginnings of a job that ended with neither a result nor an error: more, and it is taken for what ends them.
const ATTEMPTS: u32 = 3;
/// Most bytes of what a check prints.
const LONGEST_CHECK: u64 = 1 << 20;
/// Most bytes of an error, from the end of a log.
const LONGEST_ERROR: u64 = 4 << 10;

/// What a check came to.
enum Checked {
    /// The run may begin.
    Fine,
    /// Not now: others take the memory that it needs.
    Later,
    /// Never, or somebody stopped it.
    End(State),
}

/// What works at jobs.
pub(super) struct Hand<'a> {
    pub(super) queue: &'a Queue,
    pub(super) program: &'a Path,
    pub(super) around: &'a Around<'a>,
    devices: OnceLock<Vec<Device>>,
}

/// A run that goes on, whoever started it.
struct Going {
    run: RunName,
    process: Option<Process>,
    occupant: Occupant,
}

impl<'a> Hand<'a> {
    pub(super) fn new(queue: &'a Queue, program: &'a Path, around: &'a Around<'a>) -> Self {
        Self {
            queue,
            program,
            around,
            devices: OnceLock::new(),
        }
    }

    /// The devices of this machine, as they were when somebody first asked.
    fn devices(&self) -> &[Device] {
        self.devices
            .get_or_init(|| places::devices(&(self.around.diagnose)()))
    }

    /// The device of whoever names none.
    fn first_device(&self, at_once: AtOnce) -> String {
        // Nothing depends on it where there is one at a time.
        let first = (at_once != AtOnce::One).then(|| self.devices().first());
        first
            .flatten()
            .map_or_else(|| CPU.to_owned(), |device| device.name.clone())
    }

    /// All runs that go on in the folder.
    fn going(&self, at_once: AtOnce) -> Result<Vec<Going>, Error> {
        let runs = self.queue.runs();
        let going = runs.list()?.into_iter().filter_map(|run| {
            let Status::Running { process, .. } = run.status else {
                return None;
            };
            let detail = (at_once != AtOnce::One).then(|| runs.detail(&run.name).ok());
            let detail = detail.flatten();
            let device = detail
                .as_ref()
                .and_then(|detail| named_device(&detail.config, &[]));
            let expected = detail.and_then(|detail| detail.expected_memory?["peak"].as_u64());
            Some(Going {
                run: run.name,
                process,
                occupant: Occupant {
                    device: device.unwrap_or_else(|| self.first_device(at_once)),
                    expected,
                },
            })
        });
        Ok(going.collect())
    }

    /// Who is on a device: jobs that were begun, and runs that are none of theirs.
    fn occupants(&self, at_once: AtOnce, jobs: &[Job], going: &[Going]) -> Vec<Occupant> {
        let begun: Vec<&Job> = jobs.iter().filter(|job| job.state.is_active()).collect();
        let ours = |going: &&Going| {
            begun.iter().any(|job| {
                let is_its =
                    job.state.process().is_some() && job.state.process() == going.process.as_ref();
                is_its || job.state.run() == Some(&going.run)
            })
        };
        let of_job = |job: &&Job| Occupant {
            device: job
                .device
                .clone()
                .unwrap_or_else(|| self.first_device(at_once)),
            expected: job.expected,
        };
        let others = going.iter().filter(|going| !ours(going));
        begun
            .iter()
            .map(of_job)
            .chain(others.map(|going| going.occupant.clone()))
            .collect()
    }

    /// The job to begin next, and on which device.
    pub(super) fn choose(&self, at_once: AtOnce, jobs: &[Job]) -> Result<Option<Chosen>, Error> {
        let occupants = self.occupants(at_once, jobs, &self.going(at_once)?);
        let waiting = jobs.iter().filter(|job| job.state == State::Waiting);
        let asking: Vec<Asking> = waiting
            .map(|job| Asking {
                id: job.id,
                device: self.device_of(job),
                expected: job.expected,
                // Nobody knows what an unchecked one will take.
                alone: job.alone || job.what.force,
            })
            .collect();
        let devices = match at_once {
            AtOnce::One => &[],
            _ => self.devices(),
        };
        Ok(places::choose(at_once, devices, &occupants, &asking))
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

    /// What is said to the trainer of the device: nothing where the config does, or where there is no other.
    fn told_device<'b>(&self, job: &'b Job) -> Option<&'b str> {
        let device = job.device.as_deref()?;
        let is_choice = self.device_of(job).is_none() && self.devices().len() > 1;
        is_choice.then_some(device)
    }

    /// Who is where a job is about to begin.
    fn beside(&self, job: &Job) -> Result<Vec<Occupant>, Error> {
        let at_once = self.queue.at_once();
        if at_once != AtOnce::Memory {
            return Ok(Vec::new());
        }
        let mut jobs = self.queue.list()?.jobs;
        jobs.retain(|other| other.id != job.id);
        let mut occupants = self.occupants(at_once, &jobs, &self.going(at_once)?);
        occupants.retain(|other| Some(&other.device) == job.device.as_ref());
        Ok(occupants)
    }

    /// Checks a job, and trains.
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
                Checked::Fine => {}
                Checked::Later => {
                    job.attempts = job.attempts.saturating_sub(1);
                    job.device = None;
                    return self.queue.note(&mut job, State::Waiting);
                }
                Checked::End(end) => return self.queue.note(&mut job, end),
            }
        }
        self.train(job)
    }

    /// A dry run, and on a GPU what the doctor says of it.
    fn check(&self, job: &mut Job) -> Result<Checked, Error> {
        let name = job.what.name.clone();
        let refused = |error: String| Checked::End(ended(Ended::Refused, Some(error), None));
        let beside = self.beside(job)?;
        let spawned = self.spawn(job, &name, true);
        let (mut child, log) = match spawned {
            Ok(spawned) => spawned,
            Err(error) => return Ok(refused(format!("cannot start the check: {error}"))),
        };
        let begins = log.metadata().map_or(0, |log| log.len());
        self.queue.note(
            job,
            State::Checking {
                process: Process::of(child.id()),
            },
        )?;
        let mut found = Vec::new();
        if let Some(output) = child.stdout.take() {
            let _ = output.take(LONGEST_CHECK).read_to_end(&mut found);
        }
        let io = |error| Error::io("wait for", self.program, error);
        let status = child.wait().map_err(io)?;
        if !status.success() {
            if let Some(2 | 15) = signal(status) {
                return Ok(Checked::End(ended(Ended::Stopped, None, None)));
            }
            let why = why(&log, begins, status);
            if !beside.is_empty() && verdict::is_out_of_memory(&why) {
                job.alone = true;
                return Ok(Checked::Later);
            }
            return Ok(refused(verdict::explained(why)));
        }
        let found: serde_json::Value = serde_json::from_slice(&found).unwrap_or_default();
        job.expected = found["memory_estimate"]["peak"].as_u64();
        let advice = found["advice"].as_array().into_iter().flatten();
        let advice: Vec<&str> = advice.filter_map(|advice| advice.as_str()).collect();
        if !self.has_room(job, &beside, advice.is_empty()) {
            job.alone = job.expected.is_none() || !advice.is_empty();
            return Ok(Checked::Later);
        }
        if !advice.is_empty() {
            return Ok(refused(verdict::too_large(&advice)));
        }
        let device = found["environment"]["device"].as_str().unwrap_or_default();
        if device.starts_with("GPU")
            && let Some(against) = verdict::against(
                &(self.around.diagnose)(),
                job.device.as_deref().unwrap_or(device),
            )
        {
            return Ok(refused(against));
        }
        Ok(Checked::Fine)
    }

    /// Whether the memory of a device goes round for a job and those who were there before it. Who is there alone
    /// has all that there is.
    fn has_room(&self, job: &Job, beside: &[Occupant], fits: bool) -> bool {
        if beside.is_empty() {
            return true;
        }
        let mut devices = self.devices().iter();
        let device = devices.find(|device| Some(&device.name) == job.device.as_ref());
        let capacity = device.and_then(|device| device.capacity);
        let expected = job.expected;
        fits && expected.is_some_and(|expected| places::fits_beside(capacity, beside, expected))
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
        let begins = log.metadata().map_or(0, |log| log.len());
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
        let end = self.ending(&run, Some((status, &log, begins)));
        self.queue.note(&mut job, end)?;
        self.tell_of_a_cut(&job, &run);
        Ok(())
    }

    /// Tells of a run that could not do so itself, unless somebody ended it.
    fn tell_of_a_cut(&self, job: &Job, run: &RunName) {
        let has_failed = matches!(&job.state, State::Ended { how, .. } if *how == Ended::Failed);
        let Ok(detail) = self.queue.runs().detail(run) else {
            return;
        };
        if has_failed && detail.overview.status == Status::Interrupted {
            (self.around.tell)(&CutOff {
                run: run.clone(),
                step: detail.overview.latest.step,
                notify_url: notify_url(&detail.config),
            });
        }
    }

    /// Waits for the end of a process that trains, and sees meanwhile which run that is.
    fn follow(&self, job: &mut Job, process: &Process, told: RunName) -> Result<RunName, Error> {
        let (mut run, mut is_found) = (told, false);
        while !wait_for(process, (!is_found).then_some(LOOK)).unwrap_or(true) {
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

    /// Goes on with what another worker began.
    pub(super) fn take_over(&self, mut job: Job) -> Result<(), Error> {
        match job.state.clone() {
            State::Running { process, boot, run } => {
                let run = match &process {
                    Some(process) => self.follow(&mut job, process, run)?,
                    None => run,
                };
                // The process may have begun without having been noted.
                while let Some(Status::Running { process, .. }) = self.status(&run) {
                    wait(process.as_ref(), LOOK);
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
                // Asked before it could do more than end.
                if is_unexplained
                    && process.is_some_and(|process| is_asked(self.queue.runs(), &process))
                {
                    end = ended(Ended::Stopped, None, self.status(&run).map(|_| run.clone()));
                }
                if !was_cut_off || job.attempts >= ATTEMPTS {
                    self.queue.note(&mut job, end)?;
                    self.tell_of_a_cut(&job, &run);
                    return Ok(());
                }
                if has_checkpoint(&self.queue.runs().root().join(run.as_str())) {
                    job.what.work = Work::Resume { run };
                    job.what.set.clear();
                }
                self.queue.note(&mut job, State::Waiting)
            }
            State::Checking { process } => {
                if let Some(process) = &process {
                    let _ = wait_for(process, None);
                }
                if job.attempts < ATTEMPTS {
                    return self.queue.note(&mut job, State::Waiting);
                }
                let error = format!("its check was cut off {ATTEMPTS} times");
                self.queue
                    .note(&mut job, ended(Ended::Refused, Some(error), None))
            }
            State::Waiting | State::Ended { .. } => Ok(()),
        }
    }

    fn status(&self, run: &RunName) -> Option<Status> {
        self.queue.runs().overview(run).ok().map(|run| run.status)
    }

    /// How a run ended, by its exit code and its log where they are known, and by what its folder has.
    fn ending(&self, run: &RunName, exit: Option<(ExitStatus, &File, u64)>) -> State {
        let status = self.status(run);
        let there = status.is_some().then(|| run.clone());
        let failed = |error| ended(Ended::Failed, Some(error), there.clone());
        match (status, exit) {
            (Some(Status::Failed { error: Some(error) }), _) => failed(error),
            (_, Some((exit, ..))) if matches!(signal(exit), Some(2 | 15)) => {
                ended(Ended::Stopped, None, there)
            }
            (_, Some((exit, log, begins))) if !exit.success() => failed(why(log, begins, exit)),
            (Some(Status::Completed), _) => ended(Ended::Completed, None, there),
            (Some(Status::Stopped | Status::Running { .. }), _) => {
                ended(Ended::Stopped, None, there)
            }
            (Some(Status::Failed { error: None }), _) => failed("the run failed".into()),
            (Some(Status::Interrupted), _) => {
                failed("it ended without a word: killed, or the machine went down".into())
            }
            (None, _) => failed("it ended before its run began".into()),
        }
    }

    /// The run that a process trains: mostly the one that it was told to.
    fn run_of(&self, process: &Process, told: &RunName) -> Result<Option<RunName>, Error> {
        let is_its = |status: &Status| matches!(status, Status::Running { process: Some(holder), .. } if holder == process);
        if self.status(told).as_ref().is_some_and(is_its) {
            return Ok(Some(told.clone()));
        }
        let runs = self.queue.runs().list()?;
        let mut its = runs.into_iter().filter(|run| is_its(&run.status));
        Ok(its.next().map(|run| run.name))
    }

    /// `name`, `name-2`, …: the first that is free.
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

    /// `surefoot train`, with what it prints going to the job's log, which is returned; of a check, what is printed
    /// as its result is read by us.
    fn spawn(&self, job: &Job, run: &RunName, is_check: bool) -> io::Result<(Child, File)> {
        let device = self.told_device(job);
        let mut command = check::command(self.queue, self.program, &job.what, run, device)?;
        let log = self.log(job)?;
        command.stderr(log.try_clone()?);
        match is_check {
            true => command.args(["--dry-run", "--json"]).stdout(Stdio::piped()),
            false => command.stdout(log.try_clone()?),
        };
        Ok((check::spawn(command, &job.what)?, log))
    }

    /// The log of a job, to write at its end: in the folder of a run that is resumed, else beside the job.
    fn log(&self, job: &Job) -> io::Result<File> {
        let path = match &job.what.work {
            Work::Train { .. } => self.queue.log_path(job.id),
            Work::Resume { run } => self.queue.runs().root().join(run.as_str()).join(OUTPUT),
        };
        // Never through a link that lies in the folder.
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

    /// Puts the log of a job into the folder of its run; whoever writes it goes on.
    fn move_log(&self, job: &Job, run: &RunName) {
        let folder = self.queue.runs().root().join(run.as_str());
        let target = folder.join(OUTPUT);
        if self.queue.runs().exists(run) && target.symlink_metadata().is_err() {
            // Where it cannot be, it is read where it was.
            let _ = std::fs::rename(self.queue.log_path(job.id), target);
        }
    }
}

/// Waits for a process, or, where it cannot be told which one it is, for a while.
fn wait(process: Option<&Process>, at_most: Duration) {
    let ended = process.and_then(|process| wait_for(process, Some(at_most)).ok());
    if ended.is_none() {
        std::thread::sleep(at_most);
    }
}

/// The device that a config names, or what is set beside it; `auto` and `gpu` name none.
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

/// The signal that ended a process; on Windows every end is an exit code.
fn signal(status: ExitStatus) -> Option<i32> {
    #[cfg(unix)]
    {
        std::os::unix::process::ExitStatusExt::signal(&status)
    }
    #[cfg(windows)]
    {
        let _ = status;
        None
    }
}

/// The last error that was printed behind `begins`, or how the process ended.
fn why(mut log: &File, begins: u64, status: ExitStatus) -> String {
    let mut bytes = Vec::new();
    let end = log.seek(SeekFrom::End(0)).unwrap_or(0);
    let from = begins.max(end.saturating_sub(LONGEST_ERROR));
    let _ = log.seek(SeekFrom::Start(from));
    let _ = log.take(LONGEST_ERROR).read_to_end(&mut bytes);
    let text = plain(&String::from_utf8_lossy(&bytes));
    let said = match text.rfind("surefoot: ") {
        Some(at) => &text[at + "surefoot: ".len()..],
        None => "",
    };
    match (said.trim(), signal(status)) {
        ("", Some(9)) => "it was killed; where memory is short, the kernel does that".to_owned(),
        (_, Some(signal)) => format!("it was ended by signal {signal}"),
        ("", None) => format!("it ended with exit code {}", status.code().unwrap_or(1)),
        (said, None) => said.to_owned(),
    }
}
