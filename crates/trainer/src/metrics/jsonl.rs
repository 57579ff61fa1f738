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
    /// Opens the file, keeping the records before `step` and the first `at_step` of that step. A last
    /// line that a crash cut off goes; so does one that cannot be read, with a warning.
    pub(super) fn open(path: &Path, step: u64, at_step: u64) -> Result<(Self, Vec<Record>), Error> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::io("read", path, error)),
        };
        let mut kept = Vec::new();
        let mut left = at_step;
        // Through a new file: the old one stays whole until the new one is.
        let temporary = path.with_extension("jsonl.tmp");
        let io = |error| Error::io("write", path, error);
        let mut file = File::create(&temporary).map_err(io)?;
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let Ok(record) = serde_json::from_slice::<Record>(line) else {
                if line.ends_with(b"\n") {
                    tracing::warn!(
                        "`{}`: line {} cannot be read, and is left out",
                        path.display(),
                        index + 1
                    );
                }
                continue;
            };
            if record.step() > step || (record.step() == step && left == 0) {
                continue;
            }
            left -= u64::from(record.step() == step);
            // As it was, to the last digit.
            file.write_all(line.trim_ascii_end())
                .and_then(|()| file.write_all(b"\n"))
                .map_err(io)?;
            kept.push(record);
        }
        std::fs::rename(&temporary, path).map_err(io)?;
        let path = path.to_owned();
        Ok((Self { path, file }, kept))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rolled_back(to_step: u64) -> Record {
        Record::RolledBack(crate::events::Rollback {
            from_step: 9,
            to_step,
            seen: Vec::new(),
        })
    }

    #[test]
    fn what_cannot_be_read_is_left_out_and_what_happens_again_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let line = |step| serde_json::to_string(&rolled_back(step)).unwrap();
        let mut bytes = format!("{}\n", line(1)).into_bytes();
        bytes.extend(b"\xff\xfe of a broken disk\n{\"kind\": \"unknown\"}\n");
        for step in [2, 3, 3, 3, 4] {
            bytes.extend(format!("{}\n", line(step)).into_bytes());
        }
        bytes.extend(b"{\"kind\": \"tra");
        std::fs::write(&path, &bytes).unwrap();
        let (mut writer, kept) = Writer::open(&path, 3, 2).unwrap();
        let steps: Vec<u64> = kept.iter().map(Record::step).collect();
        assert_eq!(steps, [1, 2, 3, 3]);
        writer.write(&rolled_back(5)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, [line(1), line(2), line(3), line(3), line(5)]);
    }
}
