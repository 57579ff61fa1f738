//! The sum on the device, in libtorch's operations, and whether the device can be believed to compute it.

use tch::{Device, Kind, Tensor};
use torch_ext::Error;

use super::elements::size_in_bytes;
use crate::checksum::{self, Checksum, ROW_BYTES, ROW_WORDS, RowSum};

/// Rows that the device sums at once: 16 MiB of a tensor, and 32 MiB for its products. Smaller slabs cost more
/// launches than they save memory.
pub(super) const SLAB_ROWS: i64 = 1024;

/// The weights of [`checksum::weights`] as an int64 tensor on the device.
pub(super) fn weights_on(device: Device) -> Result<Tensor, Error> {
    let weights: Vec<i64> = checksum::weights()
        .iter()
        .map(|&weight| i64::from(weight))
        .collect();
    Ok(Tensor::f_from_slice(&weights)?.f_to_device(device)?)
}

/// Whether the device's sum of numbers that it counted up itself is what it must be.
///
/// Kernels that run and do nothing, or that compute nonsense, are reported of cards in chipset slots and of
/// builds for the wrong architecture; and a simulated device runs none. Its sums prove nothing, and what
/// arrives there has to be read back instead.
pub(super) fn computes(device: Device, weights: &Tensor) -> Result<bool, Error> {
    // More than a row, and an end that has to be filled up.
    let count = 2 * ROW_WORDS as i32 + 1001;
    let numbers = Tensor::f_arange(i64::from(count), (Kind::Int, device))?;
    let bytes: Vec<u8> = (0..count).flat_map(i32::to_le_bytes).collect();
    Ok(sum_rows(&numbers, weights)? == Checksum::of(&bytes))
}

/// The checksum of a contiguous tensor, by the tensor operations of [`crate::checksum`], slab by slab. The
/// device is waited for once, when all are under way.
pub(super) fn sum_rows(tensor: &Tensor, weights: &Tensor) -> Result<Checksum, Error> {
    let bytes = size_in_bytes(tensor);
    let flat = tensor.f_view(-1)?.f_view_dtype(Kind::Uint8)?;
    let row_bytes = ROW_BYTES as i64;
    let full_rows = bytes as i64 / row_bytes;
    let all_rows = (bytes as i64 + row_bytes - 1) / row_bytes;
    if all_rows == 0 {
        return Ok(Checksum::from_rows(bytes, Vec::new()));
    }
    // Every slab writes its sums to their place, so that they come back in one copy without being joined first.
    let sums = Tensor::f_empty([2, all_rows], (Kind::Int64, tensor.device()))?;
    let (plain, weighted) = (sums.f_select(0, 0)?, sums.f_select(0, 1)?);
    let add = |slab: &Tensor, first_row: i64| -> Result<(), Error> {
        let words = slab
            .f_view_dtype(Kind::Int)?
            .f_view([-1, ROW_WORDS as i64])?;
        let rows = words.size().first().copied().unwrap_or(0);
        let by_row = [1_i64].as_slice();
        let plain = plain.f_narrow(0, first_row, rows)?;
        let _ = words.f_sum_intlist_out(&plain, by_row, false, Kind::Int64)?;
        let weighted = weighted.f_narrow(0, first_row, rows)?;
        let products = words.f_mul(weights)?;
        let _ = products.f_sum_intlist_out(&weighted, by_row, false, Kind::Int64)?;
        Ok(())
    };
    let mut row = 0;
    while row < full_rows {
        let rows = SLAB_ROWS.min(full_rows - row);
        add(&flat.f_narrow(0, row * row_bytes, rows * row_bytes)?, row)?;
        row += rows;
    }
    let rest = bytes as i64 - full_rows * row_bytes;
    if rest > 0 {
        let tail = flat.f_narrow(0, full_rows * row_bytes, rest)?;
        add(&tail.f_constant_pad_nd([0, row_bytes - rest])?, full_rows)?;
    }
    let sums = sums.f_view(-1)?.f_to_device(Device::Cpu)?;
    let sums = Vec::<i64>::try_from(sums)?;
    let (plain, weighted) = sums.split_at(sums.len() / 2);
    let rows = plain.iter().zip(weighted);
    let sums = rows.map(|(&plain, &weighted)| RowSum { plain, weighted });
    Ok(Checksum::from_rows(bytes, sums.collect()))
}
