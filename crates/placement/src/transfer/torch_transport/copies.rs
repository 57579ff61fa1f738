//! The copy methods, as libtorch operations.

use tch::{Device, Tensor};
use torch_ext::accelerator::{self, DeviceIndex, Event, Stream};
use torch_ext::{Error, copy_into};

use super::deferred_drop::{filled, nothing_to_wait_for};
use platform::Bytes;

/// An empty, contiguous tensor on the device with the shape and type of `source`.
pub(super) fn empty_on(source: &Tensor, device: Device) -> Result<Tensor, Error> {
    Ok(Tensor::f_empty(source.size(), (source.kind(), device))?)
}

pub(super) fn copy_direct(source: &Tensor, target: Tensor) -> Result<Tensor, Error> {
    let copy = |target: &mut Tensor| copy_into(target, source, false);
    filled(target, copy, nothing_to_wait_for)
}

/// A buffer for [`copy_chunked`] of `chunk` bytes, or fewer if the source is smaller.
pub(super) fn chunk_buffer(source: &Tensor, chunk: Bytes, staging: bool) -> Result<Tensor, Error> {
    let width = source.kind().elt_size_in_bytes() as u64;
    let step = i64::try_from(chunk.0 / width)
        .unwrap_or(i64::MAX)
        .clamp(1, (source.numel() as i64).max(1));
    let buffer = Tensor::f_empty([step], (source.kind(), Device::Cpu))?;
    match staging {
        true => accelerator::pin_memory(&buffer),
        false => Ok(buffer),
    }
}

/// Copies through one buffer, chunk by chunk. Blocking copies make sure that each chunk is complete before
/// the next one overwrites the buffer.
pub(super) fn copy_chunked(
    source: &Tensor,
    target: Tensor,
    buffer: &Tensor,
) -> Result<Tensor, Error> {
    let copy = |target: &mut Tensor| {
        let (from, to) = (source.f_view(-1)?, target.f_view(-1)?);
        let (count, step) = (from.numel() as i64, buffer.numel() as i64);
        let mut start = 0;
        while start < count {
            let length = step.min(count - start);
            let mut piece = buffer.f_narrow(0, 0, length)?;
            copy_into(&mut piece, &from.f_narrow(0, start, length)?, false)?;
            copy_into(&mut to.f_narrow(0, start, length)?, &piece, false)?;
            start += length;
        }
        Ok(())
    };
    filled(target, copy, nothing_to_wait_for)
}

/// Copies on a side stream, ordered after the work queued on the current one, and complete on return.
pub(super) fn copy_on_other_stream(
    source: &Tensor,
    target: impl FnOnce() -> Result<Tensor, Error>,
) -> Result<Tensor, Error> {
    let target = target()?;
    let index = DeviceIndex::try_from(target.device())?;
    let (current, side) = (Stream::current(index)?, Stream::new(index)?);
    let mut allocated = Event::new(index)?;
    let copy = |target: &mut Tensor| {
        allocated.record(current)?;
        side.wait_for(&allocated)?;
        {
            let _side = side.enter()?;
            copy_into(target, source, true)?;
        }
        side.uses(target)?;
        side.synchronize()
    };
    filled(target, copy, || side.synchronize())
}

/// A device view of host memory. Pageable memory is first copied to pinned memory, which then is the only
/// copy.
pub(super) fn map_into(source: &Tensor, device: Device) -> Result<Tensor, Error> {
    let index = DeviceIndex::try_from(device)?;
    let pinned = match accelerator::is_pinned(source)? {
        true => source.shallow_clone(),
        false => accelerator::pin_memory(source)?,
    };
    accelerator::map_pinned(&pinned, index)
}
