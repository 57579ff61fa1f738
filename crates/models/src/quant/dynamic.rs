//! Dynamic 8-bit block-wise quantisation (Dettmers et al., "8-bit Optimizers via Block-wise Quantization",
//! 2022): a floating-point format whose number of exponent bits depends on the value.

use tch::{Device, Kind, Tensor};

use super::{blocks, largest, nearest, normalised};
use crate::Error;

/// Elements that share a scale.
const BLOCK: i64 = 256;

/// The range of a code book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Both signs, for AdamW's first moment.
    Signed,
    /// Non-negative, for its second moment.
    Unsigned,
}

/// The 256 values of a code book, in ascending order (bitsandbytes' `create_dynamic_map` with seven exponent
/// bits): in each of seven decades the midpoints of evenly spaced points, twice as many as in the decade
/// below; plus zero and one.
pub fn dynamic_map(code: Code) -> [f32; 256] {
    let mut values = vec![0.0, 1.0];
    for decade in 0..7 {
        let intervals = match code {
            Code::Signed => 1u32 << decade,
            Code::Unsigned => 2u32 << decade,
        };
        let scale = 10f64.powi(decade - 6);
        for interval in 0..intervals {
            // Points are evenly spaced on [0.1, 1], in fp32 like the reference.
            let point = |index: u32| 0.1 + 0.9 * f64::from(index) / f64::from(intervals);
            let middle = (point(interval) + point(interval + 1)) / 2.0;
            values.push((scale * middle) as f32);
            if code == Code::Signed {
                values.push((-scale * middle) as f32);
            }
        }
    }
    values.sort_by(f32::total_cmp);
    let mut map = [0.0; 256];
    for (place, value) in map.iter_mut().zip(values) {
        *place = value;
    }
    map
}

/// A tensor with 8 bits per element and a scale per 256 elements.
#[derive(Debug)]
pub struct Dynamic8 {
    /// `[blocks, 256]` indices into the code book.
    pub values: Tensor,
    /// `[blocks, 1]`: the absmax of each block.
    pub scales: Tensor,
    /// The code book, on the tensor's device.
    map: Tensor,
    shape: Vec<i64>,
}

impl Dynamic8 {
    /// Zeros of this shape.
    pub fn zeros(shape: &[i64], code: Code, device: Device) -> Result<Self, Error> {
        let map = Tensor::f_from_slice(&dynamic_map(code))?.f_to_device(device)?;
        let count = shape.iter().product::<i64>();
        let rows = (count + BLOCK - 1) / BLOCK;
        let zero = dynamic_map(code)
            .iter()
            .position(|value| *value == 0.0)
            .unwrap_or(0);
        Ok(Self {
            values: Tensor::f_full([rows, BLOCK], zero as i64, (Kind::Uint8, device))?,
            scales: Tensor::f_zeros([rows, 1], (Kind::Float, device))?,
            map,
            shape: shape.to_vec(),
        })
    }

    /// Quantises `tensor` into this one.
    pub fn store(&mut self, tensor: &Tensor) -> Result<(), Error> {
        if tensor.size() != self.shape {
            return Err(Error::Internal(format!(
                "{:?} stored as {:?}",
                tensor.size(),
                self.shape
            )));
        }
        self.store_range(0, tensor)
    }

    /// The values, in fp32.
    pub fn load(&self) -> Result<Tensor, Error> {
        let flat = self.load_range(0, self.count())?;
        Ok(flat.f_view(self.shape.as_slice())?)
    }

    /// Quantises `tensor` into the elements from `start` on. `start` must be a multiple of 256, and so must
    /// the length unless it reaches the end.
    ///
    /// # Errors
    /// If the range is not whole blocks, or memory runs out.
    pub fn store_range(&self, start: i64, tensor: &Tensor) -> Result<(), Error> {
        let (first, rows) = self.rows(start, tensor.numel() as i64)?;
        let numbers = blocks(tensor, BLOCK)?;
        let scales = largest(&numbers)?;
        let codes = nearest(&normalised(&numbers, &scales)?, &self.map)?;
        self.scales.f_narrow(0, first, rows)?.f_copy_(&scales)?;
        self.values.f_narrow(0, first, rows)?.f_copy_(&codes)?;
        Ok(())
    }

    /// `length` elements from `start` on, flat and in fp32; the range is as for [`Dynamic8::store_range`].
    ///
    /// # Errors
    /// If the range is not whole blocks, or memory runs out.
    pub fn load_range(&self, start: i64, length: i64) -> Result<Tensor, Error> {
        let (first, rows) = self.rows(start, length)?;
        let values = self.values.f_narrow(0, first, rows)?;
        let codes = values.f_reshape([-1])?.f_to_kind(Kind::Int)?;
        let numbers = self.map.f_index_select(0, &codes)?.f_view([-1, BLOCK])?;
        Ok(numbers
            .f_mul(&self.scales.f_narrow(0, first, rows)?)?
            .f_reshape([-1])?
            .f_narrow(0, 0, length)?)
    }

    /// The blocks of a range: the first, and how many.
    fn rows(&self, start: i64, length: i64) -> Result<(i64, i64), Error> {
        let end = start + length;
        let whole = start % BLOCK == 0 && (length % BLOCK == 0 || end == self.count());
        match whole && length > 0 && end <= self.count() {
            true => Ok((start / BLOCK, (length + BLOCK - 1) / BLOCK)),
            false => Err(Error::Internal(format!(
                "numbers {start} to {end} of {} in blocks of {BLOCK}",
                self.count()
            ))),
        }
    }

    fn count(&self) -> i64 {
        self.shape.iter().product()
    }
}
