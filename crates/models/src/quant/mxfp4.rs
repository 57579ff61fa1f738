//! MXFP4: floats of 4 bits in blocks of 32, each with a power of two (Open Compute Project, "Microscaling Formats (MX)
//! Specification", 2023). Published weights have this format; nothing is converted to it here.

use tch::{Device, Kind, Tensor};

use super::kernels::Packed;
use super::nf4::{Nibbles, Table};
use crate::Error;
use crate::tensor::BaseMap;

/// Numbers that share a factor.
pub(crate) const BLOCK: i64 = 32;
/// Bytes of a block in GGUF files: its factor and its numbers.
const GGML_BLOCK: i64 = 1 + BLOCK / 2;

/// What the nibbles stand for: a sign, two bits of exponent, and one of mantissa.
pub(super) const LEVELS: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// A matrix with 4 bits per number and a factor for 32 of a row.
#[derive(Debug)]
pub struct Mxfp4 {
    /// `[rows, columns / 2]` bytes, each with two numbers, the earlier one in the low nibble.
    pub packed: Tensor,
    /// `[rows, columns / 32]` bytes: exponents of the factors, plus 127.
    pub scales: Tensor,
}

impl Mxfp4 {
    /// A matrix of this shape with any numbers, to inspect a model before it is loaded.
    ///
    /// # Errors
    /// If its rows are not whole blocks.
    pub fn shape_alone(shape: &[i64], device: Device) -> Result<Self, Error> {
        let &[rows, columns] = shape else {
            return Err(Error::Internal(format!("a matrix of {shape:?}")));
        };
        if columns % BLOCK != 0 {
            let reason = format!("rows of {columns} numbers are no blocks of MXFP4");
            return Err(Error::Internal(reason));
        }
        let bytes = |each: i64| Tensor::f_empty([rows, columns / each], (Kind::Uint8, device));
        Ok(Self {
            packed: bytes(2)?,
            scales: bytes(BLOCK)?,
        })
    }

    /// Number of rows and columns.
    pub fn size(&self) -> Vec<i64> {
        let mut size = self.packed.size();
        if let Some(columns) = size.last_mut() {
            *columns *= 2;
        }
        size
    }

    /// The values, as `kind`; bf16 and wider types have all of them exactly.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn dequantize(&self, kind: Kind) -> Result<Tensor, Error> {
        let values = self.weights().values(kind, || {
            self.by_operators(&Table::on(self.packed.device(), kind, Nibbles::Mxfp4)?)
        })?;
        Ok(values.f_view(self.size().as_slice())?.f_to_kind(kind)?)
    }

    /// What is stored.
    pub(super) fn weights(&self) -> Packed<'_> {
        Packed {
            nibbles: Nibbles::Mxfp4,
            packed: &self.packed,
            scales: &self.scales,
        }
    }

    /// All values, in the type of the table.
    pub(super) fn by_operators(&self, table: &Table) -> Result<Tensor, Error> {
        let mut values = table.look_up(&self.packed)?.f_view([-1, BLOCK])?;
        let exponents = self.scales.f_reshape([-1, 1])?.f_to_kind(Kind::Int)?;
        // The bits of an fp32 number; the smallest one, 2⁻¹²⁷, is subnormal.
        let smallest = exponents.f_eq(0)?.f_to_kind(Kind::Int)?;
        let factors = exponents
            .f_mul_scalar(1 << 23)?
            .f_add(&smallest.f_mul_scalar(1 << 22)?)?
            .f_view_dtype(Kind::Float)?;
        Ok(values.f_mul_(&factors)?)
    }

    /// Matrices of the same width, one below the other.
    ///
    /// # Errors
    /// If there is none, or memory runs out.
    pub fn stacked(matrices: &[Self]) -> Result<Self, Error> {
        let joined = |part: fn(&Self) -> &Tensor| -> Result<Tensor, Error> {
            let parts: Vec<Tensor> = matrices.iter().map(|m| part(m).shallow_clone()).collect();
            Ok(Tensor::f_cat(&parts, 0)?)
        };
        Ok(Self {
            packed: joined(|matrix| &matrix.packed)?,
            scales: joined(|matrix| &matrix.scales)?,
        })
    }

    /// `count` rows from `start` on, or every `step`th of them; they share its storage.
    ///
    /// # Errors
    /// If there are not that many.
    pub fn rows(&self, start: i64, count: i64, step: i64) -> Result<Self, Error> {
        let part = |tensor: &Tensor| tensor.f_slice(0, start, start + count, step);
        Ok(Self {
            packed: part(&self.packed)?,
            scales: part(&self.scales)?,
        })
    }

    /// The blocks as GGUF files have them, `[rows, bytes]`: a block's factor, then its first 16 numbers in low nibbles and
    /// the others in high ones.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn to_ggml(&self) -> Result<Tensor, Error> {
        let rows = self.packed.size2()?.0;
        let bytes = self.packed.f_reshape([rows, -1, BLOCK / 2])?;
        let [low, high] = nibbles(&bytes)?;
        let numbers = Tensor::f_stack(&[low, high], -1)?.f_view([rows, -1, BLOCK])?;
        let half = |start| numbers.f_narrow(-1, start, BLOCK / 2);
        let packed = bytes_of(&half(0)?, &half(BLOCK / 2)?)?;
        let scales = self.scales.f_unsqueeze(-1)?;
        Ok(Tensor::f_cat(&[scales, packed], -1)?.f_view([rows, -1])?)
    }

    /// The opposite of [`to_ggml`](Self::to_ggml).
    ///
    /// # Errors
    /// If these are not whole blocks, or memory runs out.
    pub fn from_ggml(bytes: &Tensor) -> Result<Self, Error> {
        let rows = bytes.size2()?.0;
        let blocks = bytes.f_reshape([rows, -1, GGML_BLOCK])?;
        let [low, high] = nibbles(&blocks.f_narrow(-1, 1, BLOCK / 2)?)?;
        let numbers = Tensor::f_cat(&[low, high], -1)?.f_view([rows, -1, 2])?;
        Ok(Self {
            packed: bytes_of(&numbers.f_select(-1, 0)?, &numbers.f_select(-1, 1)?)?,
            scales: blocks.f_select(-1, 0)?.f_contiguous()?,
        })
    }

    /// The same on another device.
    pub fn to_device(&self, device: Device) -> Result<Self, Error> {
        Ok(Self {
            packed: self.packed.f_to_device(device)?,
            scales: self.scales.f_to_device(device)?,
        })
    }

    /// The same matrix with other tensors (see [`BaseMap`]).
    pub fn map(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            packed: map(&self.packed)?,
            scales: map(&self.scales)?,
        })
    }
}

/// The low and the high halves of bytes.
fn nibbles(bytes: &Tensor) -> Result<[Tensor; 2], Error> {
    Ok([
        bytes.f_bitwise_and(15)?,
        bytes.f_bitwise_right_shift_tensor_scalar(4)?,
    ])
}

/// The opposite of [`nibbles`].
fn bytes_of(low: &Tensor, high: &Tensor) -> Result<Tensor, Error> {
    Ok(high.f_mul_scalar(16)?.f_add(low)?.f_contiguous()?)
}
