//! The pieces decoder models are built from.
//!
//! With bf16 compute, matrix products and attention run in bfloat16 while norms, the
//! residual stream, the adapters and the loss stay in fp32: what PyTorch's autocast
//! does, written out so that it is the same on every device.

use tch::{Kind, Tensor};

use super::Weight;
use crate::Error;
use crate::adapters::LoraLayer;

/// Makes another tensor of each of a layer's own, in an order that is always the same. What
/// an adapter trains is shared, not mapped. So a layer can be taken apart into its tensors and
/// put together from them again, which is how it is streamed.
pub type BaseMap<'a> = &'a mut dyn FnMut(&Tensor) -> Result<Tensor, Error>;

/// A [`BaseMap`] that shares everything.
///
/// # Errors
/// Never.
pub fn shared(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(tensor.shallow_clone())
}

/// `x @ weightᵀ + bias`, and what an adapter adds to it.
#[derive(Debug)]
pub struct Linear {
    /// `[outputs, inputs]`
    pub weight: Weight,
    /// `[outputs]`
    pub bias: Option<Tensor>,
    /// The type of the product.
    pub compute: Kind,
    /// The low-rank change that is trained in the weight's place.
    pub adapter: Option<LoraLayer>,
}

impl Linear {
    /// `[…, inputs]` to `[…, outputs]`, in the layer's compute type. `dropout` switches
    /// the adapter's on.
    ///
    /// # Errors
    /// When shapes do not fit or memory runs out.
    pub fn forward(&self, input: &Tensor, dropout: bool) -> Result<Tensor, Error> {
        let bias = match &self.bias {
            Some(bias) => Some(to_kind(bias, self.compute)?),
            None => None,
        };
        match &self.adapter {
            None => self.weight.product(input, bias.as_ref(), self.compute),
            Some(adapter) => {
                let base = (&self.weight, self.compute);
                adapter.forward(input, base, bias.as_ref(), dropout)
            }
        }
    }

    /// The same layer on another base (see [`BaseMap`]).
    ///
    /// # Errors
    /// What `map` returns.
    pub fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            weight: self.weight.map(map)?,
            bias: self.bias.as_ref().map(&mut *map).transpose()?,
            compute: self.compute,
            adapter: match &self.adapter {
                Some(adapter) => Some(adapter.with_base(map)?),
                None => None,
            },
        })
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
    /// The same shape, in fp32.
    ///
    /// # Errors
    /// When shapes do not fit or memory runs out.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        let input = to_kind(input, Kind::Float)?;
        let width = self.weight.numel() as i64;
        Ok(input.f_rms_norm([width], Some(&self.weight), self.epsilon)?)
    }

    /// The same norm on another base (see [`BaseMap`]).
    ///
    /// # Errors
    /// What `map` returns.
    pub fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            weight: map(&self.weight)?,
            epsilon: self.epsilon,
        })
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
    /// Tables for `positions` positions, from the angle per position of each pair, all
    /// multiplied by `factor`.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn new(
        frequencies: &[f64],
        factor: f64,
        positions: i64,
        device: tch::Device,
    ) -> Result<Self, Error> {
        let frequencies = Tensor::f_from_slice(frequencies)?.f_to_device(device)?;
        let options = (Kind::Double, device);
        let angles = Tensor::f_arange(positions, options)?.f_outer(&frequencies)?;
        let cos = angles.f_cos()?.f_mul_scalar(factor)?;
        let sin = angles.f_sin()?.f_mul_scalar(factor)?;
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

    /// Bytes of the tables.
    pub fn bytes(&self) -> u64 {
        let of = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
        (of(&self.cos) + of(&self.sin)) as u64
    }

    /// Another handle to the same tables.
    pub fn shallow_clone(&self) -> Self {
        Self {
            cos: self.cos.shallow_clone(),
            sin: self.sin.shallow_clone(),
        }
    }
}

/// `tensor` in `kind`; no copy when it is already.
pub(crate) fn to_kind(tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
    if tensor.kind() == kind {
        return Ok(tensor.shallow_clone());
    }
    Ok(tensor.f_to_kind(kind)?)
}
