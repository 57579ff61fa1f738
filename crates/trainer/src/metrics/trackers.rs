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
    /// The config's keys by their full names.
    config: Map<String, Value>,
}

/// A tracker's protocol.
trait Service: Send {
    fn name(&self) -> &'static str;

    /// Where its runs are, without passwords: a run is continued there and nowhere else.
    fn place(&self) -> String;

    /// Begins a run, or continues that with this id; returns its id.
    fn begin(&self, run: &Begun, id: Option<&str>) -> Result<String, Problem>;

    fn log(&self, run: &Begun, id: &str, points: &[Point]) -> Result<(), Problem>;

    fn end(&self, id: &str, ending: Ending) -> Result<(), Problem>;
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
        let services = services(config)?.into_iter();
        let trackers = services.map(|service| {
            let (sender, receiver) = sync_channel(QUEUE);
            let (alive, done) = sync_channel(0);
            let left_out = Arc::new(AtomicU64::new(0));
            let name = service.name();
            let run_name = folder.path().file_name().unwrap_or_default();
            let mut thread = Thread {
                known: folder.join(&format!("{name}.json")),
                run: Begun {
                    name: run_name.to_string_lossy().into_owned(),
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
            Some(ending) => self.service.end(&id, ending),
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

/// Checks an address from the variable of this name: `http` or `https`; without the slash at its end.
fn address(name: &str, value: &str) -> Result<String, String> {
    let value = value.trim().trim_end_matches('/');
    match value.starts_with("http://") || value.starts_with("https://") {
        true => Ok(value.to_owned()),
        // It may have a password.
        false => Err(format!(
            "`{name}` is no address of a server (`http://…` or `https://…`)"
        )),
    }
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
