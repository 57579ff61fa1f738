//! The RMS norms of a decoder.

use tch::{Kind, Tensor};

use super::DecoderConfig;
use crate::Error;
use crate::model::layers::RmsNorm;
use crate::model::{Builder, Initial};
use crate::tensor::{BaseMap, to_kind};

/// An RMS norm whose weight may be stored as its difference to one.
#[derive(Debug)]
pub(super) struct Norm {
    inner: RmsNorm,
    plus_one: bool,
}

impl Norm {
    /// Builds the norm `name`.
    ///
    /// # Errors
    /// If the source does not have its weight.
    pub(super) fn new(
        config: &DecoderConfig,
        name: &str,
        width: i64,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let initial = match config.norm_plus_one {
            true => Initial::Zeros,
            false => Initial::Ones,
        };
        Ok(Self {
            inner: RmsNorm {
                weight: builder.vector(&format!("{name}.weight"), width, initial)?,
                epsilon: config.rms_norm_eps,
            },
            plus_one: config.norm_plus_one,
        })
    }

    /// Normalises over the last dimension; same shape, in fp32.
    pub(super) fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        if !self.plus_one {
            return self.inner.forward(input);
        }
        let whole = RmsNorm {
            weight: self.inner.weight.f_add_scalar(1.0)?,
            epsilon: self.inner.epsilon,
        };
        whole.forward(input)
    }

    /// The same in the type of `input`. In half precision the kernel computes in fp32, and rounds once: a weight that is not
    /// trained is rounded to where it came from, so that `input` need not be converted. A difference to one is not.
    pub(super) fn in_its_type(&self, input: &Tensor) -> Result<Tensor, Error> {
        let (weight, kind) = (&self.inner.weight, input.kind());
        if kind == Kind::Float || self.plus_one || weight.requires_grad() {
            return to_kind(&self.forward(input)?, kind);
        }
        let width = weight.numel() as i64;
        let weight = to_kind(weight, kind)?;
        Ok(input.f_rms_norm([width], Some(&weight), self.inner.epsilon)?)
    }

    /// The stored weight.
    pub(super) fn weight(&self) -> &Tensor {
        &self.inner.weight
    }

    /// The same norm on another base (see [`BaseMap`]).
    pub(super) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            inner: self.inner.with_base(map)?,
            plus_one: self.plus_one,
        })
    }
}
