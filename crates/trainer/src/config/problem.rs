//! Problems of a config, with their positions.
//!
//! Positions are plain numbers, so that the program can render them (`cli` does, with a snippet) without this crate
//! depending on how.

use std::fmt;
use std::sync::Arc;

/// A piece of config text: a file, or one `--set` argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) name: Arc<str>,
    pub(crate) text: Arc<str>,
}

/// The position of a key or a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceSpan {
    pub(crate) source: Source,
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl SourceSpan {
    pub(crate) fn start_of(source: &Source) -> Self {
        Self {
            source: source.clone(),
            line: 1,
            column: 1,
            offset: 0,
            length: 0,
        }
    }
}

/// One problem of a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, or `--set`.
    pub source_name: Arc<str>,
    /// The whole text of the source.
    pub source_text: Arc<str>,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Start of the offending text in bytes.
    pub offset: usize,
    /// Length of the offending text in bytes.
    pub length: usize,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: Option<String>,
}

impl Problem {
    pub(crate) fn at(place: &SourceSpan, message: impl Into<String>) -> Self {
        Self {
            source_name: place.source.name.clone(),
            source_text: place.source.text.clone(),
            line: place.line,
            column: place.column,
            offset: place.offset,
            length: place.length,
            message: message.into(),
            help: None,
        }
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            source_name,
            line,
            column,
            message,
            ..
        } = self;
        write!(out, "{source_name}:{line}:{column}: {message}")?;
        match &self.help {
            Some(help) => write!(out, " ({help})"),
            None => Ok(()),
        }
    }
}

/// All problems of a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one problem, in the order of the text.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    /// A problem with a whole config called `name`, for example that it cannot be read.
    pub fn of(name: &str, message: impl Into<String>) -> Self {
        let source = Source {
            name: name.into(),
            text: "".into(),
        };
        Problem::at(&SourceSpan::start_of(&source), message).into()
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self {
            problems: vec![problem],
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            write!(out, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
