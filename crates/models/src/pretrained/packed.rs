//! Weights that were saved quantised, as numbers:
//!
//! ```text
//! fp8            x.weight [rows, columns]   x.weight_scale_inv: a factor for each block, or one
//! bitsandbytes   x.weight [rows, columns]   x.SCB: the absmax of each row                          (8 bits)
//!                x.weight [bytes, 1]        x.weight.quant_map, .absmax, .quant_state.…; if those
//!                                           are quantised too, .nested_quant_map, .nested_absmax   (4 bits)
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;
use tch::{Kind, Tensor};

use crate::Error;
use crate::formats::{Shards, TensorSource};
use crate::language::Saved;

/// How the names of fp8's factors end, after that of their tensor.
const FACTORS: &str = "_scale_inv";
/// What is between the name of a matrix in 4 bits and that of its state.
const STATE: &str = ".quant_state.";

/// The quantised tensors of a folder.
#[derive(Debug)]
pub(super) struct Packed {
    saved: Saved,
    /// Those in 4 bits.
    four_bits: BTreeMap<String, FourBits>,
}

/// bitsandbytes' `quant_state`.
#[derive(Debug, Deserialize)]
struct FourBits {
    shape: Vec<i64>,
    blocksize: i64,
    /// If the absmax of the blocks are quantised, too.
    nested_blocksize: Option<i64>,
    nested_offset: Option<f64>,
}

impl Packed {
    /// # Errors
    /// If bitsandbytes' description of a matrix cannot be read.
    pub(super) fn open(saved: Saved, weights: &Shards) -> Result<Self, Error> {
        let mut four_bits = BTreeMap::new();
        for name in weights.names() {
            let Some((matrix, _)) = name
                .split_once(STATE)
                .filter(|_| saved == Saved::Bitsandbytes)
            else {
                continue;
            };
            let bytes = weights.read(&name, Kind::Uint8)?.f_reshape([-1])?;
            let state = serde_json::from_slice::<FourBits>(&Vec::<u8>::try_from(&bytes)?);
            let state = state.ok().filter(|state| {
                state.blocksize > 0 && state.shape.iter().all(|size| (1..1 << 31).contains(size))
            });
            let wrong = || Error::file(weights.path(), format!("`{name}` is no `quant_state`"));
            four_bits.insert(matrix.to_owned(), state.ok_or_else(wrong)?);
        }
        Ok(Self { saved, four_bits })
    }

    /// Whether this tensor only says how to read another one.
    pub(super) fn is_beside(&self, name: &str) -> bool {
        match self.saved {
            Saved::Fp8 { .. } => {
                let ends = [FACTORS, ".activation_scale", ".input_scale"];
                ends.iter().any(|end| name.ends_with(end))
            }
            Saved::Bitsandbytes => {
                const WEIGHT: &str = ".weight";
                let end = name.find(".weight.").map(|start| start + WEIGHT.len());
                let of_matrix = end.is_some_and(|end| self.four_bits.contains_key(&name[..end]));
                of_matrix || name.ends_with(".SCB") || name.ends_with(".weight_format")
            }
        }
    }

    /// The shape of a matrix whose file has another.
    pub(super) fn shape(&self, name: &str) -> Option<&[i64]> {
        self.four_bits.get(name).map(|state| state.shape.as_slice())
    }

    /// Reads a tensor of the file, or an element of its first dimension.
    ///
    /// # Errors
    /// If something is missing that says how to read it, or does not belong to it.
    pub(super) fn read(
        &self,
        weights: &Shards,
        name: &str,
        element: Option<i64>,
        kind: Kind,
    ) -> Result<Tensor, Error> {
        let read = |name: &str, kind| match element {
            Some(index) => weights.read_element(name, index, kind),
            None => weights.read(name, kind),
        };
        let values = match (self.saved, self.four_bits.get(name), weights.kind(name)) {
            (_, Some(state), _) => state.read(weights, name)?,
            (Saved::Fp8 { block }, _, Some(Kind::Float8e4m3fn)) => {
                let factors = read(&format!("{name}{FACTORS}"), Kind::Float)?;
                let values = read(name, Kind::Float)?;
                let factors = blockwise(&factors, &values.size(), block);
                values.f_mul(&factors.map_err(|reason| {
                    Error::file(weights.path(), format!("`{name}{FACTORS}` {reason}"))
                })?)?
            }
            (Saved::Bitsandbytes, _, Some(Kind::Int8)) => {
                let module = name.strip_suffix("weight").unwrap_or(name);
                let largest = read(&format!("{module}SCB"), Kind::Float)?;
                let factors = largest.f_reshape([-1, 1])?.f_div_scalar(127.0)?;
                read(name, Kind::Float)?.f_mul(&factors)?
            }
            _ => return read(name, kind),
        };
        Ok(values.f_to_kind(kind)?)
    }
}

/// A factor for each element of a matrix, from those of its blocks.
fn blockwise(factors: &Tensor, size: &[i64], block: Option<[i64; 2]>) -> Result<Tensor, String> {
    let (&[rows, columns], Some([high, wide])) = (size, block) else {
        return match factors.numel() {
            1 => factors
                .f_reshape([] as [i64; 0])
                .map_err(|error| error.to_string()),
            _ => Err(format!(
                "has {:?} factors for {size:?} numbers",
                factors.size()
            )),
        };
    };
    let count = [(rows + high - 1) / high, (columns + wide - 1) / wide];
    if factors.size() != count {
        return Err(format!(
            "has {:?} factors for {rows} x {columns} numbers in blocks of {high} x {wide}",
            factors.size()
        ));
    }
    let spread = || {
        let factors = factors.f_view([count[0], 1, count[1], 1])?;
        let factors = factors.f_expand([count[0], high, count[1], wide], false)?;
        let factors = factors.f_reshape([count[0] * high, count[1] * wide])?;
        factors.f_narrow(0, 0, rows)?.f_narrow(1, 0, columns)
    };
    spread().map_err(|error| error.to_string())
}

impl FourBits {
    fn read(&self, weights: &Shards, name: &str) -> Result<Tensor, Error> {
        let part = |end: &str, kind| weights.read(&format!("{name}.{end}"), kind);
        let looked_up = |levels: &Tensor, bytes: &Tensor| {
            let places = bytes.f_reshape([-1])?.f_to_kind(Kind::Int64)?;
            levels.f_index_select(0, &places)?.f_reshape([-1])
        };
        let largest = match self.nested_blocksize {
            None => part("absmax", Kind::Float)?,
            Some(block) => {
                let levels = part("nested_quant_map", Kind::Float)?;
                let shares = looked_up(&levels, &part("absmax", Kind::Uint8)?)?;
                let factors = part("nested_absmax", Kind::Float)?;
                let shares = by_block(&shares, &factors, block)?;
                shares.f_add_scalar(self.nested_offset.unwrap_or(0.0))?
            }
        };
        // Both numbers of each byte, of which the earlier one is in the higher half.
        let levels = part("quant_map", Kind::Float)?;
        let spread = |size| levels.f_view(size)?.f_expand([16, 16], false);
        let pairs = Tensor::f_stack(&[spread([16, 1])?, spread([1, 16])?], -1)?;
        let values = looked_up(&pairs.f_view([256, 2])?, &weights.read(name, Kind::Uint8)?)?;
        let numbers = self.shape.iter().product::<i64>();
        let fits = values.numel() as i64 - numbers <= 1
            && largest.numel() as i64 == (numbers + self.blocksize - 1) / self.blocksize;
        if !fits || (values.numel() as i64) < numbers {
            let reason = format!("`{name}` has not as many numbers as its `quant_state` says");
            return Err(Error::file(weights.path(), reason));
        }
        let values = by_block(&values.f_narrow(0, 0, numbers)?, &largest, self.blocksize)?;
        Ok(values.f_reshape(self.shape.as_slice())?)
    }
}

/// Numbers in a row, each times the factor of its block.
fn by_block(numbers: &Tensor, factors: &Tensor, block: i64) -> Result<Tensor, Error> {
    let factors = factors.f_reshape([-1, 1])?.f_expand([-1, block], false)?;
    let factors = factors.f_reshape([-1])?;
    Ok(numbers.f_mul(&factors.f_narrow(0, 0, numbers.numel() as i64)?)?)
}
