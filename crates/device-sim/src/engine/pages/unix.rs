//! Linux.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const RESERVED: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Reserves the arena: 16 TiB, or as much as possible, but at least 16 GiB.
pub(crate) fn reserve_arena() -> io::Result<(u64, u64)> {
    let mut size: usize = 1 << 44;
    loop {
        // SAFETY: an anonymous mapping at an address of the kernel's choice
        // overlays nothing; the result is checked before it is used.
        let start = unsafe { libc::mmap(ptr::null_mut(), size, READ_WRITE, RESERVED, -1, 0) };
        if start != libc::MAP_FAILED {
            // With huge pages, touching one byte would commit 2 MiB.
            // SAFETY: the range is the mapping made above; the advice changes no content.
            unsafe { libc::madvise(start, size, libc::MADV_NOHUGEPAGE) };
            return Ok((start as u64, size as u64));
        }
        if size <= 1 << 34 {
            return Err(io::Error::last_os_error());
        }
        size /= 2;
    }
}

/// Releases the pages of a range to the system; it reads as zeros afterwards.
///
/// # Safety
/// The range lies inside the arena, is page-aligned and not mapped to a file,
/// and nobody relies on its content.
pub(crate) unsafe fn discard(start: u64, size: u64) {
    let (at, bytes) = (start as *mut c_void, size as usize);
    // SAFETY: the caller promises a private anonymous range that nobody reads; the arena can
    // be written to where no file is mapped.
    unsafe {
        // If the program has locked all its memory, the pages stay.
        if libc::madvise(at, bytes, libc::MADV_DONTNEED) != 0 {
            at.cast::<u8>().write_bytes(0, bytes);
        }
    }
}

/// Makes a range of the arena usable: here all of it is.
///
/// # Safety
/// The range lies inside the arena, and is page-aligned.
pub(crate) unsafe fn commit(_start: u64, _size: u64) -> bool {
    true
}

/// Ends the use of a range that was committed.
///
/// # Safety
/// As for [`discard`].
pub(crate) unsafe fn release(start: u64, size: u64) {
    // SAFETY: as the caller promises.
    unsafe { discard(start, size) }
}

/// The sparse file that represents physical memory for mappings.
pub(crate) struct PhysicalFile(OwnedFd);

impl PhysicalFile {
    /// A file of `size` bytes that takes no memory until it is written.
    pub(crate) fn new(size: u64) -> io::Result<Self> {
        // SAFETY: the name is a terminated string, and the result is checked.
        let fd = unsafe { libc::memfd_create(c"device-sim".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and belongs to nobody else.
        let file = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: the descriptor is open for as long as `file` lives.
        match unsafe { libc::ftruncate(fd, size as i64) } {
            0 => Ok(file),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps `size` bytes from `offset` at `start`, without access rights yet.
    ///
    /// # Safety
    /// The range lies inside a reserved part of the arena that holds no mapping.
    pub(crate) unsafe fn map(&self, start: u64, size: u64, offset: u64) -> io::Result<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let (at, fd) = (start as *mut c_void, self.0.as_raw_fd());
        // SAFETY: the caller promises that nothing lives in the range that is overlaid.
        let mapped =
            unsafe { libc::mmap(at, size as usize, libc::PROT_NONE, flags, fd, offset as i64) };
        if mapped == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Frees the memory behind a part of the file.
    pub(crate) fn punch(&self, offset: u64, size: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is open; a hole changes no mapping, only its content.
        unsafe { libc::fallocate(self.0.as_raw_fd(), mode, offset as i64, size as i64) };
    }
}

/// Sets whether a mapped range can be read and written.
///
/// # Safety
/// The range is covered by mappings of a [`PhysicalFile`] in the arena.
pub(crate) unsafe fn set_access(start: u64, size: u64, access: bool) -> io::Result<()> {
    let protection = if access { READ_WRITE } else { libc::PROT_NONE };
    // SAFETY: the caller promises that the range belongs to the arena's mappings.
    match unsafe { libc::mprotect(start as *mut c_void, size as usize, protection) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Turns a mapped range into ordinary arena memory again.
///
/// # Safety
/// The range lies inside the arena and nobody uses what is mapped there.
pub(crate) unsafe fn unmap(start: u64, size: u64) -> io::Result<()> {
    let at = start as *mut c_void;
    // SAFETY: the caller promises that the range is the arena's and unused.
    let mapped = unsafe {
        libc::mmap(
            at,
            size as usize,
            READ_WRITE,
            RESERVED | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
