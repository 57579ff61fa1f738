//! 8-bit and 4-bit formats: for optimizer state, and for the weights of a frozen base.
//!
//! | format | values | scale | used for |
//! |---|---|---|---|
//! | [`Dynamic8`] | 256 values of a dynamic code book | absmax of 256 elements | moments of AdamW |
//! | [`Nf4`] | 16 quantiles of the normal distribution | absmax of 64 elements | weights |
//! | [`Int8Rows`] | −127 … 127 | absmax of a row | weights |
//! | [`Mxfp4`] | 15 floats of 4 bits | a power of two for 32 elements | weights that were published so |
//!
//! The first three are bitsandbytes', and tests compare them with it; the last one is compared with transformers. Everything is written with ordinary tensor
//! operations, so it runs on every device that libtorch supports; on AMD's GPUs a kernel converts weights of 4 bits where
//! it gives the same numbers ([`fused`](crate::fused)).

mod dynamic;
mod int8;
mod kernels;
mod mxfp4;
mod nf4;
#[cfg(test)]
mod tests;

pub use dynamic::{Code, Dynamic8, dynamic_map};
pub use int8::Int8Rows;
pub(crate) use mxfp4::BLOCK as MXFP4_BLOCK;
pub use mxfp4::Mxfp4;
pub use nf4::Nf4;

use tch::{Kind, Tensor};

use crate::Error;

/// How the matrices of a frozen model are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// 8 bits per element and a scale per row: half the size of bf16.
    Int8,
    /// 4 bits per element and a scale per 64 elements (QLoRA's format): 28 % of the size of bf16.
    Nf4,
}

/// `tensor` as rows of `block` fp32 elements, the last one padded with zeros.
fn blocks(tensor: &Tensor, block: i64) -> Result<Tensor, Error> {
    let flat = tensor.f_detach()?.f_reshape([-1])?.f_to_kind(Kind::Float)?;
    let missing = (block - flat.numel() as i64 % block) % block;
    let flat = match missing {
        0 => flat,
        missing => flat.f_constant_pad_nd([0, missing])?,
    };
    Ok(flat.f_view([-1, block])?)
}

/// The absmax of each row of `[rows, width]`, as `[rows, 1]`.
fn largest(rows: &Tensor) -> Result<Tensor, Error> {
    Ok(rows.f_abs()?.f_amax([1], true)?)
}

/// Rows divided by their scale; rows of zeros stay zeros.
fn normalised(rows: &Tensor, scales: &Tensor) -> Result<Tensor, Error> {
    // A row of zeros can have any divisor.
    let divisor = scales.f_add(&scales.f_eq(0.0)?.f_to_kind(Kind::Float)?)?;
    Ok(rows.f_div(&divisor)?)
}

/// Index of the nearest of the sorted `levels` for each of `numbers`.
fn nearest(numbers: &Tensor, levels: &Tensor) -> Result<Tensor, Error> {
    let count = levels.numel() as i64;
    let below = levels.f_narrow(0, 0, count - 1)?;
    let above = levels.f_narrow(0, 1, count - 1)?;
    let middles = below.f_add(&above)?.f_mul_scalar(0.5)?;
    Ok(numbers.f_bucketize(&middles, true, false)?)
}
