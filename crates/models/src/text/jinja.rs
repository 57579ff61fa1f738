//! The Jinja environment of `transformers`' chat templates.
//!
//! A template was written for Python's Jinja2 with the settings of transformers'
//! `chat_template_utils.py` (5.23): trimmed and stripped blocks, `break` and `continue`, a
//! `tojson` that is Python's `json.dumps`, `raise_exception`, `strftime_now`, the tag
//! `{% generation %}`, and the methods of Python's strings and dicts. Here the same runs on
//! minijinja; what Jinja2's immutable sandbox refuses (`append`, `pop`, `update`) is unknown
//! here too.

use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::template_source::adapted;

/// The fuel of a template: far more instructions than a reasonable one executes.
const FUEL: u64 = 50_000_000;

/// Marks around the text of a `{% generation %}` block: noncharacters of Unicode, which no text has.
pub(super) const GENERATION: (char, char) = ('\u{fdd1}', '\u{fdd2}');

/// An environment with `source` as the template `chat`, in which the time is always `now`.
pub(super) fn environment(source: &str, now: Zoned) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.build()?);
    environment.set_unknown_method_callback(method);
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| python_text(value));
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("__iterable", |value: &Value| match value.kind() {
        ValueKind::None => Err(refused("'NoneType' object is not iterable")),
        _ => Ok(value.clone()),
    });
    environment.set_formatter(|out, _, value| {
        out.write_str(&python_text(value))?;
        Ok(())
    });
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_function("raise_exception", |message: String| {
        Err::<String, _>(refused(message))
    });
    environment.add_function("strftime_now", move |format: String| {
        jiff::fmt::strtime::format(&format, &now)
            .map_err(|error| refused(format!("`strftime_now({format:?})`: {error}")))
    });
    environment.add_filter("__generation", generation);
    let source = adapted(source).map_err(refused)?;
    environment.add_template_owned("chat", source)?;
    Ok(environment)
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// The block's text between [`GENERATION`]'s two characters.
fn generation(said: &str) -> String {
    format!("{}{said}{}", GENERATION.0, GENERATION.1)
}

/// In Jinja2 an undefined value is empty.
fn length(value: &Value) -> Result<usize, Error> {
    match value.is_undefined() {
        true => Ok(0),
        false => value
            .len()
            .ok_or_else(|| refused(format!("a value of type {} has no length", value.kind()))),
    }
}

/// Python's `str(value)`.
fn python_text(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.to_string(),
        ValueKind::Undefined => String::new(),
        _ => python_repr(value),
    }
}

/// Python's `repr(value)`.
fn python_repr(value: &Value) -> String {
    let list = |items: Vec<String>| items.join(", ");
    match value.kind() {
        ValueKind::Number => number(value),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            let quote = if text.contains('\'') && !text.contains('"') {
                '"'
            } else {
                '\''
            };
            let mut out = String::from(quote);
            for character in text.chars() {
                match character {
                    '\\' => out.push_str("\\\\"),
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    c if c == quote => out.extend(['\\', c]),
                    c if is_printable(c) => out.push(c),
                    c => out.push_str(&match c as u32 {
                        code @ 0..=0xff => format!("\\x{code:02x}"),
                        code @ 0x100..=0xffff => format!("\\u{code:04x}"),
                        code => format!("\\U{code:08x}"),
                    }),
                }
            }
            out.push(quote);
            out
        }
        ValueKind::Seq => match value.try_iter() {
            Ok(items) if !value.to_string().starts_with('(') => {
                format!("[{}]", list(items.map(|item| python_repr(&item)).collect()))
            }
            _ => value.to_string(),
        },
        // A namespace has its own representation.
        ValueKind::Map if value.to_string().starts_with('{') => match value.try_iter() {
            Ok(keys) => {
                let entry = |key: Value| {
                    let item = value.get_item(&key).unwrap_or_default();
                    format!("{}: {}", python_repr(&key), python_repr(&item))
                };
                format!("{{{}}}", list(keys.map(entry).collect()))
            }
            Err(_) => value.to_string(),
        },
        _ => value.to_string(),
    }
}

/// Whether Python's `repr` writes a character as it is: not control, format or private-use characters, nor spaces
/// other than the ordinary one.
fn is_printable(character: char) -> bool {
    let code = character as u32;
    character == ' '
        || !(character.is_control()
            || character.is_whitespace()
            || FORMATS
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&code))
            || (0xe000..=0xf8ff).contains(&code)
            || code >= 0xe_0000)
}

/// Invisible characters: Unicode's category Cf, and noncharacters.
const FORMATS: [(u32, u32); 17] = [
    (0xad, 0xad),
    (0x600, 0x605),
    (0x61c, 0x61c),
    (0x6dd, 0x6dd),
    (0x70f, 0x70f),
    (0x890, 0x891),
    (0x8e2, 0x8e2),
    (0x180e, 0x180e),
    (0x200b, 0x200f),
    (0x202a, 0x202e),
    (0x2060, 0x206f),
    (0xfeff, 0xfeff),
    (0xfff0, 0xfffb),
    (0xfffe, 0xffff),
    (0x1_10bd, 0x1_10bd),
    (0x1_bca0, 0x1_bca3),
    (0x1_d173, 0x1_d17a),
];

/// In Jinja2 everything with a length and items is a sequence, including strings and mappings.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined
    )
}

/// Python's `json.dumps(value, ensure_ascii, indent, separators, sort_keys)`.
fn tojson(value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let arguments = arguments.into_values();
    let (positional, named) = from_args::<(&[Value], Kwargs)>(&arguments)?;
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match positional.get(index) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let truthy = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let ascii = truthy(argument(0, "ensure_ascii")?);
    let indent = match argument(1, "indent")? {
        None => None,
        Some(indent) => Some(match (indent.as_str(), usize::try_from(indent.clone())) {
            (Some(text), _) => text.to_owned(),
            (None, Ok(spaces)) => " ".repeat(spaces),
            (None, Err(error)) => return Err(error),
        }),
    };
    let separators = match argument(2, "separators")? {
        None => None,
        Some(pair) => {
            let texts = pair.try_iter()?.map(|text| text.to_string());
            match <[String; 2]>::try_from(texts.collect::<Vec<_>>()) {
                Ok(pair) => Some(pair),
                Err(_) => return Err(refused("`tojson`: `separators` must be two strings")),
            }
        }
    };
    let [item, key] = separators.unwrap_or_else(|| match indent {
        Some(_) => [",".into(), ": ".into()],
        None => [", ".into(), ": ".into()],
    });
    let sorted = truthy(argument(3, "sort_keys")?);
    named.assert_all_used()?;
    let mut json = Json {
        text: String::new(),
        ascii,
        indent,
        item,
        key,
        sorted,
    };
    json.write(value, 0)?;
    Ok(json.text)
}

/// The state of a `json.dumps` call.
struct Json {
    text: String,
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sorted: bool,
}

impl Json {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(match value.is_true() {
                true => "true",
                false => "false",
            }),
            ValueKind::Number => self.text.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.text.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.next(index, depth + 1);
                    self.write(item, depth + 1)?;
                }
                self.close(']', items.is_empty(), depth);
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.text.push('{');
                for (index, key) in keys.iter().enumerate() {
                    self.next(index, depth + 1);
                    self.string(&key.to_string());
                    self.text.push_str(&self.key.clone());
                    self.write(&value.get_item(key)?, depth + 1)?;
                }
                self.close('}', keys.is_empty(), depth);
            }
            other => return Err(refused(format!("{other} is not JSON serializable"))),
        }
        Ok(())
    }

    /// Writes what comes before an item.
    fn next(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.text.push_str(&self.item.clone());
        }
        self.line(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
        self.text.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.text.push('\n');
            self.text.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                control if control < ' ' => {
                    self.text.push_str(&format!("\\u{:04x}", control as u32));
                }
                other if self.ascii && !other.is_ascii() => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        self.text.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                other => self.text.push(other),
            }
        }
        self.text.push('"');
    }
}

/// A number as Python writes it: `1`, `1.0`, `1e-05`.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => float_repr(float),
        _ => value.to_string(),
    }
}

/// Python's `repr` of a float: the shortest digits that round-trip, with an exponent below 1e-4 and from
/// 1e16 on.
fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let size = value.abs();
    if value != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let text = value.to_string();
    match text.contains('.') {
        true => text,
        false => format!("{text}.0"),
    }
}

/// The methods of Python's strings that minijinja-contrib lacks, then those that it has.
fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, arguments);
    };
    Ok(match name {
        "rsplit" => {
            let (separator, most) = split_arguments(arguments)?;
            let most = most.unwrap_or(usize::MAX);
            match separator {
                Some(separator) => {
                    let mut parts: Vec<&str> =
                        text.rsplitn(most.saturating_add(1), &separator).collect();
                    parts.reverse();
                    Value::from_iter(parts)
                }
                None => Value::from_iter(rsplit_spaces(text, most)),
            }
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            let found = match name {
                "partition" => text.split_once(separator),
                _ => text.rsplit_once(separator),
            };
            Value::from_iter(match (found, name) {
                (Some((before, after)), _) => [before, separator, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            })
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "index" | "rindex" => {
            let found = match name {
                "index" => "find",
                _ => "rfind",
            };
            let place = unknown_method_callback(state, value, found, arguments)?;
            if place == Value::from(-1) {
                return Err(refused("substring not found"));
            }
            place
        }
        // As in Python, a letter that follows a non-letter is capitalised.
        "title" => {
            let mut inside = false;
            let mut title = String::with_capacity(text.len());
            for character in text.chars() {
                match inside {
                    true => title.extend(character.to_lowercase()),
                    false => title.extend(character.to_uppercase()),
                }
                inside = character.is_alphabetic();
            }
            title.into()
        }
        "casefold" => text.to_lowercase().into(),
        "swapcase" => text
            .chars()
            .flat_map(|c| match c.is_uppercase() {
                true => c.to_lowercase().collect::<Vec<_>>(),
                false => c.to_uppercase().collect(),
            })
            .collect::<String>()
            .into(),
        "zfill" => {
            let (width,): (usize,) = from_args(arguments)?;
            let (sign, digits) = match text.strip_prefix(['-', '+']) {
                Some(digits) => text.split_at(text.len() - digits.len()),
                None => ("", text),
            };
            let missing = width.saturating_sub(text.chars().count());
            format!("{sign}{}{digits}", "0".repeat(missing.min(1 << 20))).into()
        }
        _ => return unknown_method_callback(state, value, name, arguments),
    })
}

/// `(sep=None, maxsplit=-1)`.
fn split_arguments(arguments: &[Value]) -> Result<(Option<String>, Option<usize>), Error> {
    let (separator, most, named) = from_args::<(Option<Value>, Option<i64>, Kwargs)>(arguments)?;
    let separator = match separator {
        Some(separator) => Some(separator),
        None => named.get::<Option<Value>>("sep")?,
    };
    let most = match most {
        Some(most) => Some(most),
        None => named.get::<Option<i64>>("maxsplit")?,
    };
    named.assert_all_used()?;
    let separator = separator.filter(|separator| !separator.is_none());
    if separator.as_ref().is_some_and(|s| s.as_str() == Some("")) {
        return Err(refused("empty separator"));
    }
    Ok((
        separator.map(|separator| separator.to_string()),
        most.and_then(|most| usize::try_from(most).ok()),
    ))
}

/// Words from the end, with at most `most` splits.
fn rsplit_spaces(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        match rest
            .rfind(char::is_whitespace)
            .filter(|_| parts.len() < most)
        {
            Some(at) => {
                let word = rest[at..].trim_start();
                parts.push(word);
                rest = rest[..at].trim_end();
            }
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts.reverse();
    parts
}
