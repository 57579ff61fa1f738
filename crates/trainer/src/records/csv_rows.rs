//! CSV and TSV files.

use std::path::Path;

use serde_json::{Map, Value};

use super::columns::Keys;
use super::reader::{Located, at, record_of, whole};
use crate::Error;

/// The records of a table whose first line has the column names.
pub(super) fn records(path: &Path, mut keys: Keys) -> Result<Vec<Result<Located, Error>>, Error> {
    let text = whole(path)?;
    let tabs = crate::data::ending(path).as_deref() == Some("tsv");
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(if tabs { b'\t' } else { b',' })
        .from_reader(text.as_bytes());
    let wrong = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        at(path, line, format!("not CSV: {error}"))
    };
    let header = reader.headers().map_err(wrong)?.clone();
    let mut named = Vec::new();
    for column in header.iter().map(str::trim) {
        if named.contains(&column) {
            let reason = format!("there are two columns `{column}`: rename one of them");
            return Err(at(path, 1, reason));
        }
        named.push(column);
    }
    let mut records = Vec::new();
    for row in reader.into_records() {
        let row = row.map_err(wrong)?;
        let line = row.position().map_or(1, csv::Position::line);
        let begins = row
            .position()
            .map_or(0, |position| position.byte() as usize);
        if is_open(&text.as_bytes()[begins..], tabs) {
            let reason = "a quotation mark is not closed: the rest of the file would be one cell";
            return Err(at(path, line, reason));
        }
        let cells = header.iter().zip(row.iter());
        let object: Map<String, Value> = cells
            .map(|(column, cell)| (column.trim().to_owned(), Value::from(cell)))
            .collect();
        let record = record_of(object, &mut keys).map_err(|reason| at(path, line, reason));
        let stop = record.is_err();
        records.push(record.map(|record| Located {
            record,
            place: format!("{}:{line}", path.display()),
        }));
        if stop {
            break;
        }
    }
    keys.tell(path);
    Ok(records)
}

/// Whether a cell of the first record of `text` begins with a quotation mark that is never closed.
fn is_open(text: &[u8], tabs: bool) -> bool {
    let delimiter = if tabs { b'\t' } else { b',' };
    let (mut inside, mut at_start) = (false, true);
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match (inside, byte) {
            (true, b'"') if bytes.peek() == Some(&b'"') => {
                bytes.next();
            }
            (true, b'"') => inside = false,
            (true, _) => {}
            (false, b'"') if at_start => inside = true,
            (false, b'\n') => return false,
            (false, _) => {
                at_start = byte == delimiter;
                continue;
            }
        }
        at_start = false;
    }
    inside
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Record;

    /// The texts of a table, or the error.
    fn texts(name: &str, content: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let records = records(&path, Keys::default()).map_err(|error| error.to_string())?;
        let text = |located: Result<Located, Error>| match located {
            Ok(located) => match located.record {
                Record::Text(text) => Ok(text),
                other => panic!("{other:?}"),
            },
            Err(error) => Err(error.to_string()),
        };
        records.into_iter().map(text).collect()
    }

    #[test]
    fn quotation_marks_follow_rfc_4180() {
        let table =
            "text,n\n\"a \"\"quoted\"\" word\",1\n\"two\nlines, and a comma\",2\n5\" pipe,3\n";
        let want = ["a \"quoted\" word", "two\nlines, and a comma", "5\" pipe"];
        let read = texts("a.csv", table).unwrap();
        assert_eq!(read, want);
        assert_eq!(texts("a.tsv", "text\tn\n\"a\tb\"\t1\n").unwrap(), ["a\tb"]);
    }

    #[test]
    fn an_unclosed_quotation_mark_is_refused() {
        for (table, line) in [
            ("text\n\"Hello\nmore\nmore\n", 2),
            ("text\nfine\n\"Hello", 3),
            ("n,text\n1,a\n2,\"b \"\" c\n3,d\n", 3),
        ] {
            let error = texts("a.csv", table).unwrap_err();
            assert!(
                error.contains(&format!("line {line}")) || error.contains(&format!(":{line}")),
                "{error}"
            );
            assert!(error.contains("not closed"), "{error}");
        }
    }

    #[test]
    fn a_duplicate_column_is_refused() {
        let error = texts("a.csv", "text, text\na,b\n").unwrap_err();
        assert!(error.contains("two columns `text`"), "{error}");
    }
}
