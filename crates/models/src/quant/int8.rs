//! 8-bit weights: integers with a scale per row.

use tch::{Device, Kind, Tensor};

use super::{largest, normalised};
use crate::Error;
use crate::tensor::BaseMap;

/// A matrix with 8 bits per element and a scale per row.
#[derive(Debug)]
pub struct Int8Rows {
    /// `[rows, columns]`, from −127 to 127.
    pub values: Tensor,
    /// `[rows, 1]`: the absmax of each row.
    pub scales: Tensor,
}

impl Int8Rows {
    /// Quantises a matrix, on its device.
    pub fn quantize(matrix: &Tensor) -> Result<Self, Error> {
        let (rows, columns) = matrix.size2()?;
        let matrix = matrix
            .f_detach()?
            .f_to_kind(Kind::Float)?
            .f_view([rows, columns])?;
        let scales = largest(&matrix)?;
        let values = normalised(&matrix, &scales)?
            .f_mul_scalar(127.0)?
            .f_round()?
            .f_to_kind(Kind::Int8)?;
        Ok(Self { values, scales })
    }

    /// The values, as `kind`.
    pub fn dequantize(&self, kind: Kind) -> Result<Tensor, Error> {
        let scales = self.scales.f_div_scalar(127.0)?;
        // A fresh copy, because of the conversion from integers, so it may be changed in place.
        let mut numbers = self.values.f_to_kind(Kind::Float)?;
        Ok(numbers.f_mul_(&scales)?.f_to_kind(kind)?)
    }

    /// The integers, which are exact in every floating type of at least 8 bits of precision, as `kind`, and the
    /// factor of each row (`[rows]`, fp32): `x @ matrixᵀ` is `(x @ integersᵀ) · factors`, with 3 bytes moved for
    /// an element instead of the 19 of [`dequantize`](Self::dequantize) in 16 bits.
    pub fn unscaled(&self, kind: Kind) -> Result<(Tensor, Tensor), Error> {
        let factors = self.scales.f_div_scalar(127.0)?.f_view([-1])?;
        Ok((self.values.f_to_kind(kind)?, factors))
    }

    /// Matrices of the same width, one below the other.
    ///
    /// # Errors
    /// If there is none, or memory runs out.
    pub fn stacked(matrices: &[Self]) -> Result<Self, Error> {
        let joined = |part: fn(&Self) -> &Tensor| {
            let parts: Vec<&Tensor> = matrices.iter().map(part).collect();
            Tensor::f_cat(&parts, 0)
        };
        Ok(Self {
            values: joined(|matrix| &matrix.values)?,
            scales: joined(|matrix| &matrix.scales)?,
        })
    }

    /// `count` rows from `start` on; they share its storage.
    ///
    /// # Errors
    /// If there are not that many.
    pub fn narrow(&self, start: i64, count: i64) -> Result<Self, Error> {
        Ok(Self {
            values: self.values.f_narrow(0, start, count)?,
            scales: self.scales.f_narrow(0, start, count)?,
        })
    }

    /// The same on another device.
    pub fn to_device(&self, device: Device) -> Result<Self, Error> {
        Ok(Self {
            values: self.values.f_to_device(device)?,
            scales: self.scales.f_to_device(device)?,
        })
    }

    /// The same matrix with other tensors (see [`BaseMap`]).
    pub fn map(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            values: map(&self.values)?,
            scales: map(&self.scales)?,
        })
    }
}
