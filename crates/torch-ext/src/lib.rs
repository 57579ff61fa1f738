#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! tch covers tensors, layers and backward. This crate adds what tch leaves out
//! and a trainer on a real device cannot do without:
//!
//! | module | what |
//! |---|---|
//! | [`allocator`] | put a foreign allocator (`libhip_alloc.so`) under libtorch, and read its counters |
//! | [`accelerator`] | devices, memory, streams, events, pinned host memory |
//! | [`distributed`] | processes that train together: a store of keys, sums over all of them |
//! | [`rccl`] | sums over the GPUs of such processes, by RCCL or NCCL |
//! | [`optimizer`] | fused AdamW, norms over many tensors, clipping |
//! | [`checkpoint()`] | gradient checkpointing through a Rust closure |
//! | [`differentiable()`], [`launched`] | functions whose backward pass is written by hand, and kernels that libtorch does not know |
//! | [`linear_with`], [`grouped_linear_with`] | linear layers over frozen weights that are made when they are needed |
//! | [`fake`] | tensors without memory, to count what a piece of work allocates |
//! | [`flash_texts()`] | attention of texts of several lengths in one call |
//! | [`operators`] | which operators a piece of work runs |
//! | [`products`] | fp32 matrix products on the CPU by the faster of two libraries |
//! | [`random`], [`threads`] | seeds, worker threads |
//!
//! All C++ of the workspace that knows libtorch is in `cpp/`; in builds without C++ (on `torch-abi`), Python, which has loaded
//! PyTorch then, does the same in `src/bridge`. The C++ includes no CUDA
//! or HIP header and links only `libtorch_cpu` and `libc10`, so one source serves
//! CPU, CUDA and ROCm builds of libtorch 2.13. Nothing here panics on a torch
//! error, and no C++ exception crosses into Rust: every failure is an [`Error`]
//! that tells a full device from a broken one.

pub mod accelerator;
pub mod allocator;
#[cfg(bridge)]
pub mod bridge;
mod checkpoint;
mod differentiable;
pub mod distributed;
mod error;
pub mod fake;
mod library_error;
mod linear;
mod loader;
pub mod operators;
pub mod optimizer;
pub mod products;
pub mod random;
mod raw;
pub mod rccl;
pub mod threads;

pub use checkpoint::{CheckpointOptions, Recomputed, checkpoint, checkpoint_with};
pub use differentiable::{differentiable, differentiable_outputs, launched};
pub use error::{Error, Result};
pub use linear::{grouped_linear_with, linear_with};
pub use optimizer::{AdamW, AdamWState, fused_adamw};

use tch::Tensor;

/// Runs the backward pass from `loss`, a scalar, as `Tensor::f_backward` does, but
/// with an error that keeps its class: out of memory is told apart from a bug.
///
/// # Errors
/// Whatever the graph raises, and [`Error::InvalidArgument`] style torch errors when
/// `loss` is not a scalar.
pub fn backward(loss: &Tensor) -> Result<()> {
    // SAFETY: a valid tensor, borrowed for the call; the shim copies the handle.
    raw::check(unsafe { raw::surefoot_backward(loss.as_ptr()) })
}

/// Causal attention of texts that stand one after the other, `[tokens, heads, width]` in half precision; keys and values may
/// have fewer heads, each shared by a group. The texts begin at `bounds`, int32 on the device, of which the last is the end of
/// the last one; the `longest` has so many tokens. A token sees the last `window` of its text, itself included. Scores
/// are multiplied by `scale`.
///
/// Only some devices have it, and builds differ in what they do with the window: compare its results before you rely on it.
///
/// # Errors
/// [`Error::NotImplemented`] on devices without it; torch errors for heads that it does not take.
pub fn flash_texts(
    [query, key, value]: [&Tensor; 3],
    (bounds, longest): (&Tensor, i64),
    window: Option<i64>,
    scale: f64,
) -> Result<Tensor> {
    // SAFETY: four valid tensors, borrowed for the call; the shim copies their handles.
    raw::tensor(|out| unsafe {
        raw::surefoot_flash_texts(
            query.as_ptr(),
            key.as_ptr(),
            value.as_ptr(),
            bounds.as_ptr(),
            longest,
            window.unwrap_or(0),
            scale,
            out,
        )
    })
}

/// Takes the gradient that [`backward`] left at a leaf. The leaf has none afterwards,
/// so nothing has to be set to zero before the next pass.
///
/// # Errors
/// When `leaf` is not a leaf of the graph.
pub fn take_gradient(leaf: &mut Tensor) -> Result<Option<Tensor>> {
    let mut gradient = std::ptr::null_mut();
    // SAFETY: a valid tensor, borrowed exclusively for the call; `gradient` is written
    // before it is read.
    raw::check(unsafe { raw::surefoot_take_gradient(leaf.as_mut_ptr(), &mut gradient) })?;
    if gradient.is_null() {
        return Ok(None);
    }
    // SAFETY: the shim made the tensor with `new` and gave it to us.
    Ok(Some(unsafe { Tensor::from_ptr(gradient) }))
}

/// Gives a leaf a gradient, in place of the one that it has: the next backward pass adds to it.
///
/// # Errors
/// When `leaf` is not a leaf of the graph.
pub fn put_gradient(leaf: &mut Tensor, gradient: &Tensor) -> Result<()> {
    // SAFETY: two valid tensors, borrowed for the call, the leaf exclusively.
    raw::check(unsafe { raw::surefoot_put_gradient(leaf.as_mut_ptr(), gradient.as_ptr()) })
}

/// Whether operations on this thread are recorded for backward.
pub fn gradients_are_recorded() -> bool {
    // SAFETY: no pointers.
    unsafe { raw::surefoot_gradients_are_recorded() }
}

/// Copies `source` into `destination` (shapes broadcast, dtypes convert), without
/// recording it for backward.
///
/// With `non_blocking` the call may return before the copy is done. A copy from
/// pinned host memory then reads that memory later: leave it alone until the
/// stream has passed. A copy *to* the host needs a synchronisation before the host
/// looks.
pub fn copy_into(destination: &mut Tensor, source: &Tensor, non_blocking: bool) -> Result<()> {
    // SAFETY: two valid tensors, borrowed for the call; `destination` is borrowed
    // exclusively, though torch tensors may alias one storage, which `copy_` allows.
    raw::check(unsafe {
        raw::surefoot_copy(destination.as_mut_ptr(), source.as_ptr(), non_blocking)
    })
}
