//! Which library multiplies fp32 matrices on the CPU.
//!
//! libtorch asks MKL, and MKL has no AVX-512 for a CPU that is not Intel's; oneDNN, which
//! libtorch asks for bfloat16, has. On two cores of a Zen 5 the products of a small
//! decoder ran at 200 GFLOP/s by MKL and at 450 by oneDNN (libtorch 2.13, oneDNN 3.12,
//! `[1024, 576] @ [576, 1536]`), whichever of the two matrices was transposed.

use crate::{Result, raw};

/// Whether fp32 products are faster by oneDNN on this CPU: one with AVX-512 from another
/// maker than Intel. A fact about the CPU and no measurement, so that two runs on one machine
/// compute the same.
pub fn onednn_is_faster() -> bool {
    // SAFETY: no pointers.
    unsafe { raw::surefoot_onednn_is_faster() }
}

/// Lets oneDNN make the fp32 matrix products on the CPU from now on: `mm`, `addmm`, `bmm`,
/// `baddbmm`, and so all that is made of them, backward passes included. For the whole
/// process; a second call changes nothing. False when this libtorch has no oneDNN that can
/// be reached, and everything stays as it was.
///
/// Results differ from those of MKL by rounding, as they do between two CPUs.
pub fn use_onednn() -> Result<bool> {
    let mut installed = false;
    // SAFETY: `installed` is a valid place for the result.
    raw::check(unsafe { raw::surefoot_use_onednn(&mut installed) })?;
    Ok(installed)
}

/// How many products oneDNN has made because of [`use_onednn`].
pub fn made_by_onednn() -> u64 {
    // SAFETY: no pointers.
    unsafe { raw::surefoot_onednn_products() }
}
