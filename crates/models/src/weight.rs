//! The matrix of a linear layer: dense, or frozen and quantised.

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::quant::{Int8Rows, Nf4, Quantization};
use crate::tensor::{BaseMap, bytes, map_frozen, shared, to_kind};

/// A matrix `[outputs, inputs]`.
#[derive(Debug)]
pub enum Weight {
    /// Not quantised; may be trained.
    Dense(Tensor),
    /// 8 bits per element, frozen.
    Int8(Int8Rows),
    /// 4 bits per element, frozen.
    Nf4(Nf4),
}

impl Weight {
    /// Quantises `dense` on its device, or on the CPU if the device cannot.
    ///
    /// # Errors
    /// If the device is lost, or memory runs out on the CPU too.
    pub fn quantized(name: &str, dense: &Tensor, to: Quantization) -> Result<Self, Error> {
        let device = dense.device();
        let refusal = match Self::quantized_there(dense, to) {
            Ok(weight) => return Ok(weight),
            Err(error) if device == Device::Cpu => return Err(error),
            Err(error) => error.into_torch(),
        };
        if matches!(refusal, torch_ext::Error::DeviceLost { .. }) {
            return Err(refusal.into());
        }
        tracing::warn!("`{name}` is quantised on the CPU, because {device:?} failed: {refusal}");
        Self::quantized_there(&dense.f_to_device(Device::Cpu)?, to)?.to_device(device)
    }

    fn quantized_there(dense: &Tensor, to: Quantization) -> Result<Self, Error> {
        Ok(match to {
            Quantization::Int8 => Self::Int8(Int8Rows::quantize(dense)?),
            Quantization::Nf4 => Self::Nf4(Nf4::quantize(dense)?),
        })
    }

    fn to_device(&self, device: Device) -> Result<Self, Error> {
        Ok(match self {
            Self::Dense(weight) => Self::Dense(weight.f_to_device(device)?),
            Self::Int8(weight) => Self::Int8(weight.to_device(device)?),
            Self::Nf4(weight) => Self::Nf4(weight.to_device(device)?),
        })
    }

    /// Number of outputs and inputs.
    pub fn size(&self) -> (i64, i64) {
        let size = match self {
            Self::Dense(weight) => weight.size(),
            Self::Int8(weight) => weight.values.size(),
            Self::Nf4(weight) => weight.size().to_vec(),
        };
        match size[..] {
            [outputs, inputs] => (outputs, inputs),
            _ => (0, 0),
        }
    }

    /// The device it is on.
    pub fn device(&self) -> Device {
        match self {
            Self::Dense(weight) => weight.device(),
            Self::Int8(weight) => weight.values.device(),
            Self::Nf4(weight) => weight.packed.device(),
        }
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Dense(weight) => bytes(weight),
            Self::Int8(weight) => bytes(&weight.values) + bytes(&weight.scales),
            Self::Nf4(weight) => bytes(&weight.packed) + bytes(&weight.scales),
        }
    }

    /// The tensor, unless it is quantised.
    pub fn as_dense(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(weight) => Some(weight),
            _ => None,
        }
    }

    /// The dequantised matrix as `kind`; shared if nothing has to change.
    pub fn dense(&self, kind: Kind) -> Result<Tensor, Error> {
        match self {
            Self::Dense(weight) => to_kind(weight, kind),
            Self::Int8(weight) => weight.dequantize(kind),
            Self::Nf4(weight) => weight.dequantize(kind),
        }
    }

    /// `input @ weightᵀ + bias` in `compute`, which is also the type of `bias`: `[…, inputs]` to `[…,
    /// outputs]`. A quantised weight is dequantised for the product and freed, and again in the backward
    /// pass.
    pub fn product(
        &self,
        input: &Tensor,
        bias: Option<&Tensor>,
        compute: Kind,
    ) -> Result<Tensor, Error> {
        let input = to_kind(input, compute)?;
        if let Self::Dense(weight) = self {
            return Ok(input.f_linear(&to_kind(weight, compute)?, bias)?);
        }
        let weight = self.map(&mut shared)?;
        let made = move || weight.factors(compute).map_err(Error::into_torch);
        Ok(torch_ext::linear_with(&input, bias, made)?)
    }

    /// A matrix as `compute`, and what its rows are still to be multiplied by.
    fn factors(&self, compute: Kind) -> Result<(Tensor, Option<Tensor>), Error> {
        match self {
            // In fp16, products with the integers could overflow.
            Self::Int8(weight) if compute != Kind::Half => {
                let (integers, factors) = weight.unscaled(compute)?;
                Ok((integers, Some(factors)))
            }
            _ => Ok((self.dense(compute)?, None)),
        }
    }

    /// The same matrix with other tensors (see [`BaseMap`]).
    pub fn map(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(match self {
            Self::Dense(weight) => Self::Dense(map_frozen(weight, map)?),
            Self::Int8(weight) => Self::Int8(weight.map(map)?),
            Self::Nf4(weight) => Self::Nf4(weight.map(map)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_bits_are_fewer_bytes() {
        let matrix = Tensor::randn([96, 128], (Kind::BFloat16, Device::Cpu));
        let dense = Weight::Dense(matrix.shallow_clone());
        assert_eq!(dense.bytes(), 96 * 128 * 2);
        let int8 = Weight::quantized("w", &matrix, Quantization::Int8).unwrap();
        assert_eq!(int8.bytes(), 96 * 128 + 96 * 4);
        let nf4 = Weight::quantized("w", &matrix, Quantization::Nf4).unwrap();
        assert_eq!(nf4.bytes(), 96 * 128 / 2 + 96 * 128 / 64 * 4);
        for weight in [int8, nf4] {
            assert_eq!(weight.size(), (96, 128));
            let back = weight.dense(Kind::BFloat16).unwrap();
            let error =
                (back - &matrix).to_kind(Kind::Float).norm() / matrix.to_kind(Kind::Float).norm();
            assert!(f64::try_from(error).unwrap() < 0.1);
        }
    }
}
