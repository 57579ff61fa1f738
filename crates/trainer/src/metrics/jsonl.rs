//! `metrics.jsonl`: one JSON object a line, readable while the run goes on.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::Record;
use crate::Error;

pub(super) struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// Opens the file, keeping the records up to `step`. A last line that a crash cut off goes.
    pub(super) fn open(path: &Path, step: u64) -> Result<(Self, Vec<Record>), Error> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::io("read", path, error)),
        };
        let kept: Vec<Record> = text
            .lines()
            .map_while(|line| serde_json::from_str(line).ok())
            .filter(|record: &Record| record.step() <= step)
            .collect();
        // Through a new file: the old one stays whole until the new one is.
        let temporary = path.with_extension("jsonl.tmp");
        let io = |error| Error::io("write", path, error);
        let mut writer = Self {
            path: path.to_owned(),
            file: File::create(&temporary).map_err(io)?,
        };
        for record in &kept {
            writer.write(record)?;
        }
        std::fs::rename(&temporary, path).map_err(io)?;
        Ok((writer, kept))
    }

    /// Appends a record; it is in the file when this returns.
    pub(super) fn write(&mut self, record: &Record) -> Result<(), Error> {
        let mut line = serde_json::to_vec(record)
            .map_err(|error| Error::Internal(format!("a metrics record: {error}")))?;
        line.push(b'\n');
        self.file
            .write_all(&line)
            .map_err(|error| Error::io("write", &self.path, error))
    }
}
