//! What a child prints passes through us, so that the end of it can be explained.
//!
//! | ours | the child gets |
//! |---|---|
//! | stderr is a terminal | a pseudo terminal: progress bars and colours stay |
//! | stderr is a pipe or file | a pipe |
//! | stdout is a terminal | our terminal itself: programs that take the whole screen set it up through their stdout |
//! | stdout is a pipe or file | a pipe, and one pipe for both when both are the same file (`> log 2>&1`), so that the order stays |
//!
//! Python's tracebacks go to stderr; wrappers and loggers that print them to stdout are
//! read wherever that changes nothing for the child.

use std::io::{self, Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How much of the last output is kept.
const KEEP: usize = 256 << 10;

/// How much of the first output is kept: a trainer begins with the name of its run.
const KEEP_FIRST: usize = 32 << 10;

/// One of our own streams.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Stdout,
    Stderr,
}

impl Target {
    #[cfg(windows)]
    fn is_terminal(self) -> bool {
        match self {
            Self::Stdout => io::IsTerminal::is_terminal(&io::stdout()),
            Self::Stderr => io::IsTerminal::is_terminal(&io::stderr()),
        }
    }

    fn write(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            // Not through std's stdout: it holds back what has no newline yet.
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes)?;
                stdout.flush()
            }
            Self::Stderr => {
                let mut stderr = io::stderr().lock();
                stderr.write_all(bytes)?;
                stderr.flush()
            }
        }
    }
}

/// The next characters of a text whose bytes come in pieces; `rest` is the beginning of one that is not whole
/// yet. A console of Windows takes nothing else: of a piece with other bytes (old programs write in the code
/// page of the country) it would show nothing.
#[cfg(any(windows, test))]
fn unbroken(rest: &mut Vec<u8>, piece: &[u8]) -> String {
    rest.extend_from_slice(piece);
    let bytes = std::mem::take(rest);
    let mut left = &bytes[..];
    let mut text = String::new();
    loop {
        let error = match std::str::from_utf8(left) {
            Ok(whole) => {
                text.push_str(whole);
                return text;
            }
            Err(error) => error,
        };
        let (good, other) = left.split_at(error.valid_up_to());
        text.push_str(&String::from_utf8_lossy(good));
        let Some(length) = error.error_len() else {
            rest.extend_from_slice(other);
            return text;
        };
        text.push(char::REPLACEMENT_CHARACTER);
        left = &other[length..];
    }
}

/// The streams of a child that will be started.
pub(super) struct Streams {
    readers: Vec<(Box<dyn Read + Send>, Target)>,
    /// The other end of the child's terminal, to tell it the size.
    #[cfg(unix)]
    controller: Option<std::os::fd::OwnedFd>,
}

/// The streams of a child that runs.
#[derive(Default)]
pub(super) struct Tails {
    tails: Vec<Tail>,
}

impl Streams {
    /// Gives the command the streams that the table above says.
    pub(super) fn open(command: &mut Command) -> io::Result<Self> {
        let mut streams = Self {
            readers: Vec::new(),
            #[cfg(unix)]
            controller: None,
        };
        if system::are_one_file() {
            let (reader, writer) = io::pipe()?;
            command.stdout(writer.try_clone()?).stderr(writer);
            streams.readers.push((Box::new(reader), Target::Stderr));
            return Ok(streams);
        }
        streams.open_stderr(command)?;
        if !io::IsTerminal::is_terminal(&io::stdout()) {
            let (reader, writer) = io::pipe()?;
            command.stdout(writer);
            streams.readers.push((Box::new(reader), Target::Stdout));
        }
        Ok(streams)
    }

    #[cfg(unix)]
    fn open_stderr(&mut self, command: &mut Command) -> io::Result<()> {
        if io::IsTerminal::is_terminal(&io::stderr())
            && let Ok((controller, terminal)) = system::pseudo_terminal()
        {
            command.stderr(terminal);
            let reader = std::fs::File::from(controller.try_clone()?);
            self.readers.push((Box::new(reader), Target::Stderr));
            self.controller = Some(controller);
            return Ok(());
        }
        self.pipe_stderr(command)
    }

    #[cfg(not(unix))]
    fn open_stderr(&mut self, command: &mut Command) -> io::Result<()> {
        self.pipe_stderr(command)
    }

    fn pipe_stderr(&mut self, command: &mut Command) -> io::Result<()> {
        let (reader, writer) = io::pipe()?;
        command.stderr(writer);
        self.readers.push((Box::new(reader), Target::Stderr));
        Ok(())
    }

    /// The other end of the child's terminal, if it has one.
    #[cfg(unix)]
    pub(super) fn take_controller(&mut self) -> Option<std::os::fd::OwnedFd> {
        self.controller.take()
    }

    /// Begins to pass on. The command must be dropped before, or its writing ends would
    /// keep the streams open for good.
    pub(super) fn follow(self) -> Tails {
        let follow = |(reader, target)| Tail::follow(reader, target);
        Tails {
            tails: self.readers.into_iter().map(follow).collect(),
        }
    }
}

impl Tails {
    /// The first and the last output, stderr's after stdout's.
    pub(super) fn finish(self) -> (Vec<u8>, Vec<u8>) {
        let mut tails = self.tails;
        // The child has ended: stdout belongs before the traceback on stderr.
        tails.sort_by_key(|tail| tail.target == Target::Stderr);
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for tail in tails {
            let (begins, ends) = tail.finish();
            first.extend(begins);
            first.push(b'\n');
            last.extend(ends);
            last.push(b'\n');
        }
        (first, last)
    }
}

/// Copies a stream to one of ours and keeps the end of it.
struct Tail {
    target: Target,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    first: Mutex<Vec<u8>>,
    kept: Mutex<Vec<u8>>,
    /// The stream is over.
    is_done: AtomicBool,
    /// Something was read and is being passed on.
    is_busy: AtomicBool,
}

impl Tail {
    fn follow(mut from: Box<dyn Read + Send>, target: Target) -> Self {
        let shared: Arc<Shared> = Arc::default();
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            let mut piece = [0u8; 16 << 10];
            #[cfg(windows)]
            let (is_console, mut rest) = (target.is_terminal(), Vec::new());
            loop {
                let read = match from.read(&mut piece) {
                    Ok(read @ 1..) => read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // A pseudo terminal ends with an error (EIO) where a pipe ends with 0.
                    _ => break,
                };
                own.is_busy.store(true, Ordering::SeqCst);
                own.keep(&piece[..read]);
                #[cfg(not(windows))]
                let written = target.write(&piece[..read]);
                #[cfg(windows)]
                let written = match is_console {
                    true => target.write(unbroken(&mut rest, &piece[..read]).as_bytes()),
                    false => target.write(&piece[..read]),
                };
                own.is_busy.store(false, Ordering::SeqCst);
                // Whoever read our stdout is gone (`| head`): the child must notice, as it
                // would without us. Without stderr it goes on.
                if written.is_err() && target == Target::Stdout {
                    break;
                }
            }
            own.is_done.store(true, Ordering::SeqCst);
        });
        Self { target, shared }
    }

    /// What was kept, once everything that the child wrote has been passed on. A
    /// grandchild may hold the stream open; for that one we do not wait.
    fn finish(self) -> (Vec<u8>, Vec<u8>) {
        const PATIENCE: Duration = Duration::from_millis(500);
        let mut idle_since = Instant::now();
        while !self.shared.is_done.load(Ordering::SeqCst) && idle_since.elapsed() < PATIENCE {
            if self.shared.is_busy.load(Ordering::SeqCst) {
                idle_since = Instant::now();
            }
            thread::sleep(Duration::from_millis(2));
        }
        let first = self.shared.first.lock();
        let first = first.unwrap_or_else(PoisonError::into_inner).clone();
        let kept = self.shared.kept.lock();
        let kept = kept.unwrap_or_else(PoisonError::into_inner);
        (first, kept[kept.len().saturating_sub(KEEP)..].to_vec())
    }
}

impl Shared {
    fn keep(&self, piece: &[u8]) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        let room = KEEP_FIRST.saturating_sub(first.len());
        first.extend_from_slice(&piece[..piece.len().min(room)]);
        drop(first);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(piece);
        let surplus = kept.len().saturating_sub(KEEP);
        if surplus > KEEP {
            kept.drain(..surplus);
        }
    }
}

#[cfg(unix)]
mod system {
    use rustix::fs::fstat;
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{OptionalActions, OutputModes, tcgetattr, tcsetattr};
    use std::fs::File;
    use std::io;
    use std::os::fd::OwnedFd;

    /// Whether stdout and stderr are the same pipe or file.
    pub(super) fn are_one_file() -> bool {
        if io::IsTerminal::is_terminal(&io::stderr()) {
            return false;
        }
        let identity = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        match (fstat(io::stdout()), fstat(io::stderr())) {
            (Ok(out), Ok(err)) => identity(out) == identity(err),
            _ => false,
        }
    }

    pub(super) fn pseudo_terminal() -> io::Result<(OwnedFd, File)> {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&controller)?;
        unlockpt(&controller)?;
        let name = ptsname(&controller, Vec::new())?;
        let terminal = File::options()
            .read(true)
            .write(true)
            .open(name.to_string_lossy().as_ref())?;
        // Lines end as the child writes them; ours is the terminal that turns them.
        let mut modes = tcgetattr(&terminal)?;
        modes.output_modes.remove(OutputModes::OPOST);
        tcsetattr(&terminal, OptionalActions::Now, &modes)?;
        super::super::child::copy_window_size(&controller);
        Ok((controller, terminal))
    }
}

#[cfg(not(unix))]
mod system {
    pub(super) fn are_one_file() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_put_together_from_pieces_and_other_bytes_are_marked() {
        let mut rest = Vec::new();
        assert_eq!(
            unbroken(&mut rest, "100% \u{2588}".as_bytes()),
            "100% \u{2588}"
        );
        let bar = "\u{2588}|".as_bytes();
        assert_eq!(unbroken(&mut rest, &bar[..1]), "");
        assert_eq!(unbroken(&mut rest, &bar[1..]), "\u{2588}|");
        // `für` in the code page 1252.
        assert_eq!(unbroken(&mut rest, b"f\xfcr"), "f\u{fffd}r");
        assert!(rest.is_empty());
    }
}
