//! Fused AdamW, and the norm and clipping of many gradients at once.
//!
//! One call updates every parameter: on the CPU with libtorch's vectorised fused
//! kernel, on an accelerator with one launch for many tensors. Parameters may be
//! of several dtypes and devices; the shim groups them.

use tch::Tensor;

use crate::{Error, Result, raw};

/// The numbers of one AdamW step (Loshchilov & Hutter, arXiv 1711.05101; the
/// update is PyTorch's: decay first, then the bias-corrected moment).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub learning_rate: f64,
    /// Decay of the average of gradients.
    pub beta1: f64,
    /// Decay of the average of squared gradients.
    pub beta2: f64,
    /// Decoupled weight decay, multiplied by the learning rate.
    pub weight_decay: f64,
    /// Added to the denominator.
    pub epsilon: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            weight_decay: 1e-2,
            epsilon: 1e-8,
        }
    }
}

/// Tensors of one step, parallel slices: entry `i` of each belongs to parameter `i`.
#[derive(Clone, Copy)]
pub struct AdamWState<'a> {
    /// Updated in place. May require gradients; the step is not recorded.
    pub parameters: &'a [Tensor],
    /// Gradients, in the parameters' shapes, layouts, dtypes and devices.
    pub gradients: &'a [Tensor],
    /// Running averages of the gradients, updated in place.
    pub averages: &'a [Tensor],
    /// Running averages of the squared gradients, updated in place.
    pub squares: &'a [Tensor],
    /// Steps taken so far: float32 scalars beside their parameter. Counted up here.
    pub steps: &'a [Tensor],
}

/// Takes one AdamW step, `at::_fused_adamw_`.
///
/// # Errors
/// [`Error::InvalidArgument`] when the slices differ in length, or a parameter and
/// its gradient or moments differ in shape, dtype, device or the order of their elements
/// in memory; nothing is changed then.
pub fn fused_adamw(options: &AdamW, state: AdamWState<'_>) -> Result<()> {
    let count = state.parameters.len();
    for (name, tensors) in [
        ("gradients", state.gradients),
        ("averages", state.averages),
        ("squares", state.squares),
        ("steps", state.steps),
    ] {
        if tensors.len() != count {
            return Err(Error::InvalidArgument(format!(
                "{count} parameters, but {} {name}",
                tensors.len()
            )));
        }
    }
    let options = raw::AdamWOptions {
        learning_rate: options.learning_rate,
        beta1: options.beta1,
        beta2: options.beta2,
        weight_decay: options.weight_decay,
        epsilon: options.epsilon,
    };
    // SAFETY: five arrays of `count` valid tensor pointers each, borrowed for the
    // call. In-place changes go through torch's shared handles, for which tch takes
    // `&Tensor` too.
    raw::check(unsafe {
        raw::surefoot_fused_adamw(
            raw::pointers(state.parameters).as_ptr(),
            raw::pointers(state.gradients).as_ptr(),
            raw::pointers(state.averages).as_ptr(),
            raw::pointers(state.squares).as_ptr(),
            raw::pointers(state.steps).as_ptr(),
            count,
            &options,
        )
    })
}

/// The 2-norm over all elements of all tensors, a float32 scalar on the device of
/// the first. bf16 and f16 are summed in float32.
///
/// # Errors
/// [`Error::InvalidArgument`] for an empty list.
pub fn total_norm(tensors: &[Tensor]) -> Result<Tensor> {
    let pointers = raw::pointers(tensors);
    // SAFETY: an array of valid tensor pointers, borrowed for the call.
    raw::tensor(|out| unsafe { raw::surefoot_total_norm(pointers.as_ptr(), pointers.len(), out) })
}

/// Scales all tensors in place so that their [`total_norm`] is at most `max_norm`,
/// as `torch.nn.utils.clip_grad_norm_`, and returns the norm they had before.
/// Does not wait for the device. A norm that is not finite makes all gradients NaN:
/// look at it before the step.
///
/// # Errors
/// As [`total_norm`]; also for a `max_norm` that is not positive.
pub fn clip_norm(tensors: &[Tensor], max_norm: f64) -> Result<Tensor> {
    if max_norm.is_nan() || max_norm <= 0.0 {
        return Err(Error::InvalidArgument(format!(
            "max_norm is {max_norm}; it must be positive"
        )));
    }
    let pointers = raw::pointers(tensors);
    // SAFETY: an array of valid tensor pointers, borrowed for the call.
    raw::tensor(|out| unsafe {
        raw::surefoot_clip_norm(pointers.as_ptr(), pointers.len(), max_norm, out)
    })
}
