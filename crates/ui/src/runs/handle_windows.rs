//! A handle to one process, to ask it and to wait for its end without mixing it up with a later one.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::time::Duration;

use platform::requests::{ENDED_BY_CTRL_C, Request};
use windows_sys::Win32::Foundation::{
    ERROR_FILE_NOT_FOUND, FILETIME, HANDLE, HANDLE_FLAG_INHERIT, SetHandleInformation,
    WAIT_OBJECT_0, WAIT_TIMEOUT,
};
use windows_sys::Win32::System::Console::{
    GetStdHandle, STD_ERROR_HANDLE, STD_INPUT_HANDLE, STD_OUTPUT_HANDLE,
};
use windows_sys::Win32::System::Threading::{
    EVENT_MODIFY_STATE, GetProcessTimes, INFINITE, OpenEventW, OpenProcess,
    PROCESS_QUERY_LIMITED_INFORMATION, PROCESS_SYNCHRONIZE, PROCESS_TERMINATE, SetEvent,
    TerminateProcess, WaitForSingleObject,
};

use super::Process;

/// A message to a process.
#[derive(Clone, Copy)]
pub(super) enum Message {
    /// Stop, as Ctrl-C does.
    Interrupt,
    /// Terminate.
    Terminate,
    /// Save a checkpoint after the current step.
    Save,
    /// Generate samples after the current step.
    Sample,
}

impl Message {
    /// `None` is for every process.
    fn request(self) -> Option<Request> {
        match self {
            Self::Interrupt => Some(Request::Stop),
            Self::Terminate => None,
            Self::Save => Some(Request::Save),
            Self::Sample => Some(Request::Sample),
        }
    }
}

/// A process that is running or has ended since.
pub(super) struct Handle {
    process: OwnedHandle,
    pid: u32,
}

impl Handle {
    /// Opens a handle; `None` if the process has ended.
    pub(super) fn open(process: &Process) -> Option<Self> {
        let handle = Self::of(process.pid)?;
        (handle.started() == Some(process.started)).then_some(handle)
    }

    /// The process with this id.
    fn of(pid: u32) -> Option<Self> {
        let access = PROCESS_QUERY_LIMITED_INFORMATION | PROCESS_SYNCHRONIZE | PROCESS_TERMINATE;
        // SAFETY: takes numbers only.
        let process = owned(unsafe { OpenProcess(access, 0, pid) }).ok()?;
        Some(Self { process, pid })
    }

    /// When it was started, in milliseconds since 1601; `None` if it has ended.
    fn started(&self) -> Option<u64> {
        let [mut started, mut ended, mut kernel, mut user] = [FILETIME::default(); 4];
        // SAFETY: the handle is open, and all four are written.
        let told = unsafe {
            GetProcessTimes(
                self.process.as_raw_handle(),
                &mut started,
                &mut ended,
                &mut kernel,
                &mut user,
            )
        };
        let is_running = told != 0 && !self.wait(Some(Duration::ZERO)).unwrap_or(true);
        let ticks = u64::from(started.dwHighDateTime) << 32 | u64::from(started.dwLowDateTime);
        is_running.then_some(ticks / 10_000)
    }

    /// Sends a message. A program that is still starting has nothing to save, and ends.
    pub(super) fn send(&self, message: Message) -> io::Result<()> {
        let event = message.request().map(|request| self.event(request));
        match event {
            Some(Ok(event)) => {
                // SAFETY: the event is open, for this.
                done(unsafe { SetEvent(event.as_raw_handle()) })
            }
            Some(Err(error))
                if error.raw_os_error() != Some(ERROR_FILE_NOT_FOUND.cast_signed()) =>
            {
                Err(error)
            }
            _ => {
                // SAFETY: the handle is open, for this, too.
                done(unsafe { TerminateProcess(self.process.as_raw_handle(), ENDED_BY_CTRL_C) })
            }
        }
    }

    /// Whether the process waits for this message.
    pub(super) fn is_awaited(&self, message: Message) -> bool {
        let event = message.request().map(|request| self.event(request));
        event.is_none_or(|event| event.is_ok())
    }

    fn event(&self, request: Request) -> io::Result<OwnedHandle> {
        let name = request.event(self.pid);
        let name: Vec<u16> = name.encode_utf16().chain([0]).collect();
        // SAFETY: the name ends with a zero.
        owned(unsafe { OpenEventW(EVENT_MODIFY_STATE, 0, name.as_ptr()) })
    }

    /// Waits until the process ends, or for `at_most`; true if it has ended.
    pub(super) fn wait(&self, at_most: Option<Duration>) -> io::Result<bool> {
        let milliseconds = at_most.map_or(INFINITE, |time| {
            u32::try_from(time.as_millis()).unwrap_or(INFINITE - 1)
        });
        // SAFETY: the handle is open.
        match unsafe { WaitForSingleObject(self.process.as_raw_handle(), milliseconds) } {
            WAIT_OBJECT_0 => Ok(true),
            WAIT_TIMEOUT => Ok(false),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// When the process with this id was started; `None` if there is none, or it is another user's.
pub(super) fn started(pid: u32) -> Option<u64> {
    Handle::of(pid)?.started()
}

/// Keeps programs that are started from now on from holding the streams of this one open, whoever reads them.
pub(crate) fn keep_streams() {
    for stream in [STD_INPUT_HANDLE, STD_OUTPUT_HANDLE, STD_ERROR_HANDLE] {
        // SAFETY: takes a number, and a handle that is open or refused.
        unsafe { SetHandleInformation(GetStdHandle(stream), HANDLE_FLAG_INHERIT, 0) };
    }
}

fn owned(handle: HANDLE) -> io::Result<OwnedHandle> {
    match handle.is_null() {
        true => Err(io::Error::last_os_error()),
        // SAFETY: it was just opened, and nobody else has it.
        false => Ok(unsafe { OwnedHandle::from_raw_handle(handle) }),
    }
}

fn done(result: i32) -> io::Result<()> {
    match result {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
