//! A server on loopback that speaks the hub's protocol, with faults on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::json;
use sha2::{Digest, Sha256};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request, as far as anybody here looks at it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

/// What is answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The connection breaks after so many bytes of the body.
    pub(crate) cut: Option<usize>,
    /// And does not break: no byte comes any more, until the other side ends it.
    pub(crate) held: bool,
}

impl Answer {
    pub(crate) fn of(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// What a test does to an answer before it is sent; it sees the request and how often that was made.
pub(crate) type Fault = Box<dyn Fn(&Request, usize, Answer) -> Answer + Send + Sync>;

/// A hub with one model, `org/tiny`.
pub(crate) struct Hub {
    pub(crate) address: String,
    state: Arc<State>,
}

struct State {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    seen: Mutex<Vec<Request>>,
    fault: Fault,
}

impl Hub {
    pub(crate) fn serving(files: &[(&str, &[u8])], fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let owned = |(name, bytes): &(&str, &[u8])| ((*name).to_owned(), bytes.to_vec());
        let state = Arc::new(State {
            files: Mutex::new(files.iter().map(owned).collect()),
            seen: Mutex::default(),
            fault,
        });
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || serve(&stream, &state));
            }
        });
        Self { address, state }
    }

    /// As a hub that works.
    pub(crate) fn working(files: &[(&str, &[u8])]) -> Self {
        Self::serving(files, Box::new(|_, _, answer| answer))
    }

    pub(crate) fn seen(&self) -> Vec<Request> {
        self.state.seen.lock().unwrap().clone()
    }

    /// How often bytes of a file were asked for.
    pub(crate) fn downloads(&self, file: &str) -> usize {
        let seen = self.seen();
        let asked = seen.iter().filter(|request| {
            request.method == "GET"
                && request.path.contains("/resolve/")
                && request.path.ends_with(file)
        });
        asked.count()
    }
}

fn serve(stream: &TcpStream, state: &State) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let mut request = Request {
        method: words.next().unwrap_or_default(),
        path: words.next().unwrap_or_default(),
        headers: BTreeMap::new(),
    };
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) <= 2 {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            let name = name.to_ascii_lowercase();
            request.headers.insert(name, value.trim().to_owned());
        }
    }
    let before = {
        let mut seen = state.seen.lock().unwrap();
        let same = |other: &&Request| other.method == request.method && other.path == request.path;
        let before = seen.iter().filter(same).count();
        seen.push(request.clone());
        before
    };
    let files = state.files.lock().unwrap().clone();
    let answer = (state.fault)(&request, before, answer(&request, &files));
    send(stream, &request, &answer);
}

/// As the hub answers: large files (here, weights) lie elsewhere, under `/cdn`.
fn answer(request: &Request, files: &BTreeMap<String, Vec<u8>>) -> Answer {
    let listing = ["models", "datasets"].into_iter().find_map(|kind| {
        let prefix = format!("/api/{kind}/org/tiny/revision/");
        request.path.strip_prefix(&prefix)
    });
    if let Some(rest) = listing {
        if !["main", COMMIT, "refs%2Fpr%2F1"].contains(&rest) {
            return Answer::of(404).with("X-Error-Code", "RevisionNotFound");
        }
        let siblings: Vec<_> = files
            .keys()
            .map(|name| json!({"rfilename": name}))
            .collect();
        return Answer {
            body: json!({"id": "org/tiny", "sha": COMMIT, "siblings": siblings})
                .to_string()
                .into_bytes(),
            ..Answer::of(200)
        };
    }
    if let Some(name) = request.path.strip_prefix("/cdn/") {
        let etag = hexadecimal(&Sha256::digest(&files[name]));
        // Python follows an address of the same host, and looks for these there.
        return bytes(request, &files[name])
            .with("X-Repo-Commit", COMMIT)
            .with("ETag", &format!("\"{etag}\""));
    }
    let path = request.path.strip_prefix("/datasets");
    let path = path.unwrap_or(&request.path);
    // Python asks for files of a branch, and this crate for those of a commit.
    let name = [COMMIT, "main"]
        .into_iter()
        .find_map(|revision| path.strip_prefix(&format!("/org/tiny/resolve/{revision}/")));
    let Some(name) = name else {
        return Answer::of(404).with("X-Error-Code", "RepoNotFound");
    };
    let Some(content) = files.get(name) else {
        return Answer::of(404).with("X-Error-Code", "EntryNotFound");
    };
    if name.ends_with(".safetensors") {
        let etag = hexadecimal(&Sha256::digest(content));
        return Answer::of(302)
            .with("Location", &format!("/cdn/{name}"))
            .with("X-Repo-Commit", COMMIT)
            .with("X-Linked-Etag", &format!("\"{etag}\""))
            .with("X-Linked-Size", &content.len().to_string());
    }
    bytes(request, content)
        .with("X-Repo-Commit", COMMIT)
        .with("ETag", &format!("\"{}\"", git_name(content)))
}

fn bytes(request: &Request, content: &[u8]) -> Answer {
    let range = request.headers.get("range");
    let start = range.and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    });
    let Some(start) = start.filter(|start: &usize| *start > 0) else {
        return Answer {
            body: content.to_vec(),
            ..Answer::of(200)
        };
    };
    if start >= content.len() {
        return Answer::of(416);
    }
    let answer = Answer {
        body: content[start..].to_vec(),
        ..Answer::of(206)
    };
    let (last, all) = (content.len() - 1, content.len());
    answer.with("Content-Range", &format!("bytes {start}-{last}/{all}"))
}

/// What git calls a blob of this content.
pub(crate) fn git_name(content: &[u8]) -> String {
    let mut bytes = format!("blob {}\0", content.len()).into_bytes();
    bytes.extend(content);
    hexadecimal(&<sha1::Sha1 as sha1::Digest>::digest(&bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn send(mut stream: &TcpStream, request: &Request, answer: &Answer) {
    let mut head = format!(
        "HTTP/1.1 {} Something\r\nConnection: close\r\n",
        answer.status
    );
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", answer.body.len()));
    let _ = stream.write_all(head.as_bytes());
    if request.method != "HEAD" {
        let most = answer.cut.unwrap_or(answer.body.len());
        let _ = stream.write_all(&answer.body[..most.min(answer.body.len())]);
    }
    let _ = stream.flush();
    if answer.held {
        let _ = stream.read(&mut [0]);
    }
}
