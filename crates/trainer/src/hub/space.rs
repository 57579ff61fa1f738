//! Free space of a disk.

use std::path::Path;

/// Free bytes below `folder`, which need not exist yet; `None` if the file system does not
/// tell.
#[cfg(unix)]
pub(super) fn free(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let told = rustix::fs::statvfs(there).ok()?;
    // Some network file systems report only zeros.
    (told.f_blocks > 0).then(|| told.f_bavail.saturating_mul(told.f_frsize))
}

#[cfg(not(unix))]
pub(super) fn free(_: &Path) -> Option<u64> {
    None
}
