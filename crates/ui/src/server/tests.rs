//! Who gets what: every route, every method, every attacker.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;

use axum::body::{Body, to_bytes};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde_json::Value;
use tower::ServiceExt;

use super::routes::routes;
use super::tests_data::actual;
use super::*;

const HOST: &str = "127.0.0.1:8420";
const ORIGIN: &str = "http://127.0.0.1:8420";

pub(super) struct Place {
    _folder: tempfile::TempDir,
    /// The server goes on as long as this is there.
    _close: watch::Sender<bool>,
    pub(super) runs: PathBuf,
    pub(super) state: Arc<State>,
    token: String,
}

impl Place {
    pub(super) fn new() -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into(), &[])
    }

    fn at(ip: IpAddr, names: &[String]) -> Self {
        Self::made(ip, names, None)
    }

    pub(super) fn with_dev(port: u16) -> Self {
        Self::made(Ipv4Addr::LOCALHOST.into(), &[], Some(port))
    }

    fn made(ip: IpAddr, names: &[String], dev: Option<u16>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        fs::create_dir_all(runs.join("a")).unwrap();
        fs::write(
            runs.join("a/config.yaml"),
            "name: a\ntrain:\n  max_steps: 8\n",
        )
        .unwrap();
        fs::write(
            runs.join("a/metrics.jsonl"),
            "{\"kind\":\"train\",\"step\":1,\"loss\":2.5}\n",
        )
        .unwrap();
        let token = Token::load(&folder.path().join("token")).unwrap();
        let text = token.reveal().to_owned();
        let (close, closing) = watch::channel(false);
        let state = State {
            runs: Runs::new(&runs),
            queue: Queue::new(Runs::new(&runs)),
            launch: queue::Launch {
                program: folder.path().join("no-program"),
                folder: folder.path().to_owned(),
                allowed: vec![folder.path().to_owned()],
            },
            asking: Arc::new(Semaphore::new(1)),
            fitting: Arc::new(Semaphore::new(1)),
            guard: Guard::new(token, SocketAddr::new(ip, 8420), names),
            dev,
            system: folder.path().join("system"),
            diagnose: || {
                doctor::diagnose_text("nothing")
                    .unwrap_or_else(|_| doctor::diagnose(platform::Machine::default()))
            },
            dump: || "a machine".to_owned(),
            metrics: Mutex::default(),
            streams: Arc::new(Semaphore::new(2)),
            snapshot: Default::default(),
            sets: Mutex::default(),
            thumbnails: Default::default(),
            captioner: Mutex::default(),
            files: Semaphore::new(4),
            generating: Arc::new(Semaphore::new(1)),
            scans: Arc::new(Semaphore::new(2)),
            closing,
        };
        Self {
            _folder: folder,
            _close: close,
            runs,
            state: Arc::new(state),
            token: text,
        }
    }

    pub(super) async fn answer(&self, request: Request<Body>) -> Response {
        service(self.state.clone()).oneshot(request).await.unwrap()
    }

    /// The cookie of a browser that has brought the token, as it sends it.
    fn session(&self) -> String {
        let cookie = self.state.guard.cookie();
        cookie.split(';').next().unwrap().to_owned()
    }

    /// The request of a browser on the page.
    pub(super) fn request(&self, method: &str, path: &str) -> Request<Body> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", HOST)
            .header("cookie", format!("other=1; {}", self.session()));
        if !matches!(method, "GET" | "HEAD") {
            request = request.header("origin", ORIGIN);
        }
        request.body(Body::empty()).unwrap()
    }

    pub(super) async fn get(&self, path: &str) -> (StatusCode, Value) {
        let response = self.answer(self.request("GET", path)).await;
        let status = response.status();
        (status, json(response).await)
    }
}

pub(super) async fn json(response: Response) -> Value {
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// What is wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    None,
    NoToken,
    WrongToken,
    TokenOfAnotherPort,
    NoOrigin,
    WrongOrigin,
    NullOrigin,
    CrossSite,
    WrongHost,
    NoHost,
    TwoHosts,
}

const ATTACKS: [Attack; 11] = [
    Attack::None,
    Attack::NoToken,
    Attack::WrongToken,
    Attack::TokenOfAnotherPort,
    Attack::NoOrigin,
    Attack::WrongOrigin,
    Attack::NullOrigin,
    Attack::CrossSite,
    Attack::WrongHost,
    Attack::NoHost,
    Attack::TwoHosts,
];

fn attacked(mut request: Request<Body>, attack: Attack, token: &str) -> Request<Body> {
    let headers = request.headers_mut();
    let value = |text: &str| text.parse().unwrap();
    match attack {
        Attack::None => {}
        Attack::NoToken => drop(headers.remove("cookie")),
        Attack::WrongToken => {
            // Browsers send cookies to other servers of the machine too: the token itself is none.
            headers.insert("cookie", value(&format!("surefoot-8420={token}")));
        }
        Attack::TokenOfAnotherPort => {
            let cookie = headers["cookie"]
                .to_str()
                .unwrap()
                .replace("-8420=", "-8421=");
            headers.insert("cookie", value(&cookie));
        }
        Attack::NoOrigin => drop(headers.remove("origin")),
        Attack::WrongOrigin => drop(headers.insert("origin", value("http://127.0.0.1:3000"))),
        Attack::NullOrigin => drop(headers.insert("origin", value("null"))),
        Attack::CrossSite => drop(headers.insert("sec-fetch-site", value("cross-site"))),
        Attack::WrongHost => drop(headers.insert("host", value("evil.example:8420"))),
        Attack::NoHost => drop(headers.remove("host")),
        Attack::TwoHosts => drop(headers.append("host", value("evil.example"))),
    }
    request
}

/// What must come back; `None`: whatever the route itself says.
fn expected(method: &str, path: &str, attack: Attack) -> Option<u16> {
    let reads = matches!(method, "GET" | "HEAD");
    let public = reads && !path.starts_with("/api");
    let session = (method, path) == ("POST", "/api/session");
    match attack {
        Attack::WrongHost | Attack::NoHost | Attack::TwoHosts => Some(403),
        _ if public => None,
        Attack::WrongOrigin | Attack::NullOrigin | Attack::CrossSite => Some(403),
        Attack::NoOrigin if !reads => Some(403),
        Attack::NoToken | Attack::WrongToken | Attack::TokenOfAnotherPort if !session => Some(401),
        _ => None,
    }
}

/// The table: all routes, and some that are none, by all methods, with everything that can be wrong.
#[tokio::test]
async fn no_route_or_method_lets_an_attacker_in() {
    let place = Place::new();
    let methods = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND",
    ];
    let mut paths: Vec<&str> = routes().iter().map(|route| route.path).collect();
    paths.extend([
        "/api",
        "/api/",
        "/api/new",
        "/new",
        "//api/runs",
        "/api/runs/a/new",
    ]);
    let mut cases = 0;
    for path in paths {
        let path = actual(path);
        for method in methods {
            // It would be gone for the others.
            if (method, &*path) == ("DELETE", "/api/runs/a") {
                continue;
            }
            for attack in ATTACKS {
                let request = attacked(place.request(method, &path), attack, &place.token);
                let status = place.answer(request).await.status().as_u16();
                let case = format!("{method} {path} {attack:?}");
                match expected(method, &path, attack) {
                    Some(code) => assert_eq!(status, code, "{case}"),
                    None => assert!(
                        !matches!(status, 401 | 403) || path.ends_with("session"),
                        "{case}: {status}"
                    ),
                }
                cases += 1;
            }
        }
    }
    assert!(cases > 2000, "{cases}");
}

#[tokio::test]
async fn a_foreign_request_removes_nothing() {
    for attack in ATTACKS.into_iter().skip(1) {
        let place = Place::new();
        let request = attacked(place.request("DELETE", "/api/runs/a"), attack, &place.token);
        let status = place.answer(request).await.status();
        assert!(matches!(status.as_u16(), 401 | 403), "{attack:?}");
        assert!(place.runs.join("a/config.yaml").exists(), "{attack:?}");
    }
    let place = Place::new();
    let status = place
        .answer(place.request("DELETE", "/api/runs/a"))
        .await
        .status();
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert!(!place.runs.join("a").exists());
}

#[tokio::test]
async fn every_answer_has_the_policy_and_none_allows_other_pages() {
    let place = Place::new();
    for (method, path, attack) in [
        ("GET", "/", Attack::None),
        ("GET", "/nothing", Attack::None),
        ("GET", "/api/runs", Attack::None),
        ("GET", "/api/runs", Attack::WrongHost),
        ("GET", "/api/runs", Attack::NoToken),
        ("OPTIONS", "/api/runs", Attack::WrongOrigin),
        ("POST", "/api/runs", Attack::None),
    ] {
        let request = attacked(place.request(method, path), attack, &place.token);
        let response = place.answer(request).await;
        let headers = response.headers();
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'"), "{path}");
        assert!(policy.contains("script-src 'self';"), "{path}");
        assert!(policy.contains("frame-ancestors 'none'"), "{path}");
        assert!(!policy.contains("unsafe"), "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["cache-control"], "no-store", "{path}");
        let cors = headers
            .keys()
            .find(|name| name.as_str().starts_with("access-control"));
        assert_eq!(cors, None, "{method} {path}");
    }
}

#[tokio::test]
async fn the_token_becomes_a_cookie_that_no_script_can_read() {
    let place = Place::new();
    let post = |body: String| {
        let mut request = place.request("POST", "/api/session");
        request.headers_mut().remove("cookie");
        *request.body_mut() = Body::from(body);
        request
    };
    let response = place
        .answer(post(format!("{{\"token\":\"{}\"}}", place.token)))
        .await;
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    let cookie = response.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with("surefoot-8420=") && !cookie.contains(&place.token));
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=604800"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let session = cookie.split(';').next().unwrap().to_owned();
    let with = |cookie: String| {
        let mut request = place.request("GET", "/api/runs");
        request
            .headers_mut()
            .insert("cookie", cookie.parse().unwrap());
        request
    };
    let response = place.answer(with(session)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().get("set-cookie").is_none());
    // One that ends soon is renewed, and one that has ended is none.
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    for (until, status, is_renewed) in [(now + 3600, 200, true), (now - 1, 401, false)] {
        let session = place.state.guard.token().session(8420, until);
        let response = place.answer(with(format!("surefoot-8420={session}"))).await;
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(response.headers().contains_key("set-cookie"), is_renewed);
    }
    for (body, status) in [
        ("{\"token\":\"\"}", 401),
        ("{\"token\":\"0000\"}", 401),
        ("{\"token\":1}", 400),
        ("{\"token\":\"x\",\"more\":1}", 400),
        ("", 400),
    ] {
        let response = place.answer(post(body.to_owned())).await;
        assert_eq!(response.status().as_u16(), status, "{body}");
        assert!(response.headers().get("set-cookie").is_none(), "{body}");
    }
}

#[tokio::test]
async fn a_program_may_bring_the_token_in_a_header() {
    let place = Place::new();
    let request = |token: &str| {
        let mut request = attacked(place.request("GET", "/api/runs"), Attack::NoToken, token);
        let value = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", value);
        request
    };
    assert_eq!(
        place.answer(request(&place.token)).await.status(),
        StatusCode::OK
    );
    assert_eq!(
        place.answer(request("x")).await.status(),
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn no_path_leads_out_of_the_folder() {
    let place = Place::new();
    let outside = place.runs.with_file_name("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("config.yaml"), "secret: 1\n").unwrap();
    fs::write(
        outside.join("metrics.jsonl"),
        "{\"kind\":\"train\",\"step\":666}\n",
    )
    .unwrap();
    symlink(&outside, place.runs.join("link")).unwrap();
    fs::create_dir(place.runs.join("inner")).unwrap();
    symlink(
        outside.join("config.yaml"),
        place.runs.join("inner/config.yaml"),
    )
    .unwrap();
    fs::create_dir(place.runs.join("half")).unwrap();
    fs::write(place.runs.join("half/config.yaml"), "name: half\n").unwrap();
    symlink(
        outside.join("metrics.jsonl"),
        place.runs.join("half/metrics.jsonl"),
    )
    .unwrap();
    let outside = outside.display().to_string().replace('/', "%2F");
    let names = [
        "..",
        "%2e%2e",
        "..%2Foutside",
        "%2e%2e%2foutside",
        "a%2F..%2F..%2Foutside",
        &outside,
        "link",
        "inner",
        "a%00",
        "%00",
        ".",
        "%2E",
        "..%5Coutside",
        "%c0%ae%c0%ae%2foutside",
        "%252e%252e%252foutside",
        ".surefoot",
    ];
    for name in names {
        for rest in ["", "/curves", "/samples", "/explain", "/stream", "/log"] {
            let path = format!("/api/runs/{name}{rest}");
            let (status, body) = place.get(&path).await;
            assert!(
                matches!(status.as_u16(), 400 | 404),
                "{path}: {status} {body}"
            );
            assert!(!body.to_string().contains("secret"), "{path}");
        }
        for method in ["DELETE", "POST"] {
            let path = format!(
                "/api/runs/{name}{}",
                if method == "POST" { "/stop" } else { "" }
            );
            let status = place.answer(place.request(method, &path)).await.status();
            assert!(
                matches!(status.as_u16(), 400 | 404),
                "{method} {path}: {status}"
            );
        }
        let (status, _) = place.get(&format!("/assets/{name}")).await;
        assert!(
            matches!(status.as_u16(), 400 | 404),
            "/assets/{name}: {status}"
        );
        let (status, body) = place.get(&format!("/api/compare?run={name}")).await;
        assert!(
            matches!(status.as_u16(), 400 | 404),
            "compare {name}: {body}"
        );
    }
    let (status, body) = place.get("/api/runs/half/curves").await;
    assert!(!body.to_string().contains("666"), "{status} {body}");
    assert!(
        place
            .runs
            .with_file_name("outside")
            .join("config.yaml")
            .exists()
    );
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused() {
    let place = Place::new();
    let mut request = place.request("POST", "/api/explain");
    *request.body_mut() = Body::from(format!("{{\"text\":\"{}\"}}", "x".repeat(300 << 10)));
    assert_eq!(
        place.answer(request).await.status(),
        StatusCode::PAYLOAD_TOO_LARGE
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_times_out() {
    let place = Place::new();
    let (_sender, receiver) =
        tokio::sync::mpsc::channel::<Result<axum::body::Bytes, std::io::Error>>(1);
    let mut request = place.request("POST", "/api/explain");
    *request.body_mut() = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receiver));
    assert_eq!(
        place.answer(request).await.status(),
        StatusCode::REQUEST_TIMEOUT
    );
}

#[tokio::test]
async fn the_number_of_streams_is_limited() {
    let place = Place::new();
    let first = place.answer(place.request("GET", "/api/stream")).await;
    let second = place
        .answer(place.request("GET", "/api/runs/a/stream"))
        .await;
    assert_eq!(
        (first.status(), second.status()),
        (StatusCode::OK, StatusCode::OK)
    );
    assert_eq!(first.headers()["content-type"], "text/event-stream");
    let third = place.answer(place.request("GET", "/api/stream")).await;
    assert_eq!(third.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop((first, second));
    // The task that fed the stream ends when it notices.
    let permit = place.state.streams.acquire().await;
    assert!(permit.is_ok());
}

#[tokio::test]
async fn other_host_names_are_served_only_if_allowed() {
    let place = Place::at(
        Ipv4Addr::LOCALHOST.into(),
        &["box.local".into(), "tunnel.example:443".into()],
    );
    for (host, served) in [
        ("127.0.0.1:8420", true),
        ("localhost:8420", true),
        ("LOCALHOST:8420", true),
        ("[::1]:8420", true),
        ("box.local:8420", true),
        ("tunnel.example:443", true),
        ("tunnel.example:8420", false),
        ("localhost", false),
        ("localhost:80", false),
        ("127.0.0.1.nip.io:8420", false),
        ("box.local.evil.example:8420", false),
    ] {
        let mut request = place.request("GET", "/api/runs");
        request.headers_mut().insert("host", host.parse().unwrap());
        let status = place.answer(request).await.status();
        assert_eq!(status == StatusCode::OK, served, "{host}: {status}");
    }
}

#[tokio::test]
async fn on_all_addresses_only_the_called_ip_is_served_and_no_name() {
    let place = Place::at(Ipv4Addr::UNSPECIFIED.into(), &[]);
    let local: SocketAddr = "192.168.7.5:8420".parse().unwrap();
    for (host, served) in [
        ("192.168.7.5:8420", true),
        ("192.168.7.6:8420", false),
        ("rebound.example:8420", false),
        ("localhost:8420", true),
    ] {
        let mut request = place.request("GET", "/api/runs");
        request.headers_mut().insert("host", host.parse().unwrap());
        request.extensions_mut().insert(guard::Local(local));
        let status = place.answer(request).await.status();
        assert_eq!(status == StatusCode::OK, served, "{host}: {status}");
    }
}

#[tokio::test]
async fn the_target_of_a_request_may_not_name_another_host_than_its_header() {
    let place = Place::new();
    let mut request = place.request("GET", "/api/runs");
    *request.uri_mut() = "http://evil.example/api/runs".parse().unwrap();
    assert_eq!(place.answer(request).await.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn the_router_has_the_methods_of_the_routes_and_no_others() {
    let routes = routes();
    for path in routes.iter().map(|route| route.path) {
        let known: Vec<&str> = routes
            .iter()
            .filter(|route| route.path == path)
            .map(|route| route.method.as_str())
            .collect();
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::PATCH,
        ] {
            let place = Place::new();
            let asset = "/assets/missing.js";
            let actual = actual(&path.replace("/assets/{name}", asset));
            let status = place
                .answer(place.request(method.as_str(), &actual))
                .await
                .status();
            let is_known = known.contains(&method.as_str());
            assert_eq!(
                status != StatusCode::METHOD_NOT_ALLOWED,
                is_known,
                "{method} {path}: {status}"
            );
        }
    }
}

#[tokio::test]
async fn the_api_returns_the_contents_of_a_run_s_folder() {
    let place = Place::new();
    let (_, runs) = place.get("/api/runs").await;
    assert_eq!(runs["runs"][0]["name"], "a");
    assert_eq!(runs["runs"][0]["state"], "interrupted");
    assert_eq!(runs["runs"][0]["max_steps"], 8);
    let (_, curves) = place.get("/api/runs/a/curves").await;
    assert_eq!(curves["train"]["steps"], serde_json::json!([1]));
    assert_eq!(curves["train"]["curves"][0]["name"], "loss");
    let (status, _) = place.get("/api/runs/a/curves?points=100&from=5&to=9").await;
    assert_eq!(status, StatusCode::OK);
    let (status, _) = place.get("/api/runs/a/curves?pionts=100").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let stop = place
        .answer(place.request("POST", "/api/runs/a/stop"))
        .await;
    assert_eq!(stop.status(), StatusCode::CONFLICT);
}
