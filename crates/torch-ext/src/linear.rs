//! Linear layers with frozen weights that exist only while they are used.

use std::ops::Range;

use tch::Tensor;

use crate::{Error, Result, checkpoint, raw};

/// `(input @ weightᵀ) · scales + bias`: `[…, inputs]` to `[…, outputs]`.
///
/// `weight` makes the matrix `[outputs, inputs]` in the dtype of `input`, and if its rows have scales that
/// are not applied yet, those: `[outputs]` in any floating type, in which they are applied. It is called
/// here and, when `input` requires a gradient, once more in the backward pass, which
/// reaches `input` alone; between the two nothing of the matrix is kept. It must make
/// the same matrix both times, may be called on another thread, and is dropped with the
/// last graph that needs it.
///
/// # Errors
/// What `weight` returns, with its class kept; [`Error::Callback`](crate::Error::Callback)
/// for a panic inside it; [`Error::InvalidArgument`](crate::Error::InvalidArgument) when
/// it makes no matrix, scales of another number, or `bias` requires a gradient; torch errors when shapes do not fit.
pub fn linear_with<F>(input: &Tensor, bias: Option<&Tensor>, weight: F) -> Result<Tensor>
where
    F: Fn() -> Result<(Tensor, Option<Tensor>)> + Send + 'static,
{
    let closure = checkpoint::into_raw(move |_| {
        let (matrix, scales) = weight()?;
        Ok(std::iter::once(matrix).chain(scales).collect())
    });
    let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: the shim owns `closure` from here on, also when it fails, and calls its
    // functions only with its own `data`. `input` is valid for the call, and `bias` is or
    // is null.
    raw::tensor(|out| unsafe { raw::surefoot_linear(&closure, input.as_ptr(), bias, out) })
}

/// The products of groups of rows, each with a matrix of its own: `input` is `[rows, inputs]`, those of group *g*
/// are from `bounds[g]` to `bounds[g + 1]`, and the result is `[rows, outputs]`.
///
/// `weights` makes the matrices of a range of groups, `[range, outputs, inputs]` in the dtype of `input`, of at most
/// `most` groups at a time and only of groups that have rows. As with [`linear_with`], it is called here and once more
/// in the backward pass.
///
/// # Errors
/// As [`linear_with`]; [`Error::InvalidArgument`](crate::Error::InvalidArgument) when `bounds` do not ascend from zero
/// to the number of rows.
pub fn grouped_linear_with<F>(
    input: &Tensor,
    bounds: &[i64],
    outputs: i64,
    most: i64,
    weights: F,
) -> Result<Tensor>
where
    F: Fn(Range<i64>) -> Result<Tensor> + Send + 'static,
{
    let closure = checkpoint::into_raw(move |inputs| {
        let range = match inputs {
            [range] => Vec::<i64>::try_from(range)?,
            _ => Vec::new(),
        };
        match range[..] {
            [start, end] => Ok(vec![weights(start..end)?]),
            _ => Err(Error::Callback("weights of no range of groups".into())),
        }
    });
    // SAFETY: the shim owns `closure` from here on, also when it fails, and calls its
    // functions only with its own `data`. `input` and `bounds` are valid for the call.
    raw::tensor(|out| unsafe {
        raw::surefoot_grouped_linear(
            &closure,
            input.as_ptr(),
            bounds.as_ptr(),
            bounds.len(),
            outputs,
            most,
            out,
        )
    })
}
