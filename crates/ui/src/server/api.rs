//! The handlers of the routes for runs and the machine.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, RawQuery, State as Shared};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use doctor::explain::{Explanation, Hints, explain_with};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::Refusal;
use super::{State, lock, routes};
use crate::gpus;
use crate::runs::{self, Metrics, Range, RunName, Status, Stopping};

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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Session {
    token: String,
}

/// Sets the cookie in exchange for the token.
pub(super) async fn session(Shared(state): Of<State>, body: Bytes) -> Answer<Response> {
    let Session { token } = parse(&body)?;
    if !state.guard.token().is(&token) {
        return Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "that is not the token of this server",
        ));
    }
    let cookie = [(header::SET_COOKIE, state.guard.cookie())];
    Ok((StatusCode::NO_CONTENT, cookie).into_response())
}

pub(super) async fn openapi() -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, routes::OPENAPI).into_response()
}

/// The schema of the config.
pub(super) async fn schema() -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, routes::SCHEMA).into_response()
}

pub(super) async fn runs(Shared(state): Of<State>) -> Answer<Json<Value>> {
    blocking(move || {
        let folder = std::path::absolute(state.runs.root()).unwrap_or_default();
        Ok(Json(
            json!({ "folder": folder, "runs": state.runs.list()? }),
        ))
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

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Stop {
    /// Send the signal again: it ends the run without saving.
    again: bool,
}

pub(super) async fn stop(
    Shared(state): Of<State>,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<Json<Stopping>> {
    let name = RunName::parse(&name)?;
    let Stop { again } = match body.is_empty() {
        true => Stop::default(),
        false => parse(&body)?,
    };
    blocking(move || Ok(Json(state.runs.stop(&name, again)?))).await
}

pub(super) async fn curves(
    Shared(state): Of<State>,
    Path(name): Path<String>,
    range: Result<Query<Range>, axum::extract::rejection::QueryRejection>,
) -> Answer<Json<Value>> {
    let name = RunName::parse(&name)?;
    let Query(range) = range.map_err(|error| bad(error.body_text()))?;
    // The requested part is parsed from the start of the file, so only a few at a time.
    let _permit = match range == Range::default() {
        true => None,
        false => state.scans.acquire().await.ok(),
    };
    let shared = state.clone();
    blocking(move || {
        let metrics = match range == Range::default() {
            true => shared.metrics(&name),
            false => Arc::new(std::sync::Mutex::new(Metrics::new(range))),
        };
        let mut metrics = lock(&metrics);
        if let Some(mut file) = shared.runs.metrics_file(&name)? {
            metrics.update(&mut file)?;
        }
        let (events, dropped_events) = metrics.events();
        Ok(Json(json!({
            "inode": metrics.inode(),
            "offset": metrics.offset(),
            "train": metrics.train(),
            "eval": metrics.eval(),
            "events": events,
            "dropped_events": dropped_events,
            "unreadable_lines": metrics.unreadable(),
            "latest": metrics.latest(),
        })))
    })
    .await
}

#[derive(Deserialize)]
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

pub(super) async fn samples(
    Shared(state): Of<State>,
    Path(name): Path<String>,
    wanted: Result<Query<Wanted>, axum::extract::rejection::QueryRejection>,
) -> Answer<Json<Value>> {
    let name = RunName::parse(&name)?;
    let Query(Wanted { count }) = wanted.map_err(|error| bad(error.body_text()))?;
    blocking(move || {
        let metrics = state.metrics(&name);
        let mut metrics = lock(&metrics);
        let Some(mut file) = state.runs.metrics_file(&name)? else {
            return Ok(Json(json!({ "steps": [], "sets": [] })));
        };
        metrics.update(&mut file)?;
        let sets = metrics.samples(&mut file, count.clamp(1, 200), MAX_SAMPLE_BYTES)?;
        Ok(Json(
            json!({ "steps": metrics.sample_steps(), "sets": sets }),
        ))
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

/// The current state of the GPUs.
pub(super) async fn gpus(Shared(state): Of<State>) -> Answer<Json<Value>> {
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
        Ok(Json(json!({ "gpus": gpus::read(&state.system, &running) })))
    })
    .await
}

/// The doctor's report on this machine.
pub(super) async fn doctor(Shared(state): Of<State>) -> Answer<Json<Value>> {
    let _permit = state.scans.acquire().await.ok();
    let diagnose = state.diagnose;
    blocking(move || {
        let report = diagnose();
        let verdict = report.verdict();
        let fix_script = report.fix_script();
        let errors = report.has_errors();
        Ok(Json(json!({
            "report": report, "verdict": verdict, "fix_script": fix_script, "has_errors": errors,
        })))
    })
    .await
}

/// A dump of this machine, to post.
pub(super) async fn dump(Shared(state): Of<State>) -> Answer<Response> {
    let _permit = state.scans.acquire().await.ok();
    let dump = state.dump;
    blocking(move || {
        let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
        Ok((kind, dump()).into_response())
    })
    .await
}

/// Why a run failed, from the error that it recorded.
pub(super) async fn explain(
    Shared(state): Of<State>,
    Path(name): Path<String>,
) -> Answer<Json<Value>> {
    let name = RunName::parse(&name)?;
    blocking(move || {
        let error = match state.runs.overview(&name)?.status {
            Status::Failed { error } => error,
            _ => None,
        };
        let explanation = error.as_deref().map(explained);
        Ok(Json(json!({ "error": error, "explanation": explanation })))
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Log {
    text: String,
}

/// Explains the error messages in a text.
pub(super) async fn explain_text(body: Bytes) -> Answer<Json<Explanation>> {
    let Log { text } = parse(&body)?;
    blocking(move || Ok(Json(explained(&text)))).await
}

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
