//! Sums of gradients that overlap with the backward pass.

use std::ptr::NonNull;

use tch::Tensor;

use super::Group;
use crate::error::{Error, Result};
use crate::raw;

/// Sums the gradients of some leaves of the autograd graph over all ranks, in buckets. A bucket's sum starts
/// in the backward pass, as soon as its gradients and those of the buckets before it are complete.
///
/// In each step all ranks call [`Reduction::finish`] once, and those whose passes got that far
/// [`Reduction::prepare`] before the last backward pass. Between the two they use the group for nothing
/// else. Nothing is started in the first step, in which it is counted how often a leaf's gradient is added to.
///
/// The group stays connected as long as this value lives. A leaf is in one reduction at a time.
#[derive(Debug)]
pub struct Reduction {
    handle: NonNull<raw::ReductionHandle>,
    buffer: Tensor,
}

impl Reduction {
    /// Sums of the gradients of `leaves`, on the CPU, in `buffer`: a vector as long as all of them, whose
    /// kind is what is sent. `buckets` are the numbers of leaves in each bucket, from the last leaf on, whose
    /// gradient usually comes first; all ranks have the same ones.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for tensors that are not such leaves, a buffer of another length, or
    /// buckets that do not add up to all leaves.
    pub fn new(
        group: &Group,
        leaves: &[&Tensor],
        mut buffer: Tensor,
        buckets: &[usize],
    ) -> Result<Self> {
        let pointers = raw::pointers(leaves);
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live group, `leaves.len()` valid tensors, the buffer and `buckets.len()` numbers, all
        // borrowed for the call, and a place for the result. C++ keeps references of its own on the group,
        // the leaves and the buffer.
        raw::check(unsafe {
            raw::surefoot_reduction_new(
                group.handle.as_ptr(),
                pointers.as_ptr(),
                pointers.len(),
                buffer.as_mut_ptr(),
                buckets.as_ptr(),
                buckets.len(),
                &mut handle,
            )
        })?;
        let handle = NonNull::new(handle);
        let handle = handle.ok_or_else(|| Error::Torch("a reduction without an address".into()))?;
        Ok(Self { handle, buffer })
    }

    /// Announces that the next backward pass is the last one of a step: sums may start as gradients become complete.
    pub fn prepare(&mut self) -> Result<()> {
        // SAFETY: a live reduction.
        raw::check(unsafe { raw::surefoot_reduction_prepare(self.handle.as_ptr()) })
    }

    /// The number of sums started since the last [`Reduction::finish`].
    pub fn started(&self) -> Result<usize> {
        let mut started = 0;
        // SAFETY: a live reduction and a place for the result.
        raw::check(unsafe { raw::surefoot_reduction_started(self.handle.as_ptr(), &mut started) })?;
        Ok(started)
    }

    /// Starts the sums that were not started, and waits for all. `gradients` are the complete gradients
    /// of this rank, or `None` after a pass that failed: the sums are then of no use in any rank, but
    /// none waits for another one.
    ///
    /// False if a gradient was added to after its sum had started, so that the sums are of no use either;
    /// when all ranks call this once more, they sum the `gradients` as they are.
    ///
    /// # Errors
    /// [`Error::Peer`] when another rank is gone or late; [`Error::InvalidArgument`] for gradients of other
    /// shapes than the leaves.
    pub fn finish(&mut self, gradients: Option<&[Tensor]>) -> Result<bool> {
        let pointers = gradients.map(raw::pointers);
        let (list, count) = match &pointers {
            Some(pointers) => (pointers.as_ptr(), pointers.len()),
            None => (std::ptr::null(), 0),
        };
        let mut is_complete = false;
        // SAFETY: a live reduction, null or `count` valid tensors that are borrowed for the call, and a
        // place for the result.
        raw::check(unsafe {
            raw::surefoot_reduction_finish(self.handle.as_ptr(), list, count, &mut is_complete)
        })?;
        Ok(is_complete)
    }

    /// The gradients of all leaves, concatenated; sums after [`Reduction::finish`].
    pub fn buffer(&self) -> &Tensor {
        &self.buffer
    }
}

impl Drop for Reduction {
    fn drop(&mut self) {
        // SAFETY: ours alone, and not used again. Sums that are still in progress have references of
        // their own on what they use.
        unsafe { raw::surefoot_reduction_free(self.handle.as_ptr()) };
    }
}
