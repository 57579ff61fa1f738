//! The random generators of libtorch.

use crate::{Result, raw};

/// Seeds the generators of the CPU and of every accelerator.
///
/// # Errors
/// A torch error, for instance of a device that does not start.
pub fn manual_seed(seed: u64) -> Result<()> {
    // SAFETY: no pointers.
    raw::check(unsafe { raw::surefoot_manual_seed(seed) })
}
