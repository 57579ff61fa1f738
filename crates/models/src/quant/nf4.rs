//! NF4: 4-bit weights, for values that are normally distributed (Dettmers et al., "QLoRA", 2023).

use parking_lot::Mutex;
use tch::{Device, Kind, Tensor};
use torch_ext::fake;

use super::kernels::Packed;
use super::{blocks, largest, mxfp4, nearest, normalised};
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
    /// Of several matrices in one, whose number comes first, each begins with a block of its own.
    pub(super) shape: Vec<i64>,
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
        if fake::is_on() {
            let blocks = (tensor.numel() as i64 + BLOCK - 1) / BLOCK;
            let sized = |width, kind| Tensor::f_empty([blocks, width], (kind, tensor.device()));
            return Ok(Self {
                packed: sized(BLOCK / 2, Kind::Uint8)?,
                scales: sized(1, Kind::Float)?,
                shape: tensor.size(),
            });
        }
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
        Ok(Self {
            packed,
            scales,
            shape: tensor.size(),
        })
    }

    /// The values, as `kind`.
    pub fn dequantize(&self, kind: Kind) -> Result<Tensor, Error> {
        let (matrices, each) = match self.shape[..] {
            [matrices, rows, columns] => (matrices, rows * columns),
            _ => (1, self.shape.iter().product()),
        };
        let values = self.weights().values(kind, || {
            self.by_operators(&Table::on(self.packed.device(), kind, Nibbles::Nf4)?)
        })?;
        let numbers = values.f_view([matrices, -1])?.f_narrow(1, 0, each)?;
        Ok(numbers.f_reshape(self.shape.as_slice())?.f_to_kind(kind)?)
    }

    /// What is stored, without the shape.
    pub(super) fn weights(&self) -> Packed<'_> {
        Packed {
            nibbles: Nibbles::Nf4,
            packed: &self.packed,
            scales: &self.scales,
        }
    }

    /// All values of whole blocks, in the type of the table.
    pub(super) fn by_operators(&self, table: &Table) -> Result<Tensor, Error> {
        let mut rows = table.look_up(&self.packed)?.f_view([-1, BLOCK])?;
        Ok(rows.f_mul_(&self.scales)?)
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
            shape: self.shape.clone(),
        })
    }

    /// The same tensor with other storage (see [`BaseMap`]).
    pub fn map(&self, map: BaseMap<'_>) -> Result<Self, Error> {
        Ok(Self {
            packed: map(&self.packed)?,
            scales: map(&self.scales)?,
            shape: self.shape.clone(),
        })
    }
}

/// What the nibbles of a format stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nibbles {
    /// [`LEVELS`], the earlier one of a byte in its high nibble.
    Nf4,
    /// Those of [`Mxfp4`](super::Mxfp4), the earlier one in the low nibble.
    Mxfp4,
}

impl Nibbles {
    /// What each nibble stands for.
    pub(super) fn levels(self) -> [f32; 16] {
        match self {
            Self::Nf4 => LEVELS,
            Self::Mxfp4 => mxfp4::LEVELS,
        }
    }

    /// The two levels of a packed byte.
    fn levels_of(self, byte: usize) -> [f32; 2] {
        let (high, low) = (byte >> 4, byte & 15);
        let order = match self {
            Self::Nf4 => [high, low],
            Self::Mxfp4 => [low, high],
        };
        order.map(|nibble| self.levels()[nibble])
    }
}

/// The levels that packed values stand for.
#[derive(Debug)]
pub(super) struct Table {
    /// A row for each number that one byte (`[256, 2]`) or two bytes (`[65536, 4]`) can be.
    levels: Tensor,
    /// `[1]`: what is added to two bytes, as a signed number, to count the rows from zero.
    offset: Option<Tensor>,
}

impl Table {
    /// The table of a device for values that are needed as `kind`. On the CPU it has to fit the first cache,
    /// so it is that of single bytes in fp32; elsewhere memory is what limits, and one look-up for four values, in
    /// the type that is needed if that has 16 bits, moves a third of the bytes.
    pub(super) fn on(device: Device, kind: Kind, nibbles: Nibbles) -> Result<Self, Error> {
        static TABLES: Mutex<Vec<(Device, Kind, Nibbles, Table)>> = Mutex::new(Vec::new());
        let kind = match kind {
            Kind::BFloat16 | Kind::Half if device != Device::Cpu => kind,
            _ => Kind::Float,
        };
        let mut tables = TABLES.lock();
        let known = tables
            .iter()
            .find(|known| (known.0, known.1, known.2) == (device, kind, nibbles));
        if let Some((.., table)) = known {
            return Ok(table.shared());
        }
        let made = match device {
            Device::Cpu => Self::of_bytes(nibbles)?,
            _ => Self::of_two_bytes(device, kind, nibbles)?,
        };
        let table = made.shared();
        if !fake::is_on() {
            tables.push((device, kind, nibbles, made));
        }
        Ok(table)
    }

    /// For single bytes, on the CPU in fp32.
    pub(super) fn of_bytes(nibbles: Nibbles) -> Result<Self, Error> {
        let levels: Vec<f32> = (0..256).flat_map(|byte| nibbles.levels_of(byte)).collect();
        Ok(Self {
            levels: Tensor::f_from_slice(&levels)?.f_view([256, 2])?,
            offset: None,
        })
    }

    /// For two bytes at a time, of which the earlier one is the lower half of a number: all machines that PyTorch
    /// runs on with a GPU are little-endian.
    pub(super) fn of_two_bytes(
        device: Device,
        kind: Kind,
        nibbles: Nibbles,
    ) -> Result<Self, Error> {
        let numbers = i32::from(i16::MIN)..=i32::from(i16::MAX);
        let levels: Vec<f32> = numbers
            .flat_map(|number| number.to_le_bytes().map(usize::from)[..2].to_owned())
            .flat_map(|byte| nibbles.levels_of(byte))
            .collect();
        let levels = Tensor::f_from_slice(&levels)?.f_view([1 << 16, 4])?;
        let offset = Tensor::f_from_slice(&[-i32::from(i16::MIN)])?;
        Ok(Self {
            levels: levels.f_to_kind(kind)?.f_to_device(device)?,
            offset: Some(offset.f_to_device(device)?),
        })
    }

    fn shared(&self) -> Self {
        Self {
            levels: self.levels.shallow_clone(),
            offset: self.offset.as_ref().map(Tensor::shallow_clone),
        }
    }

    /// The levels of all packed values, in their order.
    pub(super) fn look_up(&self, packed: &Tensor) -> Result<Tensor, Error> {
        let codes = match &self.offset {
            None => packed.f_reshape([-1])?.f_to_kind(Kind::Int)?,
            Some(offset) => {
                let pairs = packed.f_view_dtype(Kind::Int16)?;
                pairs.f_reshape([-1])?.f_add(offset)?
            }
        };
        Ok(self.levels.f_index_select(0, &codes)?)
    }
}
