//! Pictures and videos: sends files, or byte ranges of them, in pieces.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::api::blocking;
use super::error::Refusal;
use super::{State, lock};
use crate::runs::RunName;

/// Bytes per read.
const PIECE_BYTES: u64 = 256 << 10;
/// How long a browser may take to receive a piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);

/// The content type of a file by its extension; never one that a browser would execute.
fn kind(name: &str) -> &'static str {
    let ending = name
        .rsplit_once('.')
        .map(|(_, ending)| ending.to_ascii_lowercase());
    match ending.as_deref() {
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("bmp") => "image/bmp",
        Some("webp") => "image/webp",
        Some("mp4" | "m4v") => "video/mp4",
        Some("webm") => "video/webm",
        Some("mov") => "video/quicktime",
        Some("mkv") => "video/x-matroska",
        Some("ogv") => "video/ogg",
        _ => "application/octet-stream",
    }
}

/// The first and last byte that a `Range` header asks for, of `length` bytes; `None` for the whole file.
///
/// # Errors
/// If no requested byte exists.
pub(crate) fn range(header: Option<&str>, length: u64) -> Result<Option<(u64, u64)>, ()> {
    let Some((first, last)) = header
        .and_then(|text| text.strip_prefix("bytes="))
        .filter(|text| !text.contains(','))
        .and_then(|text| text.split_once('-'))
    else {
        return Ok(None);
    };
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u64>().ok(),
        false => None,
    };
    let (first, last) = match (number(first), number(last)) {
        // A suffix range: the last n bytes.
        (None, Some(count)) if first.is_empty() => (length.saturating_sub(count.max(1)), length),
        (Some(first), None) if last.is_empty() => (first, length),
        (Some(first), Some(last)) if first <= last => (first, last),
        _ => return Ok(None),
    };
    match first < length {
        true => Ok(Some((first, last.min(length - 1)))),
        false => Err(()),
    }
}

/// A file, or the requested part of it.
pub(super) async fn send(
    state: Arc<State>,
    mut file: File,
    name: &str,
    headers: &HeaderMap,
) -> Result<Response, Refusal> {
    let length = file.metadata()?.len();
    let asked = headers
        .get(header::RANGE)
        .and_then(|range| range.to_str().ok());
    let Ok(part) = range(asked, length) else {
        let whole = [(header::CONTENT_RANGE, format!("bytes */{length}"))];
        return Ok((StatusCode::RANGE_NOT_SATISFIABLE, whole).into_response());
    };
    let (first, last) = part.unwrap_or((0, length.saturating_sub(1)));
    let count = match length {
        0 => 0,
        _ => last - first + 1,
    };
    file.seek(SeekFrom::Start(first))?;
    let (sender, receiver) = mpsc::channel(2);
    tokio::spawn(async move {
        // The number of concurrent transfers is limited, as that of other streams is.
        let Ok(_permit) = state.files.acquire().await else {
            return;
        };
        let (mut file, mut left) = (file, count);
        while left > 0 {
            let read = blocking(move || {
                let mut piece = vec![0; left.min(PIECE_BYTES) as usize];
                file.read_exact(&mut piece)?;
                Ok((file, Bytes::from(piece)))
            });
            let sent: io::Result<Bytes> = match read.await {
                Ok((same, piece)) => {
                    file = same;
                    left -= piece.len() as u64;
                    Ok(piece)
                }
                // The file became shorter meanwhile.
                Err(refusal) => {
                    let _ = sender.send(Err(io::Error::other(refusal.1))).await;
                    return;
                }
            };
            let taken = tokio::time::timeout(PIECE_TIMEOUT, sender.send(sent)).await;
            if !matches!(taken, Ok(Ok(()))) {
                return;
            }
        }
    });
    let mut response = Body::from_stream(ReceiverStream::new(receiver)).into_response();
    if part.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    let fields = response.headers_mut();
    fields.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(kind(name)),
    );
    fields.insert(
        header::ACCEPT_RANGES,
        header::HeaderValue::from_static("bytes"),
    );
    fields.insert(header::CONTENT_LENGTH, count.into());
    if part.is_some()
        && let Ok(value) = format!("bytes {first}-{last}/{length}").parse()
    {
        fields.insert(header::CONTENT_RANGE, value);
    }
    Ok(response)
}

/// A file of a sample, by its step and the indices of the sample and the file in the run's records.
pub(super) async fn sample(
    Shared(state): Shared<Arc<State>>,
    Path((name, step, sample, file)): Path<(String, String, String, String)>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let missing = || Refusal::new(StatusCode::NOT_FOUND, "there is no such sample");
    let name = RunName::parse(&name)?;
    let step: u64 = step.parse().map_err(|_| missing())?;
    let sample: usize = sample.parse().map_err(|_| missing())?;
    let file: usize = file.parse().map_err(|_| missing())?;
    let shared = state.clone();
    let (opened, path) = blocking(move || {
        let metrics = shared.metrics(&name);
        let mut metrics = lock(&metrics);
        let mut records = shared.runs.metrics_file(&name)?.ok_or_else(missing)?;
        metrics.update(&mut records)?;
        let set = metrics
            .samples_of(&mut records, step)?
            .ok_or_else(missing)?;
        let path = set
            .samples
            .get(sample)
            .and_then(|sample| sample.files.get(file));
        let path = path.ok_or_else(missing)?.clone();
        let opened = shared.runs.file_below(&name, std::path::Path::new(&path));
        Ok((opened.map_err(|_| missing())?, path))
    })
    .await?;
    send(state, opened, &path, &headers).await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::range;

    #[test]
    fn the_requested_range_is_returned() {
        for (header, wanted) in [
            (None, Ok(None)),
            (Some("bytes=0-"), Ok(Some((0, 9)))),
            (Some("bytes=3-5"), Ok(Some((3, 5)))),
            (Some("bytes=3-99"), Ok(Some((3, 9)))),
            (Some("bytes=-4"), Ok(Some((6, 9)))),
            (Some("bytes=-99"), Ok(Some((0, 9)))),
            (Some("bytes=10-"), Err(())),
            (Some("bytes=5-3"), Ok(None)),
            (Some("bytes=0-1,4-5"), Ok(None)),
            (Some("bytes=+1-2"), Ok(None)),
            (Some("rows=1-2"), Ok(None)),
            (Some("bytes=-"), Ok(None)),
        ] {
            assert_eq!(range(header, 10), wanted, "{header:?}");
        }
        assert_eq!(range(Some("bytes=0-"), 0), Err(()));
    }

    proptest! {
        #[test]
        fn a_part_is_inside_the_file(text in "(bytes=)?[0-9-]{0,24}", length in 0_u64..100) {
            if let Ok(Some((first, last))) = range(Some(&text), length) {
                prop_assert!(first <= last && last < length);
            }
        }
    }
}
