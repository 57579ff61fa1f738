//! Trackers: servers that get the numbers of a run as they are recorded (`train.report_to`).
//!
//! ```text
//! Recorder ──never waits──▶ bounded queue ──▶ a thread for each tracker ──HTTP──▶ server
//!     └──▶ run folder          │ full: left out, and counted       │ fails: again later, with what came since
//! ```
//!
//! The run folder has all of it in any case. A server that is down, slow or hostile costs its thread [`LIMIT`] for a
//! request, and the run at most [`LAST`] at its end. Redirects are not followed, and answers are read up to a limit.
//! Addresses and passwords come from the environment, by the names that the trackers' own clients read; they stand in no
//! config, and no config chooses where its numbers go.

mod mlflow;
mod trackio;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use ureq::Agent;

use crate::Error;
use crate::config::{Config, ConfigError};
use crate::run_folder::{RunFolder, replace};
use crate::summary::Ending;

/// Timeout of one request, including name resolution and the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// How long the end of a run waits for what is on its way.
const LAST: Duration = Duration::from_secs(8);
/// The longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Messages between the run and a thread.
const QUEUE: usize = 4096;
/// Records that wait for a server.
const WAITING: usize = 20_000;
/// Records in one request.
const TOGETHER: usize = 40;
/// The most bytes of an answer.
const LONGEST_ANSWER: u64 = 1 << 20;

/// The numbers of a step.
#[derive(Debug, Clone)]
struct Point {
    step: u64,
    /// Milliseconds since 1970.
    time: u64,
    values: Vec<(String, f64)>,
}

enum Message {
    Point(Point),
    End(Ending),
}

/// Why a request failed.
enum Problem {
    /// It may succeed later.
    Later(String),
    /// It will not.
    Never(String),
}

/// What a tracker is told of a run.
struct Begun {
    name: String,
    /// An id of our own, the same at each try to begin it.
    key: String,
    /// The config's keys by their full names.
    config: Map<String, Value>,
}

/// A tracker's protocol.
trait Service: Send {
    fn name(&self) -> &'static str;

    /// Where its runs are: a run is continued there and nowhere else.
    fn place(&self) -> String;

    /// Begins a run, or continues that with this id; returns its id.
    fn begin(&self, run: &Begun, id: Option<&str>) -> Result<String, Problem>;

    fn log(&self, run: &Begun, id: &str, points: &[Point]) -> Result<(), Problem>;

    fn end(&self, run: &Begun, id: &str, ending: Ending) -> Result<(), Problem>;
}

/// The trackers of `config`.
///
/// # Errors
/// If the address of one is not in the environment.
fn services(config: &Config) -> Result<Vec<Box<dyn Service>>, Error> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let services = config.train.report_to.names().map(|name| match name {
        "mlflow" => Some(mlflow::open(&variable)),
        "trackio" => Some(trackio::open(&variable)),
        _ => None,
    });
    let services = services.flatten().collect::<Result<Vec<_>, String>>();
    services.map_err(|reason| {
        ConfigError::of(&config.name, format!("`train.report_to`: {reason}")).into()
    })
}

/// Refuses what [`Trackers::start`] would, before anything is loaded.
///
/// # Errors
/// As there.
pub(crate) fn expect_addresses(config: &Config) -> Result<(), Error> {
    services(config).map(drop)
}

/// The trackers of a run.
#[derive(Default)]
pub(crate) struct Trackers(Vec<Tracker>);

struct Tracker {
    name: &'static str,
    sender: SyncSender<Message>,
    /// Gets nothing, and ends with the thread.
    done: Receiver<()>,
    left_out: Arc<AtomicU64>,
}

impl Trackers {
    /// Starts a thread for each tracker of `config`, which begins the run in `folder` there or continues it.
    ///
    /// # Errors
    /// If an address is missing, or there can be no thread.
    pub(crate) fn start(config: &Config, folder: &RunFolder) -> Result<Self, Error> {
        Self::of(services(config)?, config, folder)
    }

    fn of(
        services: Vec<Box<dyn Service>>,
        config: &Config,
        folder: &RunFolder,
    ) -> Result<Self, Error> {
        let trackers = services.into_iter().map(|service| {
            let (sender, receiver) = sync_channel(QUEUE);
            let (alive, done) = sync_channel(0);
            let left_out = Arc::new(AtomicU64::new(0));
            let name = service.name();
            let run_name = folder.path().file_name().unwrap_or_default();
            let mut thread = Thread {
                known: folder.join(&format!("{name}.json")),
                run: Begun {
                    name: run_name.to_string_lossy().into_owned(),
                    key: format!("{:x}{:08x}", now(), std::process::id()),
                    config: config.without_secrets().leaves()?,
                },
                service,
                id: None,
                waiting: VecDeque::new(),
                left_out: left_out.clone(),
                failures: 0,
            };
            std::thread::Builder::new()
                .name(name.into())
                .spawn(move || {
                    thread.work(&receiver);
                    drop(alive);
                })
                .map_err(|error| Error::Internal(format!("a thread for {name}: {error}")))?;
            Ok(Tracker {
                name,
                sender,
                done,
                left_out,
            })
        });
        Ok(Self(trackers.collect::<Result<_, Error>>()?))
    }

    /// Sends the numbers of a step.
    pub(super) fn scalars(&self, step: u64, values: &[(&str, f64)]) {
        if self.0.is_empty() {
            return;
        }
        let finite = values.iter().filter(|(_, value)| value.is_finite());
        let point = Point {
            step,
            time: now(),
            values: finite
                .map(|(tag, value)| ((*tag).to_owned(), *value))
                .collect(),
        };
        for tracker in &self.0 {
            if let Err(TrySendError::Full(_)) =
                tracker.sender.try_send(Message::Point(point.clone()))
            {
                tracker.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Says how the run ended, and waits for the threads, but not for long.
    pub(crate) fn end(&mut self, ending: Ending) {
        let until = Instant::now() + LAST;
        let trackers = std::mem::take(&mut self.0);
        for tracker in &trackers {
            // A full queue is that of a server that does not answer.
            let _ = tracker.sender.try_send(Message::End(ending));
        }
        for Tracker {
            name, sender, done, ..
        } in trackers
        {
            drop(sender);
            let left = until.saturating_duration_since(Instant::now());
            if done.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(
                    "{name} does not answer, and lacks the last numbers of the run; the run folder has them"
                );
            }
        }
    }
}

/// An error on the way to [`Trackers::end`] is one of the run.
impl Drop for Trackers {
    fn drop(&mut self) {
        self.end(Ending::Failed);
    }
}

/// What a thread knows.
struct Thread {
    service: Box<dyn Service>,
    run: Begun,
    /// The file with the id of the run.
    known: PathBuf,
    /// Of the run, once the server knows of it.
    id: Option<String>,
    waiting: VecDeque<Point>,
    left_out: Arc<AtomicU64>,
    /// Since the last success.
    failures: u32,
}

impl Thread {
    fn work(&mut self, receiver: &Receiver<Message>) {
        let mut next = Instant::now();
        let mut ending = None;
        loop {
            let is_idle = self.id.is_some() && self.waiting.is_empty();
            let pause = match is_idle {
                true => LONGEST_PAUSE,
                false => next.saturating_duration_since(Instant::now()),
            };
            match receiver.recv_timeout(pause) {
                Ok(message) => self.take(message, &mut ending),
                Err(RecvTimeoutError::Timeout) => {}
                // The run ended by an error, and could not say so.
                Err(RecvTimeoutError::Disconnected) => ending = ending.or(Some(Ending::Failed)),
            }
            while let Ok(message) = receiver.try_recv() {
                self.take(message, &mut ending);
            }
            if ending.is_none() && Instant::now() < next {
                continue;
            }
            let name = self.service.name();
            match self.deliver(ending) {
                Ok(()) => self.failures = 0,
                Err(Problem::Never(reason)) => {
                    tracing::warn!("nothing more is sent to {name}: {reason}");
                    return;
                }
                Err(Problem::Later(reason)) => {
                    if self.failures == 0 {
                        tracing::warn!("{name} cannot be reached, and is tried again: {reason}");
                    }
                    self.failures += 1;
                    let pause = Duration::from_secs(1 << self.failures.min(6));
                    next = Instant::now() + pause.min(LONGEST_PAUSE);
                }
            }
            if ending.is_some() {
                let lost = self.left_out.load(Ordering::Relaxed) + self.waiting.len() as u64;
                if lost > 0 {
                    tracing::warn!(
                        "{name} lacks {lost} records of the run, which the run folder has"
                    );
                }
                return;
            }
        }
    }

    fn take(&mut self, message: Message, ending: &mut Option<Ending>) {
        match message {
            Message::End(how) => *ending = Some(how),
            Message::Point(point) => {
                if self.waiting.len() >= WAITING {
                    self.waiting.pop_front();
                    self.left_out.fetch_add(1, Ordering::Relaxed);
                }
                self.waiting.push_back(point);
            }
        }
    }

    /// Sends what is waiting, and how the run ended if it did.
    fn deliver(&mut self, ending: Option<Ending>) -> Result<(), Problem> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => {
                let known = known_id(&self.known, &self.service.place());
                let id = self.service.begin(&self.run, known.as_deref())?;
                let text = json!({"place": self.service.place(), "run": id});
                if let Err(error) = replace(&self.known, &format!("{text}\n")) {
                    tracing::warn!(
                        "a resumed run will be another one on {}: {error}",
                        self.service.name()
                    );
                }
                self.id.insert(id).clone()
            }
        };
        while !self.waiting.is_empty() {
            let count = self.waiting.len().min(TOGETHER);
            let points = &self.waiting.make_contiguous()[..count];
            self.service.log(&self.run, &id, points)?;
            self.waiting.drain(..count);
        }
        match ending {
            Some(ending) => self.service.end(&self.run, &id, ending),
            None => Ok(()),
        }
    }
}

/// The id of the run, if it was begun at that place.
fn known_id(path: &Path, place: &str) -> Option<String> {
    let known: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let id = known["run"].as_str().filter(|_| known["place"] == place)?;
    is_id(id).then(|| id.to_owned())
}

/// Whether this can be an id: a server may answer anything.
fn is_id(text: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    (1..=64).contains(&text.len()) && text.chars().all(fits)
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_millis() as u64
}

/// Checks an address from the variable of this name: `http` or `https`. Returns it without the slash at its end, and
/// without a user and a password, which are returned as the header `Authorization`.
fn address(name: &str, value: &str) -> Result<(String, Option<String>), String> {
    let value = value.trim().trim_end_matches('/');
    let parts = value.split_once("://");
    let Some((scheme, rest)) = parts.filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
    else {
        // It may have a password.
        return Err(format!(
            "`{name}` is no address of a server (`http://…` or `https://…`)"
        ));
    };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    Ok(match host.rsplit_once('@') {
        None => (value.to_owned(), None),
        Some((user, host)) => {
            let (user, password) = user.split_once(':').unwrap_or((user, ""));
            let decoded = |text| percent_decode_str(text).collect::<Vec<u8>>();
            let user = [decoded(user), b":".to_vec(), decoded(password)].concat();
            (format!("{scheme}://{host}{path}"), Some(basic(&user)))
        }
    })
}

/// The header `Authorization` of a user and a password, with a colon between them. RFC 7617.
fn basic(user: impl AsRef<[u8]>) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(user))
}

fn agent() -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(LIMIT))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .user_agent(concat!("surefoot/", env!("CARGO_PKG_VERSION")));
    Agent::new_with_config(config.build())
}

/// Sends JSON to `url` with these headers, and returns the status and the JSON of the answer, null if it is none.
fn post(
    agent: &Agent,
    url: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Result<(u16, Value), Problem> {
    // The address may have a password.
    let failed = |error: ureq::Error| Problem::Later(error.to_string().replace(url, "it"));
    let mut request = agent.post(url).header("Content-Type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut answer = request.send(body.to_string()).map_err(failed)?;
    let status = answer.status().as_u16();
    let text = answer.body_mut().with_config().limit(LONGEST_ANSWER);
    let text = text.read_to_vec().map_err(failed)?;
    Ok((status, serde_json::from_slice(&text).unwrap_or_default()))
}

/// What an answer that is no success means.
fn refused(status: u16, answer: &Value) -> Problem {
    let told = answer["message"]
        .as_str()
        .or_else(|| answer["error"].as_str());
    let told: String = told.unwrap_or_default().chars().take(200).collect();
    let told = told.replace(|letter: char| letter.is_control(), " ");
    let told = match told.is_empty() {
        true => format!("it answers {status}"),
        false => format!("it answers {status}: {told}"),
    };
    match status {
        408 | 429 | 500.. => Problem::Later(told),
        _ => Problem::Never(told),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(basic(bytes), format!("Basic {text}"));
        }
    }

    #[test]
    fn a_user_and_a_password_are_taken_out_of_an_address() {
        for (written, host, user) in [
            ("https://me:p%40ss@host/a/", "https://host/a", "me:p@ss"),
            (
                "http://a%3Ab:50%25%zz%C3%BC@host:5000",
                "http://host:5000",
                "a:b:50%%zzü",
            ),
            ("https://me@host", "https://host", "me:"),
        ] {
            let (address, authorization) = address("A", written).unwrap();
            assert_eq!(address, host);
            assert_eq!(authorization, Some(basic(user)));
        }
        let (address, authorization) = address("A", "http://host/a@b").unwrap();
        assert_eq!((&*address, authorization), ("http://host/a@b", None));
    }

    /// An error between the start of the trackers and that of training: nobody says how the run ended.
    #[test]
    fn a_run_that_is_dropped_has_failed_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://me:p%40ss@{}", listener.local_addr().unwrap());
        let (sender, asked) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    reader.read_line(&mut head).unwrap();
                }
                let small = head.to_lowercase();
                let mut lines = small.lines();
                let length = lines.find_map(|line| line.strip_prefix("content-length: "));
                let mut body = vec![0; length.unwrap().parse().unwrap()];
                reader.read_exact(&mut body).unwrap();
                // Slow enough that whoever does not wait has gone on.
                std::thread::sleep(Duration::from_millis(200));
                let body = String::from_utf8(body).unwrap();
                sender.send((head, body)).unwrap();
                let body = json!({"experiments": [{"experiment_id": "1"}], "run": {"info": {"run_id": "a"}}});
                let body = body.to_string();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                )
                .unwrap();
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "name: a\noutput_dir: {}\ndata: {{path: a.txt}}\n",
            folder.path().display()
        );
        let config = Config::parse("a.yaml", &text, &[]).unwrap();
        let variable = |name: &str| (name == "MLFLOW_TRACKING_URI").then(|| url.clone());
        let services = vec![mlflow::open(&variable).unwrap()];
        let folder = RunFolder::create(&config).unwrap();
        drop(Trackers::of(services, &config, &folder).unwrap());
        let asked: Vec<(String, String)> = asked.try_iter().collect();
        // Not as it stands in the address.
        let user = basic("me:p@ss");
        assert!(
            asked.iter().all(|(head, _)| head.contains(&user)),
            "{asked:?}"
        );
        assert!(asked.last().unwrap().1.contains("FAILED"), "{asked:?}");
    }
}
