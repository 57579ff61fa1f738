//! The format of a data file, by its name and its first bytes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::Error;
use crate::config::DataFormat;

/// File extensions in lower case, and their formats.
const ENDINGS: [(&str, DataFormat); 11] = [
    ("txt", DataFormat::Text),
    ("text", DataFormat::Text),
    ("md", DataFormat::Text),
    ("markdown", DataFormat::Text),
    ("jsonl", DataFormat::Jsonl),
    ("ndjson", DataFormat::Jsonl),
    ("json", DataFormat::Json),
    ("geojson", DataFormat::Json),
    ("csv", DataFormat::Csv),
    ("tsv", DataFormat::Csv),
    ("parquet", DataFormat::Parquet),
];

/// The first bytes of files that are recognised but cannot be read.
const UNREADABLE: [(&[u8], &str, &str); 7] = [
    (b"ARROW1", "an Arrow file", ARROW),
    (b"\x1f\x8b", "compressed with gzip", UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", UNPACK),
    (b"BZh", "compressed with bzip2", UNPACK),
    (b"\xfd7zXZ", "compressed with xz", UNPACK),
    (b"PK\x03\x04", "a zip archive", UNPACK),
    (b"%PDF-", "a PDF", "extract its text first"),
];

/// The first and last bytes of a Parquet file.
const PARQUET: &[u8] = b"PAR1";

const ARROW: &str = "convert it to Parquet first, as with \
    `python -c 'import sys, datasets; datasets.Dataset.from_file(sys.argv[1])\
    .to_parquet(sys.argv[2])' IN OUT.parquet`";
const UNPACK: &str = "unpack it first";

/// The file extensions that are read from a folder.
pub(crate) fn known_endings() -> impl Iterator<Item = &'static str> {
    ENDINGS.into_iter().map(|(ending, _)| ending)
}

/// The format by the file extension, which is not case-sensitive.
pub(crate) fn named(path: &Path) -> Option<DataFormat> {
    let ending = ending(path)?;
    let known = ENDINGS.into_iter().find(|(known, _)| *known == ending);
    known.map(|(_, format)| format)
}

/// The file extension in lower case.
pub(crate) fn ending(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_lowercase())
}

/// The format of the file at `path`: `wanted`, or else by its name and content.
///
/// A `.json` file may contain JSON lines, as many do, and a `.jsonl` file a list. A file with an unknown extension must contain
/// JSON.
pub(crate) fn of(path: &Path, wanted: Option<DataFormat>) -> Result<DataFormat, Error> {
    refuse_pointer(path)?;
    if let Some(format) = wanted {
        return Ok(format);
    }
    let mut head = Vec::new();
    File::open(path)
        .and_then(|file| file.take(1 << 16).read_to_end(&mut head))
        .map_err(|error| Error::io("read", path, error))?;
    let refuse = |what: &str, todo: &str| {
        Err(Error::Data(format!(
            "`{}` is {what}: {todo}",
            path.display()
        )))
    };
    for (magic, what, todo) in UNREADABLE {
        if head.starts_with(magic) {
            return refuse(what, todo);
        }
    }
    if head.starts_with(PARQUET) {
        return Ok(DataFormat::Parquet);
    }
    if matches!(ending(path).as_deref(), Some("arrow" | "feather")) {
        return refuse("a table in an unsupported format", ARROW);
    }
    let json = json(&head);
    match (named(path), json) {
        (Some(DataFormat::Json), Some(found)) => Ok(found),
        // No record begins with a bracket.
        (Some(DataFormat::Jsonl), Some(DataFormat::Json)) if !begins_object(&head) => {
            Ok(DataFormat::Json)
        }
        (Some(format), _) => Ok(format),
        (None, Some(found)) => Ok(found),
        (None, None) => refuse(
            "of an unknown format",
            "supported files end in .jsonl, .json, .csv, .parquet, .txt or .md; set `data.format` for \
            others, for example `data.format: text`",
        ),
    }
}

/// Refuses what git-lfs leaves in place of a file that was not fetched.
pub(crate) fn refuse_pointer(path: &Path) -> Result<(), Error> {
    match models::is_lfs_pointer(path) {
        true => Err(Error::Data(format!(
            "`{}` {}",
            path.display(),
            models::LFS_POINTER
        ))),
        false => Ok(()),
    }
}

/// `head` without what may stand before JSON.
fn begun(head: &[u8]) -> &[u8] {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    head.trim_ascii_start()
}

fn begins_object(head: &[u8]) -> bool {
    begun(head).starts_with(b"{")
}

/// Whether a file that begins with `head` is JSON or JSON lines, if either.
fn json(head: &[u8]) -> Option<DataFormat> {
    let head = begun(head);
    match head.first()? {
        b'[' => Some(DataFormat::Json),
        b'{' => {
            let mut lines = head.splitn(2, |byte| *byte == b'\n');
            let first = lines.next()?;
            let more = lines
                .next()
                .is_some_and(|rest| !rest.trim_ascii().is_empty());
            let whole = serde_json::from_slice::<serde::de::IgnoredAny>(first).is_ok();
            Some(match whole && more {
                true => DataFormat::Jsonl,
                false => DataFormat::Json,
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognised_by_name_and_content_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let found = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            of(&path, None).map_err(|error| error.to_string())
        };
        let lines = b"{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
        let list = b"\xef\xbb\xbf [\n{\"text\": \"a\"}]";
        for (name, content, format) in [
            ("a.TXT", &b"[1]"[..], DataFormat::Text),
            ("a.Md", b"", DataFormat::Text),
            ("a.JSONL", lines, DataFormat::Jsonl),
            ("a.json", lines, DataFormat::Jsonl),
            ("a.JSON", list, DataFormat::Json),
            ("a.jsonl", list, DataFormat::Json),
            ("one.json", b"{\"text\": \"a\"}\n", DataFormat::Json),
            ("spread.json", b"{\n\"text\": \"a\"\n}", DataFormat::Json),
            ("a.CSV", b"text\na\n", DataFormat::Csv),
            ("data", lines, DataFormat::Jsonl),
            ("data.bak", list, DataFormat::Json),
            ("a.parquet", b"", DataFormat::Parquet),
            ("data", b"PAR1", DataFormat::Parquet),
        ] {
            assert_eq!(found(name, content), Ok(format), "{name}");
        }
        for (name, content, reason) in [
            ("a.arrow", &b"ARROW1"[..], "convert it to Parquet"),
            ("b.feather", b"", "convert it to Parquet"),
            ("a.jsonl", b"\x1f\x8b\x08", "unpack it first"),
            (
                "a.jsonl",
                b"version https://git-lfs.github.com/spec/v1\noid",
                "git lfs pull",
            ),
            ("a.html", b"<html>", "data.format: text"),
            ("LICENSE", b"text", "data.format: text"),
        ] {
            let refusal = found(name, content).unwrap_err();
            assert!(refusal.contains(reason), "{name}: {refusal}");
        }
        let path = folder.path().join("LICENSE");
        assert_eq!(of(&path, Some(DataFormat::Text)).unwrap(), DataFormat::Text);
    }
}
