//! All routes, in one table.

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post, put};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;

use super::{State, api, assets, data, dev, generate, media, queue, stream};

/// The description of the API.
pub const OPENAPI: &str = include_str!("../../openapi.json");

/// The schema of the config: a link to `configs/schema.json`.
pub(super) const SCHEMA: &str = include_str!("../../schema.json");

/// Method and path of every route. A test compares the description and the router with it.
pub const ROUTES: [(&str, &str); 39] = [
    ("GET", "/"),
    ("GET", "/assets/{name}"),
    ("POST", "/api/session"),
    ("GET", "/api/openapi.json"),
    ("GET", "/api/schema"),
    ("GET", "/api/runs"),
    ("GET", "/api/stream"),
    ("GET", "/api/compare"),
    ("GET", "/api/gpus"),
    ("GET", "/api/doctor"),
    ("GET", "/api/doctor/dump"),
    ("POST", "/api/explain"),
    ("GET", "/api/runs/{name}"),
    ("DELETE", "/api/runs/{name}"),
    ("GET", "/api/runs/{name}/curves"),
    ("GET", "/api/runs/{name}/samples"),
    ("GET", "/api/runs/{name}/explain"),
    ("GET", "/api/runs/{name}/stream"),
    ("POST", "/api/runs/{name}/stop"),
    ("POST", "/api/runs/{name}/save"),
    ("POST", "/api/runs/{name}/sample"),
    ("GET", "/api/runs/{name}/log"),
    ("GET", "/api/queue"),
    ("POST", "/api/queue"),
    ("POST", "/api/queue/pause"),
    ("POST", "/api/queue/settings"),
    ("DELETE", "/api/queue/{job}"),
    ("POST", "/api/queue/{job}/move"),
    ("POST", "/api/queue/{job}/stop"),
    ("POST", "/api/queue/{job}/retry"),
    ("GET", "/api/queue/{job}/log"),
    ("POST", "/api/check"),
    ("POST", "/api/dry-run"),
    ("POST", "/api/data"),
    ("GET", "/api/data/{set}/{medium}"),
    ("PUT", "/api/data/{set}/{medium}/caption"),
    ("POST", "/api/generate"),
    ("GET", "/api/tried/{file}"),
    ("GET", "/api/runs/{name}/samples/{step}/{sample}/{file}"),
];

pub(super) fn router(state: Arc<State>) -> Router {
    let page = match state.dev {
        Some(_) => Router::new().fallback(get(dev::page)),
        None => Router::new()
            .route("/", get(assets::page))
            .route("/assets/{name}", get(assets::asset)),
    };
    page.route("/api/session", post(api::session))
        .route("/api/openapi.json", get(api::openapi))
        .route("/api/schema", get(api::schema))
        .route("/api/runs", get(api::runs))
        .route("/api/stream", get(stream::runs))
        .route("/api/compare", get(api::compare))
        .route("/api/gpus", get(api::gpus))
        .route("/api/doctor", get(api::doctor))
        .route("/api/doctor/dump", get(api::dump))
        .route("/api/explain", post(api::explain_text))
        .route("/api/runs/{name}", get(api::run))
        .route("/api/runs/{name}", delete(api::remove))
        .route("/api/runs/{name}/curves", get(api::curves))
        .route("/api/runs/{name}/samples", get(api::samples))
        .route("/api/runs/{name}/explain", get(api::explain))
        .route("/api/runs/{name}/stream", get(stream::run))
        .route("/api/runs/{name}/stop", post(api::stop))
        .route("/api/runs/{name}/save", post(queue::save))
        .route("/api/runs/{name}/sample", post(queue::sample))
        .route("/api/runs/{name}/log", get(queue::run_log))
        .route("/api/queue", get(queue::list).post(queue::add))
        .route("/api/queue/pause", post(queue::pause))
        .route("/api/queue/settings", post(queue::settings))
        .route("/api/queue/{job}", delete(queue::remove))
        .route("/api/queue/{job}/move", post(queue::move_to))
        .route("/api/queue/{job}/stop", post(queue::stop))
        .route("/api/queue/{job}/retry", post(queue::retry))
        .route("/api/queue/{job}/log", get(queue::job_log))
        .route("/api/check", post(queue::check))
        .route("/api/dry-run", post(queue::dry_run))
        .route("/api/data", post(data::look))
        .route("/api/data/{set}/{medium}/caption", put(data::caption))
        .layer(CompressionLayer::new())
        // Responses that are streamed, or compressed already.
        .route("/api/data/{set}/{medium}", get(data::file))
        .route(
            "/api/runs/{name}/samples/{step}/{sample}/{file}",
            get(media::sample),
        )
        .route("/api/generate", post(generate::generate))
        .route("/api/tried/{file}", get(generate::made))
        .with_state(state)
        .layer(CatchPanicLayer::new())
}
