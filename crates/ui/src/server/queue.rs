//! The handlers of the routes for the queue, and for requests to a run.
//!
//! A config from the network may only name paths in the server's folder, the folder of the runs and the folders
//! that were allowed explicitly. The trainer, which knows which config values are paths, enforces that.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State as Shared};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::State;
use super::api::{bad, blocking, parse};
use super::describe::Body;
use super::error::Refusal;
use crate::queue::{
    Asked, Concurrency, Job, JobId, LogPart, NewJob, Question, Work, name_of, output_elsewhere,
};
use crate::runs::{Request, RunName};

type Answer<T> = Result<T, Refusal>;
type Of<T> = Shared<Arc<T>>;

/// The most keys that a job may override.
const MAX_SETTINGS: usize = 50;
/// The longest value of a key, in bytes.
const MAX_VALUE_BYTES: usize = 4 << 10;
/// Timeout for checking a config.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request waits for the one before it.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a dry run, which may load a model.
pub(super) const DRY_RUN_TIMEOUT: Duration = Duration::from_secs(600);

/// How runs are started.
pub(crate) struct Launch {
    /// `surefoot`.
    pub(crate) program: PathBuf,
    /// Where relative paths in a config start from.
    pub(crate) folder: PathBuf,
    /// The folders that paths in a config may lead to.
    pub(crate) allowed: Vec<PathBuf>,
}

/// A job for the page: without the text of its config.
#[derive(PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Job")]
pub(super) struct ShownJob {
    #[serde(flatten)]
    #[schemars(with = "Job")]
    job: Value,
    /// Whether it was asked to stop and is finishing its step.
    stopping: bool,
}

fn shown(state: &State, job: &Job) -> ShownJob {
    let stopping = state.queue.is_stopping(job);
    let mut job = json!(job);
    if let Some(fields) = job.as_object_mut() {
        fields.remove("confined_to");
        if let Some(work) = fields.get_mut("work").and_then(Value::as_object_mut) {
            work.remove("config");
        }
    }
    ShownJob { job, stopping }
}

/// What a job trains.
#[derive(Serialize, JsonSchema)]
pub(super) struct JobConfig {
    /// The config, as YAML.
    config: String,
    /// Keys that override it.
    set: BTreeMap<String, String>,
}

/// The config of a job, which has no run if it waits or was refused.
pub(super) async fn job_config(
    Shared(state): Of<State>,
    Path(job): Path<String>,
) -> Answer<Json<JobConfig>> {
    let job = number(&job)?;
    blocking(move || {
        let what = state.queue.job(job)?.what;
        let config = match what.work {
            Work::Train { config, .. } => config,
            Work::Resume { run } => state.runs.detail(&run)?.config,
        };
        let set = what.set.iter().filter_map(|set| set.split_once('='));
        let set = set.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let set = set.collect();
        Ok(Json(JobConfig { config, set }))
    })
    .await
}

/// The state of the queue.
#[derive(PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Queue")]
pub(super) struct ShownQueue {
    paused: bool,
    /// Whether a worker process is running.
    working: bool,
    at_once: Concurrency,
    jobs: Vec<ShownJob>,
    /// Files that are not readable jobs, each with the reason.
    unreadable: Vec<String>,
}

pub(super) fn listing(state: &State) -> Answer<ShownQueue> {
    let listing = state.queue.list()?;
    Ok(ShownQueue {
        paused: listing.paused,
        working: listing.working,
        at_once: listing.at_once,
        jobs: listing.jobs.iter().map(|job| shown(state, job)).collect(),
        unreadable: listing.unreadable,
    })
}

pub(super) async fn list(Shared(state): Of<State>) -> Answer<Json<ShownQueue>> {
    blocking(move || Ok(Json(listing(&state)?))).await
}

/// What to train: a config, that of another run with changes, or the rest of a run.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "NewJob")]
pub(super) struct Wanted {
    /// A config, as YAML.
    config: Option<String>,
    /// A run whose config is used, or that `config` is a changed one of: its relative paths start where that run's do.
    like: Option<String>,
    /// A run that is to go on.
    resume: Option<String>,
    /// The name of the run; a number is appended if that is taken.
    name: Option<String>,
    /// Keys that override the config.
    set: BTreeMap<String, String>,
    /// Start it even if the check says that it cannot work.
    force: bool,
}

/// A question about the data of a config.
#[derive(Deserialize, JsonSchema)]
pub(super) struct Look {
    /// How many rows or media files.
    rows: Option<u64>,
    #[serde(flatten)]
    #[schemars(with = "Wanted")]
    wanted: serde_json::Map<String, Value>,
}

impl Wanted {
    /// Parses a request to show data.
    pub(super) fn look(Look { rows, wanted }: Look) -> Answer<(Self, Option<u64>)> {
        let wanted = serde_json::from_value(Value::Object(wanted));
        Ok((
            wanted.map_err(|error| bad(format!("the request's body is invalid: {error}")))?,
            rows,
        ))
    }
}

fn new_job(state: &State, wanted: Wanted, is_look: bool) -> Answer<NewJob> {
    let settings = set_of(&wanted.set)?;
    let origin = wanted.like.as_deref().or(wanted.resume.as_deref());
    let origin = origin.map(RunName::parse).transpose()?;
    let (work, name, mut set) = match (wanted.config, wanted.like, wanted.resume) {
        (Some(config), like, None) => {
            let (folder, root) = (&state.launch.folder, state.runs.root());
            if let Some(place) = output_elsewhere(&config, &[], folder, root) {
                let root = root.display();
                return Err(bad(format!(
                    "`output_dir` ({place}) is not the folder of runs, `{root}`: remove the key"
                )));
            }
            if let Some(run) = &origin {
                state.runs.overview(run)?;
            }
            let source = "config".to_owned();
            // It is a new run, not a continuation.
            let set = like.map(|_| "train.resume_from_checkpoint=null".to_owned());
            let set = set.into_iter().collect();
            (Work::Train { config, source }, None, set)
        }
        (None, Some(like), None) => {
            let run = RunName::parse(&like)?;
            let config = state.runs.detail(&run)?.config;
            let source = format!("{run}/config.yaml");
            // It is a new run, not a continuation.
            let set = vec!["train.resume_from_checkpoint=null".to_owned()];
            (Work::Train { config, source }, Some(run), set)
        }
        (None, None, Some(resume)) => {
            if !settings.is_empty() || wanted.name.is_some() {
                return Err(bad(
                    "a run is resumed as it is: `set` and `name` are for new ones",
                ));
            }
            let run = RunName::parse(&resume)?;
            state.runs.overview(&run)?;
            let name = Some(run.clone());
            (Work::Resume { run }, name, Vec::new())
        }
        _ => {
            return Err(bad(
                "name one of `config`, `like` and `resume`; `like` may be beside a `config`",
            ));
        }
    };
    set.extend(settings);
    let name = match (wanted.name, name, &work) {
        (Some(name), ..) => RunName::parse(&name)?,
        (None, Some(name), _) => name,
        // If it is not a config, the trainer's message says so, with the position.
        (None, None, Work::Train { config, .. }) if is_look && !is_mapping(config) => {
            RunName::parse("run")?
        }
        (None, None, Work::Train { config, .. }) => name_of(config, &set).map_err(bad)?,
        (None, None, Work::Resume { run }) => run.clone(),
    };
    let launch = &state.launch;
    let is_new = matches!(work, Work::Train { .. });
    // Relative paths in the config of a run start where that was started.
    let folder = origin.and_then(|run| state.runs.origin(&run));
    Ok(NewJob {
        name,
        work,
        set,
        folder: folder.unwrap_or_else(|| launch.folder.clone()),
        confined_to: is_new.then(|| launch.allowed.clone()),
        force: wanted.force,
    })
}

/// Whether a text is a YAML mapping, or empty.
fn is_mapping(config: &str) -> bool {
    let read = serde_saphyr::from_str::<Option<Value>>(config);
    matches!(read, Ok(None | Some(Value::Null | Value::Object(_))))
}

/// The values in the form of `--set`.
fn set_of(set: &BTreeMap<String, String>) -> Answer<Vec<String>> {
    if set.len() > MAX_SETTINGS {
        return Err(bad(format!("at most {MAX_SETTINGS} keys can be set")));
    }
    let is_key = |key: &str| {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
        (1..=100).contains(&key.len()) && key.bytes().all(is_letter)
    };
    let settings = set.iter().map(|(key, value)| match () {
        () if !is_key(key) => Err(bad(format!("{key:?} is not a key of a config"))),
        () if matches!(&**key, "name" | "output_dir") => Err(bad(format!(
            "`{key}` cannot be set here: `name` of the request names the run"
        ))),
        () if value.len() > MAX_VALUE_BYTES || value.contains('\0') => Err(bad(format!(
            "the value of `{key}` is too long, or not text"
        ))),
        () => Ok(format!("{key}={value}")),
    });
    settings.collect()
}

pub(super) async fn add(
    Shared(state): Of<State>,
    Body(wanted): Body<Wanted>,
) -> Answer<(StatusCode, Json<ShownJob>)> {
    blocking(move || {
        let (job, file) = state.queue.add_unsynced(new_job(&state, wanted, false)?)?;
        // The answer does not wait for the disk, which takes longer than all else.
        std::thread::spawn(move || file.sync_all());
        if state.queue.waits_for_worker() {
            state.queue.start_worker(&state.launch.program)?;
        }
        Ok((StatusCode::CREATED, Json(shown(&state, &job))))
    })
    .await
}

pub(super) async fn check(
    Shared(state): Of<State>,
    Body(wanted): Body<Wanted>,
) -> Answer<Json<Asked>> {
    ask(&state, wanted, Question::Config, CHECK_TIMEOUT)
        .await
        .map(Json)
}

pub(super) async fn dry_run(
    Shared(state): Of<State>,
    Body(wanted): Body<Wanted>,
) -> Answer<Json<Asked>> {
    ask(&state, wanted, Question::DryRun, DRY_RUN_TIMEOUT)
        .await
        .map(Json)
}

/// How a model fits into memory. Such questions have turns of their own, for which they wait: checks of what is being
/// written do not wait for them.
pub(super) async fn fits(
    Shared(state): Of<State>,
    Body(wanted): Body<Wanted>,
) -> Answer<Json<Asked>> {
    let permit = state.fitting.clone().acquire_owned().await.ok();
    ask_now(&state, wanted, Question::Fits, CHECK_TIMEOUT * 4, permit)
        .await
        .map(Json)
}

/// Asks the trainer, one question at a time: the next waits for a moment, since a page asks again
/// while the answer to its last question is still being made.
pub(super) async fn ask(
    state: &Arc<State>,
    wanted: Wanted,
    question: Question,
    at_most: Duration,
) -> Answer<Asked> {
    let permit = permit(state).await?;
    ask_now(state, wanted, question, at_most, Some(permit)).await
}

async fn ask_now(
    state: &Arc<State>,
    wanted: Wanted,
    question: Question,
    at_most: Duration,
    permit: Option<OwnedSemaphorePermit>,
) -> Answer<Asked> {
    let state = state.clone();
    blocking(move || {
        // Even if the client is gone: the next one must wait for this one.
        let _permit = permit;
        let job = new_job(&state, wanted, question == Question::Config)?;
        let program = &state.launch.program;
        Ok(state.queue.ask(program, &job, question, at_most)?)
    })
    .await
}

/// The turn to ask the trainer something.
pub(super) async fn permit(state: &State) -> Answer<OwnedSemaphorePermit> {
    let permit = tokio::time::timeout(QUEUE_TIMEOUT, state.asking.clone().acquire_owned());
    let Ok(Ok(permit)) = permit.await else {
        return Err(Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            "another config is being checked: try again in a moment",
        ));
    };
    Ok(permit)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Pause {
    paused: bool,
}

pub(super) async fn pause(
    Shared(state): Of<State>,
    Body(Pause { paused }): Body<Pause>,
) -> Answer<Json<ShownQueue>> {
    blocking(move || {
        state.queue.pause(paused)?;
        state.ensure_worker()?;
        Ok(Json(listing(&state)?))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    at_once: Concurrency,
}

pub(super) async fn settings(
    Shared(state): Of<State>,
    Body(Settings { at_once }): Body<Settings>,
) -> Answer<Json<ShownQueue>> {
    blocking(move || {
        state.queue.set_at_once(at_once)?;
        Ok(Json(listing(&state)?))
    })
    .await
}

pub(super) async fn remove(
    Shared(state): Of<State>,
    Path(job): Path<String>,
) -> Answer<StatusCode> {
    let job = number(&job)?;
    blocking(move || {
        state.queue.remove(job)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Move {
    /// Position among the waiting jobs, from 1.
    place: usize,
}

pub(super) async fn move_to(
    Shared(state): Of<State>,
    Path(job): Path<String>,
    Body(Move { place }): Body<Move>,
) -> Answer<Json<ShownQueue>> {
    let job = number(&job)?;
    let place = place
        .checked_sub(1)
        .ok_or_else(|| bad("positions are counted from 1"))?;
    blocking(move || {
        state.queue.move_to(job, place)?;
        Ok(Json(listing(&state)?))
    })
    .await
}

pub(super) async fn stop(Shared(state): Of<State>, Path(job): Path<String>) -> Answer<StatusCode> {
    let job = number(&job)?;
    blocking(move || {
        state.queue.stop(job)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Retry {
    force: bool,
}

pub(super) async fn retry(
    Shared(state): Of<State>,
    Path(job): Path<String>,
    Body(retry): Body<Option<Retry>>,
) -> Answer<Json<ShownJob>> {
    let job = number(&job)?;
    let Retry { force } = retry.unwrap_or_default();
    blocking(move || {
        let job = state.queue.retry(job, force)?;
        state.ensure_worker()?;
        Ok(Json(shown(&state, &job)))
    })
    .await
}

/// The position of a log's reader.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct At {
    inode: Option<u64>,
    offset: Option<u64>,
}

type AtQuery = Result<Query<At>, axum::extract::rejection::QueryRejection>;

fn position(at: AtQuery) -> Answer<Option<(u64, u64)>> {
    let Query(at) = at.map_err(|error| bad(error.body_text()))?;
    Ok(at.inode.zip(at.offset))
}

pub(super) async fn job_log(
    Shared(state): Of<State>,
    Path(job): Path<String>,
    at: AtQuery,
) -> Answer<Json<Option<LogPart>>> {
    let (job, at) = (number(&job)?, position(at)?);
    blocking(move || Ok(Json(state.queue.job_log(job, at)?))).await
}

pub(super) async fn run_log(
    Shared(state): Of<State>,
    Path(name): Path<String>,
    at: AtQuery,
) -> Answer<Json<Option<LogPart>>> {
    let (name, at) = (RunName::parse(&name)?, position(at)?);
    blocking(move || Ok(Json(state.queue.run_log(&name, at)?))).await
}

pub(super) async fn save(Shared(state): Of<State>, Path(name): Path<String>) -> Answer<StatusCode> {
    request(state, name, Request::Save).await
}

pub(super) async fn sample(
    Shared(state): Of<State>,
    Path(name): Path<String>,
) -> Answer<StatusCode> {
    request(state, name, Request::Sample).await
}

async fn request(state: Arc<State>, name: String, request: Request) -> Answer<StatusCode> {
    let name = RunName::parse(&name)?;
    blocking(move || {
        state.runs.ask(&name, request)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

fn number(text: &str) -> Answer<JobId> {
    text.parse()
        .map_err(|error: String| Refusal::new(StatusCode::NOT_FOUND, error))
}

/// Parses bytes as each of the bodies above, for [`parsers`](super::parsers).
pub(super) fn read_bodies(bytes: &[u8]) {
    if let Ok(wanted) = parse::<Wanted>(bytes)
        && let Ok(set) = set_of(&wanted.set)
    {
        for set in &set {
            assert!(
                !set.starts_with(['-', '=']) && !set.contains('\0'),
                "{set:?}"
            );
        }
        let name = wanted.config.map(|config| name_of(&config, &set));
        drop(name);
    }
    let _ = (parse::<Pause>(bytes), parse::<Settings>(bytes));
    let _ = (parse::<Move>(bytes), parse::<Retry>(bytes));
}
