//! Functions whose backward pass is written by hand.

use tch::Tensor;

use crate::checkpoint::{Recomputed, into_raw};
use crate::{Result, raw};

/// `output` as one step of the graph: the backward pass calls `backward` with the `inputs`, the tensors that were
/// `kept`, and the gradient of the output, in this order, and takes a gradient for each of the inputs from it (one
/// for an input that needs none is dropped). Nothing else is kept for it.
///
/// `output` must have been computed from the inputs without being recorded ([`tch::no_grad`]), and `backward` runs
/// that way; it may run on another thread, and is dropped with the last graph that needs it.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) when `output` is recorded already. Errors of `backward`
/// come out of the backward pass with their class, and [`Error::Callback`](crate::Error::Callback) for a panic.
pub fn differentiable<F>(
    inputs: &[&Tensor],
    kept: &[&Tensor],
    output: &Tensor,
    backward: F,
) -> Result<Tensor>
where
    F: Fn(&[Tensor]) -> Recomputed + Send + 'static,
{
    let closure = into_raw(backward);
    let (inputs, kept) = (raw::pointers(inputs), raw::pointers(kept));
    // SAFETY: the shim owns `closure` from here on, also when it fails, and calls its
    // functions only with its own `data`. All tensors are valid for the call.
    raw::tensor(|out| unsafe {
        raw::surefoot_differentiable(
            &closure,
            inputs.as_ptr(),
            inputs.len(),
            kept.as_ptr(),
            kept.len(),
            output.as_ptr(),
            out,
        )
    })
}
