//! The ways to copy, and the sum on the device, in libtorch's operations.

use tch::{Device, Kind, Tensor};
use torch_ext::accelerator::{self, DeviceIndex, Event, Stream};
use torch_ext::{Error, copy_into};

use super::elements::size_in_bytes;
use crate::bytes::Bytes;
use crate::checksum::{Checksum, ROW_BYTES, ROW_WORDS, RowSum};

/// Rows that the device sums at once: 4 MiB of a tensor, and 8 MiB for its products.
pub(super) const SLAB_ROWS: i64 = 256;

/// An empty, contiguous tensor on the device with the shape and kind of `source`.
fn empty_on(source: &Tensor, device: Device) -> Result<Tensor, Error> {
    Ok(Tensor::f_empty(source.size(), (source.kind(), device))?)
}

pub(super) fn copy_direct(source: &Tensor, device: Device) -> Result<Tensor, Error> {
    let mut target = empty_on(source, device)?;
    copy_into(&mut target, source, false)?;
    Ok(target)
}

/// Through one buffer, piece by piece; each piece is complete before the next one
/// overwrites the buffer, because a blocking copy returns only then.
pub(super) fn copy_chunked(
    source: &Tensor,
    device: Device,
    chunk: Bytes,
    staging: bool,
) -> Result<Tensor, Error> {
    let target = empty_on(source, device)?;
    let (from, to) = (source.f_view(-1)?, target.f_view(-1)?);
    let count = from.numel() as i64;
    let width = source.kind().elt_size_in_bytes() as u64;
    let step = i64::try_from(chunk.0 / width)
        .unwrap_or(i64::MAX)
        .clamp(1, count.max(1));
    let buffer = Tensor::f_empty([step], (source.kind(), Device::Cpu))?;
    let buffer = if staging {
        accelerator::pin_memory(&buffer)?
    } else {
        buffer
    };
    let mut start = 0;
    while start < count {
        let length = step.min(count - start);
        let mut piece = buffer.f_narrow(0, 0, length)?;
        copy_into(&mut piece, &from.f_narrow(0, start, length)?, false)?;
        copy_into(&mut to.f_narrow(0, start, length)?, &piece, false)?;
        start += length;
    }
    Ok(target)
}

/// On a side stream, ordered after what the current one has queued, with everything
/// complete on return.
pub(super) fn copy_on_other_stream(source: &Tensor, device: Device) -> Result<Tensor, Error> {
    let index = DeviceIndex::try_from(device)?;
    let mut target = empty_on(source, device)?;
    let (current, side) = (Stream::current(index)?, Stream::new(index)?);
    let mut allocated = Event::new(index)?;
    allocated.record(current)?;
    side.wait_for(&allocated)?;
    {
        let _side = side.enter()?;
        copy_into(&mut target, source, true)?;
    }
    side.uses(&target)?;
    side.synchronize()?;
    Ok(target)
}

/// Another view of host memory. Pageable memory is put into pinned memory first: one
/// copy, after which the pinned one is the only one.
pub(super) fn map_into(source: &Tensor, device: Device) -> Result<Tensor, Error> {
    let index = DeviceIndex::try_from(device)?;
    let pinned = match source.f_is_pinned(device)? {
        true => source.shallow_clone(),
        false => accelerator::pin_memory(source)?,
    };
    accelerator::map_pinned(&pinned, index)
}

/// The checksum of a contiguous tensor, by the tensor operations of
/// [`crate::checksum`], slab by slab.
pub(super) fn sum_rows(tensor: &Tensor, weights: &Tensor) -> Result<Checksum, Error> {
    let bytes = size_in_bytes(tensor);
    let flat = tensor.f_view(-1)?.f_view_dtype(Kind::Uint8)?;
    let row_bytes = ROW_BYTES as i64;
    let full_rows = bytes as i64 / row_bytes;
    let mut sums: Vec<RowSum> = Vec::with_capacity(bytes.div_ceil(ROW_BYTES as u64) as usize);
    let mut row = 0;
    while row < full_rows {
        let rows = SLAB_ROWS.min(full_rows - row);
        let slab = flat.f_narrow(0, row * row_bytes, rows * row_bytes)?;
        add_slab(&slab, weights, &mut sums)?;
        row += rows;
    }
    let rest = bytes as i64 - full_rows * row_bytes;
    if rest > 0 {
        let tail = flat.f_narrow(0, full_rows * row_bytes, rest)?;
        add_slab(
            &tail.f_constant_pad_nd([0, row_bytes - rest])?,
            weights,
            &mut sums,
        )?;
    }
    Ok(Checksum::from_rows(bytes, sums))
}

/// Sums the rows of a slab on the device and brings the sums to the host.
fn add_slab(slab: &Tensor, weights: &Tensor, sums: &mut Vec<RowSum>) -> Result<(), Error> {
    let words = slab
        .f_view_dtype(Kind::Int)?
        .f_view([-1, ROW_WORDS as i64])?;
    let plain = words.f_sum_dim_intlist([1_i64].as_slice(), false, Kind::Int64)?;
    let weighted =
        words
            .f_mul(weights)?
            .f_sum_dim_intlist([1_i64].as_slice(), false, Kind::Int64)?;
    let plain = Vec::<i64>::try_from(plain.f_to_device(Device::Cpu)?)?;
    let weighted = Vec::<i64>::try_from(weighted.f_to_device(Device::Cpu)?)?;
    let rows = plain.into_iter().zip(weighted);
    sums.extend(rows.map(|(plain, weighted)| RowSum { plain, weighted }));
    Ok(())
}
