//! Windows. Virtual memory is not simulated here: hip-alloc does not use it on this system.

use std::io;
use std::ptr;
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_DECOMMIT, MEM_RESERVE, PAGE_READWRITE, VirtualAlloc, VirtualFree,
};

/// Reserves the arena: 64 GiB, or as much as possible, but at least 16 GiB. (Wine has a byte for each page of it.)
pub(crate) fn reserve_arena() -> io::Result<(u64, u64)> {
    let mut size: usize = 1 << 36;
    loop {
        // SAFETY: reserves addresses of the system's choice, which nothing else uses.
        let start = unsafe { VirtualAlloc(ptr::null(), size, MEM_RESERVE, PAGE_READWRITE) };
        if !start.is_null() {
            return Ok((start as u64, size as u64));
        }
        if size <= 1 << 34 {
            return Err(io::Error::last_os_error());
        }
        size /= 2;
    }
}

/// Makes a range of the arena usable; it reads as zeros. `false` if the machine has no memory for it.
///
/// # Safety
/// The range lies inside the arena, and is page-aligned.
pub(crate) unsafe fn commit(start: u64, size: u64) -> bool {
    // SAFETY: as the caller promises; memory that is committed already stays as it is.
    let at = unsafe { VirtualAlloc(start as *const _, size as usize, MEM_COMMIT, PAGE_READWRITE) };
    !at.is_null()
}

/// Ends the use of a range that was committed.
///
/// # Safety
/// The range lies inside the arena, is page-aligned, and nobody uses it.
pub(crate) unsafe fn release(start: u64, size: u64) {
    // SAFETY: as the caller promises.
    unsafe { VirtualFree(start as *mut _, size as usize, MEM_DECOMMIT) };
}

/// Makes a committed range read as zeros.
///
/// # Safety
/// The range lies inside the arena, is page-aligned and committed, and nobody relies on its content.
pub(crate) unsafe fn discard(start: u64, size: u64) {
    if size == 0 {
        // Would decommit a whole allocation.
        return;
    }
    // SAFETY: as the caller promises.
    unsafe {
        release(start, size);
        commit(start, size);
    }
}

/// Physical memory for mappings, which is not simulated here.
pub(crate) struct PhysicalFile(std::convert::Infallible);

impl PhysicalFile {
    /// An error.
    pub(crate) fn new(_size: u64) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// # Safety
    /// There is no such file.
    pub(crate) unsafe fn map(&self, _start: u64, _size: u64, _offset: u64) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn punch(&self, _offset: u64, _size: u64) {
        match self.0 {}
    }
}

/// An error: nothing is mapped.
///
/// # Safety
/// None: nothing is done.
pub(crate) unsafe fn set_access(_start: u64, _size: u64, _access: bool) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// An error: nothing is mapped.
///
/// # Safety
/// None: nothing is done.
pub(crate) unsafe fn unmap(_start: u64, _size: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
