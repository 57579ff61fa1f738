//! A child process: signals go in, the exit code comes out, and its stderr passes
//! through us so that the end of it can be explained.
//!
//! When our stderr is a terminal the child gets a pseudo terminal for its own, or
//! progress bars and colours would vanish.

use platform::explain::ending::Ending;
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How much of the last output is kept.
const KEEP: usize = 256 << 10;

/// How a child ended.
pub(super) struct Ended {
    /// Its exit code or signal.
    pub(super) ending: Ending,
    /// The last part of what it wrote to stderr.
    pub(super) last_output: String,
    /// Whether somebody ended it on purpose (Ctrl-C, `kill`).
    pub(super) was_asked_to_stop: bool,
}

/// Runs a child to its end.
///
/// # Errors
/// When it cannot be started.
pub(super) fn run(mut command: Command, read_stderr: bool) -> io::Result<Ended> {
    let asked_to_stop = Arc::new(AtomicBool::new(false));
    let mut tail = None;
    // Ready before the child is: a signal in between must not end only us.
    let signals = Signals::prepare()?;
    let (mut child, reader) = if read_stderr {
        let channel = Channel::open(&mut command)?;
        let child = command.spawn()?;
        // Our copies of the writing end, or we would wait for ourselves.
        drop(command);
        (child, Some(channel))
    } else {
        (command.spawn()?, None)
    };
    if let Some(channel) = reader {
        tail = Some(Tail::follow(channel.into_reader(&mut child)));
    }
    let status = signals.wait(&mut child, &asked_to_stop)?;
    let last_output = tail.map(Tail::finish).unwrap_or_default();
    Ok(Ended {
        ending: ending(status),
        last_output,
        was_asked_to_stop: asked_to_stop.load(Ordering::SeqCst),
    })
}

fn ending(status: ExitStatus) -> Ending {
    #[cfg(unix)]
    if let Some(number) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return Ending::Signal(number);
    }
    Ending::Code(status.code().unwrap_or(1))
}

/// Copies a stream to our stderr and keeps the end of it.
struct Tail {
    kept: Arc<Mutex<Vec<u8>>>,
    done: Arc<AtomicBool>,
}

impl Tail {
    fn follow(mut from: impl Read + Send + 'static) -> Self {
        let tail = Self {
            kept: Arc::default(),
            done: Arc::default(),
        };
        let (kept, done) = (Arc::clone(&tail.kept), Arc::clone(&tail.done));
        thread::spawn(move || {
            let mut piece = [0u8; 8192];
            // A pseudo terminal ends with an error (EIO) where a pipe ends with 0.
            while let Ok(read @ 1..) = from.read(&mut piece) {
                let mut stderr = io::stderr().lock();
                // Nobody is left to tell when our stderr is gone; the child goes on.
                let _ = stderr
                    .write_all(&piece[..read])
                    .and_then(|()| stderr.flush());
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&piece[..read]);
                let surplus = kept.len().saturating_sub(KEEP);
                if surplus > KEEP {
                    kept.drain(..surplus);
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        tail
    }

    /// What was kept. A grandchild may hold the stream open; we do not wait for it.
    fn finish(self) -> String {
        let end = Instant::now() + Duration::from_millis(500);
        while !self.done.load(Ordering::SeqCst) && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let start = kept.len().saturating_sub(KEEP);
        String::from_utf8_lossy(&kept[start..]).into_owned()
    }
}

#[cfg(unix)]
mod system {
    use super::{Arc, AtomicBool, Child, Command, ExitStatus, Ordering, Read, Stdio, io, thread};
    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{isatty, tcgetwinsize, tcsetwinsize};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
    use signal_hook::iterator::SignalsInfo;
    use signal_hook::iterator::exfiltrator::origin::WithOrigin;
    use signal_hook::low_level::siginfo::Cause;
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::sync::Mutex;

    /// Where the child's stderr comes out.
    pub(super) enum Channel {
        Terminal(OwnedFd),
        Pipe,
    }

    impl Channel {
        /// A pseudo terminal when our stderr is a terminal, else a pipe.
        pub(super) fn open(command: &mut Command) -> io::Result<Self> {
            if isatty(io::stderr())
                && let Ok((controller, terminal)) = pseudo_terminal()
            {
                command.stderr(terminal);
                return Ok(Self::Terminal(controller));
            }
            command.stderr(Stdio::piped());
            Ok(Self::Pipe)
        }

        pub(super) fn into_reader(self, child: &mut Child) -> Box<dyn Read + Send> {
            match self {
                Self::Terminal(controller) => Box::new(File::from(controller)),
                Self::Pipe => match child.stderr.take() {
                    Some(pipe) => Box::new(pipe),
                    None => Box::new(io::empty()),
                },
            }
        }
    }

    fn pseudo_terminal() -> io::Result<(OwnedFd, File)> {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&controller)?;
        unlockpt(&controller)?;
        let name = ptsname(&controller, Vec::new())?;
        let terminal = File::options()
            .read(true)
            .write(true)
            .open(name.to_string_lossy().as_ref())?;
        // Lines end as the child writes them; ours is the terminal that turns them.
        let mut modes = rustix::termios::tcgetattr(&terminal)?;
        modes
            .output_modes
            .remove(rustix::termios::OutputModes::OPOST);
        rustix::termios::tcsetattr(&terminal, rustix::termios::OptionalActions::Now, &modes)?;
        if let Ok(size) = tcgetwinsize(io::stderr()) {
            tcsetwinsize(&controller, size)?;
        }
        Ok((controller, terminal))
    }

    /// The signals that concern a child.
    pub(super) struct Signals(SignalsInfo<WithOrigin>);

    impl Signals {
        pub(super) fn prepare() -> io::Result<Self> {
            SignalsInfo::<WithOrigin>::new([
                SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
            ])
            .map(Self)
        }

        /// Waits for the child and passes signals on meanwhile.
        pub(super) fn wait(
            mut self,
            child: &mut Child,
            asked_to_stop: &Arc<AtomicBool>,
        ) -> io::Result<ExitStatus> {
            let pid = Pid::from_child(child);
            // Once the child is reaped its number may belong to somebody else.
            let is_there = Arc::new(Mutex::new(true));
            let handle = self.0.handle();
            let forwarder = {
                let (is_there, asked_to_stop) = (Arc::clone(&is_there), Arc::clone(asked_to_stop));
                thread::spawn(move || {
                    for origin in self.0.forever() {
                        if matches!(origin.signal, SIGINT | SIGQUIT | SIGTERM | SIGHUP) {
                            asked_to_stop.store(true, Ordering::SeqCst);
                        }
                        // Keys reach every process of the terminal, the child too.
                        let from_terminal =
                            matches!(origin.cause, Cause::Kernel) && origin.signal != SIGHUP;
                        let there = is_there
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner);
                        if *there
                            && !from_terminal
                            && let Some(signal) = Signal::from_named_raw(origin.signal)
                        {
                            // It may have ended by itself this moment.
                            let _ = kill_process(pid, signal);
                        }
                    }
                })
            };
            // Seen to have ended, but not reaped yet.
            while let Err(error) = waitid(
                WaitId::Pid(pid),
                WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
            ) {
                if error != rustix::io::Errno::INTR {
                    break;
                }
            }
            *is_there
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner) = false;
            let status = child.wait();
            handle.close();
            // It only fails when it panicked, and then the child has ended all the same.
            let _ = forwarder.join();
            status
        }
    }
}

#[cfg(not(unix))]
mod system {
    use super::{Arc, AtomicBool, Child, Command, ExitStatus, Read, Stdio, io};

    pub(super) struct Channel;

    impl Channel {
        pub(super) fn open(command: &mut Command) -> io::Result<Self> {
            command.stderr(Stdio::piped());
            Ok(Self)
        }

        pub(super) fn into_reader(self, child: &mut Child) -> Box<dyn Read + Send> {
            match child.stderr.take() {
                Some(pipe) => Box::new(pipe),
                None => Box::new(io::empty()),
            }
        }
    }

    /// Windows sends console events to the child by itself.
    pub(super) struct Signals;

    impl Signals {
        pub(super) fn prepare() -> io::Result<Self> {
            Ok(Self)
        }

        pub(super) fn wait(self, child: &mut Child, _: &Arc<AtomicBool>) -> io::Result<ExitStatus> {
            child.wait()
        }
    }
}

use system::{Channel, Signals};
