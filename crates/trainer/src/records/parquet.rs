//! The rows of a Parquet file, Hugging Face's format for data sets.
//!
//! One row group is read at a time, so that a file may be larger than memory.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::file::reader::SerializedFileReader;
use parquet::record::reader::RowIter;
use serde_json::Value;

use super::columns::Keys;
use super::reader::{Located, record_of};
use crate::Error;

/// The records of a Parquet file, row by row.
pub(super) struct Rows {
    path: PathBuf,
    state: State,
    /// Rows that were returned, or failed.
    number: u64,
    keys: Keys,
}

enum State {
    Closed,
    Open(RowIter<'static>),
    Ended,
}

impl Rows {
    pub(super) fn new(path: PathBuf, keys: Keys) -> Self {
        Self {
            path,
            state: State::Closed,
            number: 0,
            keys,
        }
    }

    /// The next row; opens the file at the first call.
    fn row(&mut self) -> Result<Option<Value>, Error> {
        if matches!(self.state, State::Closed) {
            let rows = open(&self.path)?;
            self.state = State::Open(rows);
        }
        let State::Open(rows) = &mut self.state else {
            return Ok(None);
        };
        self.number += 1;
        let row = caught(|| match rows.next() {
            Some(row) => row.map(|row| Some(row.to_json_value())),
            None => Ok(None),
        });
        row.map_err(|reason| Error::Data(format!("{}: {reason}", self.place())))
    }

    fn place(&self) -> String {
        format!("{}: row {}", self.path.display(), self.number)
    }
}

impl Iterator for Rows {
    type Item = Result<Located, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = match self.row() {
            Ok(None) => {
                if !matches!(self.state, State::Ended) {
                    self.keys.tell(&self.path);
                }
                self.state = State::Ended;
                return None;
            }
            Ok(Some(Value::Object(row))) => record_of(row, &mut self.keys)
                .map_err(|reason| Error::Data(format!("{}: {reason}", self.place()))),
            Ok(Some(_)) => Err(Error::Data(format!("{}: no record", self.place()))),
            Err(error) => Err(error),
        };
        if record.is_err() {
            self.state = State::Ended;
        }
        let place = self.place();
        Some(record.map(|record| Located { record, place }))
    }
}

fn open(path: &Path) -> Result<RowIter<'static>, Error> {
    let file = File::open(path).map_err(|error| Error::io("read", path, error))?;
    let rows = caught(|| Ok(SerializedFileReader::new(file)?.into_iter()));
    rows.map_err(|reason| {
        Error::Data(format!(
            "`{}` is not a Parquet file, or it is damaged: {reason}",
            path.display()
        ))
    })
}

/// Converts a panic in `read`, which some damaged files cause, to an error.
fn caught<T>(read: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("its pages are damaged".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Columns, Record, records, records_of_columns};

    fn golden(name: &str) -> PathBuf {
        let folder = "../../tests/reference/golden/parquet";
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(folder)
            .join(name)
    }

    fn all(path: &Path, columns: &Columns) -> Result<Vec<Record>, Error> {
        let rows = records_of_columns(path, None, columns)?;
        rows.map(|row| Ok(row?.record)).collect()
    }

    #[test]
    fn every_compression_gives_the_rows() {
        let expected: Vec<_> = (0..40)
            .map(|n| Record::Text(format!("Row {n} of many, with 日本語.\n").repeat(3)))
            .collect();
        for name in ["snappy", "lz4"] {
            let path = golden(&format!("texts-{name}.parquet"));
            assert_eq!(all(&path, &Columns::new()).unwrap(), expected, "{name}");
        }
        let places: Vec<_> = records(&golden("texts-snappy.parquet"), None)
            .unwrap()
            .map(|row| row.unwrap().place)
            .collect();
        assert!(
            places[39].ends_with("texts-snappy.parquet: row 40"),
            "{}",
            places[39]
        );
    }

    #[test]
    fn columns_and_lists_of_turns_are_read_as_in_json() {
        let names = [("prompt", "question"), ("completion", "answer")];
        let columns: Columns = names
            .map(|(ours, theirs)| (ours.into(), theirs.into()))
            .into();
        let pairs = all(&golden("pairs-gzip.parquet"), &columns).unwrap();
        let expected = |n: i32| Record::Completion {
            prompt: format!("What is {n}?"),
            completion: n.to_string(),
        };
        assert!(pairs.into_iter().eq((0..7).map(expected)));
        let chats = all(&golden("chat-zstd.parquet"), &Columns::new()).unwrap();
        let lines = [
            r#"{"messages": [{"role": "user", "content": "Hi ü", "name": null},
                {"role": "assistant", "content": "Hello!", "name": null}]}"#,
            r#"{"messages": [{"role": "system", "content": "Be brief.", "name": null},
                {"role": "user", "content": "2+2?", "name": "Ann"},
                {"role": "assistant", "content": "4", "name": null}]}"#,
        ];
        let mut keys = Keys::new(&Columns::new());
        let expected = lines.map(|line| match serde_json::from_str(line).unwrap() {
            Value::Object(object) => record_of(object, &mut keys).unwrap(),
            other => panic!("{other}"),
        });
        assert_eq!(chats, expected);
    }

    #[test]
    fn an_unsupported_compression_is_named() {
        let error = all(&golden("texts-brotli.parquet"), &Columns::new());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("texts-brotli.parquet: row 1: "), "{error}");
        assert!(error.contains("brotli"), "{error}");
    }

    #[test]
    fn damaged_files_are_errors_with_their_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
        for name in ["chat-zstd", "texts-snappy", "pairs-gzip", "texts-lz4"] {
            let whole = std::fs::read(golden(&format!("{name}.parquet"))).unwrap();
            for length in [0, 4, whole.len() / 2, whole.len() - 1] {
                std::fs::write(&path, &whole[..length]).unwrap();
                let error = all(&path, &Columns::new()).unwrap_err().to_string();
                assert!(error.contains("rows.parquet"), "{error}");
            }
            // With any bit flipped there must be an error or other rows, but never a crash.
            for at in (0..whole.len()).step_by(29) {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << (at % 8);
                std::fs::write(&path, bytes).unwrap();
                if let Err(error) = all(&path, &Columns::new()) {
                    assert!(error.to_string().contains("rows.parquet"), "{error}");
                }
            }
        }
    }
}
