//! The page, which is embedded in the program.

use axum::body::Body;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rust_embed::Embed;

/// The output of `cargo xtask ui` from `web/`.
#[derive(Embed)]
#[folder = "dist"]
struct Bundle;

/// The page itself, for all its views: the view is in the fragment, after `#`.
pub(super) async fn page() -> Response {
    answer("index.html")
}

/// A script, style sheet or picture of the page.
pub(super) async fn asset(Path(name): Path<String>) -> Response {
    answer(&format!("assets/{name}"))
}

fn answer(path: &str) -> Response {
    // A lookup in a table, so no path leads to a file outside it.
    let Some(file) = Bundle::get(path) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let kind = match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    ([(header::CONTENT_TYPE, kind)], Body::from(file.data)).into_response()
}
