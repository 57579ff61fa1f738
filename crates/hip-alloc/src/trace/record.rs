//! Recording what a program asks for: `HIP_ALLOC_TRACE=file`.
//!
//! The device that allocates first records to the file itself, any other to
//! `file.<device>` (`file.host`). A name that ends in `.zst` is compressed. What is
//! written is the format of [`format`](super::format): `hip_alloc_reset_peaks`, which
//! programs call once a step, marks a step.
//!
//! A program that is killed loses what was not yet written: at most `UNWRITTEN_BYTES` of
//! text, or what it asked for in the last `UNWRITTEN_FOR` of its requests. `surefoot replay`
//! reads the rest, compressed or not.

use crate::units::{DeviceIndex, StreamId};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Fast, and traces compress well at any level.
const COMPRESSION_LEVEL: i32 = 3;

/// As much text is written out at once.
const UNWRITTEN_BYTES: usize = 32 << 10;
/// And so is less, when the last time was so long ago.
const UNWRITTEN_FOR: Duration = Duration::from_millis(500);

/// Writes one device's trace.
pub struct Recorder {
    writer: Writer,
    /// Names of live requests, by address.
    live: HashMap<u64, u64>,
    next: u64,
    /// Bytes of text since everything was written out, and when that was.
    unwritten: usize,
    written: Instant,
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
            unwritten: 0,
            written: Instant::now(),
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
        match stream.0 {
            0 => self.line(format_args!("a {id} {bytes}")),
            stream => self.line(format_args!("a {id} {bytes} {stream}")),
        }
    }

    /// Notes a free.
    pub fn freed(&mut self, address: u64) {
        if let Some(id) = self.live.remove(&address) {
            self.line(format_args!("f {id}"));
        }
    }

    /// Notes that a step begins, and writes out what was buffered.
    pub fn step(&mut self) {
        self.line(format_args!("s"));
        self.write_out();
    }

    /// The error that ended the recording, once.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let mut counted = Counted(&mut self.writer, 0);
        let result = writeln!(counted, "{line}");
        self.unwritten += counted.1;
        self.note(result);
        if self.unwritten >= UNWRITTEN_BYTES || self.written.elapsed() >= UNWRITTEN_FOR {
            self.write_out();
        }
    }

    /// Hands everything to the operating system, which keeps it when the program is killed;
    /// a compressed file can be unpacked up to here.
    fn write_out(&mut self) {
        let result = self.writer.flush();
        self.unwritten = 0;
        self.written = Instant::now();
        self.note(result);
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed = Some(error);
        }
    }
}

/// A writer and the bytes that went through it.
struct Counted<'a>(&'a mut Writer, usize);

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        self.1 += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
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
    fn a_killed_program_loses_only_the_end_of_its_recording() {
        const LINES: u64 = 20_000;
        let folder = tempfile::tempdir().unwrap();
        for name in ["run.trace", "run.trace.zst"] {
            let path = folder.path().join(name);
            let mut recorder = Recorder::create(&path).unwrap();
            let mut text = Vec::new();
            for address in 0..LINES {
                recorder.allocated(address, 4096 * address, StreamId(address % 3));
                text.push(Event::Allocate {
                    id: address as u32,
                    bytes: 4096 * address,
                    stream: address % 3,
                });
            }
            // Neither flushed nor finished, as under SIGKILL.
            std::mem::forget(recorder);
            let trace = Trace::read(&path).unwrap();
            assert!(trace.is_cut_off, "{name}");
            let (read, whole) = (trace.events.len(), text.len());
            assert_eq!(trace.events, text[..read], "{name}");
            // The shortest line has eight bytes.
            assert!(
                whole - read <= UNWRITTEN_BYTES / 8,
                "{name}: {read} of {whole}"
            );
        }
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
