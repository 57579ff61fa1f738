//! Numbers in eight and four bits: optimizer state, and the weights of a frozen base.
//!
//! | what | values | scale | used for |
//! |---|---|---|---|
//! | [`Dynamic8`] | 256 of a dynamic code book | largest of 256 numbers | moments of AdamW |
//! | [`Nf4`] | 16 quantiles of the normal distribution | largest of 64 numbers | weights |
//! | [`Int8Rows`] | −127 … 127 | largest of a row | weights |
//!
//! The formats are bitsandbytes', and the tests hold them against it. Everything is
//! written with ordinary tensor operations, so it runs on every device that libtorch
//! knows, without kernels of its own.

mod dynamic;
mod int8;
mod nf4;
#[cfg(test)]
mod tests;

pub use dynamic::{Code, Dynamic8, dynamic_map};
pub use int8::Int8Rows;
pub use nf4::Nf4;

use tch::{Kind, Tensor};

use crate::Error;

/// How the matrices of a frozen model are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// Eight bits a number, and a scale for each row: half of bf16.
    Int8,
    /// Four bits a number, and a scale for every 64 (QLoRA's format): 28 % of bf16.
    Nf4,
}

/// `tensor` as rows of `block` fp32 numbers, the last filled up with zeros.
fn blocks(tensor: &Tensor, block: i64) -> Result<Tensor, Error> {
    let flat = tensor.f_detach()?.f_reshape([-1])?.f_to_kind(Kind::Float)?;
    let missing = (block - flat.numel() as i64 % block) % block;
    let flat = match missing {
        0 => flat,
        missing => flat.f_constant_pad_nd([0, missing])?,
    };
    Ok(flat.f_view([-1, block])?)
}

/// The largest magnitude of each row `[rows, width]`, as `[rows, 1]`.
fn largest(rows: &Tensor) -> Result<Tensor, Error> {
    Ok(rows.f_abs()?.f_amax([1], true)?)
}

/// Rows divided by their scale; rows of zeros stay zeros.
fn normalised(rows: &Tensor, scales: &Tensor) -> Result<Tensor, Error> {
    // Any divisor does for a row of zeros.
    let divisor = scales.f_add(&scales.f_eq(0.0)?.f_to_kind(Kind::Float)?)?;
    Ok(rows.f_div(&divisor)?)
}

/// Number of the nearest of the sorted `levels` to each of `numbers`.
fn nearest(numbers: &Tensor, levels: &Tensor) -> Result<Tensor, Error> {
    let count = levels.numel() as i64;
    let below = levels.f_narrow(0, 0, count - 1)?;
    let above = levels.f_narrow(0, 1, count - 1)?;
    let middles = below.f_add(&above)?.f_mul_scalar(0.5)?;
    Ok(numbers.f_bucketize(&middles, true, false)?)
}
