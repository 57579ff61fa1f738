//! The handlers of the routes for runs and the machine.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, RawQuery, State as Shared};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use doctor::Report;
use doctor::explain::{Explanation, Hints, explain_with};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::describe::{self, Body};
use super::error::Refusal;
use super::{State, lock, routes};
use crate::gpus;
use crate::runs::{
    self, Curves, Event, Latest, Metrics, Overview, Range, RunName, SampleSet, Status, Stopping,
};

type Answer<T> = Result<T, Refusal>;
type Of<T> = Shared<Arc<T>>;

/// The most bytes of samples in one answer.
const MAX_SAMPLE_BYTES: usize = 2 << 20;
/// The most runs that are compared at once.
const MAX_COMPARED: usize = 8;

/// Runs work that reads files on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    tokio::task::spawn_blocking(work).await?
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Session {
    token: String,
}

/// Sets the cookie in exchange for the token.
pub(super) async fn session(
    Shared(state): Of<State>,
    Body(Session { token }): Body<Session>,
) -> Answer<Response> {
    if !state.guard.token().is(&token) {
        return Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "that is not the token of this server",
        ));
    }
    let cookie = [(header::SET_COOKIE, state.guard.cookie())];
    Ok((StatusCode::NO_CONTENT, cookie).into_response())
}

/// The description of the API.
pub(super) async fn openapi() -> Json<Value> {
    Json(describe::description(&routes::routes()))
}

/// The schema of the config.
pub(super) async fn schema() -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, routes::SCHEMA).into_response()
}

/// All runs.
#[derive(Serialize, JsonSchema)]
pub(super) struct RunList {
    /// The folder of runs.
    folder: PathBuf,
    runs: Vec<Overview>,
}

pub(super) async fn runs(Shared(state): Of<State>) -> Answer<Json<RunList>> {
    blocking(move || {
        Ok(Json(RunList {
            folder: std::path::absolute(state.runs.root()).unwrap_or_default(),
            runs: state.runs.list()?,
        }))
    })
    .await
}

pub(super) async fn run(
    Shared(state): Of<State>,
    Path(name): Path<String>,
) -> Answer<Json<runs::Detail>> {
    let name = RunName::parse(&name)?;
    blocking(move || Ok(Json(state.runs.detail(&name)?))).await
}

pub(super) async fn remove(
    Shared(state): Of<State>,
    Path(name): Path<String>,
) -> Answer<StatusCode> {
    let name = RunName::parse(&name)?;
    blocking(move || {
        state.runs.remove(&name)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Keeps what the user notes of a run, unless the notes have changed meanwhile.
pub(super) async fn note(
    Shared(state): Of<State>,
    Path(name): Path<String>,
    Body(change): Body<runs::NotesChange>,
) -> Answer<StatusCode> {
    let name = RunName::parse(&name)?;
    blocking(move || {
        state.runs.set_notes(&name, change)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Stop {
    /// Send the signal again: it ends the run without saving.
    again: bool,
}

pub(super) async fn stop(
    Shared(state): Of<State>,
    Path(name): Path<String>,
    Body(stop): Body<Option<Stop>>,
) -> Answer<Json<Stopping>> {
    let name = RunName::parse(&name)?;
    let Stop { again } = stop.unwrap_or_default();
    blocking(move || Ok(Json(state.runs.stop(&name, again)?))).await
}

/// The metrics of a run.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Metrics")]
pub(super) struct Measured {
    inode: u64,
    offset: u64,
    train: Curves,
    eval: Curves,
    events: VecDeque<Event>,
    /// Earlier events that are not among these.
    dropped_events: u64,
    unreadable_lines: u64,
    latest: Latest,
}

pub(super) async fn curves(
    Shared(state): Of<State>,
    Path(name): Path<String>,
    range: Result<Query<Range>, axum::extract::rejection::QueryRejection>,
) -> Answer<Json<Measured>> {
    let name = RunName::parse(&name)?;
    let Query(range) = range.map_err(|error| bad(error.body_text()))?;
    // The requested part is parsed from the start of the file, so only a few at a time.
    let permit = match range == Range::default() {
        true => None,
        false => state.scans.clone().acquire_owned().await.ok(),
    };
    blocking(move || {
        let _permit = permit;
        let metrics = match range == Range::default() {
            true => state.metrics(&name),
            false => Arc::new(std::sync::Mutex::new(Metrics::new(range))),
        };
        let mut metrics = lock(&metrics);
        if let Some(mut file) = state.runs.metrics_file(&name)? {
            metrics.update(&mut file)?;
        }
        let (events, dropped_events) = metrics.events();
        Ok(Json(Measured {
            inode: metrics.inode(),
            offset: metrics.offset(),
            train: metrics.train(),
            eval: metrics.eval(),
            events: events.clone(),
            dropped_events,
            unreadable_lines: metrics.unreadable(),
            latest: metrics.latest(),
        }))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Wanted {
    /// How many sets of samples, the latest ones.
    count: usize,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { count: 20 }
    }
}

/// The latest samples of a run.
#[derive(Default, Serialize, JsonSchema)]
pub(super) struct Samples {
    /// All steps that have samples.
    steps: Vec<u64>,
    sets: Vec<SampleSet>,
}

pub(super) async fn samples(
    Shared(state): Of<State>,
    Path(name): Path<String>,
    wanted: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Answer<Json<Samples>> {
    let name = RunName::parse(&name)?;
    let Query(Wanted { count }) = wanted.map_err(|error| bad(error.body_text()))?;
    blocking(move || {
        let metrics = state.metrics(&name);
        let mut metrics = lock(&metrics);
        let Some(mut file) = state.runs.metrics_file(&name)? else {
            return Ok(Json(Samples::default()));
        };
        metrics.update(&mut file)?;
        let sets = metrics.samples(&mut file, count.clamp(1, 200), MAX_SAMPLE_BYTES)?;
        let steps = metrics.sample_steps();
        Ok(Json(Samples { steps, sets }))
    })
    .await
}

/// `?run=a&run=b`.
pub(super) async fn compare(
    Shared(state): Of<State>,
    RawQuery(query): RawQuery,
) -> Answer<Json<runs::Comparison>> {
    let names = run_names(&query.unwrap_or_default())?;
    if !(1..=MAX_COMPARED).contains(&names.len()) {
        return Err(bad(format!(
            "name 1 to {MAX_COMPARED} runs, as in `?run=a&run=b`"
        )));
    }
    blocking(move || Ok(Json(runs::compare(&state.runs, &names)?))).await
}

/// The values of `run`, which may occur several times.
fn run_names(query: &str) -> Answer<Vec<RunName>> {
    let pairs: Vec<(String, String)> = serde_urlencoded(query)?;
    let names = pairs.into_iter().map(|(key, value)| match &*key {
        "run" => Ok(RunName::parse(&value)?),
        key => Err(bad(format!(
            "unknown parameter `{key}`: only `run` is allowed"
        ))),
    });
    names.collect()
}

fn serde_urlencoded(query: &str) -> Answer<Vec<(String, String)>> {
    let uri = format!("/?{query}")
        .parse()
        .map_err(|_| bad("the query string is malformed"))?;
    let Query(pairs) = Query::try_from_uri(&uri).map_err(|error| bad(error.body_text()))?;
    Ok(pairs)
}

/// The GPUs of this machine.
#[derive(Serialize, JsonSchema)]
pub(super) struct GpuList {
    gpus: Vec<gpus::Gpu>,
}

/// The current state of the GPUs.
pub(super) async fn gpus(Shared(state): Of<State>) -> Answer<Json<GpuList>> {
    blocking(move || {
        let running = state
            .runs
            .list()?
            .into_iter()
            .filter_map(|run| match run.status {
                Status::Running { process, .. } => Some((run.name, process?.pid)),
                _ => None,
            });
        let running: Vec<_> = running.collect();
        let gpus = gpus::read(&state.system, &running);
        Ok(Json(GpuList { gpus }))
    })
    .await
}

/// What the doctor says.
#[derive(Serialize, JsonSchema)]
pub(super) struct Diagnosis {
    /// As `surefoot doctor --json` prints it.
    #[schemars(with = "Value")]
    report: Report,
    verdict: String,
    fix_script: String,
    has_errors: bool,
}

/// The doctor's report on this machine.
pub(super) async fn doctor(Shared(state): Of<State>) -> Answer<Json<Diagnosis>> {
    let permit = state.scans.clone().acquire_owned().await.ok();
    let diagnose = state.diagnose;
    blocking(move || {
        let _permit = permit;
        let report = diagnose();
        Ok(Json(Diagnosis {
            verdict: report.verdict(),
            fix_script: report.fix_script(),
            has_errors: report.has_errors(),
            report,
        }))
    })
    .await
}

/// A dump of this machine, to post.
pub(super) async fn dump(Shared(state): Of<State>) -> Answer<Response> {
    let permit = state.scans.clone().acquire_owned().await.ok();
    let dump = state.dump;
    blocking(move || {
        let _permit = permit;
        let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
        Ok((kind, dump()).into_response())
    })
    .await
}

/// Why a run failed.
#[derive(Serialize, JsonSchema)]
pub(super) struct Reason {
    error: Option<String>,
    /// As `surefoot explain --json` prints it.
    #[schemars(with = "Value")]
    explanation: Option<Explanation>,
}

/// Why a run failed, from the error that it recorded.
pub(super) async fn explain(
    Shared(state): Of<State>,
    Path(name): Path<String>,
) -> Answer<Json<Reason>> {
    let name = RunName::parse(&name)?;
    blocking(move || {
        let error = match state.runs.overview(&name)?.status {
            Status::Failed { error } => error,
            _ => None,
        };
        let explanation = error.as_deref().map(explained);
        Ok(Json(Reason { error, explanation }))
    })
    .await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Log {
    text: String,
}

/// Explains the error messages in a text.
pub(super) async fn explain_text(Body(Log { text }): Body<Log>) -> Answer<Json<Explained>> {
    blocking(move || Ok(Json(Explained(explained(&text))))).await
}

/// As `surefoot explain --json` prints it.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub(super) struct Explained(#[schemars(with = "Value")] Explanation);

fn explained(text: &str) -> Explanation {
    explain_with(text, Hints { ram: None })
}

/// Parses the body as JSON of a known shape.
pub(super) fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Answer<T> {
    serde_json::from_slice(body)
        .map_err(|error| bad(format!("the request's body is invalid: {error}")))
}

pub(super) fn bad(text: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, text)
}
