//! `surefoot runs add` and `surefoot runs queue`: the queue of runs to train.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use doctor::report::diagnose;
use surefoot_cli::live::{self, Python};
use surefoot_cli::notify::{self, Event};
use surefoot_cli::output::{self, Failure};
use surefoot_ui::queue::{
    self, Callbacks, Concurrency, InterruptedRun, Job, JobId, Listing, NewJob, Question, Queue,
    State, Work, WorkerExit,
};
use surefoot_ui::runs::{RunName, Runs};

use super::runs::{columns, failure, print_json, printable};

/// Add a run to the queue, which is worked through in the background
///
/// A dry run first checks whether it can work. A run that fails does not keep the next one from starting.
#[derive(clap::Args)]
pub(crate) struct Add {
    /// The config: a YAML file
    #[arg(required_unless_present = "resume")]
    config: Option<PathBuf>,

    /// Override a key of the config, such as `train.max_steps=50`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "resume")]
    set: Vec<String>,

    /// The name of the run [default: `name` of the config]
    #[arg(long, conflicts_with = "resume")]
    name: Option<RunName>,

    /// Resume a run of the folder, from its newest checkpoint
    #[arg(long, value_name = "RUN", conflicts_with = "config")]
    resume: Option<RunName>,

    /// Start it even where the dry run says that it cannot work
    #[arg(long)]
    force: bool,
}

/// Show and change the queue
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List all jobs: running, waiting and ended (the default)
    List,
    /// Start waiting jobs; also after a reboot
    Start,
    /// Start no more jobs; running ones go on
    Pause,
    /// Set how many runs train at the same time: `one`, `per_gpu` (one per GPU), or `memory` (on each GPU as many as
    /// their memory estimates allow); without an argument, show the setting
    Concurrency {
        /// `one`, `per_gpu` or `memory`
        at_once: Option<Concurrency>,
    },
    /// Move a waiting job to another position, 1 being next
    Move {
        /// Its number
        job: JobId,
        /// The position among the waiting jobs
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        place: u32,
    },
    /// Remove a job that is not running from the queue
    Remove {
        /// Its number
        job: JobId,
    },
    /// Ask the run of a job to finish its step, save and end; a check ends at once
    Stop {
        /// Its number
        job: JobId,
    },
    /// Put an ended job at the end of the queue
    Retry {
        /// Its number
        job: JobId,
        /// Start it even where the dry run says that it cannot work
        #[arg(long)]
        force: bool,
    },
    /// Show the latest output of a job
    Log {
        /// Its number
        job: JobId,
    },
    /// Work through the queue, in a session of its own, until it is empty
    #[command(hide = true)]
    Work,
}

/// How long the check of a config may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// Refuses a config with mistakes before it waits in the queue; a run that is resumed has none.
fn check(queue: &Queue, job: &NewJob) -> Result<(), Failure> {
    if job.force || matches!(job.work, Work::Resume { .. }) {
        return Ok(());
    }
    let program = program()?;
    let asked = queue.ask(&program, job, Question::Config, CHECK_TIMEOUT);
    let asked = asked.map_err(failure)?;
    if let Some(error) = asked.error {
        return Err(Failure::usage(error));
    }
    let found = asked.found.unwrap_or_default();
    let problems = found["problems"].as_array().into_iter().flatten();
    let lines = problems.map(|problem| {
        let text = |key: &str| problem[key].as_str().unwrap_or_default().to_owned();
        let (source, message) = (text("source"), text("message"));
        let help = match text("help") {
            help if help.is_empty() => help,
            help => format!(" ({help})"),
        };
        format!(
            "{source}:{}:{}: {message}{help}",
            problem["line"], problem["column"]
        )
    });
    let lines: Vec<String> = lines.collect();
    match lines.is_empty() {
        true => Ok(()),
        false => Err(Failure::usage(lines.join("\n"))),
    }
}

/// Adds a job, and ensures that a worker is running.
pub(crate) fn add(runs: Runs, args: &Add, json: bool) -> Result<(), Failure> {
    let mut folder = std::env::current_dir().context("cannot tell the current folder")?;
    let (name, work) = match (&args.resume, &args.config) {
        (Some(run), _) => {
            runs.overview(run).map_err(failure)?;
            // Relative paths in its config start where it was started.
            folder = runs.origin(run).unwrap_or(folder);
            (run.clone(), Work::Resume { run: run.clone() })
        }
        (None, path) => {
            let path = path.as_deref().unwrap_or(Path::new(""));
            let config = std::fs::read_to_string(path).map_err(|error| {
                Failure::usage(format_args!("cannot read `{}`: {error}", path.display()))
            })?;
            let name = match &args.name {
                Some(name) => name.clone(),
                None => queue::name_of(&config, &args.set).map_err(Failure::usage)?,
            };
            let elsewhere = queue::output_elsewhere(&config, &args.set, &folder, runs.root());
            if let Some(place) = elsewhere {
                return Err(Failure::usage(format_args!(
                    "`output_dir` ({place}) is not the folder of runs, `{}`: name it with `--runs`, or remove the key",
                    runs.root().display(),
                )));
            }
            let source = path.display().to_string();
            (name, Work::Train { config, source })
        }
    };
    let queue = Queue::new(runs);
    let job = NewJob {
        name,
        work,
        set: args.set.clone(),
        folder,
        confined_to: None,
        force: args.force,
    };
    check(&queue, &job)?;
    let job = queue.add(job).map_err(failure)?;
    ensure_worker(&queue)?;
    if json {
        return print_json(&job);
    }
    let after = match queue.is_paused() {
        true => "; the queue is paused: `surefoot runs queue start`",
        false => "",
    };
    output::print(&format!("job {}: {}{after}\n", job.id, job.what.name))?;
    Ok(())
}

/// Runs the command.
pub(crate) fn run(runs: Runs, args: &Args, json: bool) -> Result<(), Failure> {
    let queue = Queue::new(runs);
    match args.command.as_ref().unwrap_or(&Command::List) {
        Command::List => {
            let listing = queue.list().map_err(failure)?;
            match json {
                true => print_json(&listing)?,
                false => output::print(&table(&listing))?,
            }
        }
        Command::Start => {
            queue.pause(false).map_err(failure)?;
            ensure_worker(&queue)?;
        }
        Command::Pause => queue.pause(true).map_err(failure)?,
        Command::Concurrency { at_once: None } => match json {
            true => print_json(&queue.at_once())?,
            false => output::print(&format!("{}\n", queue.at_once()))?,
        },
        Command::Concurrency {
            at_once: Some(at_once),
        } => queue.set_at_once(*at_once).map_err(failure)?,
        Command::Move { job, place } => {
            let place = usize::try_from(*place).unwrap_or(usize::MAX);
            queue.move_to(*job, place - 1).map_err(failure)?;
        }
        Command::Remove { job } => queue.remove(*job).map_err(failure)?,
        Command::Stop { job } => queue.stop(*job).map_err(failure)?,
        Command::Retry { job, force } => {
            queue.retry(*job, *force).map_err(failure)?;
            ensure_worker(&queue)?;
        }
        Command::Log { job } => match queue.job_log(*job, None).map_err(failure)? {
            Some(part) if json => print_json(&part)?,
            Some(part) => output::print(&part.text)?,
            None => output::print("it has not printed anything yet\n")?,
        },
        Command::Work => {
            // This fails if the process already leads a session, which is fine.
            #[cfg(unix)]
            let _ = rustix::process::setsid();
            let callbacks = Callbacks {
                diagnose: &|| diagnose(live::machine(&Python::Skip)),
                on_interrupted: &notify_interrupted,
            };
            let worked = queue::work(&queue, &program()?, &callbacks).map_err(failure)?;
            if worked == WorkerExit::Elsewhere {
                eprintln!("surefoot: another process is already working through this queue");
            }
        }
    }
    Ok(())
}

/// Sends the notification that a run was interrupted to the URL in its config.
fn notify_interrupted(run: &InterruptedRun) {
    if let Some(url) = &run.notify_url {
        notify::tell(
            url,
            run.run.as_str(),
            &Event::Interrupted { step: run.step },
        );
    }
}

/// Starts a worker for the queue, if it needs one.
fn ensure_worker(queue: &Queue) -> Result<(), Failure> {
    if queue.needs_worker().map_err(failure)? {
        queue.start_worker(&program()?).map_err(failure)?;
    }
    Ok(())
}

fn program() -> Result<PathBuf, Failure> {
    Ok(std::env::current_exe().context("cannot tell where this executable is")?)
}

fn table(listing: &Listing) -> String {
    let mut rows = vec![
        ["job", "run", "state", "device", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(listing.jobs.iter().map(row));
    let mut text = match listing.jobs.is_empty() {
        true => "no jobs; `surefoot runs add CONFIG` adds one\n".to_owned(),
        false => columns(&rows),
    };
    if listing.paused {
        text += "paused: `surefoot runs queue start` resumes it\n";
    }
    for unreadable in &listing.unreadable {
        text += &format!("{}\n", printable(unreadable));
    }
    text
}

fn row(job: &Job) -> Vec<String> {
    let run = job.state.run().unwrap_or(&job.what.name);
    let more = match &job.state {
        State::Ended {
            error: Some(error), ..
        } => printable(error.lines().next().unwrap_or_default()),
        State::Waiting | State::Checking { .. } if job.what.force => "forced".to_owned(),
        State::Waiting if job.alone => "waits for a device of its own".to_owned(),
        _ => String::new(),
    };
    vec![
        job.id.to_string(),
        run.to_string(),
        job.state.word().to_owned(),
        job.device.clone().unwrap_or_default(),
        more,
    ]
}
