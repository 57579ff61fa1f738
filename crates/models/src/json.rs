//! Reading Hugging Face's JSON files with errors that name the file and the key.

use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::Error;

/// Configs are a few kilobytes, the index of the largest sharded model a few megabytes.
const MAX_BYTES: u64 = 64 << 20;

/// A JSON object that remembers its file, for error messages.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    path: PathBuf,
    /// Parent keys, as in `rope_parameters.`.
    prefix: String,
    keys: Map<String, Value>,
}

impl Object {
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let io = |error| Error::io("read", path, error);
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(io)?;
        file.take(MAX_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(io)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(Error::file(path, "more than 64 MiB of JSON"));
        }
        Self::parse(path, &text)
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        match serde_json::from_str(text) {
            Ok(value) => Self::new(path, value),
            Err(error) => Err(Error::file(path, format!("not JSON: {error}"))),
        }
    }

    /// The object `value`, which stands for the file `path`.
    pub(crate) fn new(path: &Path, value: Value) -> Result<Self, Error> {
        match value {
            Value::Object(keys) => Ok(Self {
                path: path.to_owned(),
                prefix: String::new(),
                keys,
            }),
            other => Err(Error::file(
                path,
                format!("not an object but {}", kind(&other)),
            )),
        }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The value of `key`; `null` counts as absent, as in `transformers`.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    /// Sets `key`.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.keys.insert(key.to_owned(), value);
    }

    /// Whether `key` is present, even if `null`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.keys.iter()
    }

    pub(crate) fn error(&self, key: &str, reason: impl std::fmt::Display) -> Error {
        Error::file(&self.path, format!("`{}{key}` {reason}", self.prefix))
    }

    fn wrong(&self, key: &str, value: &Value, wanted: &str) -> Error {
        self.error(key, format!("must be {wanted}, not {}", kind(value)))
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| self.error(key, "is missing"))
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Self>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(keys)) => Ok(Some(Self {
                path: self.path.clone(),
                prefix: format!("{}{key}.", self.prefix),
                keys: keys.clone(),
            })),
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "a string")),
        }
    }

    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool, Error> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// A list whose elements are parsed by `item`; `wanted` describes them in errors.
    fn list<T>(
        &self,
        key: &str,
        wanted: &str,
        item: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(values)) => {
                let items = values.iter().map(|value| {
                    item(value)
                        .ok_or_else(|| self.wrong(key, value, &format!("a list of {wanted}")))
                });
                items.collect::<Result<_, _>>().map(Some)
            }
            Some(other) => Err(self.wrong(key, other, &format!("a list of {wanted}"))),
        }
    }

    /// Finite numbers.
    pub(crate) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, Error> {
        let finite = |value: &Value| value.as_f64().filter(|number| number.is_finite());
        self.list(key, "numbers", finite)
    }

    /// Integers, each in `range`.
    pub(crate) fn integers(
        &self,
        key: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<Vec<i64>>, Error> {
        let wanted = format!("whole numbers from {} to {}", range.start(), range.end());
        let whole = |value: &Value| value.as_i64().filter(|number| range.contains(number));
        self.list(key, &wanted, whole)
    }

    /// Booleans.
    pub(crate) fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, Error> {
        self.list(key, "true and false", Value::as_bool)
    }

    /// Warns about keys that are not in `known`. Those that begin with an underscore are notes of the library
    /// that wrote the file.
    pub(crate) fn warn_about_unknown_keys(&self, known: &[&str]) {
        for (key, value) in self.keys() {
            if !key.starts_with('_') && !known.contains(&key.as_str()) && !value.is_null() {
                tracing::warn!(
                    "`{}`: `{}{key}` is not supported and has no effect",
                    self.path.display(),
                    self.prefix
                );
            }
        }
    }

    /// Refuses another value of `key` than `supported`; a file without the key has `default`.
    pub(crate) fn require(
        &self,
        key: &str,
        supported: &Value,
        default: &Value,
    ) -> Result<(), Error> {
        let given = self.keys.get(key);
        let found = given.unwrap_or(default);
        let equal = match (found.as_f64(), supported.as_f64()) {
            (Some(found), Some(supported)) => found == supported,
            _ => found == supported,
        };
        match (equal, given) {
            (true, _) => Ok(()),
            (false, Some(_)) => {
                Err(self.error(key, format!("is {found}: only {supported} is supported")))
            }
            (false, None) => {
                let reason =
                    format!("is missing, which means {found}: only {supported} is supported");
                Err(self.error(key, reason))
            }
        }
    }

    /// A finite number greater than zero.
    pub(crate) fn positive(&self, key: &str, default: Option<f64>) -> Result<f64, Error> {
        match self.get(key) {
            None => self.required(key, default),
            Some(value) => match value.as_f64() {
                Some(number) if number.is_finite() && number > 0.0 => Ok(number),
                Some(number) => {
                    Err(self.error(key, format!("must be greater than zero, not {number}")))
                }
                None => Err(self.wrong(key, value, "a number")),
            },
        }
    }

    /// An integer in `range`.
    pub(crate) fn integer(
        &self,
        key: &str,
        default: Option<i64>,
        range: RangeInclusive<i64>,
    ) -> Result<i64, Error> {
        match self.get(key) {
            None => self.required(key, default),
            Some(value) => match value.as_i64() {
                Some(number) if range.contains(&number) => Ok(number),
                Some(number) => Err(self.error(
                    key,
                    format!(
                        "must be from {} to {}, not {number}",
                        range.start(),
                        range.end()
                    ),
                )),
                None => Err(self.wrong(key, value, "a whole number")),
            },
        }
    }
}

/// A JSON number, as an integer where possible: readers of lengths and ranks expect integers.
pub(crate) fn number(number: f64) -> Value {
    match number.fract() == 0.0 && number.abs() < 1e15 {
        true => (number as i64).into(),
        false => number.into(),
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.chars().count() <= 40 => format!("{text:?}"),
        Value::String(_) => "a long string".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// Tests of configs.
#[cfg(test)]
pub(crate) mod testing {
    use std::fmt::Debug;

    use super::{Error, Path, Value};

    /// What `read` makes of a config, or its complaint.
    pub(crate) fn reading<T>(
        read: fn(&Path) -> Result<T, Error>,
    ) -> impl Fn(&Value) -> Result<T, String> {
        let folder = tempfile::tempdir().unwrap();
        move |config| {
            let path = folder.path().join("config.json");
            std::fs::write(&path, config.to_string()).unwrap();
            read(&path).map_err(|error| error.to_string())
        }
    }

    /// Each of `keys` in the config `plain` changes what is read if it has `another` value, or is refused by its name; or by
    /// what `refusals` has for it.
    pub(crate) fn each_is_obeyed_or_refused<T: PartialEq + Debug>(
        read: &dyn Fn(&Value) -> Result<T, String>,
        plain: &Value,
        keys: impl IntoIterator<Item = &'static str>,
        another: &dyn Fn(&str) -> Value,
        refusals: &[(&str, &str)],
    ) {
        let base = read(plain).unwrap();
        for key in keys {
            let mut config = plain.clone();
            config[key] = another(key);
            match read(&config) {
                Ok(found) => assert_ne!(found, base, "{key} changes nothing"),
                Err(reason) => {
                    let other = refusals.iter().find(|(name, _)| *name == key);
                    let told = other.map_or(key, |(_, told)| *told);
                    assert!(reason.contains(told), "{key}: {reason}");
                }
            }
        }
    }
}
