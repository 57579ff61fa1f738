//! The only code that allocates memory from the operating system.
//!
//! All device, managed and pinned memory is in one arena: a large address
//! range that is reserved without committing memory, so a simulated device may have
//! more memory than the machine as long as the program does not touch more than the machine has.
//! (On Windows, as long as it does not allocate more: there memory is committed before it is touched.)

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;

/// The granularity of device allocations and mappings.
pub(crate) const PAGE: u64 = 4096;

/// Touches all pages of a range, so that they take memory.
///
/// # Safety
/// The range lies inside the arena, is page-aligned and writable, and is not yet
/// known to anybody but the caller.
pub(crate) unsafe fn populate(start: u64, size: u64) {
    for page in (start..start + size).step_by(PAGE as usize) {
        // SAFETY: the page is inside a writable range that only the caller knows.
        unsafe { (page as *mut u8).write_volatile(0) };
    }
}
