//! All parsers for request data, with the invariants of what they accept. For the fuzz target `ui_requests` and the
//! tests only.

use super::{api, generate, media, queue, stream};
use crate::queue::{Concurrency, JobId, plain};
use crate::runs::RunName;

/// Passes the same bytes to each of them.
///
/// # Panics
/// If a parser accepts what it must not.
pub fn all(bytes: &[u8]) {
    bodies(bytes);
    let text = String::from_utf8_lossy(bytes);
    names(&text);
    if let Ok(Some((first, last))) = media::range(Some(&text), 1000) {
        assert!(first <= last && last < 1000, "bytes {first} to {last}");
    }
    if let Some(found) = stream::Position::parse(&text) {
        let again = stream::Position::parse(&found.to_string());
        assert_eq!(again, Some(found));
    }
    let shown = plain(&text);
    let is_code = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    assert!(!shown.contains(is_code), "{shown:?}");
}

/// Values from the path of a request.
fn names(text: &str) {
    if let Ok(name) = RunName::parse(text) {
        let path = std::path::Path::new(name.as_str());
        let parts: Vec<_> = path.components().collect();
        assert!(
            matches!(parts[..], [std::path::Component::Normal(_)]),
            "{text:?}"
        );
        assert!(
            !text.starts_with('.') && !text.contains(['/', '\0']),
            "{text:?}"
        );
    }
    if let Ok(job) = text.parse::<JobId>() {
        assert!(
            job.0 <= 999_999_999 && text.ends_with(&job.to_string()),
            "{text:?}"
        );
    }
    if let Ok(at_once) = text.parse::<Concurrency>() {
        assert_eq!(at_once.name(), text);
    }
    if generate::is_video_name(text) {
        assert!(
            !text.contains(['/', '\0']) && !text.starts_with('.'),
            "{text:?}"
        );
    }
}

/// Values from the body.
fn bodies(bytes: &[u8]) {
    let _ = api::parse(bytes).and_then(queue::Wanted::look);
    if let Ok(prompt) = api::parse(bytes).and_then(generate::checked) {
        assert!(!prompt.prompt.contains('\0'));
    }
    queue::read_bodies(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn what_requests_bring_is_read_or_refused() {
        for text in [
            "",
            "a",
            "..",
            "../a",
            "a/b",
            "a\0",
            ".hidden",
            "007",
            "bytes=1-5",
            "bytes=-0",
            "bytes=999999999999999999999-",
            "12-34",
            "18446744073709551616-1",
            "one",
            "{}",
            "[]",
            "null",
            "{\"run\":\"a\",\"prompt\":\"x\\u0000\"}",
            "{\"config\":\"name: [\"}",
            "{\"set\":{\"a b\":\"1\"},\"like\":\"a\"}",
            "{\"at_once\":\"one\"}",
            "0123456789abcdef.webp",
            "\u{1b}[31mred\u{1b}[0m\r\n\u{9b}1m",
        ] {
            super::all(text.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            super::all(&bytes);
        }

        #[test]
        fn texts_that_are_nearly_right_are_read_or_refused(
            text in r#"(bytes=)?[0-9]{0,22}-?[0-9]{0,22}|\{"(run|config|like|set|at_once|place|paused|rows)":("[a-z.\\/]{0,9}"|[0-9]{0,4}|\{\}|null)\}|[a-z0-9./=; -]{0,30}"#
        ) {
            super::all(text.as_bytes());
        }
    }
}
