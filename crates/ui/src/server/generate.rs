//! A prompt to what a run has made, answered as it comes: a line of JSON for each piece of text, and one for the end.
//!
//! The model is in memory while it answers, and no longer: its process ends with the answer, when nobody listens any
//! more, or when nothing comes for a while.

use std::io::{self, Read};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::State;
use super::api::{bad, blocking, parse};
use super::error::Refusal;
use crate::queue::{Prompt, plain};

/// Longest prompt, in bytes.
const LONGEST: usize = 16 << 10;
/// Most tokens of an answer.
const MOST_TOKENS: u32 = 4096;
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

/// Answers a prompt.
pub(super) async fn generate(
    Shared(state): Shared<Arc<State>>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let prompt: Prompt = parse(&body)?;
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
    let permit = state.generating.clone().try_acquire_owned().map_err(|_| {
        let text = "another prompt is being answered: stop it, or wait";
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, text)
    })?;
    let shared = state.clone();
    let mut child = blocking(move || {
        let launch = &shared.launch;
        Ok(shared
            .queue
            .start_generate(&launch.program, &launch.folder, &prompt)?)
    })
    .await?;
    let (sender, receiver) = mpsc::channel::<Line>(16);
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let (pieces, heard) = mpsc::channel(4);
    // Threads of their own, since they wait for as long as the model thinks.
    std::thread::spawn(move || read_text(output, &pieces));
    let errors = std::thread::spawn(move || read_end(errors));
    let mut closing = state.closing.clone();
    tokio::spawn(async move {
        let _permit = permit;
        let end = tokio::select! {
            end = pass_on(heard, &sender) => end,
            () = sender.closed() => Some("nobody listens any more"),
            _ = closing.changed() => Some("the server ends"),
        };
        finish(child, errors, end, &sender).await;
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(ReceiverStream::new(receiver))).into_response())
}

/// Passes text on until it ends; why it was broken off, if it was.
async fn pass_on(
    mut heard: mpsc::Receiver<String>,
    sender: &mpsc::Sender<Line>,
) -> Option<&'static str> {
    loop {
        match tokio::time::timeout(IDLE, heard.recv()).await {
            Err(_) => return Some("nothing came for ten minutes, so it was stopped"),
            Ok(None) => return None,
            Ok(Some(text)) => {
                let piece = Ok(line(&json!({ "text": text })));
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
    let end = Ok(line(&json!({ "end": true, "error": error })));
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

/// The end of what is said beside the answer, so that the pipe never fills.
fn read_end(errors: Option<impl Read>) -> String {
    let (mut buffer, mut kept) = ([0; 4096], Vec::new());
    if let Some(mut errors) = errors {
        while let Ok(count @ 1..) = errors.read(&mut buffer) {
            kept.extend_from_slice(&buffer[..count]);
            kept.drain(..kept.len().saturating_sub(ERRORS));
        }
    }
    plain(&String::from_utf8_lossy(&kept))
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
