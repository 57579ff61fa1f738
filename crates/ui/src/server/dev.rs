//! `surefoot ui --dev`: the page from its sources, which Vite serves at another port and this server passes on.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State as Shared;
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::Response;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::State;
use super::error::Refusal;

/// Timeout for Vite's answer; the first one takes longest.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Forwards a request to Vite. The page receives changes through a socket that it opens to Vite directly.
pub(super) async fn page(
    Shared(state): Shared<Arc<State>>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    let gone = |what: String| {
        let text = format!("Vite does not answer: {what}");
        Refusal::new(StatusCode::BAD_GATEWAY, text)
    };
    if request.uri().path().starts_with("/api/") {
        return Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "there is no such route",
        ));
    }
    let port = state.dev.unwrap_or_default();
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| gone(error.to_string()))?;
    tokio::spawn(connection);
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    // No other headers: Vite must not get the cookie.
    let mut asked = Request::builder()
        .method(request.method())
        .uri(path)
        .header(header::HOST, format!("127.0.0.1:{port}"));
    if let Some(accept) = request.headers().get(header::ACCEPT) {
        asked = asked.header(header::ACCEPT, accept);
    }
    let asked = asked
        .body(Body::empty())
        .map_err(|error| gone(error.to_string()))?;
    let answer = tokio::time::timeout(TIMEOUT, sender.send_request(asked)).await;
    let answer = answer
        .map_err(|_| gone("it took too long".into()))?
        .map_err(|error| gone(error.to_string()))?;
    Ok(answer.map(Body::new))
}

/// The content security policy for pages from Vite, which inserts styles into the page and tells it about changes.
pub(super) fn policy(port: u16) -> Option<HeaderValue> {
    let text = format!(
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
         media-src 'self'; connect-src 'self' http://127.0.0.1:{port} ws://127.0.0.1:{port}; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::super::tests::Place;
    use super::*;

    #[tokio::test]
    async fn the_sources_come_from_vite_and_the_cookie_does_not_go_there() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let place = Place::with_dev(port);
        let vite = tokio::spawn(async move {
            let mut heads = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = vec![0; 4096];
                let count = stream.read(&mut head).await.unwrap();
                heads.push(String::from_utf8_lossy(&head[..count]).into_owned());
                let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/javascript\r\ncontent-length: 4\r\n\r\nvite";
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            heads
        });
        for path in ["/", "/src/main.tsx?t=1"] {
            let response = place.answer(place.request("GET", path)).await;
            assert_eq!(response.status(), StatusCode::OK);
            let policy = response.headers()["content-security-policy"]
                .to_str()
                .unwrap();
            assert!(
                policy.contains(&format!("ws://127.0.0.1:{port}")),
                "{policy}"
            );
            assert_eq!(response.headers()["content-type"], "text/javascript");
            assert_eq!(
                &to_bytes(response.into_body(), 100).await.unwrap()[..],
                b"vite"
            );
        }
        let heads = vite.await.unwrap();
        assert!(
            heads[1].starts_with("GET /src/main.tsx?t=1 HTTP/1.1\r\n"),
            "{heads:?}"
        );
        let has = |text: &str| heads.iter().any(|head| head.to_lowercase().contains(text));
        assert!(
            has(&format!("host: 127.0.0.1:{port}")) && !has("cookie"),
            "{heads:?}"
        );
        // The API is ours, and guarded as ever.
        assert_eq!(place.get("/api/nothing").await.0, StatusCode::NOT_FOUND);
        assert_eq!(place.get("/api/runs").await.0, StatusCode::OK);
        let mut request = place.request("GET", "/src/main.tsx");
        request
            .headers_mut()
            .insert("host", "evil.example".parse().unwrap());
        assert_eq!(place.answer(request).await.status(), StatusCode::FORBIDDEN);
    }

    #[tokio::test]
    async fn a_vite_that_is_gone_is_told() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let place = Place::with_dev(port);
        let response = place.answer(place.request("GET", "/")).await;
        assert!(response.status().is_server_error());
    }
}
