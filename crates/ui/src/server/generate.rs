//! A prompt to what a run has made, answered as it comes: a line of JSON for each piece of text, and one for the end. A
//! video comes as a file, whose name is in the last line; the lines before it tell of its steps.
//!
//! The model is in memory while it answers, and no longer: its process ends with the answer, when nobody listens any
//! more, or when nothing comes for a while.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path as UrlPath, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::api::{bad, blocking, parse};
use super::error::Refusal;
use super::{State, media};
use crate::queue::{Answering, Prompt, plain};
use crate::runs::Folder;

/// Longest prompt, in bytes.
const LONGEST: usize = 16 << 10;
/// Most tokens of an answer.
const MOST_TOKENS: u32 = 4096;
/// Most frames of a video, steps of its solver, and pixels of a side.
const MOST_FRAMES: u32 = 481;
const MOST_STEPS: u32 = 200;
const MOST_PIXELS: u32 = 2048;
/// Videos that are kept.
const KEPT: usize = 4;
/// Without a letter for so long, a model is stopped; loading a large one takes a while.
const IDLE: Duration = Duration::from_secs(600);
/// Time in which a browser has to take what came.
const TAKEN: Duration = Duration::from_secs(30);
/// What is kept of what it says beside its answer.
const ERRORS: usize = 64 << 10;

type Line = Result<Bytes, io::Error>;

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}

/// What a request asks, if a model can be asked that.
pub(super) fn read(body: &[u8]) -> Result<Prompt, Refusal> {
    let prompt: Prompt = parse(body)?;
    if prompt.prompt.len() > LONGEST || prompt.prompt.contains('\0') {
        return Err(bad("a prompt is a text of at most 16 KiB"));
    }
    if prompt
        .max_new_tokens
        .is_some_and(|most| !(1..=MOST_TOKENS).contains(&most))
    {
        return Err(bad(format!("`max_new_tokens` is 1 to {MOST_TOKENS}")));
    }
    if prompt
        .temperature
        .is_some_and(|value| !(0.0..=100.0).contains(&value))
    {
        return Err(bad("`temperature` is 0 to 100"));
    }
    let numbers = [
        ("frames", prompt.frames, MOST_FRAMES),
        ("steps", prompt.steps, MOST_STEPS),
        ("width", prompt.width, MOST_PIXELS),
        ("height", prompt.height, MOST_PIXELS),
    ];
    for (name, number, most) in numbers {
        if number.is_some_and(|number| !(1..=most).contains(&number)) {
            return Err(bad(format!("`{name}` is 1 to {most}")));
        }
    }
    Ok(prompt)
}

/// Answers a prompt.
pub(super) async fn generate(
    Shared(state): Shared<Arc<State>>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let prompt = read(&body)?;
    let permit = state.generating.clone().try_acquire_owned().map_err(|_| {
        let text = "another prompt is being answered: stop it, or wait";
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, text)
    })?;
    let shared = state.clone();
    let Answering { mut child, file } = blocking(move || {
        let has_gpu = || !crate::gpus::read(&shared.system, &[]).is_empty();
        if !prompt.beside
            && let Some(run) = shared.queue.run_on_a_gpu()?.filter(|_| has_gpu())
        {
            return Err(Refusal::new(
                StatusCode::CONFLICT,
                format!("`{run}` uses the GPU: both might run out of memory"),
            ));
        }
        let (launch, tried) = (&shared.launch, tried(&shared));
        forget(&tried);
        let (program, folder) = (&launch.program, &launch.folder);
        Ok(shared
            .queue
            .start_generate(program, folder, &tried, &prompt)?)
    })
    .await?;
    let (sender, receiver) = mpsc::channel::<Line>(16);
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let (pieces, heard) = mpsc::channel(4);
    // Threads of their own, since they wait for as long as the model thinks.
    let errors = match &file {
        // What it prints is the name of its file; its steps are told beside that.
        Some(_) => {
            std::thread::spawn(move || read_end(output, None));
            std::thread::spawn(move || read_end(errors, Some(&pieces)))
        }
        None => {
            std::thread::spawn(move || read_text(output, &pieces));
            std::thread::spawn(move || read_end(errors, None))
        }
    };
    let key = match &file {
        Some(_) => "progress",
        None => "text",
    };
    let mut closing = state.closing.clone();
    tokio::spawn(async move {
        let _permit = permit;
        let end = tokio::select! {
            end = pass_on(heard, key, &sender) => end,
            () = sender.closed() => Some("nobody listens any more"),
            _ = closing.changed() => Some("the server ends"),
        };
        finish(child, errors, end, file, &sender).await;
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(ReceiverStream::new(receiver))).into_response())
}

/// Passes text on until it ends; why it was broken off, if it was.
async fn pass_on(
    mut heard: mpsc::Receiver<String>,
    key: &str,
    sender: &mpsc::Sender<Line>,
) -> Option<&'static str> {
    loop {
        match tokio::time::timeout(IDLE, heard.recv()).await {
            Err(_) => return Some("nothing came for ten minutes, so it was stopped"),
            Ok(None) => return None,
            Ok(Some(text)) => {
                let piece = Ok(line(&json!({ key: text })));
                match tokio::time::timeout(TAKEN, sender.send(piece)).await {
                    Ok(Ok(())) => {}
                    _ => return Some("nobody listens any more"),
                }
            }
        }
    }
}

/// Ends the process, and says how it ended.
async fn finish(
    mut child: Child,
    errors: std::thread::JoinHandle<String>,
    broken: Option<&'static str>,
    file: Option<PathBuf>,
    sender: &mpsc::Sender<Line>,
) {
    if broken.is_some() {
        let _ = child.kill();
    }
    let status = blocking(move || {
        let status = child.wait()?;
        Ok((status.success(), errors.join().unwrap_or_default()))
    });
    let error = match (status.await, broken) {
        (_, Some(reason)) => Some(reason.to_owned()),
        (Ok((true, _)), None) => None,
        (Ok((false, said)), None) => Some(match said.rsplit_once("surefoot: ") {
            Some((_, error)) => error.trim().to_owned(),
            None => said.trim().to_owned(),
        }),
        (Err(refusal), None) => Some(refusal.1),
    };
    let made = file.filter(|file| error.is_none() && file.is_file());
    let name = made.as_ref().and_then(|file| file.file_name()?.to_str());
    let mut end = json!({ "end": true, "error": error });
    if let Some(name) = name {
        end["file"] = json!(format!("/api/tried/{name}"));
    }
    let end = Ok(line(&end));
    let _ = tokio::time::timeout(TAKEN, sender.send(end)).await;
}

/// Reads text as it comes; a letter that is cut in two waits for its other half.
fn read_text(output: Option<impl Read>, pieces: &mpsc::Sender<String>) {
    let Some(mut output) = output else {
        return;
    };
    let (mut buffer, mut rest) = ([0; 4096], Vec::new());
    loop {
        match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => rest.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        }
        let text = whole_letters(&mut rest);
        if !text.is_empty() && pieces.blocking_send(text).is_err() {
            return;
        }
    }
    if !rest.is_empty() {
        let _ = pieces.blocking_send(String::from_utf8_lossy(&rest).into_owned());
    }
}

/// Takes the text in front of a letter that is not whole yet; what can never be one becomes U+FFFD.
fn whole_letters(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    loop {
        match std::str::from_utf8(bytes) {
            Ok(all) => {
                text.push_str(all);
                bytes.clear();
                return text;
            }
            Err(error) => {
                let valid = error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[..valid]));
                match error.error_len() {
                    None => {
                        bytes.drain(..valid);
                        return text;
                    }
                    Some(length) => {
                        text.push('\u{fffd}');
                        bytes.drain(..valid + length);
                    }
                }
            }
        }
    }
}

/// The end of what is said beside the answer, so that the pipe never fills; each piece goes to `told`, too, as far as
/// somebody takes it.
fn read_end(stream: Option<impl Read>, told: Option<&mpsc::Sender<String>>) -> String {
    let (mut buffer, mut kept) = ([0; 4096], Vec::new());
    if let Some(mut stream) = stream {
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if let Some(told) = told {
                let _ = told.try_send(plain(&String::from_utf8_lossy(&buffer[..count])));
            }
            kept.extend_from_slice(&buffer[..count]);
            kept.drain(..kept.len().saturating_sub(ERRORS));
        }
    }
    plain(&String::from_utf8_lossy(&kept))
}

/// Where videos lie that were made to try a run.
fn tried(state: &State) -> PathBuf {
    state.runs.state_folder().join("tried")
}

/// Removes all but the newest of them.
fn forget(tried: &Path) {
    let entries = std::fs::read_dir(tried).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    files.truncate(files.len().saturating_sub(KEPT - 1));
    for (_, path) in files {
        let _ = std::fs::remove_file(path);
    }
}

/// Whether a video is called so.
pub(super) fn is_made(name: &str) -> bool {
    name.strip_suffix(".webp").is_some_and(|number| {
        number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// A video that was made.
pub(super) async fn made(
    Shared(state): Shared<Arc<State>>,
    UrlPath(name): UrlPath<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let missing = || Refusal::new(StatusCode::NOT_FOUND, "there is no such video any more");
    if !is_made(&name) {
        return Err(missing());
    }
    let (shared, wanted) = (state.clone(), name.clone());
    let file = blocking(move || {
        let folder = Folder::open(&tried(&shared)).map_err(|_| missing())?;
        folder.file(&wanted).map_err(|_| missing())
    });
    media::send(state, file.await?, &name, &headers).await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::whole_letters;

    proptest! {
        #[test]
        fn text_in_pieces_is_the_text(text in ".{0,60}", cuts in prop::collection::vec(0_usize..200, 0..8)) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (mut rest, mut made) = (Vec::new(), String::new());
            for pair in cuts.windows(2) {
                rest.extend_from_slice(&bytes[pair[0]..pair[1]]);
                made.push_str(&whole_letters(&mut rest));
            }
            prop_assert_eq!(made, text);
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn bytes_of_any_kind_never_wait_for_more_than_a_letter(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut rest = bytes;
            whole_letters(&mut rest);
            prop_assert!(rest.len() < 4);
        }
    }
}
