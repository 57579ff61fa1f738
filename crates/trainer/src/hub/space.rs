//! How much a disk has room for.

use std::path::Path;

/// Bytes that may still be written below `folder`, which need not be there yet; `None` where the file
/// system does not say.
#[cfg(unix)]
pub(super) fn free(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let told = rustix::fs::statvfs(there).ok()?;
    // Some that lie on a network tell nothing but zeros.
    (told.f_blocks > 0).then(|| told.f_bavail.saturating_mul(told.f_frsize))
}

#[cfg(not(unix))]
pub(super) fn free(_: &Path) -> Option<u64> {
    None
}
