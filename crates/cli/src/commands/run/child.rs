//! A child process: signals go in, the exit code comes out.

use super::streams::{Streams, Tails};
use doctor::explain::ending::Ending;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a child ended.
pub(super) struct Ended {
    /// Its exit code or signal.
    pub(super) ending: Ending,
    /// The first part of what it printed.
    pub(super) first_output: Vec<u8>,
    /// The last part of what it printed.
    pub(super) last_output: Vec<u8>,
    /// Whether somebody ended it on purpose (Ctrl-C, `kill`).
    pub(super) was_asked_to_stop: bool,
}

/// Runs a child to its end; `started` learns its process id.
pub(super) fn run(
    mut command: Command,
    reads_output: bool,
    started: impl FnOnce(u32),
) -> io::Result<Ended> {
    let asked_to_stop = Arc::new(AtomicBool::new(false));
    // Ready before the child is: a signal in between must not end only us.
    let mut signals = Signals::prepare()?;
    let mut streams = None;
    if reads_output {
        let mut opened = Streams::open(&mut command)?;
        signals.resize(&mut opened);
        streams = Some(opened);
    }
    let mut child = command.spawn()?;
    // Our copies of the writing ends, or we would wait for ourselves.
    drop(command);
    started(child.id());
    let tails = streams.map(Streams::follow);
    let status = signals.wait(&mut child, &asked_to_stop)?;
    let (first_output, last_output) = tails.map(Tails::finish).unwrap_or_default();
    Ok(Ended {
        ending: ending(status),
        first_output,
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

#[cfg(unix)]
mod system {
    use super::{Arc, AtomicBool, Child, ExitStatus, Ordering, Streams, io};
    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
    use rustix::termios::{tcgetwinsize, tcsetwinsize};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
    use signal_hook::iterator::SignalsInfo;
    use signal_hook::iterator::exfiltrator::origin::WithOrigin;
    use signal_hook::low_level::siginfo::Cause;
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::{Mutex, PoisonError};
    use std::thread;

    /// Gives the child's terminal the size of ours.
    pub(in super::super) fn copy_window_size(controller: &impl AsFd) {
        if let Ok(size) = tcgetwinsize(io::stderr()) {
            // It keeps the size it had.
            let _ = tcsetwinsize(controller, size);
        }
    }

    /// The signals that concern a child.
    pub(super) struct Signals {
        info: SignalsInfo<WithOrigin>,
        controller: Option<OwnedFd>,
    }

    impl Signals {
        pub(super) fn prepare() -> io::Result<Self> {
            let info = SignalsInfo::<WithOrigin>::new([
                SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
            ])?;
            Ok(Self {
                info,
                controller: None,
            })
        }

        /// Takes the terminal that is to follow the size of ours.
        pub(super) fn resize(&mut self, streams: &mut Streams) {
            self.controller = streams.take_controller();
        }

        /// Waits for the child and passes signals on meanwhile.
        pub(super) fn wait(
            self,
            child: &mut Child,
            asked_to_stop: &Arc<AtomicBool>,
        ) -> io::Result<ExitStatus> {
            let pid = Pid::from_child(child);
            // Once the child is reaped its number may belong to somebody else.
            let is_there = Arc::new(Mutex::new(true));
            let Self {
                mut info,
                controller,
            } = self;
            let handle = info.handle();
            let forwarder = {
                let (is_there, asked_to_stop) = (Arc::clone(&is_there), Arc::clone(asked_to_stop));
                thread::spawn(move || {
                    for origin in info.forever() {
                        if matches!(origin.signal, SIGINT | SIGQUIT | SIGTERM | SIGHUP) {
                            asked_to_stop.store(true, Ordering::SeqCst);
                        }
                        let is_resize = origin.signal == SIGWINCH && controller.is_some();
                        if let Some(controller) = controller.as_ref().filter(|_| is_resize) {
                            copy_window_size(controller);
                        }
                        // Keys reach every process of the terminal, the child too. The
                        // size it has to read again: it looked before its own terminal
                        // had the new one.
                        let has_it_already = matches!(origin.cause, Cause::Kernel)
                            && origin.signal != SIGHUP
                            && !is_resize;
                        let there = is_there.lock().unwrap_or_else(PoisonError::into_inner);
                        if *there
                            && !has_it_already
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
            *is_there.lock().unwrap_or_else(PoisonError::into_inner) = false;
            let status = child.wait();
            handle.close();
            // It only fails when it panicked, and then the child has ended all the same.
            let _ = forwarder.join();
            status
        }
    }
}

#[cfg(windows)]
mod system {
    use super::{Arc, AtomicBool, Child, ExitStatus, Ordering, Streams, io};
    use platform::requests::ENDED_BY_CTRL_C;
    use surefoot_cli::windows;

    /// Ctrl-C, which the child gets too, and decides what becomes of it.
    pub(super) struct Signals;

    impl Signals {
        pub(super) fn prepare() -> io::Result<Self> {
            windows::note_ctrl_c()?;
            // All that the child starts is to end with us, however we end.
            if let Err(error) = windows::end_all_children_with_us() {
                eprintln!(
                    "surefoot: what the command starts may outlive it, since Windows refuses a job object: {error}"
                );
            }
            Ok(Self)
        }

        pub(super) fn resize(&mut self, _: &mut Streams) {}

        pub(super) fn wait(
            self,
            child: &mut Child,
            asked_to_stop: &Arc<AtomicBool>,
        ) -> io::Result<ExitStatus> {
            let status = child.wait()?;
            let code = status.code().map(i32::cast_unsigned);
            let is_asked = windows::ctrl_c_was_pressed() || code == Some(ENDED_BY_CTRL_C);
            asked_to_stop.store(is_asked, Ordering::SeqCst);
            Ok(status)
        }
    }
}

use system::Signals;
#[cfg(unix)]
pub(super) use system::copy_window_size;
