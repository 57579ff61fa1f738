//! Reads records from files: plain text, JSON lines, JSON, CSV and Parquet.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::columns::{Columns, Keys};
use super::preference::{self, Preference};
use super::token_file::Judged;
use super::{csv_rows, json_file, numbers, parquet, record_shapes};
use crate::Error;
use crate::config::{DataFormat, LossType};
use crate::data::{file_format, files_in};
use models::text::{Conversation, Encoder, Example, Message};

/// The longest line of a JSONL file, and the longest file of the other kinds. Anything longer is a mistake, or
/// should be JSON lines.
const MAX_BYTES: u64 = 1 << 30;

/// Some editors start a file with it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One piece of data.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A text, all of which is trained on.
    Text(String),
    /// A prompt and its completion, which is trained on.
    Completion {
        /// The prompt.
        prompt: String,
        /// The completion.
        completion: String,
    },
    /// A conversation, whose assistant messages are trained on.
    Chat(Conversation),
    /// A prompt and answers that were judged.
    Preference(Preference),
}

/// A record and its position.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// The record.
    pub record: Record,
    /// `file:line`, or only the file for a whole text.
    pub place: String,
}

impl Record {
    /// Whether the model would learn to say nothing from it.
    pub(crate) fn has_empty_answer(&self) -> bool {
        let is_empty = |message: &Message| {
            let fields = message.fields();
            let said = |key: &str| match fields.get(key) {
                None => false,
                Some(Value::String(text)) => !text.trim().is_empty(),
                Some(Value::Array(parts)) => {
                    parts.iter().any(|part| part["text"].as_str() != Some(""))
                }
                Some(_) => true,
            };
            message.role() == "assistant"
                && !["content", "tool_calls", "reasoning_content"]
                    .into_iter()
                    .any(said)
        };
        match self {
            Self::Text(text)
            | Self::Completion {
                completion: text, ..
            } => text.trim().is_empty(),
            Self::Chat(conversation) => conversation.messages.iter().any(is_empty),
            Self::Preference(preference) => preference.is_void(),
        }
    }

    /// Its tokens.
    ///
    /// # Errors
    /// If it is a chat and the model has no chat template, or the template refuses it.
    pub fn encode(&self, encoder: &Encoder) -> Result<Example, Error> {
        Ok(self.judged(encoder)?.0)
    }

    /// Its tokens, and where its answers are if it is a preference.
    fn judged(&self, encoder: &Encoder) -> Result<(Example, Judged), Error> {
        let example = match self {
            Self::Text(text) => encoder.encode_text(text),
            Self::Completion { prompt, completion } => {
                encoder.encode_completion(prompt, completion)
            }
            Self::Chat(conversation) => encoder.encode_chat(conversation),
            Self::Preference(preference) => return preference.encode(encoder),
        };
        Ok((example.map_err(Error::of_config)?, Judged::No))
    }
}

impl Located {
    /// The record's tokens, with its position in errors.
    ///
    /// # Errors
    /// See [`Record::encode`].
    pub fn encode(&self, encoder: &Encoder) -> Result<Example, Error> {
        Ok(self.judged(encoder)?.0)
    }

    /// The same, and where the answers are if it is a preference.
    pub(super) fn judged(&self, encoder: &Encoder) -> Result<(Example, Judged), Error> {
        let example = self.record.judged(encoder);
        example.map_err(|error| self.explain(error))
    }

    /// Adds the position to `error`, if it is about the record.
    pub fn explain(&self, error: Error) -> Error {
        match error {
            Error::Data(reason) => Error::Data(format!("{}: {reason}", self.place)),
            other => other,
        }
    }
}

/// The records of a file, or of all data files below a folder, in the order of their paths.
///
/// The format of a file follows from its name and content, unless `format` is set. JSON lines, JSON (a list of
/// records, or an object that contains one), CSV and Parquet have records of `text`, of `prompt` and
/// `completion`, or of `messages`; `.txt` and `.md` are one text each. The keys of a file that are not read are
/// listed in one warning.
///
/// # Errors
/// If the path cannot be read, has an unknown format, or is a folder without data. Errors inside a file are
/// returned by the iterator, with file and line.
pub fn records(
    path: &Path,
    format: Option<DataFormat>,
) -> Result<impl Iterator<Item = Result<Located, Error>> + use<>, Error> {
    records_of_columns(path, format, &Columns::new())
}

/// Like [`records`], for files with their own names for the keys of records: `columns` maps our names to
/// theirs.
///
/// # Errors
/// See [`records`]; also if a file is plain text, which has no columns.
pub fn records_of_columns(
    path: &Path,
    format: Option<DataFormat>,
    columns: &Columns,
) -> Result<impl Iterator<Item = Result<Located, Error>> + use<>, Error> {
    located(path, format, Keys::new(columns))
}

/// Like [`records_of_columns`], of preferences for this loss.
pub(crate) fn preferences(
    path: &Path,
    format: Option<DataFormat>,
    columns: &Columns,
    loss: LossType,
) -> Result<impl Iterator<Item = Result<Located, Error>> + use<>, Error> {
    let mut keys = Keys::new(columns);
    keys.preferences = Some(loss);
    located(path, format, keys)
}

fn located(
    path: &Path,
    format: Option<DataFormat>,
    keys: Keys,
) -> Result<impl Iterator<Item = Result<Located, Error>> + use<>, Error> {
    let mut files = Vec::new();
    for file in files_in(path, format)? {
        let found = file_format(&file, format)?;
        if found == DataFormat::Text && keys.preferences.is_some() {
            return Err(Error::Data(format!(
                "`{}` is plain text, but `preference` needs records of answers: use JSON lines, JSON, CSV or Parquet",
                file.display()
            )));
        }
        if found == DataFormat::Text && !keys.columns().is_empty() {
            return Err(Error::Data(format!(
                "`{}` is plain text, but `data.columns` names columns: remove the key, or use a file of records",
                file.display()
            )));
        }
        files.push((found, file));
    }
    Ok(files.into_iter().flat_map(move |(format, file)| {
        let keys = keys.clone();
        match format {
            DataFormat::Text => once(move || text(&file)),
            DataFormat::Jsonl => Box::new(Lines::new(file, keys)) as Records,
            DataFormat::Json => all(move || json_file::records(&file, keys)),
            DataFormat::Csv => all(move || csv_rows::records(&file, keys)),
            DataFormat::Parquet => Box::new(parquet::Rows::new(file, keys)),
        }
    }))
}

/// The texts of a file of records, for a model that is trained on texts only.
///
/// # Errors
/// See [`records`]; also if a record is not a text.
pub(crate) fn texts(
    path: &Path,
    format: DataFormat,
    columns: &Columns,
) -> Result<Vec<String>, Error> {
    let records = records_of_columns(path, Some(format), columns)?;
    let texts = records.map(|located| {
        let located = located?;
        match located.record {
            Record::Text(text) => Ok(text),
            Record::Completion { .. } | Record::Chat(_) | Record::Preference(_) => Err(Error::Data(format!(
                "{}: a model that is trained from scratch needs texts: use records of `text`, set \
                `data.format: text` to train on the file as it is, or set `model.name_or_path`",
                located.place
            ))),
        }
    });
    texts.collect()
}

type Records = Box<dyn Iterator<Item = Result<Located, Error>>>;

fn once(read: impl FnOnce() -> Result<Located, Error> + 'static) -> Records {
    Box::new(std::iter::once_with(read))
}

/// Records that are read when the first one is requested.
fn all(read: impl FnOnce() -> Result<Vec<Result<Located, Error>>, Error> + 'static) -> Records {
    let read = || read().unwrap_or_else(|error| vec![Err(error)]);
    Box::new(std::iter::once_with(read).flatten())
}

fn text(path: &Path) -> Result<Located, Error> {
    let text = whole(path)?;
    Ok(Located {
        record: Record::Text(text),
        place: path.display().to_string(),
    })
}

/// A file as text, without its byte order mark.
pub(super) fn whole(path: &Path) -> Result<String, Error> {
    let io = |error| Error::io("read", path, error);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::Data(format!(
            "`{}` is more than 1 GiB of data in one piece; as JSON lines, {{\"text\": …}} each, it could be streamed",
            path.display()
        )));
    }
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        at(path, line_of(valid), not_utf8(error.as_bytes(), valid))
    })
}

fn line_of(before: &[u8]) -> u64 {
    1 + before.iter().filter(|byte| **byte == b'\n').count() as u64
}

fn not_utf8(bytes: &[u8], valid: &[u8]) -> String {
    let line = valid
        .rsplit(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let seems = match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "; it looks like UTF-16",
        _ => "",
    };
    format!(
        "not UTF-8 text at byte {} of the line{seems}: convert the file, as with `iconv -f ENCODING -t UTF-8`",
        line.len() + 1
    )
}

pub(super) fn at(path: &Path, line: u64, reason: impl std::fmt::Display) -> Error {
    Error::Data(format!("{}:{line}: {reason}", path.display()))
}

/// The records of a JSONL file, read line by line.
struct Lines {
    path: PathBuf,
    /// Opened at the first `next`; `None` after the end or an error.
    state: Option<Option<BufReader<File>>>,
    number: u64,
    keys: Keys,
}

impl Lines {
    fn new(path: PathBuf, keys: Keys) -> Self {
        Self {
            path,
            state: Some(None),
            number: 0,
            keys,
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
                return Err(at(&self.path, self.number, "the line is longer than 1 GiB"));
            }
            if self.number == 1 && line.starts_with(BYTE_ORDER_MARK) {
                line.drain(..BYTE_ORDER_MARK.len());
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

impl Iterator for Lines {
    type Item = Result<Located, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = match self.line() {
            Ok(None) => {
                if self.state.take().is_some() {
                    self.keys.tell(&self.path);
                }
                return None;
            }
            Ok(Some(line)) => match record(&line, &mut self.keys) {
                Ok(record) => Ok(Located {
                    record,
                    place: format!("{}:{}", self.path.display(), self.number),
                }),
                Err(reason) => Err(at(&self.path, self.number, reason)),
            },
            Err(error) => Err(error),
        };
        if record.is_err() {
            self.state = None;
        }
        Some(record)
    }
}

/// The message for invalid JSON, with the column; the caller adds the line of the file.
pub(super) fn not_json(error: &serde_json::Error) -> String {
    let (reason, place) = (
        error.to_string(),
        format!(" at line {} column {}", error.line(), error.column()),
    );
    let reason = reason.strip_suffix(&place).unwrap_or(&reason);
    match error.column() {
        // It ends too early.
        0 => format!("not JSON: {reason}"),
        column => format!("not JSON: {reason}, in column {column}"),
    }
}

/// The record on a line.
pub(super) fn record(line: &[u8], keys: &mut Keys) -> Result<Record, String> {
    let text =
        std::str::from_utf8(line).map_err(|error| not_utf8(line, &line[..error.valid_up_to()]))?;
    let value: Value = serde_json::from_str(text).map_err(|error| not_json(&error))?;
    match value {
        Value::Object(object) => numbers::keep(record_of(object, keys)?, numbers::changed(text)),
        Value::Array(_) => {
            Err("a list and not a JSON object: `data.format: json` reads a list".into())
        }
        _ => Err("not a JSON object".into()),
    }
}

pub(super) fn record_of(mut object: Map<String, Value>, keys: &mut Keys) -> Result<Record, String> {
    keys.rename(&mut object)?;
    let there: Vec<_> = object.keys().map(|key| format!("`{key}`")).collect();
    let record = if let Some(loss) = keys.preferences {
        Record::Preference(preference::record(&mut object, keys, loss)?)
    } else if let Some(messages) = object.shift_remove("messages") {
        Record::Chat(conversation("messages", messages, &mut object, keys)?)
    } else if object.contains_key("chosen")
        && object.contains_key("rejected")
        && !object.contains_key("completion")
    {
        return Err("`chosen` and `rejected` are preferences: add a section `preference` to the config to learn from them".into());
    } else if let Some(turns) = record_shapes::prompt_and_completion(&mut object)? {
        let messages = Value::from(turns);
        Record::Chat(conversation(
            "prompt, completion",
            messages,
            &mut object,
            keys,
        )?)
    } else if object.contains_key("prompt") || object.contains_key("completion") {
        Record::Completion {
            prompt: string(&mut object, "prompt")?,
            completion: string(&mut object, "completion")?,
        }
    } else if object.contains_key("text") {
        Record::Text(string(&mut object, "text")?)
    } else if let Some((key, messages)) = record_shapes::messages(&mut object)? {
        Record::Chat(conversation(key, messages, &mut object, keys)?)
    } else {
        return Err(format!(
            "neither `text`, nor `prompt` and `completion`, nor `messages`, `conversations` or \
             `instruction` and `output`, but {}",
            if there.is_empty() {
                "nothing".into()
            } else {
                there.join(", ")
            }
        ));
    };
    for key in object.keys() {
        keys.note(key);
    }
    Ok(record)
}

pub(super) fn string(object: &mut Map<String, Value>, key: &str) -> Result<String, String> {
    match object.shift_remove(key) {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(_)) => Err(format!(
            "`{key}` is a list: conversations go into one list `messages`"
        )),
        Some(_) => Err(format!("`{key}` must be a string")),
        None => Err(format!("`{key}` is missing")),
    }
}

/// Arguments of a chat template that come from other keys of a record, or that change what is rendered.
const RESERVED: [&str; 5] = [
    "messages",
    "conversation",
    "tools",
    "documents",
    "add_generation_prompt",
];

/// Roles that chat templates know.
const ROLES: [&str; 7] = [
    "system",
    "user",
    "assistant",
    "tool",
    "developer",
    "function",
    "ipython",
];

/// Keys of a message that chat templates use.
const MESSAGE_KEYS: [&str; 10] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "tools",
    "reasoning_content",
    "thinking",
    "reasoning",
    "documents",
];

fn conversation(
    name: &str,
    messages: Value,
    object: &mut Map<String, Value>,
    keys: &mut Keys,
) -> Result<Conversation, String> {
    let messages = turns(name, messages, keys)?;
    if !messages.iter().any(|message| message.role() == "assistant") {
        let roles: Vec<_> = messages.iter().map(Message::role).collect();
        return Err(format!(
            "`{name}` has no turn of the assistant to train on: its roles are {roles:?}"
        ));
    }
    context(messages, object)
}

/// The messages of a list.
pub(super) fn turns(name: &str, messages: Value, keys: &mut Keys) -> Result<Vec<Message>, String> {
    // Tables contain lists as JSON strings.
    let messages = unpacked(messages);
    let Value::Array(list) = messages else {
        return Err(format!("`{name}` must be a list of {{role, content}}"));
    };
    let mut messages = Vec::with_capacity(list.len());
    let list = record_shapes::with_roles(name, list)?;
    for (turn, message) in list.into_iter().enumerate() {
        let message = Message::from_json(message)
            .map_err(|reason| format!("turn {} of `{name}` {reason}", turn + 1))?;
        if !ROLES.contains(&message.role()) {
            record_shapes::refuse_misnamed(message.role())
                .map_err(|reason| format!("turn {} of `{name}` {reason}", turn + 1))?;
            keys.note_role(name, message.role());
        }
        for key in message
            .fields()
            .keys()
            .filter(|key| !MESSAGE_KEYS.contains(&key.as_str()))
        {
            // A template may still read them; transformers passes all keys, too.
            keys.note(&format!("{name}[].{key}"));
        }
        if message
            .fields()
            .get("weight")
            .is_some_and(|weight| !weight.is_null() && weight.as_f64() != Some(1.0))
            && message.role() == "assistant"
        {
            return Err(format!(
                "turn {} of `{name}` has a `weight`, but all turns of the assistant are trained on \
                alike here; remove the turns or records that should not be",
                turn + 1
            ));
        }
        messages.push(message);
    }
    Ok(messages)
}

/// These messages with what else a record has for the template.
pub(super) fn context(
    messages: Vec<Message>,
    object: &mut Map<String, Value>,
) -> Result<Conversation, String> {
    let mut objects = |key: &str| match object.shift_remove(key).map(unpacked) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::Array(list)) if list.iter().all(Value::is_object) => Ok(Some(list)),
        Some(_) => Err(format!("`{key}` must be a list of objects")),
    };
    let (tools, documents) = (objects("tools")?, objects("documents")?);
    let template_arguments = match object.shift_remove("chat_template_kwargs") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => {
            if let Some(name) = RESERVED.iter().find(|name| arguments.contains_key(**name)) {
                return Err(format!(
                    "`chat_template_kwargs` must not set `{name}`, which follows from the record: remove it"
                ));
            }
            arguments
        }
        Some(_) => return Err("`chat_template_kwargs` must be an object".into()),
    };
    Ok(Conversation {
        messages,
        tools,
        documents,
        template_arguments,
    })
}

/// Parses a list that is stored as a JSON string.
pub(super) fn unpacked(value: Value) -> Value {
    match &value {
        Value::String(text) => serde_json::from_str(text).unwrap_or(value),
        _ => value,
    }
}
