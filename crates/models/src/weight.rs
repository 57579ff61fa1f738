//! The matrix of a linear layer: dense, or frozen and quantised; and several as one.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::quant::{Int8Rows, Mxfp4, Nf4, Quantization};
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
    /// 4 bits per element as the model was published, frozen.
    Mxfp4(Mxfp4),
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
            Self::Mxfp4(weight) => Self::Mxfp4(weight.to_device(device)?),
        })
    }

    /// Number of outputs and inputs.
    pub fn size(&self) -> (i64, i64) {
        let size = match self {
            Self::Dense(weight) => weight.size(),
            Self::Int8(weight) => weight.values.size(),
            Self::Nf4(weight) => weight.size().to_vec(),
            Self::Mxfp4(weight) => weight.size(),
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
            Self::Mxfp4(weight) => weight.packed.device(),
        }
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Dense(weight) => bytes(weight),
            Self::Int8(weight) => bytes(&weight.values) + bytes(&weight.scales),
            Self::Nf4(weight) => bytes(&weight.packed) + bytes(&weight.scales),
            Self::Mxfp4(weight) => bytes(&weight.packed) + bytes(&weight.scales),
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
            Self::Mxfp4(weight) => weight.dequantize(kind),
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
            Self::Mxfp4(weight) => Self::Mxfp4(weight.map(map)?),
        })
    }
}

/// Frozen matrices of the same size as one tensor: those of a layer's experts.
#[derive(Debug)]
pub struct Stack {
    /// One below the other.
    weight: Weight,
    rows: i64,
    columns: i64,
}

/// Numbers that are dequantised at a time, unless a single matrix has more.
const AT_A_TIME: i64 = 1 << 24;

impl Stack {
    /// Puts `matrices` together, which are in the same format.
    ///
    /// # Errors
    /// If they differ, or memory runs out.
    pub fn new(matrices: Vec<Weight>) -> Result<Self, Error> {
        let differ = || Error::Internal("a stack of matrices that differ".into());
        let (rows, columns) = matrices.first().ok_or_else(differ)?.size();
        let (mut dense, mut int8, mut nf4, mut mxfp4) = (vec![], vec![], vec![], vec![]);
        for matrix in matrices {
            if matrix.size() != (rows, columns) {
                return Err(differ());
            }
            match matrix {
                Weight::Dense(matrix) => dense.push(matrix),
                Weight::Int8(matrix) => int8.push(matrix),
                Weight::Nf4(matrix) => nf4.push(matrix),
                Weight::Mxfp4(matrix) => mxfp4.push(matrix),
            }
        }
        let weight = match (&dense[..], &int8[..], &nf4[..], &mxfp4[..]) {
            (dense, [], [], []) => Weight::Dense(Tensor::f_cat(dense, 0)?),
            ([], int8, [], []) => Weight::Int8(Int8Rows::stacked(int8)?),
            ([], [], nf4, []) => Weight::Nf4(Nf4::stacked(nf4)?),
            ([], [], [], mxfp4) => Weight::Mxfp4(Mxfp4::stacked(mxfp4)?),
            _ => return Err(differ()),
        };
        Ok(Self {
            weight,
            rows,
            columns,
        })
    }

    /// The device it is on.
    pub fn device(&self) -> Device {
        self.weight.device()
    }

    /// The matrices `range` as `kind`, `[range, rows, columns]`.
    ///
    /// # Errors
    /// If there are not that many, or memory runs out.
    pub fn dense(&self, range: Range<i64>, kind: Kind) -> Result<Tensor, Error> {
        let (start, count) = (range.start, range.end - range.start);
        let (first, rows) = (start * self.rows, count * self.rows);
        let dense = match &self.weight {
            Weight::Dense(weight) => to_kind(&weight.f_narrow(0, first, rows)?, kind)?,
            Weight::Int8(weight) => weight.narrow(first, rows)?.dequantize(kind)?,
            Weight::Nf4(weight) => weight.narrow(start, count)?.dequantize(kind)?,
            Weight::Mxfp4(weight) => weight.rows(first, rows, 1)?.dequantize(kind)?,
        };
        Ok(dense.f_view([count, self.rows, self.columns])?)
    }

    /// The products of rows in groups with a matrix for each, in `compute`: `[all, columns]` to `[all, rows]`. Those of
    /// matrix *m* are from `bounds[m]` to `bounds[m + 1]`. Quantised matrices are dequantised as for
    /// [`Weight::product`], and only those that have rows.
    ///
    /// # Errors
    /// If `bounds` are not those of `input`, or memory runs out.
    pub fn product(&self, input: &Tensor, bounds: &[i64], compute: Kind) -> Result<Tensor, Error> {
        let most = (AT_A_TIME / (self.rows * self.columns).max(1)).max(1);
        let stack = self.map(&mut shared)?;
        let made = move |range| stack.dense(range, compute).map_err(Error::into_torch);
        let input = to_kind(input, compute)?;
        Ok(torch_ext::grouped_linear_with(
            &input, bounds, self.rows, most, made,
        )?)
    }

    /// Calls `see` with each of its tensors.
    ///
    /// # Errors
    /// If libtorch fails to create a handle to a tensor.
    pub fn for_each(&self, see: &mut dyn FnMut(&Tensor)) -> Result<(), Error> {
        self.map(&mut |tensor| {
            see(tensor);
            shared(tensor)
        })?;
        Ok(())
    }

    /// The same matrices with other tensors (see [`BaseMap`]).
    ///
    /// # Errors
    /// Those of `map`.
    pub fn map(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            weight: self.weight.map(map)?,
            ..*self
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

    #[test]
    fn a_stack_is_its_matrices_and_their_products() {
        // The last one does not fill a block of NF4.
        for (rows, columns) in [(6, 32), (5, 10)] {
            let random = |size: [i64; 2]| Tensor::randn(size, (Kind::Float, Device::Cpu));
            let matrices: Vec<Tensor> = (0..4).map(|_| random([rows, columns])).collect();
            for to in [None, Some(Quantization::Int8), Some(Quantization::Nf4)] {
                let weights = || {
                    let of = |matrix: &Tensor| match to {
                        None => Weight::Dense(matrix.shallow_clone()),
                        Some(to) => Weight::quantized("w", matrix, to).unwrap(),
                    };
                    matrices.iter().map(of).collect::<Vec<_>>()
                };
                let stack = Stack::new(weights()).unwrap();
                let alone = |index: usize| weights()[index].dense(Kind::Float).unwrap();
                let part = stack.dense(1..3, Kind::Float).unwrap();
                assert!(part.get(0).equal(&alone(1)) && part.get(1).equal(&alone(2)));
                let bounds = [0, 2, 2, 5, 6];
                let input = random([6, columns]).set_requires_grad(true);
                let output = stack.product(&input, &bounds, Kind::Float).unwrap();
                let weighting = random([6, rows]);
                (&output * &weighting).sum(Kind::Float).backward();
                for (index, pair) in bounds.windows(2).enumerate() {
                    let group = |tensor: &Tensor| tensor.narrow(0, pair[0], pair[1] - pair[0]);
                    let expected = group(&input).matmul(&alone(index).tr());
                    assert!(group(&output).allclose(&expected, 1e-5, 1e-6, false));
                    let expected = group(&weighting).matmul(&alone(index));
                    assert!(group(&input.grad()).allclose(&expected, 1e-5, 1e-6, false));
                }
            }
        }
    }
}
