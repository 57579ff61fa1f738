//! What programs that start others need of Windows: a job object, which ends the processes that it started together, and to
//! outlive a Ctrl-C.

use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, IntoRawHandle, OwnedHandle};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, CTRL_C_EVENT, SetConsoleCtrlHandler};
use windows_sys::Win32::System::JobObjects::{
    AssignProcessToJobObject, CreateJobObjectW, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation,
    SetInformationJobObject,
};
use windows_sys::Win32::System::Threading::GetCurrentProcess;
use windows_sys::core::BOOL;

/// Whether Ctrl-C was pressed since [`note_ctrl_c`].
static CTRL_C: AtomicBool = AtomicBool::new(false);
/// Whether a Ctrl-Break, too, is for the program that this one waits for.
static STANDS_IN: AtomicBool = AtomicBool::new(false);

/// Waits for a command that is to end with this process and to decide what a Ctrl-C means; its exit code.
///
/// # Errors
/// If it cannot be started.
pub fn stand_in(command: &mut Command) -> io::Result<i32> {
    STANDS_IN.store(true, Ordering::SeqCst);
    note_ctrl_c()?;
    if let Err(error) = end_all_children_with_us() {
        tracing::warn!(
            "`{}` may outlive this process: {error}",
            command.get_program().display()
        );
    }
    Ok(command.status()?.code().unwrap_or(1))
}

/// From now on a Ctrl-C is noted, and does not end this process. Windows sends it to every program of
/// the console.
///
/// # Errors
/// If Windows refuses.
pub fn note_ctrl_c() -> io::Result<()> {
    extern "system" fn note(event: u32) -> BOOL {
        let is_ctrl_c = event == CTRL_C_EVENT;
        CTRL_C.fetch_or(is_ctrl_c, Ordering::SeqCst);
        // Whatever else it is, the next handler sees to: the one that ends us.
        BOOL::from(is_ctrl_c || event == CTRL_BREAK_EVENT && STANDS_IN.load(Ordering::SeqCst))
    }
    // SAFETY: the handler lives as long as the program, may be called on any thread at any time,
    // and does nothing but set an atomic.
    match unsafe { SetConsoleCtrlHandler(Some(note), 1) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whether Ctrl-C was pressed since then.
pub fn ctrl_c_was_pressed() -> bool {
    CTRL_C.load(Ordering::SeqCst)
}

/// Puts this process into a job object, and with it all processes that it starts from now on, and
/// they theirs. Windows ends them all when this process ends, even if it is killed.
///
/// A child that is put into a job only after its start could have started others before.
///
/// # Errors
/// If Windows refuses, or this process is in a job that may have no others.
pub fn end_all_children_with_us() -> io::Result<()> {
    // SAFETY: both pointers may be null: the default security, and no name.
    let job = unsafe { CreateJobObjectW(std::ptr::null(), std::ptr::null()) };
    if job.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is valid, as was just looked at, and nobody else has it.
    let job = unsafe { OwnedHandle::from_raw_handle(job) };
    let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
    limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
    // The size of a structure of Windows, far below 4 GiB.
    let size = size_of_val(&limits) as u32;
    // SAFETY: the job is open, and `limits` is the structure that this class of information has,
    // of that size, and is only read during the call.
    let set = unsafe {
        SetInformationJobObject(
            job.as_raw_handle(),
            JobObjectExtendedLimitInformation,
            (&raw const limits).cast(),
            size,
        )
    };
    if set == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the job is open, and the other is the handle that always means this process.
    let assigned = unsafe { AssignProcessToJobObject(job.as_raw_handle(), GetCurrentProcess()) };
    if assigned == 0 {
        return Err(io::Error::last_os_error());
    }
    // The last handle of the job is this one: when it is closed all end, this process too. So
    // Windows is to close it, when this process is over.
    let _ = job.into_raw_handle();
    Ok(())
}
