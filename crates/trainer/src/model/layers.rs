//! The pieces decoder models are built from.
//!
//! Weights stay in fp32. With bf16 compute, matrix products and attention run in
//! bfloat16 while norms, the residual stream and the loss stay in fp32: what
//! PyTorch's autocast does, written out so that it is the same on every device.

use tch::{Kind, Tensor};

use super::{Initial, Parameters, WeightSource};
use crate::Error;

/// `x @ weightᵀ + bias`.
#[derive(Debug)]
pub struct Linear {
    /// `[outputs, inputs]`
    pub weight: Tensor,
    /// `[outputs]`
    pub bias: Option<Tensor>,
    /// The type of the product.
    pub compute: Kind,
}

impl Linear {
    /// A trainable layer without bias, called `name` (its weight is `name.weight`).
    ///
    /// # Errors
    /// When the source does not have the weight.
    pub fn new(
        name: &str,
        (inputs, outputs): (i64, i64),
        initial: Initial,
        compute: Kind,
        source: &mut dyn WeightSource,
        parameters: &mut Parameters,
    ) -> Result<Self, Error> {
        let name = format!("{name}.weight");
        let weight = source.tensor(&name, &[outputs, inputs], initial)?;
        let weight = parameters.register(&name, &weight, true)?;
        Ok(Self {
            weight,
            bias: None,
            compute,
        })
    }

    /// `[…, inputs]` to `[…, outputs]`, in the layer's compute type.
    ///
    /// # Errors
    /// When shapes do not fit or memory runs out.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let input = to_kind(input, self.compute)?;
        let weight = to_kind(&self.weight, self.compute)?;
        let bias = self
            .bias
            .as_ref()
            .map(|bias| to_kind(bias, self.compute))
            .transpose()?;
        Ok(input.f_linear(&weight, bias.as_ref())?)
    }
}

/// Root-mean-square normalisation over the last dimension, in fp32.
#[derive(Debug)]
pub struct RmsNorm {
    /// `[width]`
    pub weight: Tensor,
    /// Added to the mean square.
    pub epsilon: f64,
}

impl RmsNorm {
    /// A trainable norm called `name`.
    ///
    /// # Errors
    /// When the source does not have the weight.
    pub fn new(
        name: &str,
        width: i64,
        epsilon: f64,
        source: &mut dyn WeightSource,
        parameters: &mut Parameters,
    ) -> Result<Self, Error> {
        let name = format!("{name}.weight");
        let weight = source.tensor(&name, &[width], Initial::Ones)?;
        let weight = parameters.register(&name, &weight, false)?;
        Ok(Self { weight, epsilon })
    }

    /// The same shape, in fp32.
    ///
    /// # Errors
    /// When shapes do not fit or memory runs out.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let input = to_kind(input, Kind::Float)?;
        let width = self.weight.numel() as i64;
        Ok(input.f_rms_norm([width], Some(&self.weight), self.epsilon)?)
    }
}

/// Rotary position embedding in the half-rotation layout of Hugging Face's Llama:
/// dimension `i` is paired with `i + width/2`.
#[derive(Debug)]
pub struct Rope {
    /// `[positions, width]`: the angles' cosines, both halves alike.
    cos: Tensor,
    /// `[positions, width]`: the angles' sines, negated in the first half.
    sin: Tensor,
}

impl Rope {
    /// Tables for `positions` positions of heads of an even `width`.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(theta: f64, width: i64, positions: i64, device: tch::Device) -> Result<Self, Error> {
        let options = (Kind::Double, device);
        let exponents = Tensor::f_arange_start_step(0, width, 2, options)?
            .f_mul_scalar(-theta.ln() / width as f64)?;
        let angles = Tensor::f_arange(positions, options)?.f_outer(&exponents.f_exp()?)?;
        let (cos, sin) = (angles.f_cos()?, angles.f_sin()?);
        let negated = sin.f_neg()?;
        Ok(Self {
            cos: Tensor::f_cat(&[&cos, &cos], -1)?.f_to_kind(Kind::Float)?,
            sin: Tensor::f_cat(&[&negated, &sin], -1)?.f_to_kind(Kind::Float)?,
        })
    }

    /// Rotates `[batch, heads, length, width]`, whose first position is `start`.
    ///
    /// # Errors
    /// When `start + length` is beyond the tables.
    pub fn forward(&self, input: &Tensor, start: i64) -> Result<Tensor, Error> {
        let size = input.size();
        let (length, width) = (size[size.len() - 2], size[size.len() - 1]);
        let table = |table: &Tensor| -> Result<Tensor, Error> {
            to_kind(&table.f_narrow(0, start, length)?, input.kind())
        };
        let swapped = input.f_roll([width / 2], [-1])?;
        Ok((input.f_mul(&table(&self.cos)?)?).f_add(&swapped.f_mul(&table(&self.sin)?)?)?)
    }
}

/// `tensor` in `kind`; no copy when it is already.
pub(crate) fn to_kind(tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
    if tensor.kind() == kind {
        return Ok(tensor.shallow_clone());
    }
    Ok(tensor.f_to_kind(kind)?)
}
