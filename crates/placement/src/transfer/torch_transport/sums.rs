//! Checksums on the device as libtorch operations, and whether they can be trusted.

use tch::{Device, Kind, Tensor};
use torch_ext::Error;

use super::elements::size_in_bytes;
use crate::transfer::checksum::{self, Checksum, ROW_BYTES, ROW_WORDS, RowSum};

/// Rows per slab: 16 MiB of a tensor, and 32 MiB for the products. Smaller slabs cost more in launches than
/// they save in memory.
pub(super) const SLAB_ROWS: i64 = 1024;

/// The weights of [`checksum::weights`] as an int64 tensor on the device.
pub(super) fn weights_on(device: Device) -> Result<Tensor, Error> {
    let weights: Vec<i64> = checksum::weights()
        .iter()
        .map(|&weight| i64::from(weight))
        .collect();
    Ok(Tensor::f_from_slice(&weights)?.f_to_device(device)?)
}

/// Whether the device computes the right checksum of a sequence that it generated itself.
///
/// Kernels that do nothing, or compute garbage, have been reported for cards in chipset slots and for builds
/// for the wrong architecture; and a simulated device runs none. Their checksums prove nothing, so tensors
/// have to be read back instead.
pub(super) fn computes(device: Device, weights: &Tensor) -> Result<bool, Error> {
    // More than a row, with a tail that needs padding.
    let count = 2 * ROW_WORDS as i32 + 1001;
    let numbers = Tensor::f_arange(i64::from(count), (Kind::Int, device))?;
    let bytes: Vec<u8> = (0..count).flat_map(i32::to_le_bytes).collect();
    Ok(sum_rows(&numbers, weights)? == Checksum::of(&bytes))
}

/// The checksum of one contiguous tensor.
pub(super) fn sum_rows(tensor: &Tensor, weights: &Tensor) -> Result<Checksum, Error> {
    let mut summing = Summing::new(rows_of(tensor), weights)?;
    summing.add(&bytes_of(tensor)?, 0, size_in_bytes(tensor) as i64)?;
    Ok(Checksum::from_rows(size_in_bytes(tensor), summing.read()?))
}

/// A contiguous tensor viewed as bytes.
pub(super) fn bytes_of(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(tensor.f_view(-1)?.f_view_dtype(Kind::Uint8)?)
}

/// Number of rows of a tensor; the last one may be short.
pub(super) fn rows_of(tensor: &Tensor) -> usize {
    (size_in_bytes(tensor) as usize).div_ceil(ROW_BYTES)
}

/// A range of a tensor's bytes.
struct Part {
    bytes: Tensor,
    start: i64,
    length: i64,
}

/// Checksums of contiguous tensors, with the operations of [`crate::transfer::checksum`], slab by slab, in
/// flight on the current stream. Reading them is the only synchronisation.
///
/// Small tensors are combined into one slab, so that the cost depends on their bytes and not on their number.
pub(super) struct Summing {
    weights: Tensor,
    /// Plain sums in the first row, weighted ones in the second. Every slab writes to its range, so all are
    /// copied back at once.
    sums: Tensor,
    /// Number of rows done.
    row: i64,
    /// The ranges that make up the next slab.
    parts: Vec<Part>,
    rows: i64,
    /// Padding for short rows.
    zeros: Option<Tensor>,
}

impl Summing {
    /// For this many rows in total.
    pub(super) fn new(rows: usize, weights: &Tensor) -> Result<Summing, Error> {
        Ok(Summing {
            weights: weights.shallow_clone(),
            sums: Tensor::f_empty([2, rows as i64], (Kind::Int64, weights.device()))?,
            row: 0,
            parts: Vec::new(),
            rows: 0,
            zeros: None,
        })
    }

    /// Adds rows after those added before: bytes of a tensor, from the start of a row to the end of the
    /// tensor or the start of another row.
    pub(super) fn add(&mut self, bytes: &Tensor, start: i64, length: i64) -> Result<(), Error> {
        let row_bytes = ROW_BYTES as i64;
        let full_rows = length / row_bytes;
        let mut row = 0;
        while row < full_rows {
            let rows = (SLAB_ROWS - self.rows).min(full_rows - row);
            self.put(bytes, start + row * row_bytes, rows * row_bytes);
            self.complete(rows)?;
            row += rows;
        }
        let rest = length - full_rows * row_bytes;
        if rest > 0 {
            let zeros = match self.zeros.take() {
                Some(zeros) => zeros,
                None => Tensor::f_zeros([row_bytes], (Kind::Uint8, bytes.device()))?,
            };
            self.put(bytes, start + full_rows * row_bytes, rest);
            self.put(&zeros, 0, row_bytes - rest);
            self.zeros = Some(zeros);
            self.complete(1)?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &Tensor, start: i64, length: i64) {
        match self.parts.last_mut() {
            // It continues the previous range.
            Some(last)
                if last.bytes.data_ptr() == bytes.data_ptr()
                    && last.start + last.length == start =>
            {
                last.length += length;
            }
            _ => self.parts.push(Part {
                bytes: bytes.shallow_clone(),
                start,
                length,
            }),
        }
    }

    fn complete(&mut self, rows: i64) -> Result<(), Error> {
        self.rows += rows;
        match self.rows < SLAB_ROWS {
            true => Ok(()),
            false => self.start_slab(),
        }
    }

    /// Starts the computation of the collected slab.
    fn start_slab(&mut self) -> Result<(), Error> {
        let parts = std::mem::take(&mut self.parts);
        let parts = parts
            .iter()
            .map(|part| part.bytes.f_narrow(0, part.start, part.length))
            .collect::<Result<Vec<_>, _>>()?;
        let rows = std::mem::take(&mut self.rows);
        let words = match parts.as_slice() {
            [] => return Ok(()),
            [part] => part.f_view_dtype(Kind::Int)?,
            parts if parts.iter().all(|part| part.numel() % 4 == 0) => {
                // Four bytes at a time where possible.
                let words = parts.iter().map(|part| part.f_view_dtype(Kind::Int));
                Tensor::f_cat(&words.collect::<Result<Vec<_>, _>>()?, 0)?
            }
            parts => Tensor::f_cat(parts, 0)?.f_view_dtype(Kind::Int)?,
        };
        let words = words.f_view([-1, ROW_WORDS as i64])?;
        let place = |sums: i64| self.sums.f_select(0, sums)?.f_narrow(0, self.row, rows);
        let (plain, weighted) = (place(0)?, place(1)?);
        let by_row = [1_i64].as_slice();
        let _ = words.f_sum_intlist_out(&plain, by_row, false, Kind::Int64)?;
        let products = words.f_mul(&self.weights)?;
        let _ = products.f_sum_intlist_out(&weighted, by_row, false, Kind::Int64)?;
        self.row += rows;
        Ok(())
    }

    /// Waits for the sums of all added rows.
    pub(super) fn read(&mut self) -> Result<Vec<RowSum>, Error> {
        self.start_slab()?;
        let sums = self.sums.f_narrow(1, 0, self.row)?.f_contiguous()?;
        let sums = Vec::<i64>::try_from(sums.f_view(-1)?.f_to_device(Device::Cpu)?)?;
        let (plain, weighted) = sums.split_at(sums.len() / 2);
        let rows = plain.iter().zip(weighted);
        let sums = rows.map(|(&plain, &weighted)| RowSum { plain, weighted });
        Ok(sums.collect())
    }
}
