//! Captions by a vision model of the user: one picture after another is sent to a server on this machine that speaks
//! OpenAI's API, such as Ollama, LM Studio or llama.cpp. A caption is written only where there is none.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::body::{Body as HttpBody, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Shared};
use axum::http::{Request, StatusCode, header};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use hyper_util::rt::TokioIo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::api::{bad, blocking};
use super::data::{self, BUSY, Set};
use super::describe::Body;
use super::error::Refusal;
use super::{State, lock, thumbnails};

type Answer<T> = Result<T, Refusal>;
type Of<T> = Shared<Arc<T>>;

/// The longest side of a picture that is sent, in pixels.
const SIDE: u32 = 1024;
/// Timeout for one caption: the first one loads the model.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Timeout for the list of models.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// The longest instruction and name of a model, in bytes.
const MAX_PROMPT_BYTES: usize = 8 << 10;
const MAX_MODEL_BYTES: usize = 300;
/// The longest caption that is written, in bytes, and about that in tokens.
const MAX_CAPTION_BYTES: usize = 4 << 10;
const MAX_TOKENS: u32 = 400;
/// After so many failures in a row, something is wrong with the server.
const MAX_FAILURES: usize = 3;
/// How often a caption is tried to be written while another program changes its folder, and how long after each try.
const MAX_TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// What is to be captioned, and by whom.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Captions {
    /// The number of a data set.
    set: u64,
    /// The indices of its pictures; those with a caption are left as they are.
    media: Vec<usize>,
    /// The port of the server on this machine.
    port: u16,
    /// The model, as the server calls it.
    model: String,
    /// What it is told to do.
    prompt: String,
}

/// A caption that was written.
#[derive(Clone, Serialize, JsonSchema)]
pub(super) struct WrittenCaption {
    medium: usize,
    text: String,
}

/// How far it is.
#[derive(Clone, Default, Serialize, JsonSchema)]
pub(super) struct Captioning {
    set: u64,
    /// How many pictures were asked for, and how many of these are dealt with.
    total: usize,
    done: usize,
    /// How many had a caption already.
    kept: usize,
    is_running: bool,
    /// Why pictures have no caption, the last one first.
    problems: Vec<String>,
    /// Those from the requested index on.
    written: Vec<WrittenCaption>,
    /// How many were written in all.
    written_in_all: usize,
}

/// Captions being written.
#[derive(Default)]
pub(crate) struct Work {
    progress: Mutex<Captioning>,
    stop: AtomicBool,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct After {
    /// How many of the captions are known already.
    after: usize,
}

/// How far the latest work is.
pub(super) async fn state(
    Shared(state): Of<State>,
    wanted: Result<Query<After>, QueryRejection>,
) -> Answer<Json<Option<Captioning>>> {
    let Query(After { after }) = wanted.map_err(|error| bad(error.body_text()))?;
    let work = lock(&state.captioner).clone();
    Ok(Json(work.map(|work| {
        let mut progress = lock(&work.progress);
        let written = std::mem::take(&mut progress.written);
        let mut now = progress.clone();
        now.written = written[after.min(written.len())..].to_vec();
        progress.written = written;
        now
    })))
}

/// Begins, unless another work goes on.
pub(super) async fn start(
    Shared(state): Of<State>,
    Body(asked): Body<Captions>,
) -> Answer<StatusCode> {
    let is_text = |text: &str, most| !text.trim().is_empty() && text.len() <= most;
    if !is_text(&asked.model, MAX_MODEL_BYTES) || !is_text(&asked.prompt, MAX_PROMPT_BYTES) {
        return Err(bad("name a model, and say what it is to write"));
    }
    refuse_port(&state, asked.port)?;
    let set = data::set(&state, &asked.set.to_string())?;
    if let Some(strange) = asked.media.iter().find(|place| **place >= set.media.len()) {
        return Err(bad(format!("there is no picture {strange}")));
    }
    if !set.is_writable {
        return Err(bad("captions are not written in this folder"));
    }
    let mut kept = lock(&state.captioner);
    let is_running = |work: &Arc<Work>| lock(&work.progress).is_running;
    if kept.as_ref().is_some_and(is_running) {
        let text = "captions are being written already: wait, or stop that";
        return Err(Refusal::new(StatusCode::CONFLICT, text));
    }
    let work = Arc::new(Work::default());
    *lock(&work.progress) = Captioning {
        set: asked.set,
        total: asked.media.len(),
        is_running: true,
        ..Captioning::default()
    };
    *kept = Some(work.clone());
    drop(kept);
    let mut closing = state.closing.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = write_all(&state, &set, &asked, &work) => {}
            _ = closing.changed() => {}
        }
        lock(&work.progress).is_running = false;
    });
    Ok(StatusCode::NO_CONTENT)
}

/// Ends after the current picture.
pub(super) async fn stop(Shared(state): Of<State>) -> Answer<StatusCode> {
    if let Some(work) = &*lock(&state.captioner) {
        work.stop.store(true, Ordering::Relaxed);
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn write_all(state: &State, set: &Arc<Set>, asked: &Captions, work: &Work) {
    let mut failures = 0;
    for &place in &asked.media {
        if work.stop.load(Ordering::Relaxed) || failures == MAX_FAILURES {
            break;
        }
        let done = caption(state, set, place, asked).await;
        let mut now = lock(&work.progress);
        now.done += 1;
        match done {
            Ok(Some(text)) => {
                failures = 0;
                now.written_in_all += 1;
                now.written.push(WrittenCaption {
                    medium: place,
                    text,
                });
            }
            Ok(None) => now.kept += 1,
            Err(problem) => {
                failures += 1;
                let file = set.media[place].file.display();
                now.problems.insert(0, format!("{file}: {problem}"));
                now.problems.truncate(20);
            }
        }
    }
}

/// Writes a caption, unless there is one; returns it.
async fn caption(
    state: &State,
    set: &Arc<Set>,
    place: usize,
    asked: &Captions,
) -> Result<Option<String>, String> {
    let shared = set.clone();
    let turn = state.thumbnails.turns.clone().acquire_owned().await.ok();
    let picture = blocking(move || {
        let _turn = turn;
        if !shared.has_no_caption(place) {
            return Ok(None);
        }
        let wrong = |error| Refusal::new(StatusCode::BAD_REQUEST, error);
        let picture = thumbnails::jpeg(shared.open(place)?, SIDE).map_err(wrong)?;
        Ok(Some(picture))
    });
    let Some(picture) = picture.await.map_err(|refusal| refusal.1)? else {
        return Ok(None);
    };
    let url = address_of(&picture);
    let body = json!({
        "model": asked.model,
        "max_tokens": MAX_TOKENS,
        "temperature": 0.2,
        "messages": [{ "role": "user", "content": [
            { "type": "text", "text": asked.prompt },
            { "type": "image_url", "image_url": { "url": url } },
        ] }],
    });
    let answer = ask(asked.port, "/v1/chat/completions", Some(body), TIMEOUT).await?;
    let text = answer["choices"][0]["message"]["content"].as_str();
    let text = one_line(text.ok_or("the server's answer has no text")?);
    if text.is_empty() {
        return Err("the model wrote nothing".into());
    }
    if text.len() > MAX_CAPTION_BYTES {
        return Err("the model wrote more than 4 KiB".into());
    }
    for tries_left in (0..MAX_TRIES).rev() {
        let (shared, written) = (set.clone(), text.clone());
        // Somebody may have written one meanwhile, which stays.
        match blocking(move || shared.write_caption(place, Some(&written), None)).await {
            Err(refusal) if refusal.1 == BUSY && tries_left > 0 => {
                tokio::time::sleep(PAUSE).await;
            }
            done => return done.map(|()| Some(text)).map_err(|refusal| refusal.1),
        }
    }
    Err(BUSY.into())
}

/// What a model wrote, without what it thought before, as one line.
fn one_line(text: &str) -> String {
    let text = text.rsplit_once("</think>").map_or(text, |(_, text)| text);
    let words: Vec<_> = text.split_whitespace().collect();
    let text = words.join(" ");
    let clean: String = text
        .chars()
        .filter(|letter| !letter.is_control() && *letter != '\u{fffd}')
        .collect();
    clean
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AtPort {
    /// The port of the server on this machine.
    port: u16,
}

/// The models of a server; null if none answers.
pub(super) async fn models(
    Shared(state): Of<State>,
    wanted: Result<Query<AtPort>, QueryRejection>,
) -> Answer<Json<Option<Vec<String>>>> {
    let Query(AtPort { port }) = wanted.map_err(|error| bad(error.body_text()))?;
    refuse_port(&state, port)?;
    let Ok(answer) = ask(port, "/v1/models", None, LIST_TIMEOUT).await else {
        return Ok(Json(None));
    };
    let models = answer["data"].as_array().into_iter().flatten();
    let names = models.filter_map(|model| model["id"].as_str());
    Ok(Json(Some(names.take(500).map(str::to_owned).collect())))
}

fn refuse_port(state: &State, port: u16) -> Answer<()> {
    match port == 0 || port == state.guard.address().port() {
        true => Err(bad("this is not the port of another server")),
        false => Ok(()),
    }
}

/// Asks the server at a port of this machine, and no other.
async fn ask(
    port: u16,
    path: &str,
    body: Option<Value>,
    at_most: Duration,
) -> Result<Value, String> {
    let asking = async {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        let stream = stream.map_err(|_| format!("no server answers at 127.0.0.1:{port}"))?;
        let failed =
            |error: hyper::Error| format!("the server at 127.0.0.1:{port} failed: {error}");
        let connection = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = connection.await.map_err(failed)?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(if body.is_some() { "POST" } else { "GET" })
            .uri(path)
            .header(header::HOST, format!("127.0.0.1:{port}"))
            .header(header::CONTENT_TYPE, "application/json");
        let body = body.map_or(HttpBody::empty(), |body| HttpBody::from(body.to_string()));
        let request = request.body(body).map_err(|error| error.to_string())?;
        let answer = sender.send_request(request).await.map_err(failed)?;
        let status = answer.status();
        let bytes = to_bytes(HttpBody::new(answer.into_body()), MAX_ANSWER_BYTES).await;
        let bytes = bytes.map_err(|_| "the server's answer is too long".to_owned())?;
        let read = serde_json::from_slice::<Value>(&bytes);
        let said = read.as_ref().ok().and_then(|read| {
            let error = &read["error"];
            let text = error["message"].as_str().or(error.as_str())?;
            Some(text.chars().take(300).collect::<String>())
        });
        match (status.is_success(), said, read) {
            (true, None, Ok(read)) => Ok(read),
            (_, Some(said), _) => Err(said),
            (true, None, Err(_)) => Err("the server's answer is not JSON".into()),
            (false, None, _) => Err(format!("the server answers {status}")),
        }
    };
    match tokio::time::timeout(at_most, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} seconds", at_most.as_secs())),
    }
}

/// A picture in an address.
fn address_of(jpeg: &[u8]) -> String {
    format!("data:image/jpeg;base64,{}", BASE64_STANDARD.encode(jpeg))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_base_64() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            let expected = format!("data:image/jpeg;base64,{text}");
            assert_eq!(address_of(bytes.as_bytes()), expected);
        }
    }

    #[test]
    fn a_caption_is_one_line_without_thoughts() {
        assert_eq!(
            one_line("<think>\nhm\n</think>\n\n a  cat\non a mat\u{7} "),
            "a cat on a mat"
        );
    }
}
