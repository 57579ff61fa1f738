//! Records a program's requests: `HIP_ALLOC_TRACE=file`.
//!
//! The first device that allocates records to the file itself, any other to
//! `file.<device>` (`file.host`). A file whose name ends in `.zst` is compressed, and `%p` in the name is
//! replaced by the process id. While one process records to a file, another one with the same
//! name (every rank of a distributed run) records to `file.<process id>`. One line is one event:
//!
//! ```text
//! a 17 1048576 0     request 17 is for 1 MiB, on stream 0 (may be omitted for stream 0)
//! f 17               request 17 is freed
//! s                  a step begins: hip_alloc_reset_peaks was called
//! ```
//!
//! A program that is killed loses what was not yet written: at most [`UNWRITTEN_BYTES`] of
//! text, or the requests in the last `UNWRITTEN_FOR`. `surefoot replay`
//! reads the rest, compressed or not.

use crate::shared_file;
use crate::units::{DeviceIndex, StreamId};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Fast, and traces compress well at any level.
const COMPRESSION_LEVEL: i32 = 3;

/// This much text is written at once.
pub const UNWRITTEN_BYTES: usize = 32 << 10;
/// Less is written if the last write was this long ago.
const UNWRITTEN_FOR: Duration = Duration::from_millis(500);

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<Id = u32> {
    /// A request for memory.
    Allocate {
        /// Identifies the request; its free has the same.
        id: Id,
        /// The requested size in bytes.
        bytes: u64,
        /// The stream, by its name in the trace.
        stream: u64,
    },
    /// A request is freed.
    Free {
        /// Identifies the request; its free has the same.
        id: Id,
    },
    /// A step begins.
    Step,
}

/// The line of the trace, without its line break.
impl<Id: fmt::Display> fmt::Display for Event<Id> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Allocate {
                id,
                bytes,
                stream: 0,
            } => write!(f, "a {id} {bytes}"),
            Event::Allocate { id, bytes, stream } => write!(f, "a {id} {bytes} {stream}"),
            Event::Free { id } => write!(f, "f {id}"),
            Event::Step => f.write_str("s"),
        }
    }
}

/// Writes one device's trace.
pub struct Recorder {
    writer: Writer,
    /// Names of live requests, by address.
    live: HashMap<u64, u64>,
    next: u64,
    /// Bytes of text since the last write, and when that was.
    unwritten: usize,
    written: Instant,
    /// The first error ends the recording, but not the program.
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
    /// Starts a recording; an older one in the same file is overwritten.
    ///
    /// # Errors
    /// Errors of the file; [`io::ErrorKind::WouldBlock`] while another recorder uses it.
    pub fn create(path: &Path) -> io::Result<Recorder> {
        let file = (File::options().write(true).create(true).truncate(false)).open(path)?;
        // Pipes and terminals may be shared.
        if file.metadata()?.is_file() {
            if !shared_file::claim(&file) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            file.set_len(0)?;
        }
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

    /// Like [`create`](Self::create), or in a file beside it with the process id in its name, while
    /// another recorder uses it; returns the path.
    pub fn create_or_beside(path: &Path, process: u32) -> io::Result<(Recorder, PathBuf)> {
        match Self::create(path) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let beside = with_suffix(path, &process.to_string());
                Ok((Self::create(&beside)?, beside))
            }
            created => Ok((created?, path.to_path_buf())),
        }
    }

    /// The path from the user, with the process id in place of `%p`.
    pub fn path_in_process(named: &Path, process: u32) -> PathBuf {
        match named.to_str() {
            Some(text) => PathBuf::from(text.replace("%p", &process.to_string())),
            None => named.to_path_buf(),
        }
    }

    /// The file for a device, given the path from the user and whether it is the first.
    pub fn path_for(named: &Path, device: DeviceIndex, first: bool) -> PathBuf {
        if first {
            return named.to_path_buf();
        }
        let suffix = match device {
            DeviceIndex::HOST => "host".to_owned(),
            DeviceIndex(index) => index.to_string(),
        };
        with_suffix(named, &suffix)
    }

    /// Records a served request.
    pub fn allocated(&mut self, address: u64, bytes: u64, stream: StreamId) {
        let id = self.next;
        self.next += 1;
        self.live.insert(address, id);
        self.write(Event::Allocate {
            id,
            bytes,
            stream: stream.0,
        });
    }

    /// Records a free.
    pub fn freed(&mut self, address: u64) {
        if let Some(id) = self.live.remove(&address) {
            self.write(Event::Free { id });
        }
    }

    /// Records the beginning of a step, and writes the buffer.
    pub fn step(&mut self) {
        self.write(Event::Step);
        self.write_out();
    }

    /// Takes the error that ended the recording.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    fn write(&mut self, event: Event<u64>) {
        let mut counted = Counted(&mut self.writer, 0);
        let result = writeln!(counted, "{event}");
        self.unwritten += counted.1;
        self.note(result);
        if self.unwritten >= UNWRITTEN_BYTES || self.written.elapsed() >= UNWRITTEN_FOR {
            self.write_out();
        }
    }

    /// Passes everything to the operating system, which keeps it if the program is killed;
    /// a compressed file can be decompressed up to here.
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

/// `run.trace.zst` becomes `run.trace.<suffix>.zst`: the extension of compression stays last.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let (stem, end) = match path.extension() {
        Some(end) if end == "zst" => (path.with_extension(""), ".zst"),
        _ => (path.to_path_buf(), ""),
    };
    let mut name = stem.into_os_string();
    name.push(format!(".{suffix}{end}"));
    PathBuf::from(name)
}

/// A writer that counts bytes.
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
