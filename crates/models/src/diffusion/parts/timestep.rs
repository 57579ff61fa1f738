//! Timesteps as denoisers are told them.

use tch::{Kind, Tensor};

use crate::Error;

/// Cosines, then sines, of each timestep at `count / 2` frequencies: `[…, count]` fp32.
///
/// # Errors
/// If memory runs out.
pub fn sinusoids(times: &Tensor, count: i64) -> Result<Tensor, Error> {
    let half = count / 2;
    let exponents = Tensor::f_arange(half, (Kind::Float, times.device()))?
        .f_mul_scalar(-10_000f64.ln())?
        .f_div_scalar(half as f64)?;
    let angles = times.f_unsqueeze(-1)?.f_mul(&exponents.f_exp()?)?;
    Ok(Tensor::f_cat(&[angles.f_cos()?, angles.f_sin()?], -1)?)
}
