//! Gradient checkpointing: a function whose activations are not kept, and which
//! is run a second time in the backward pass.
//!
//! The node of the graph is a `torch::autograd::Function` (`cpp/checkpoint.cpp`);
//! the function is a Rust closure. It crosses as a pointer with three plain
//! functions beside it: run it, read why it failed, drop it. A panic inside is
//! caught on the Rust side and arrives at the caller of backward as
//! [`Error::Callback`].

use std::ffi::{CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::Tensor;
use torch_sys::C_tensor;

use crate::{Error, Result, raw};

/// What a checkpointed function returns: its outputs, in order.
pub type Recomputed = Result<Vec<Tensor>>;

/// How a checkpoint treats the world around its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Run the function a second time with the random generators as they were the
    /// first time (the CPU's, and those of the inputs' devices), and put them back
    /// afterwards. Needed wherever there is dropout; costs a copy of the state.
    pub preserve_generators: bool,
    /// Keep the inputs in host memory, page-locked, until the backward pass. Where the
    /// device has memory of its own that is where they free it; where it shares the
    /// host's, and on the CPU, this only costs the copies.
    pub offload: bool,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self {
            preserve_generators: true,
            offload: false,
        }
    }
}

/// Runs `function` on `inputs` without keeping its activations; see
/// [`checkpoint_with`].
pub fn checkpoint<F>(inputs: &[&Tensor], function: F) -> Result<Vec<Tensor>>
where
    F: Fn(&[Tensor]) -> Recomputed + Send + 'static,
{
    checkpoint_with(CheckpointOptions::default(), inputs, function)
}

/// Runs `function` on `inputs` and returns its outputs without keeping what lies
/// between. The backward pass runs it again, under the autocast state and (if
/// asked) the random generators of the first time, and carries on through it.
///
/// Gradients reach the inputs, and every leaf that the function captured (clone
/// weights into it with `shallow_clone`, which shares storage and gradient). At
/// least one *input* has to require a gradient, or backward would never come here;
/// as in PyTorch's reentrant checkpoint. Use backward into `.grad` fields, not
/// `run_backward` for chosen inputs.
///
/// The function must compute the same thing both times. It may be run on another
/// thread, hence `Send`, and is dropped with the last graph that needs it.
///
/// # Errors
/// What `function` returns, with its class kept; [`Error::Callback`] for a panic
/// inside it; [`Error::InvalidArgument`] when no input requires a gradient while
/// gradients are being recorded. Errors of the second run come out of backward.
pub fn checkpoint_with<F>(
    options: CheckpointOptions,
    inputs: &[&Tensor],
    function: F,
) -> Result<Vec<Tensor>>
where
    F: Fn(&[Tensor]) -> Recomputed + Send + 'static,
{
    let closure = into_raw(function);
    let inputs = raw::pointers(inputs);
    let mut outputs: Vec<Tensor> = Vec::new();
    // SAFETY: the shim owns `closure` from here on, also when it fails, and calls its
    // functions only with its own `data`, of the type they were made for. `inputs`
    // are valid for the call. `take` is called only during the call, with the
    // `context` that is `outputs`.
    let code = unsafe {
        raw::surefoot_checkpoint(
            &closure,
            inputs.as_ptr(),
            inputs.len(),
            options.preserve_generators,
            options.offload,
            take,
            std::ptr::from_mut(&mut outputs).cast(),
        )
    };
    raw::check(code)?;
    Ok(outputs)
}

/// The closure as C++ takes it, which has to free it with its `drop`.
pub(crate) fn into_raw<F>(function: F) -> raw::Closure
where
    F: Fn(&[Tensor]) -> Recomputed + Send + 'static,
{
    let closure = Box::new(Closure {
        function,
        failure: CString::default(),
    });
    raw::Closure {
        data: Box::into_raw(closure).cast(),
        run: run::<F>,
        failure: failure::<F>,
        drop: drop_closure::<F>,
    }
}

/// The closure, and why it last failed: C++ reads the message through a pointer.
struct Closure<F> {
    function: F,
    failure: CString,
}

/// # Safety
/// `closure` came from `Box::into_raw` of a `Closure<F>`; nobody else uses it
/// during the call: it belongs to one node, the forward run is over before anybody can
/// reach that, and `CppNode::apply` holds its `mutex_` (torch/csrc/autograd/custom_function.h)
/// through each run in a backward pass. `inputs`
/// are `count` valid tensors, `results` is what C++ passed.
unsafe extern "C" fn run<F>(
    closure: *mut c_void,
    inputs: *const *mut C_tensor,
    count: usize,
    results: *mut c_void,
) -> i32
where
    F: Fn(&[Tensor]) -> Recomputed,
{
    // SAFETY: per this function's contract.
    let closure = unsafe { &mut *closure.cast::<Closure<F>>() };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let inputs: Vec<Tensor> = (0..count)
            // SAFETY: `inputs` has `count` valid handles; cloning one makes a new
            // handle that this side owns.
            .map(|index| unsafe { Tensor::clone_from_ptr(*inputs.add(index)) })
            .collect();
        (closure.function)(&inputs)
    }))
    .unwrap_or_else(|panic| {
        let what = panic_message(panic.as_ref());
        Err(Error::Callback(format!(
            "a function called by autograd panicked: {what}"
        )))
    });
    let outcome = outcome.and_then(|outputs| {
        outputs.iter().try_for_each(|output| {
            // SAFETY: `results` is C++'s list of this very call, `output` is valid
            // and copied there.
            raw::check(unsafe { raw::surefoot_results_push(results, output.as_ptr()) })
        })
    });
    match outcome {
        Ok(()) => raw::OK,
        Err(error) => {
            let (code, message) = error.into_shim();
            closure.failure = CString::new(message.replace('\0', " ")).unwrap_or_default();
            code.to_raw()
        }
    }
}

/// # Safety
/// As [`run`]; the result is valid until the next `run` or `drop`.
unsafe extern "C" fn failure<F>(closure: *mut c_void) -> *const c_char {
    // SAFETY: per this function's contract.
    unsafe { &*closure.cast::<Closure<F>>() }.failure.as_ptr()
}

/// # Safety
/// `closure` came from `Box::into_raw` of a `Closure<F>`, and this is the last use.
unsafe extern "C" fn drop_closure<F>(closure: *mut c_void) {
    // SAFETY: per this function's contract.
    let closure = unsafe { Box::from_raw(closure.cast::<Closure<F>>()) };
    // A panic in somebody's `Drop` must not reach C++. There is nobody to tell.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(closure)));
}

/// # Safety
/// `context` is a `Vec<Tensor>` that nobody else uses now; `tensor` is owned by us.
pub(crate) unsafe extern "C" fn take(context: *mut c_void, tensor: *mut C_tensor) {
    // SAFETY: per this function's contract.
    let outputs = unsafe { &mut *context.cast::<Vec<Tensor>>() };
    // SAFETY: C++ made the tensor with `new` and gave it to us.
    outputs.push(unsafe { Tensor::from_ptr(tensor) });
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}
