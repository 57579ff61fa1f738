//! libtorch's worker threads for operators on the CPU.

use crate::{Error, Result, raw};

/// Sets how many threads one operator on the CPU may use.
///
/// # Errors
/// [`Error::InvalidArgument`] for zero.
pub fn set_count(threads: usize) -> Result<()> {
    let count = i32::try_from(threads)
        .ok()
        .filter(|&count| count > 0)
        .ok_or_else(|| {
            Error::InvalidArgument(format!("{threads} threads; at least one is needed"))
        })?;
    // SAFETY: no pointers.
    raw::check(unsafe { raw::surefoot_set_num_threads(count) })
}

/// How many threads one operator on the CPU may use.
///
/// # Errors
/// None known; libtorch does not promise so.
pub fn count() -> Result<usize> {
    let mut threads = 0;
    // SAFETY: `threads` is a valid place for the result.
    raw::check(unsafe { raw::surefoot_num_threads(&mut threads) })?;
    Ok(usize::try_from(threads).unwrap_or(1))
}
