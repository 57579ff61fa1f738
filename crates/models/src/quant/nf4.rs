//! NF4: 4-bit weights, for values that are normally distributed (Dettmers et al., "QLoRA", 2023).

use tch::{Device, Kind, Tensor};

use super::{blocks, largest, nearest, normalised};
use crate::Error;
use crate::tensor::BaseMap;

/// Elements that share a scale.
const BLOCK: i64 = 64;
/// Blocks that are quantised at a time on the CPU, so that intermediate results stay in its caches.
const CHUNK_BLOCKS: i64 = 4096;

/// Quantiles of the normal distribution between −1 and 1, including zero: the paper's constants.
const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// A tensor with 4 bits per element and a scale per 64 elements.
#[derive(Debug)]
pub struct Nf4 {
    /// `[blocks, 32]` bytes, each with two level indices, the earlier one in the high nibble.
    pub packed: Tensor,
    /// `[blocks, 1]`: the absmax of each block.
    pub scales: Tensor,
    /// The two levels for each byte value: `[256, 2]`, on the tensor's device.
    pairs: Tensor,
    /// Of several matrices in one, whose number comes first, each begins with a block of its own.
    shape: Vec<i64>,
}

/// `packed` and `scales` of a tensor.
fn packed_blocks(tensor: &Tensor, levels: &Tensor) -> Result<(Tensor, Tensor), Error> {
    let rows = blocks(tensor, BLOCK)?;
    let scales = largest(&rows)?;
    let codes = nearest(&normalised(&rows, &scales)?, levels)?;
    let codes = codes.f_view([-1, BLOCK / 2, 2])?;
    let packed = codes
        .f_select(2, 0)?
        .f_mul_scalar(16)?
        .f_add(&codes.f_select(2, 1)?)?
        .f_to_kind(Kind::Uint8)?;
    Ok((packed, scales))
}

impl Nf4 {
    /// Quantises a tensor, on its device.
    pub fn quantize(tensor: &Tensor) -> Result<Self, Error> {
        let levels = Tensor::f_from_slice(&LEVELS)?.f_to_device(tensor.device())?;
        let count = (tensor.numel() as i64 + BLOCK - 1) / BLOCK;
        let (packed, scales) = match tensor.device() {
            Device::Cpu if count > CHUNK_BLOCKS => {
                let options = |kind| (kind, Device::Cpu);
                let packed = Tensor::f_empty([count, BLOCK / 2], options(Kind::Uint8))?;
                let scales = Tensor::f_empty([count, 1], options(Kind::Float))?;
                let flat = tensor.f_detach()?.f_reshape([-1])?;
                for start in (0..count).step_by(CHUNK_BLOCKS as usize) {
                    let blocks = CHUNK_BLOCKS.min(count - start);
                    let numbers = (blocks * BLOCK).min(flat.numel() as i64 - start * BLOCK);
                    let part = flat.f_narrow(0, start * BLOCK, numbers)?;
                    let (codes, largest) = packed_blocks(&part, &levels)?;
                    packed.f_narrow(0, start, blocks)?.f_copy_(&codes)?;
                    scales.f_narrow(0, start, blocks)?.f_copy_(&largest)?;
                }
                (packed, scales)
            }
            _ => packed_blocks(tensor, &levels)?,
        };
        let pairs: Vec<f32> = (0..256)
            .flat_map(|byte| [LEVELS[byte >> 4], LEVELS[byte & 15]])
            .collect();
        Ok(Self {
            packed,
            scales,
            pairs: Tensor::f_from_slice(&pairs)?
                .f_view([256, 2])?
                .f_to_device(tensor.device())?,
            shape: tensor.size(),
        })
    }

    /// The values, as `kind`.
    pub fn dequantize(&self, kind: Kind) -> Result<Tensor, Error> {
        let (matrices, each) = match self.shape[..] {
            [matrices, rows, columns] => (matrices, rows * columns),
            _ => (1, self.shape.iter().product()),
        };
        let codes = self.packed.f_reshape([-1])?.f_to_kind(Kind::Int)?;
        let mut rows = self.pairs.f_index_select(0, &codes)?.f_view([-1, BLOCK])?;
        // For a large matrix each intermediate result is half a gigabyte, so free them as early as possible.
        drop(codes);
        let numbers = rows
            .f_mul_(&self.scales)?
            .f_view([matrices, -1])?
            .f_narrow(1, 0, each)?;
        Ok(numbers.f_reshape(self.shape.as_slice())?.f_to_kind(kind)?)
    }

    /// Matrices of the same size as one tensor `[matrices, rows, columns]`.
    ///
    /// # Errors
    /// If there is none, or memory runs out.
    pub fn stacked(matrices: &[Self]) -> Result<Self, Error> {
        let first = matrices.first();
        let first = first.ok_or_else(|| Error::Internal("a stack of no matrices".into()))?;
        let joined = |part: fn(&Self) -> &Tensor| -> Result<Tensor, Error> {
            let parts: Vec<&Tensor> = matrices.iter().map(part).collect();
            Ok(Tensor::f_cat(&parts, 0)?)
        };
        Ok(Self {
            packed: joined(|matrix| &matrix.packed)?,
            scales: joined(|matrix| &matrix.scales)?,
            pairs: first.pairs.shallow_clone(),
            shape: [&[matrices.len() as i64], first.size()].concat(),
        })
    }

    /// `count` matrices of a stack from `start` on; they share its storage.
    ///
    /// # Errors
    /// If there are not that many.
    pub fn narrow(&self, start: i64, count: i64) -> Result<Self, Error> {
        let [matrices, rows, columns] = self.shape[..] else {
            return Err(Error::Internal("a part of a single matrix".into()));
        };
        let blocks = self.scales.size2()?.0 / matrices;
        let part = |tensor: &Tensor| tensor.f_narrow(0, start * blocks, count * blocks);
        Ok(Self {
            packed: part(&self.packed)?,
            scales: part(&self.scales)?,
            pairs: self.pairs.shallow_clone(),
            shape: vec![count, rows, columns],
        })
    }

    /// The size of the original tensor.
    pub fn size(&self) -> &[i64] {
        &self.shape
    }

    /// The same on another device.
    pub fn to_device(&self, device: Device) -> Result<Self, Error> {
        Ok(Self {
            packed: self.packed.f_to_device(device)?,
            scales: self.scales.f_to_device(device)?,
            pairs: self.pairs.f_to_device(device)?,
            shape: self.shape.clone(),
        })
    }

    /// The same tensor with other storage (see [`BaseMap`]).
    pub fn map(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            packed: map(&self.packed)?,
            scales: map(&self.scales)?,
            pairs: map(&self.pairs)?,
            shape: self.shape.clone(),
        })
    }
}
