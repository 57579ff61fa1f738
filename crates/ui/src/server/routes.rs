//! All routes, in one table.

use std::sync::Arc;

use axum::Router;
use axum::routing::{delete, get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;

use super::{State, api, assets, stream};

/// The description of the API.
pub const OPENAPI: &str = include_str!("../../openapi.json");

/// Method and path of every route. A test holds the description and the router against it.
pub const ROUTES: [(&str, &str); 17] = [
    ("GET", "/"),
    ("GET", "/assets/{name}"),
    ("POST", "/api/session"),
    ("GET", "/api/openapi.json"),
    ("GET", "/api/runs"),
    ("GET", "/api/stream"),
    ("GET", "/api/compare"),
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
];

pub(super) fn router(state: Arc<State>) -> Router {
    Router::new()
        .route("/", get(assets::page))
        .route("/assets/{name}", get(assets::asset))
        .route("/api/session", post(api::session))
        .route("/api/openapi.json", get(api::openapi))
        .route("/api/runs", get(api::runs))
        .route("/api/stream", get(stream::runs))
        .route("/api/compare", get(api::compare))
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
        .with_state(state)
        .layer(CatchPanicLayer::new())
        .layer(CompressionLayer::new())
}
