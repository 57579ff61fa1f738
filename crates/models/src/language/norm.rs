//! The RMS norms of a decoder.

use tch::{Kind, Tensor};

use super::DecoderConfig;
use crate::Error;
use crate::fused::RowNorm;
use crate::model::Builder;
use crate::model::layers::RmsNorm;
use crate::tensor::{BaseMap, to_kind};

/// An RMS norm whose weight may be stored as its difference to one.
#[derive(Debug)]
pub(super) struct Norm(RmsNorm);

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
        let epsilon = config.rms_norm_eps;
        let inner = match config.norm_plus_one {
            true => builder.norm_plus_one(name, width, epsilon),
            false => builder.norm(name, width, epsilon),
        };
        inner.map(Self)
    }

    /// Normalises over the last dimension; same shape, in fp32.
    pub(super) fn forward(&self, input: &Tensor) -> Result<Tensor, Error> {
        self.0.forward(input)
    }

    /// The same in the type of `input`. In half precision the kernel computes in fp32, and rounds once: a weight that is not
    /// trained is rounded to where it came from, so that `input` need not be converted. A difference to one is not.
    pub(super) fn in_its_type(&self, input: &Tensor) -> Result<Tensor, Error> {
        let (weight, kind) = (&self.0.weight, input.kind());
        if kind == Kind::Float || self.0.plus_one || weight.requires_grad() {
            return to_kind(&self.forward(input)?, kind);
        }
        let width = weight.numel() as i64;
        let weight = to_kind(weight, kind)?;
        Ok(input.f_rms_norm([width], Some(&weight), self.0.epsilon)?)
    }

    /// The norm of `stream` and `change`, and what they add up to. It is in fp32, unless a kernel gives it in the type that
    /// those who take it would convert it to, `kind`.
    pub(super) fn of_sum(
        &self,
        stream: &Tensor,
        change: Option<&Tensor>,
        kind: Option<Kind>,
    ) -> Result<[Tensor; 2], Error> {
        if let (Some(kind), Some(weight)) = (kind, self.0.weight_of_kernel()?) {
            let norm = RowNorm {
                change,
                ..RowNorm::new(stream, Some(&weight), self.0.epsilon, kind)
            };
            if let Some(made) = norm.by_kernel()? {
                return Ok(made);
            }
        }
        let stream = match change {
            Some(change) => stream.f_add(change)?,
            None => stream.shallow_clone(),
        };
        Ok([self.forward(&stream)?, stream])
    }

    /// `stream` and the norm of `change`, added up.
    pub(super) fn added(&self, stream: &Tensor, change: &Tensor) -> Result<Tensor, Error> {
        if let Some(weight) = self.0.weight_of_kernel()? {
            let norm = RowNorm {
                residual: Some(stream),
                ..RowNorm::new(change, Some(&weight), self.0.epsilon, stream.kind())
            };
            if let Some([sum, _]) = norm.by_kernel()? {
                return Ok(sum);
            }
        }
        Ok(stream.f_add(&self.forward(change)?)?)
    }

    /// The weight and the epsilon of a norm of heads, if a kernel may compute it.
    pub(super) fn of_heads(&self) -> Result<Option<(Tensor, f64)>, Error> {
        let weight = self.0.weight_of_kernel()?;
        Ok(weight.map(|weight| (weight, self.0.epsilon)))
    }

    /// The stored weight.
    pub(super) fn weight(&self) -> &Tensor {
        &self.0.weight
    }

    /// The same norm on another base (see [`BaseMap`]).
    pub(super) fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        self.0.with_base(map).map(Self)
    }
}
