//! Event streams: changes are sent as they happen.
//!
//! The stream of a run starts where the page's curves end, and every event contains its own end position, so a
//! lost connection is resumed without a gap.

use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Path, Query, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, KeepAliveStream, Sse};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::api::{bad, blocking};
use super::error::Refusal;
use super::{State, lock};
use crate::runs::{Error, RunName, identity};

/// How often the folders are read while a page is open.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The same where reading takes long.
const LONGEST_INTERVAL: Duration = Duration::from_secs(5);
/// The most bytes of records in one event.
const MAX_EVENT_BYTES: u64 = 512 << 10;

type Events = Sse<KeepAliveStream<ReceiverStream<Result<Event, Infallible>>>>;

/// The position of a reader in a metrics file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Position {
    /// Inode of the file.
    inode: u64,
    /// Offset in bytes.
    offset: u64,
}

impl Position {
    /// Parses `<inode>-<offset>`, as this server writes it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (inode, offset) = text.split_once('-')?;
        Some(Self {
            inode: inode.parse().ok()?,
            offset: offset.parse().ok()?,
        })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.inode, self.offset)
    }
}

/// The queue and the list of runs, as they were a moment ago: all pages see the same.
#[derive(Default)]
pub(crate) struct Snapshot([Listed; 2]);

/// A list as JSON, and until when it is good enough.
#[derive(Default)]
struct Listed {
    until: Option<Instant>,
    text: Arc<str>,
}

impl Listed {
    /// The list, read again if it is time to. A long one is read less often, so that reading takes a hundredth of the time.
    fn current(&mut self, read: impl FnOnce() -> Option<Value>) -> Arc<str> {
        let began = Instant::now();
        if self.until.is_none_or(|until| until <= began) {
            // A disk error may be temporary: what was read before stays.
            if let Some(list) = read() {
                self.text = list.to_string().into();
            }
            let pause = (began.elapsed() * 100).clamp(POLL_INTERVAL * 9 / 10, LONGEST_INTERVAL);
            self.until = Some(began + pause);
        }
        self.text.clone()
    }
}

fn snapshot(state: &State) -> [Arc<str>; 2] {
    let Snapshot([queue, runs]) = &mut *lock(&state.snapshot);
    [
        queue.current(|| super::queue::listing(state).ok().map(|queue| json!(queue))),
        runs.current(|| state.runs.list().ok().map(|runs| json!({ "runs": runs }))),
    ]
}

/// Sends the list of runs whenever it changes.
pub(super) async fn runs(Shared(state): Shared<Arc<State>>) -> Result<Events, Refusal> {
    let (mut stream, events) = open(&state)?;
    tokio::spawn(async move {
        let mut sent: [Arc<str>; 2] = Default::default();
        loop {
            let shared = state.clone();
            let now = blocking(move || Ok(snapshot(&shared))).await;
            let now = now.unwrap_or_else(|_| sent.clone());
            for ((name, now), sent) in ["queue", "runs"].into_iter().zip(now).zip(&mut sent) {
                if now != *sent {
                    *sent = now;
                    stream
                        .send(Event::default().event(name).data(&**sent))
                        .await;
                }
            }
            if !stream.pause().await {
                break;
            }
        }
    });
    Ok(events)
}

/// Sends the status of a run and its new records.
pub(super) async fn run(
    Shared(state): Shared<Arc<State>>,
    Path(name): Path<String>,
    position: Result<Query<Position>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
) -> Result<Events, Refusal> {
    let name = RunName::parse(&name)?;
    let Query(asked) = position.map_err(|error| bad(error.body_text()))?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let mut position = last.and_then(Position::parse).unwrap_or(asked);
    let (shared, wanted) = (state.clone(), name.clone());
    blocking(move || Ok(shared.runs.overview(&wanted)?)).await?;
    let (mut stream, events) = open(&state)?;
    tokio::spawn(async move {
        let mut before = Value::Null;
        loop {
            let (shared, run) = (state.clone(), name.clone());
            let look = blocking(move || {
                let overview = match shared.runs.overview(&run) {
                    Err(Error::NotFound { .. }) => return Ok(None),
                    overview => json!(overview?),
                };
                let file = shared.runs.metrics_file(&run)?;
                let news = file.map(|file| news(file, position)).transpose()?;
                Ok(Some((overview, news.flatten())))
            });
            match look.await {
                Ok(Some((overview, news))) => {
                    if overview != before {
                        before = overview;
                        let event = Event::default().event("state").data(before.to_string());
                        stream.send(event).await;
                    }
                    if let Some((at, records)) = news {
                        position = at;
                        let id = at.to_string();
                        let event = match records {
                            Some(records) => Event::default().event("records").data(records),
                            None => Event::default().event("anew").data("-"),
                        };
                        stream.send(event.id(id)).await;
                    }
                }
                Ok(None) => {
                    stream.send(Event::default().event("gone").data("-")).await;
                    break;
                }
                // A disk error may be temporary.
                Err(_) => {}
            }
            if !stream.pause().await {
                break;
            }
        }
    });
    Ok(events)
}

/// The records after `position`, as a JSON list, and where they end; without a list if the file is not that of
/// `position`.
fn news(mut file: File, position: Position) -> std::io::Result<Option<(Position, Option<String>)>> {
    let metadata = file.metadata()?;
    let inode = identity(&metadata);
    if inode != position.inode || metadata.len() < position.offset {
        let offset = 0;
        return Ok(Some((Position { inode, offset }, None)));
    }
    if metadata.len() == position.offset {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(position.offset))?;
    let mut bytes = Vec::new();
    file.take(MAX_EVENT_BYTES).read_to_end(&mut bytes)?;
    let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
        // Wait for the rest of an incomplete line. A line longer than this cannot be plotted anyway.
        let is_too_long = bytes.len() as u64 == MAX_EVENT_BYTES;
        let offset = position.offset + MAX_EVENT_BYTES;
        return Ok(is_too_long.then(|| (Position { inode, offset }, Some("[]".to_owned()))));
    };
    let lines = bytes[..end].split(|byte| *byte == b'\n');
    let records: Vec<&RawValue> = lines
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    let offset = position.offset + end as u64 + 1;
    let records = serde_json::to_string(&records)?;
    Ok(Some((Position { inode, offset }, Some(records))))
}

/// The sending end of a stream, one of the limited number.
struct Stream {
    sender: mpsc::Sender<Result<Event, Infallible>>,
    closing: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

impl Stream {
    /// Sends an event, waiting for a slow client; `pause` notices that a client is gone.
    async fn send(&self, event: Event) {
        let _ = self.sender.send(Ok(event)).await;
    }

    /// Waits for the next poll; false if the client is gone.
    async fn pause(&mut self) -> bool {
        tokio::select! {
            () = self.sender.closed() => false,
            _ = self.closing.changed() => false,
            () = tokio::time::sleep(POLL_INTERVAL) => true,
        }
    }
}

fn open(state: &State) -> Result<(Stream, Events), Refusal> {
    let permit = state.streams.clone().try_acquire_owned();
    let permit = permit.map_err(|_| {
        Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many pages are open at once: close one",
        )
    })?;
    let (sender, receiver) = mpsc::channel(4);
    let stream = Stream {
        sender,
        closing: state.closing.clone(),
        _permit: permit,
    };
    let events = Sse::new(ReceiverStream::new(receiver)).keep_alive(KeepAlive::default());
    Ok((stream, events))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_read_less_often_and_stays_if_it_fails() {
        let mut listed = Listed::default();
        let began = Instant::now();
        let slow = listed.current(|| {
            std::thread::sleep(Duration::from_millis(30));
            Some(json!(["run"]))
        });
        assert!(listed.until.unwrap() >= began + Duration::from_secs(3));
        assert_eq!(
            &*listed.current(|| unreachable!("it is good enough")),
            &*slow
        );
        listed.until = None;
        assert_eq!(&*listed.current(|| None), r#"["run"]"#);
        assert!(listed.until.unwrap() <= Instant::now() + POLL_INTERVAL);
    }
}
