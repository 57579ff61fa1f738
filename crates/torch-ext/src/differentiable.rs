//! Functions whose backward pass is written by hand.

use std::ffi::{CStr, c_void};

use tch::Tensor;

use crate::checkpoint::{Recomputed, into_raw, take};
use crate::{Error, Result, raw};

/// `output` as one step of the graph: the backward pass calls `backward` with the `inputs`, the tensors that were
/// `kept`, and the gradient of the output, in this order, and takes a gradient for each of the inputs from it (one
/// for an input that needs none is dropped). Nothing else is kept for it.
///
/// `output` must have been computed from the inputs without being recorded ([`tch::no_grad`]), and `backward` runs
/// that way; it may run on another thread, and is dropped with the last graph that needs it.
///
/// # Errors
/// [`Error::InvalidArgument`] when `output` is recorded already. Errors of `backward`
/// come out of the backward pass with their class, and [`Error::Callback`] for a panic.
pub fn differentiable<F>(
    inputs: &[&Tensor],
    kept: &[&Tensor],
    output: &Tensor,
    backward: F,
) -> Result<Tensor>
where
    F: Fn(&[Tensor]) -> Recomputed + Send + 'static,
{
    let all = [inputs, kept].concat();
    let mut outputs = differentiable_outputs(inputs, &all, &[output], backward)?;
    let none = || Error::Callback("a step without its output".into());
    outputs.pop().ok_or_else(none)
}

/// The same for several `outputs`; `backward` gets the tensors that were `kept`, which inputs are only if they are among
/// them, and a gradient for each of the outputs.
///
/// # Errors
/// As [`differentiable`].
pub fn differentiable_outputs<F>(
    inputs: &[&Tensor],
    kept: &[&Tensor],
    outputs: &[&Tensor],
    backward: F,
) -> Result<Vec<Tensor>>
where
    F: Fn(&[Tensor]) -> Recomputed + Send + 'static,
{
    let closure = into_raw(backward);
    let [inputs, kept, outputs] = [inputs, kept, outputs].map(raw::pointers);
    let mut taken: Vec<Tensor> = Vec::new();
    // SAFETY: the shim owns `closure` from here on, also when it fails, and calls its
    // functions only with its own `data`. All tensors are valid for the call, during which alone `take` is called, with
    // the `context` that is `taken`.
    let code = unsafe {
        raw::surefoot_differentiable(
            &closure,
            inputs.as_ptr(),
            inputs.len(),
            kept.as_ptr(),
            kept.len(),
            outputs.as_ptr(),
            outputs.len(),
            take,
            std::ptr::from_mut(&mut taken).cast(),
        )
    };
    raw::check(code)?;
    Ok(taken)
}

/// Calls `launch`, which launches a kernel that libtorch does not know: profilers see it as an operator of this `name`, with the
/// tensors that it reads and writes (in builds with C++).
///
/// # Errors
/// Torch errors of what looks on.
pub fn launched<T>(
    name: &CStr,
    reads: &[&Tensor],
    writes: &[&Tensor],
    launch: impl FnOnce() -> T,
) -> Result<T> {
    /// What is to be called, and what came of it.
    struct Call<F, T>(Option<F>, Option<T>);
    unsafe extern "C" fn call<T, F: FnOnce() -> T>(context: *mut c_void) {
        // SAFETY: the `context` that is passed below, which nobody else uses during the call.
        let call = unsafe { &mut *context.cast::<Call<F, T>>() };
        call.1 = call.0.take().map(|launch| launch());
    }
    fn of<T, F: FnOnce() -> T>(_: &Call<F, T>) -> unsafe extern "C" fn(*mut c_void) {
        call::<T, F>
    }
    let mut context = Call(Some(launch), None);
    let function = of(&context);
    let [reads, writes] = [reads, writes].map(raw::pointers);
    // SAFETY: a name that ends with zero and tensors, valid for the call; `function` is called only during it, with the
    // `context` that it was made for.
    let code = unsafe {
        raw::surefoot_launched(
            name.as_ptr(),
            reads.as_ptr(),
            reads.len(),
            writes.as_ptr(),
            writes.len(),
            function,
            std::ptr::from_mut(&mut context).cast(),
        )
    };
    raw::check(code)?;
    let none = || Error::Callback("a kernel was not launched".into());
    context.1.ok_or_else(none)
}
