//! Generates from a prompt with a run's model. The answer is streamed: one line of JSON for each piece of text, and one
//! for the end. A video is a file, which the last line names; the lines before it report the steps.
//!
//! The model is in memory only while it answers: its process is ended after the answer, when the client disconnects,
//! or when it produces no output for a while.

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

use super::api::{bad, blocking};
use super::describe::Body as JsonBody;
use super::error::Refusal;
use super::{State, media};
use crate::queue::{Generation, Prompt, plain};
use crate::runs::Folder;

/// The longest prompt, in bytes.
const MAX_PROMPT_BYTES: usize = 16 << 10;
/// The longest conversation before a prompt, in bytes.
const MAX_HISTORY_BYTES: usize = 48 << 10;
/// The most tokens of an answer.
const MAX_TOKENS: u32 = 4096;
/// The most frames of a video, inference steps, and pixels per side.
const MAX_FRAMES: u32 = 481;
const MAX_STEPS: u32 = 200;
const MAX_PIXELS: u32 = 2048;
/// How many videos are kept.
const MAX_VIDEOS: usize = 4;
/// A model is stopped after this time without output; loading a large one takes a while.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a browser may take to receive a piece.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How much is kept of the model's standard error, in bytes.
const MAX_STDERR_BYTES: usize = 64 << 10;

type Line = Result<Bytes, io::Error>;

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}

/// Checks the limits of a request.
pub(super) fn checked(prompt: Prompt) -> Result<Prompt, Refusal> {
    if prompt.prompt.len() > MAX_PROMPT_BYTES || prompt.prompt.contains('\0') {
        return Err(bad("a prompt is a text of at most 16 KiB"));
    }
    let said = prompt.history.iter().map(|turn| turn.content.len());
    if said.sum::<usize>() > MAX_HISTORY_BYTES {
        return Err(bad("the chat is longer than 48 KiB: begin a new one"));
    }
    if prompt
        .max_new_tokens
        .is_some_and(|most| !(1..=MAX_TOKENS).contains(&most))
    {
        return Err(bad(format!("`max_new_tokens` is 1 to {MAX_TOKENS}")));
    }
    if prompt
        .temperature
        .is_some_and(|value| !(0.0..=100.0).contains(&value))
    {
        return Err(bad("`temperature` is 0 to 100"));
    }
    if prompt
        .strength
        .is_some_and(|value| !(-10.0..=10.0).contains(&value))
    {
        return Err(bad("`strength` is -10 to 10"));
    }
    let numbers = [
        ("frames", prompt.frames, MAX_FRAMES),
        ("steps", prompt.steps, MAX_STEPS),
        ("width", prompt.width, MAX_PIXELS),
        ("height", prompt.height, MAX_PIXELS),
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
    JsonBody(prompt): JsonBody<Prompt>,
) -> Result<Response, Refusal> {
    let prompt = checked(prompt)?;
    let permit = state.generating.clone().try_acquire_owned().map_err(|_| {
        let text = "another prompt is being answered: stop it, or wait";
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, text)
    })?;
    let shared = state.clone();
    let Generation { mut child, file } = blocking(move || {
        let has_gpu = || !crate::gpus::read(&shared.system, &[]).is_empty();
        if !prompt.beside
            && let Some(run) = shared.queue.run_on_a_gpu()?.filter(|_| has_gpu())
        {
            return Err(Refusal::new(
                StatusCode::CONFLICT,
                format!("`{run}` uses the GPU: both might run out of memory"),
            ));
        }
        let (launch, videos_folder) = (&shared.launch, videos_folder(&shared));
        remove_old_videos(&videos_folder);
        let (program, folder) = (&launch.program, &launch.folder);
        Ok(shared
            .queue
            .start_generate(program, folder, &videos_folder, &prompt)?)
    })
    .await?;
    let (sender, receiver) = mpsc::channel::<Line>(16);
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let (pieces, heard) = mpsc::channel(4);
    // Threads of their own, since they block for as long as the model computes.
    let errors = match &file {
        // For a video, stdout has the file name, and the steps are on stderr.
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
            () = sender.closed() => Some("the client disconnected"),
            _ = closing.changed() => Some("the server is shutting down"),
        };
        finish(child, errors, end, file, &sender).await;
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(ReceiverStream::new(receiver))).into_response())
}

/// Forwards text until it ends; returns why it was interrupted, if it was.
async fn pass_on(
    mut heard: mpsc::Receiver<String>,
    key: &str,
    sender: &mpsc::Sender<Line>,
) -> Option<&'static str> {
    loop {
        match tokio::time::timeout(OUTPUT_TIMEOUT, heard.recv()).await {
            Err(_) => return Some("it was stopped after ten minutes without output"),
            Ok(None) => return None,
            Ok(Some(text)) => {
                let piece = Ok(line(&json!({ key: text })));
                match tokio::time::timeout(CLIENT_TIMEOUT, sender.send(piece)).await {
                    Ok(Ok(())) => {}
                    _ => return Some("the client disconnected"),
                }
            }
        }
    }
}

/// Ends the process, and describes how it ended.
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
    let _ = tokio::time::timeout(CLIENT_TIMEOUT, sender.send(end)).await;
}

/// Reads text as it arrives; an incomplete character is kept until its remaining bytes arrive.
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
        let text = take_complete_characters(&mut rest);
        if !text.is_empty() && pieces.blocking_send(text).is_err() {
            return;
        }
    }
    if !rest.is_empty() {
        let _ = pieces.blocking_send(String::from_utf8_lossy(&rest).into_owned());
    }
}

/// Takes the text up to an incomplete character; invalid bytes become U+FFFD.
fn take_complete_characters(bytes: &mut Vec<u8>) -> String {
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

/// Reads to the end, so that the pipe never fills, and returns the last part; all of it is also sent to `told`, as
/// long as there is a receiver: what it has no room for yet, together with the next piece.
fn read_end(stream: Option<impl Read>, told: Option<&mpsc::Sender<String>>) -> String {
    let (mut buffer, mut kept, mut unsent) = ([0; 4096], Vec::new(), Vec::new());
    if let Some(mut stream) = stream {
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            kept.extend_from_slice(&buffer[..count]);
            if let Some(told) = told {
                unsent.extend_from_slice(&buffer[..count]);
                if let Ok(slot) = told.try_reserve() {
                    slot.send(plain(&take_complete_characters(&mut unsent)));
                }
            }
            for bytes in [&mut kept, &mut unsent] {
                bytes.drain(..bytes.len().saturating_sub(MAX_STDERR_BYTES));
            }
        }
    }
    if let Some(told) = told.filter(|_| !unsent.is_empty()) {
        let _ = told.blocking_send(plain(&String::from_utf8_lossy(&unsent)));
    }
    plain(&String::from_utf8_lossy(&kept))
}

/// The folder for generated videos.
fn videos_folder(state: &State) -> PathBuf {
    state.runs.state_folder().join("tried")
}

/// Removes all but the newest videos.
fn remove_old_videos(videos_folder: &Path) {
    let entries = std::fs::read_dir(videos_folder)
        .into_iter()
        .flatten()
        .flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    files.truncate(files.len().saturating_sub(MAX_VIDEOS - 1));
    for (_, path) in files {
        let _ = std::fs::remove_file(path);
    }
}

/// Whether this is the name of a generated video.
pub(super) fn is_video_name(name: &str) -> bool {
    name.strip_suffix(".webp").is_some_and(|number| {
        number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// A generated video.
pub(super) async fn made(
    Shared(state): Shared<Arc<State>>,
    UrlPath(name): UrlPath<String>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let missing = || Refusal::new(StatusCode::NOT_FOUND, "this video no longer exists");
    if !is_video_name(&name) {
        return Err(missing());
    }
    let (shared, wanted) = (state.clone(), name.clone());
    let file = blocking(move || {
        let folder = Folder::open(&videos_folder(&shared)).map_err(|_| missing())?;
        folder.file(&wanted).map_err(|_| missing())
    });
    media::send(state, file.await?, &name, &headers).await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::take_complete_characters;

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
                made.push_str(&take_complete_characters(&mut rest));
            }
            prop_assert_eq!(made, text);
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn bytes_of_any_kind_never_wait_for_more_than_a_letter(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut rest = bytes;
            take_complete_characters(&mut rest);
            prop_assert!(rest.len() < 4);
        }
    }
}
