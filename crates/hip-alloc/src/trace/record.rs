//! Recording what a program asks for: `HIP_ALLOC_TRACE=file`.
//!
//! The device that allocates first records to the file itself, any other to
//! `file.<device>` (`file.host`). A name that ends in `.zst` is compressed. What is
//! written is the format of [`format`](super::format): `hip_alloc_reset_peaks`, which
//! programs call once a step, marks a step.

use crate::units::{DeviceIndex, StreamId};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Fast, and traces compress well at any level.
const COMPRESSION_LEVEL: i32 = 3;

/// Writes one device's trace.
pub struct Recorder {
    writer: Writer,
    /// Names of live requests, by address.
    live: HashMap<u64, u64>,
    next: u64,
    /// The first error ends the recording; the program goes on.
    failed: Option<io::Error>,
}

enum Writer {
    Plain(BufWriter<File>),
    Compressed(BufWriter<zstd::stream::write::AutoFinishEncoder<'static, File>>),
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Writer::Plain(writer) => writer.write(bytes),
            Writer::Compressed(writer) => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Writer::Plain(writer) => writer.flush(),
            Writer::Compressed(writer) => writer.flush(),
        }
    }
}

impl Recorder {
    /// Begins a recording.
    pub fn create(path: &Path) -> io::Result<Recorder> {
        let file = File::create(path)?;
        let writer = if path.extension().is_some_and(|extension| extension == "zst") {
            let encoder = zstd::stream::write::Encoder::new(file, COMPRESSION_LEVEL)?;
            Writer::Compressed(BufWriter::new(encoder.auto_finish()))
        } else {
            Writer::Plain(BufWriter::new(file))
        };
        Ok(Recorder {
            writer,
            live: HashMap::new(),
            next: 0,
            failed: None,
        })
    }

    /// The file for a device, given what the user named and whether it is the first.
    pub fn path_for(named: &Path, device: DeviceIndex, first: bool) -> PathBuf {
        if first {
            return named.to_path_buf();
        }
        let suffix = match device {
            DeviceIndex::HOST => "host".to_owned(),
            DeviceIndex(index) => index.to_string(),
        };
        let (stem, end) = match named.extension() {
            Some(end) if end == "zst" => (named.with_extension(""), ".zst"),
            _ => (named.to_path_buf(), ""),
        };
        let mut name = stem.into_os_string();
        name.push(format!(".{suffix}{end}"));
        PathBuf::from(name)
    }

    /// Notes a request that was served.
    pub fn allocated(&mut self, address: u64, bytes: u64, stream: StreamId) {
        let id = self.next;
        self.next += 1;
        self.live.insert(address, id);
        let result = match stream.0 {
            0 => writeln!(self.writer, "a {id} {bytes}"),
            stream => writeln!(self.writer, "a {id} {bytes} {stream}"),
        };
        self.note(result);
    }

    /// Notes a free.
    pub fn freed(&mut self, address: u64) {
        if let Some(id) = self.live.remove(&address) {
            let result = writeln!(self.writer, "f {id}");
            self.note(result);
        }
    }

    /// Notes that a step begins, and writes out what was buffered.
    pub fn step(&mut self) {
        let result = writeln!(self.writer, "s").and_then(|()| self.writer.flush());
        self.note(result);
    }

    /// The error that ended the recording, once.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::format::{Event, Trace};

    fn record(name: &str) -> Trace {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let mut recorder = Recorder::create(&path).unwrap();
        recorder.allocated(0x1000, 512, StreamId(0));
        recorder.step();
        recorder.allocated(0x2000, 64, StreamId(7));
        recorder.freed(0x1000);
        recorder.allocated(0x1000, 8, StreamId(0));
        recorder.freed(0x9999);
        drop(recorder);
        Trace::read(&path).unwrap()
    }

    #[test]
    fn what_is_recorded_is_read_back() {
        let expected = [
            Event::Allocate {
                id: 0,
                bytes: 512,
                stream: 0,
            },
            Event::Step,
            Event::Allocate {
                id: 1,
                bytes: 64,
                stream: 7,
            },
            Event::Free { id: 0 },
            Event::Allocate {
                id: 2,
                bytes: 8,
                stream: 0,
            },
        ];
        assert_eq!(record("run.trace").events, expected);
        assert_eq!(record("run.trace.zst").events, expected);
    }

    #[test]
    fn each_device_has_a_file() {
        let named = Path::new("a/run.trace.zst");
        assert_eq!(Recorder::path_for(named, DeviceIndex(0), true), named);
        assert_eq!(
            Recorder::path_for(named, DeviceIndex::HOST, false),
            Path::new("a/run.trace.host.zst")
        );
        assert_eq!(
            Recorder::path_for(Path::new("run"), DeviceIndex(1), false),
            Path::new("run.1")
        );
    }
}
