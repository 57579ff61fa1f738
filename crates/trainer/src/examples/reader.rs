//! Records out of files: plain text, or JSON lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::chat::Message;
use crate::Error;
use crate::data::{TEXT_EXTENSIONS, files_below};

/// Longest line of a JSONL file, and longest plain text. What is longer is a mistake, or
/// should be lines.
const MAX_BYTES: u64 = 1 << 30;

/// Extensions of files that hold one JSON object a line.
const LINE_EXTENSIONS: [&str; 2] = ["jsonl", "ndjson"];

/// One piece of data.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A text, all of which is learned.
    Text(String),
    /// A question and the answer that is learned.
    Completion {
        /// What is given.
        prompt: String,
        /// What is learned.
        completion: String,
    },
    /// A conversation, of which the assistant's turns are learned.
    Chat(Vec<Message>),
}

/// The records of a file, or of every file of text or JSON lines below a folder, in the order
/// of their paths.
///
/// `.jsonl` and `.ndjson` files hold one JSON object a line: `{"text"}`, `{"prompt",
/// "completion"}` or `{"messages"}`. Any other file is one text.
///
/// # Errors
/// When the path cannot be read, or is a folder without such files. What is wrong inside a
/// file comes out of the iterator, with file and line.
pub fn records(path: &Path) -> Result<impl Iterator<Item = Result<Record, Error>>, Error> {
    let files = if path.is_dir() {
        let extensions = [&TEXT_EXTENSIONS[..], &LINE_EXTENSIONS].concat();
        let files = files_below(path, &extensions)?;
        if files.is_empty() {
            let read = extensions.iter().map(|e| format!("*.{e}"));
            let read = read.collect::<Vec<_>>().join(", ");
            let path = path.display();
            let message = format!("`{path}` has no text in it (files read: {read})");
            return Err(Error::Data(message));
        }
        files
    } else {
        path.metadata().map_err(|error| {
            Error::Data(format!("`{}` cannot be read: {error}", path.display()))
        })?;
        vec![path.to_owned()]
    };
    Ok(files.into_iter().flat_map(|file| {
        let is_lines = file
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| LINE_EXTENSIONS.contains(&extension));
        let records: Box<dyn Iterator<Item = Result<Record, Error>>> = match is_lines {
            true => Box::new(Lines::new(file)),
            false => Box::new(std::iter::once_with(move || text(&file))),
        };
        records
    }))
}

fn text(path: &Path) -> Result<Record, Error> {
    let io = |error| Error::io("read", path, error);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::Data(format!(
            "`{}` is more than 1 GiB of text in one piece; as JSON lines, {{\"text\": …}} each, it streams",
            path.display()
        )));
    }
    String::from_utf8(bytes)
        .map(Record::Text)
        .map_err(|error| Error::Data(format!("`{}` is not UTF-8 text: {error}", path.display())))
}

/// The records of a JSONL file, read line by line.
struct Lines {
    path: PathBuf,
    /// Opened by the first `next`; gone after the end or an error.
    state: Option<Option<BufReader<File>>>,
    number: u64,
}

impl Lines {
    fn new(path: PathBuf) -> Self {
        Self {
            path,
            state: Some(None),
            number: 0,
        }
    }

    /// The next line that is not empty.
    fn line(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let io = |error| Error::io("read", &self.path, error);
        let Some(state) = &mut self.state else {
            return Ok(None);
        };
        let reader = match state {
            Some(reader) => reader,
            None => state.insert(BufReader::with_capacity(
                1 << 20,
                File::open(&self.path).map_err(io)?,
            )),
        };
        loop {
            self.number += 1;
            let mut line = Vec::new();
            let read = reader.take(MAX_BYTES + 1).read_until(b'\n', &mut line);
            if read.map_err(io)? == 0 {
                return Ok(None);
            }
            if line.len() as u64 > MAX_BYTES {
                return Err(self.error("the line is longer than 1 GiB"));
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    fn error(&self, reason: impl std::fmt::Display) -> Error {
        Error::Data(format!("{}:{}: {reason}", self.path.display(), self.number))
    }
}

impl Iterator for Lines {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = match self.line() {
            Ok(None) => {
                self.state = None;
                return None;
            }
            Ok(Some(line)) => record(&line).map_err(|reason| self.error(reason)),
            Err(error) => Err(error),
        };
        if record.is_err() {
            self.state = None;
        }
        Some(record)
    }
}

/// The record on one line.
pub(super) fn record(line: &[u8]) -> Result<Record, String> {
    let value: Value =
        serde_json::from_slice(line).map_err(|error| format!("not JSON: {error}"))?;
    let Value::Object(object) = &value else {
        return Err("not a JSON object".into());
    };
    let text = |key: &str| match object.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("`{key}` must be a string")),
        None => Err(format!("`{key}` is missing")),
    };
    if object.contains_key("messages") {
        let messages = Vec::<Message>::deserialize(&object["messages"])
            .map_err(|error| format!("`messages` must be a list of {{role, content}}: {error}"))?;
        if !messages.iter().any(|message| message.role == "assistant") {
            return Err("`messages` has no turn of the assistant to learn".into());
        }
        return Ok(Record::Chat(messages));
    }
    if object.contains_key("prompt") || object.contains_key("completion") {
        return Ok(Record::Completion {
            prompt: text("prompt")?,
            completion: text("completion")?,
        });
    }
    if object.contains_key("text") {
        return Ok(Record::Text(text("text")?));
    }
    let keys: Vec<_> = object.keys().map(|key| format!("`{key}`")).collect();
    Err(format!(
        "neither `text`, nor `prompt` and `completion`, nor `messages`, but {}",
        if keys.is_empty() {
            "nothing".into()
        } else {
            keys.join(", ")
        }
    ))
}
