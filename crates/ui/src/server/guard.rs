//! Access control, decided before anything else.
//!
//! | request | Host | Origin | token |
//! |---|---|---|---|
//! | any | one of ours | | |
//! | `GET`, `HEAD` of the page itself | | | |
//! | `GET`, `HEAD` of `/api/` | | none or our own | yes |
//! | `POST /api/session` | | our own | in the body |
//! | everything else | | our own | yes |
//!
//! A foreign host name that resolves to this machine is refused, so DNS rebinding gets nothing. A page from another
//! site could send requests with the cookie only if `SameSite` fails, and then its Origin gives it away.
//!
//! Browsers send the cookies of 127.0.0.1 to every server there, whatever its port. So the cookie is not the token, but
//! a session that ends; who finds it cannot make another, and one that is used is renewed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State as Shared};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Refusal;
use super::guests::Guest;
use super::{State, Token, dev, media_folder};

/// The most bytes of a request's body.
const MAX_BODY_BYTES: usize = 256 << 10;
/// Timeout for receiving the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of the cookie, to which the port is added, since browsers share cookies between ports.
pub const COOKIE: &str = "surefoot";

/// How long a session is valid, in seconds: a week.
const SESSION_SECONDS: u64 = 7 * 24 * 3600;

/// Headers of every response.
const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("x-frame-options", "DENY"),
];

/// The local address of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Local(pub(super) SocketAddr);

/// The rules for requests.
pub struct Guard {
    token: Token,
    address: SocketAddr,
    hosts: Vec<String>,
    cookie: String,
}

impl Guard {
    /// For a server that listens at `address`, and that browsers may also reach by `names`.
    pub fn new(token: Token, address: SocketAddr, names: &[String]) -> Self {
        let port = address.port();
        let mut hosts = Vec::new();
        if address.ip().is_loopback() || address.ip().is_unspecified() {
            hosts.extend(["127.0.0.1", "localhost", "[::1]"].map(|name| format!("{name}:{port}")));
        }
        if !address.ip().is_unspecified() {
            hosts.push(address.to_string());
        }
        for name in names {
            let name = name.to_ascii_lowercase();
            // The port of a tunnel or proxy may differ or be missing.
            let with_port = name.rsplit_once(':').is_some_and(|(_, port)| {
                !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
            });
            hosts.push(match with_port {
                true => name,
                false => format!("{name}:{port}"),
            });
        }
        Self {
            token,
            address,
            hosts,
            cookie: format!("{COOKIE}-{port}"),
        }
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The token.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The cookie that a browser gets in exchange for the token.
    pub(super) fn cookie(&self) -> String {
        let session = self
            .token
            .session(self.address.port(), now() + SESSION_SECONDS);
        format!(
            "{}={session}; HttpOnly; SameSite=Strict; Path=/; Max-Age={SESSION_SECONDS}",
            self.cookie
        )
    }

    /// When the session of a request ends, if it has one.
    fn session_ends(&self, headers: &HeaderMap) -> Option<u64> {
        let cookies = headers.get_all(header::COOKIE).iter();
        let cookies = cookies.filter_map(|value| value.to_str().ok());
        let mut sessions = cookies
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| {
                let (name, value) = pair.trim().split_once('=')?;
                (name == self.cookie).then_some(value)
            });
        sessions.find_map(|guess| self.token.session_ends(guess, self.address.port(), now()))
    }

    /// A new cookie, if half the time of the request's is over.
    fn renewal(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let ends = self.session_ends(headers)?;
        let is_due = ends < now() + SESSION_SECONDS / 2;
        is_due.then(|| self.cookie().parse().ok()).flatten()
    }

    /// The host of a request, if it is one of ours.
    fn host<'a>(&self, request: &'a Request) -> Option<&'a str> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return None;
        };
        let host = host.to_str().ok()?;
        if let Some(authority) = request.uri().authority()
            && authority.as_str() != host
        {
            return None;
        }
        let known = self
            .hosts
            .iter()
            .any(|known| known.eq_ignore_ascii_case(host));
        // When listening on all addresses: the address that was called is a literal IP, which no DNS name can fake.
        let local = request.extensions().get::<Local>();
        let called = local
            .is_some_and(|local| self.address.ip().is_unspecified() && local.0.to_string() == host);
        (known || called).then_some(host)
    }

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let bearer = headers.get(header::AUTHORIZATION);
        let bearer = bearer.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        bearer.is_some_and(|guess| self.token.is(guess)) || self.session_ends(headers).is_some()
    }

    fn decide(&self, request: &Request) -> Result<(), Refusal> {
        let forbidden = |text: &str| Err(Refusal::new(StatusCode::FORBIDDEN, text));
        let Some(host) = self.host(request) else {
            return forbidden(
                "this server does not answer to that name; `surefoot ui --allow-host NAME` adds it",
            );
        };
        let headers = request.headers();
        let path = request.uri().path();
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let is_api = path.starts_with("/api");
        if reads && !is_api {
            return Ok(());
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let own = match (origins.next(), origins.next()) {
            (None, _) => None,
            (Some(origin), None) => Some(origin.as_bytes() == format!("http://{host}").as_bytes()),
            _ => Some(false),
        };
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let foreign = !matches!(site, None | Some(b"same-origin" | b"none"));
        match (own, reads) {
            (Some(true), _) | (None, true) if !foreign => {}
            (None, false) => {
                return forbidden("a request that changes something needs the Origin of this page");
            }
            _ => return forbidden("the request comes from a page of another site"),
        }
        let brings_token = *request.method() == Method::POST && path == "/api/session";
        if brings_token || self.has_token(headers) {
            return Ok(());
        }
        Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "open the address that `surefoot ui` printed: it has the token",
        ))
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Answers refused requests, reads the body of the others, and adds the common headers to every response.
pub(super) async fn check(
    Shared(state): Shared<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    let renewal = state.guard.renewal(request.headers());
    let is_asset = request.uri().path().starts_with("/assets/");
    let decided = state.guard.decide(&request);
    if decided.is_ok()
        && state.guard.has_token(request.headers())
        && let Some(guest) = request.extensions().get::<Arc<Guest>>()
    {
        guest.welcome();
    }
    let mut response = match decided {
        Ok(()) => match whole(request).await {
            Ok(request) => next.run(request).await,
            Err(refusal) => refusal.into_response(),
        },
        Err(refusal) => refusal.into_response(),
    };
    let is_found = response.status().is_success();
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    if let Some(policy) = state.dev.and_then(dev::policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    // The names of assets contain a hash of their content.
    let cache = match is_asset && is_found && state.dev.is_none() {
        true => "public, max-age=31536000, immutable",
        false => "no-store",
    };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    if let Some(cookie) = renewal.filter(|_| is_found) {
        headers.entry(header::SET_COOKIE).or_insert(cookie);
    }
    response
}

/// Reads the body of a request into memory.
async fn whole(request: Request) -> Result<Request, Refusal> {
    let (parts, body) = request.into_parts();
    // A file is written as it arrives.
    if media_folder::is_upload(&parts) {
        return Ok(Request::from_parts(parts, body));
    }
    if matches!(parts.method, Method::GET | Method::HEAD) {
        return Ok(Request::from_parts(parts, Body::empty()));
    }
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MAX_BODY_BYTES)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(_)) => Err(Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "a request has at most 256 KiB",
        )),
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "the request took too long to arrive",
        )),
    }
}
