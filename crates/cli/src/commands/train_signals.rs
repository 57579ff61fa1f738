//! The signals that `surefoot train` answers.

use std::io::Write;

use surefoot_cli::output::Failure;
use trainer::Stop;

const FINISHING: &str = "\nfinishing the step and saving; once more ends it at once without saving";

/// Ctrl-C, SIGTERM and a closed terminal ask the run to stop; a second Ctrl-C or SIGTERM ends the process at once.
/// SIGUSR1 requests a checkpoint, SIGUSR2 samples.
#[cfg(unix)]
pub(super) fn listen(stop: &Stop) -> Result<(), Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    let stop = stop.clone();
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1, SIGUSR2])?;
    // With `nohup` the run should outlive its terminal.
    if !is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                match signal {
                    SIGUSR1 => {
                        stop.request_save();
                        continue;
                    }
                    SIGUSR2 => {
                        stop.request_sample();
                        continue;
                    }
                    _ => {}
                }
                // A closed terminal is reported twice, by the kernel and by the shell.
                if stop.is_requested() && signal != SIGHUP {
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                // Printed once for all processes that train together.
                if trainer::rank_of_this_process() == 0 {
                    let _ = writeln!(std::io::stderr(), "{FINISHING}");
                }
                match signal {
                    // As sent by `torchrun` to the ranks of one machine before it starts all of them again.
                    SIGTERM => stop.request_leave(),
                    _ => stop.request(),
                }
            }
        })?;
    Ok(())
}

/// Ctrl-C, Ctrl-Break, a closed window and the event for it ask the run to stop; a second one ends the process at once. Other events
/// request a checkpoint and samples.
#[cfg(windows)]
pub(super) fn listen(stop: &Stop) -> Result<(), Failure> {
    use platform::requests::{ENDED_BY_CTRL_C, Request};
    use std::os::windows::io::AsRawHandle;
    use std::sync::OnceLock;
    use windows_sys::Win32::Foundation::WAIT_OBJECT_0;
    use windows_sys::Win32::System::Console::{
        CTRL_BREAK_EVENT, CTRL_C_EVENT, SetConsoleCtrlHandler,
    };
    use windows_sys::Win32::System::Threading::{
        GetCurrentProcess, INFINITE, TerminateProcess, WaitForMultipleObjects,
    };
    use windows_sys::core::BOOL;
    static STOP: OnceLock<Stop> = OnceLock::new();
    // Windows calls it in a thread of its own.
    extern "system" fn asked(event: u32) -> BOOL {
        let stop = STOP.get_or_init(Stop::default);
        let is_key = matches!(event, CTRL_C_EVENT | CTRL_BREAK_EVENT);
        if is_key && stop.is_requested() {
            // SAFETY: the handle means this process. Its libraries are not asked to clean up, which may wait for a step.
            unsafe { TerminateProcess(GetCurrentProcess(), ENDED_BY_CTRL_C) };
        }
        let _ = writeln!(std::io::stderr(), "{FINISHING}");
        stop.request();
        while !is_key {
            // A closed window: Windows ends the process some seconds after this, or when it returns.
            std::thread::park();
        }
        1
    }
    STOP.get_or_init(|| stop.clone());
    let events = Request::ALL.map(event);
    let [stops, saves, samples] = events;
    let events = [stops?, saves?, samples?];
    let stop = stop.clone();
    std::thread::Builder::new()
        .name("requests".into())
        .spawn(move || {
            let handles = events.each_ref().map(AsRawHandle::as_raw_handle);
            loop {
                // SAFETY: as many handles as it is told, which stay open.
                let set = unsafe { WaitForMultipleObjects(3, handles.as_ptr(), 0, INFINITE) };
                let index = usize::try_from(set.wrapping_sub(WAIT_OBJECT_0)).ok();
                match index.and_then(|index| Request::ALL.get(index)) {
                    Some(Request::Stop) => {
                        asked(CTRL_BREAK_EVENT);
                    }
                    Some(Request::Save) => stop.request_save(),
                    Some(Request::Sample) => stop.request_sample(),
                    None => return,
                }
            }
        })?;
    // SAFETY: the handler lives as long as the library, which is never unloaded, and takes no lock that others hold for long.
    match unsafe { SetConsoleCtrlHandler(Some(asked), 1) } {
        0 => Err(std::io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}

/// The event by which the run of this process is asked, which is reset when that is seen.
#[cfg(windows)]
fn event(
    request: platform::requests::Request,
) -> std::io::Result<std::os::windows::io::OwnedHandle> {
    use std::os::windows::io::{FromRawHandle, OwnedHandle};
    use windows_sys::Win32::System::Threading::CreateEventW;
    let name = request.event(platform::requests::process());
    let name: Vec<u16> = name.encode_utf16().chain([0]).collect();
    // SAFETY: the first may be null, for the default security, and the name ends with a zero.
    let event = unsafe { CreateEventW(std::ptr::null(), 0, 0, name.as_ptr()) };
    match event.is_null() {
        true => Err(std::io::Error::last_os_error()),
        // SAFETY: it was just made, and nobody else has it.
        false => Ok(unsafe { OwnedHandle::from_raw_handle(event) }),
    }
}

/// Whether this process was started with the signal ignored (proc(5), `SigIgn`).
#[cfg(unix)]
pub(super) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
