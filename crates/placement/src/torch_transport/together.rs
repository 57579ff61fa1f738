//! The direct way on an accelerator, for one tensor or several: copies, and the sums of both sides beside them.
//!
//! ```text
//!   other cores      sum a ┬ sum b ┬ sum c ┬ …
//!   copies                 └ copy a └ copy b └ copy c …       each piece after its sum
//!   side stream                       └ sum a, b, c, slab by slab ─▶ one copy back
//! ```
//!
//! The source is summed in pieces, each before its copy is started. So what the device gets is what was summed, or a
//! difference shows. What the device sums runs on a stream of its own, so that the next copy does not wait for it.

use std::sync::mpsc::{Receiver, channel};

use tch::{Device, Tensor};
use torch_ext::accelerator::{DeviceIndex, Event, Stream};
use torch_ext::{Error, copy_into};

use super::HostTensor;
use super::elements::size_in_bytes;
use super::sums::{Summing, bytes_of, rows_of};
use super::ways::empty_on;
use crate::checksum::{Checksum, ROW_BYTES, RowSum};
use crate::transport::Summed;

/// A contiguous tensor, and whether it is to be summed.
pub(super) type Load = (HostTensor, bool);

/// What became of each load: nothing but its own error, where libtorch can go on.
pub(super) type Copied = Vec<Result<Summed<Tensor>, Error>>;

/// Starts the copies, and waits for them if anything could be summed on the device. `side` are the weights of a row
/// on the device, if it is believed to compute, and the stream to do that on.
///
/// # Errors
/// One that ends the context; others are those of single loads.
pub(super) fn copy_together(
    loads: &[Load],
    device: Device,
    side: Option<(Tensor, Stream)>,
) -> Result<Copied, Error> {
    let mut sums_ahead = sum_ahead(loads)?.into_iter();
    let mut device_sums = match side {
        Some((weights, stream)) => DeviceSums::new(loads, device, &weights, stream)?,
        None => None,
    };
    let mut copied = Copied::with_capacity(loads.len());
    for ((source, _), pieces) in loads.iter().zip(&mut sums_ahead) {
        let summed = copy_one(source, device, pieces, &mut device_sums);
        if let Some(sums) = &mut device_sums {
            sums.end_load(summed.as_ref().ok());
        }
        copied.push(usable(summed)?);
    }
    let Some(arrived) = device_sums.map(DeviceSums::read).transpose()?.flatten() else {
        return Ok(copied);
    };
    for (summed, arrived) in copied.iter_mut().zip(arrived) {
        if let Ok(summed) = summed {
            summed.arrived = arrived;
        }
    }
    Ok(copied)
}

/// Takes out an error after which nothing on the device may be used.
fn usable<T>(outcome: Result<T, Error>) -> Result<Result<T, Error>, Error> {
    match outcome {
        Err(error) if !error.context_is_usable() => Err(error),
        other => Ok(other),
    }
}

/// Part of a source, and its sum when that is ready.
struct Piece {
    start: i64,
    length: i64,
    sum: Option<Receiver<Checksum>>,
}

/// Begins to sum all sources, on other cores, in the order in which they will be copied.
///
/// The pieces grow: the first copy begins soon, and large tensors are not cut up for nothing.
fn sum_ahead(loads: &[Load]) -> Result<Vec<Vec<Piece>>, Error> {
    const FIRST: i64 = 16 * ROW_BYTES as i64;
    const LARGEST: i64 = 512 * ROW_BYTES as i64;
    let mut next = FIRST;
    let mut cut = |(source, summed): &Load| -> Result<Vec<Piece>, Error> {
        let total = size_in_bytes(&source.0) as i64;
        if !summed {
            let (start, length, sum) = (0, total, None);
            return Ok(vec![Piece { start, length, sum }]);
        }
        let flat = bytes_of(&source.0)?;
        let mut pieces = Vec::new();
        let mut start = 0;
        while start < total {
            let length = next.min(total - start);
            next = (2 * next).min(LARGEST);
            let piece = HostTensor(flat.f_narrow(0, start, length)?);
            let (answer, sum) = channel();
            rayon::spawn_fifo(move || {
                // The copy may have failed meanwhile, and nobody waits any more.
                let _ = answer.send(Checksum::on_one_core(piece.bytes()));
            });
            let sum = Some(sum);
            pieces.push(Piece { start, length, sum });
            start += length;
        }
        Ok(pieces)
    };
    loads.iter().map(&mut cut).collect()
}

/// Starts the copy of one tensor, piece by piece, and of each piece its sum.
fn copy_one(
    source: &HostTensor,
    device: Device,
    pieces: Vec<Piece>,
    device_sums: &mut Option<DeviceSums>,
) -> Result<Summed<Tensor>, Error> {
    let target = empty_on(&source.0, device)?;
    let (from, to) = (bytes_of(&source.0)?, bytes_of(&target)?);
    let total = size_in_bytes(&source.0);
    let mut rows = Vec::with_capacity(rows_of(&target));
    let mut summed = total == 0;
    for Piece { start, length, sum } in pieces {
        summed |= sum.is_some();
        if let Some(sum) = &sum {
            let lost = |_| Error::Torch("the sum of the source was lost".into());
            rows.extend_from_slice(sum.recv().map_err(lost)?.rows());
        }
        copy_into(
            &mut to.f_narrow(0, start, length)?,
            &from.f_narrow(0, start, length)?,
            true,
        )?;
        if sum.is_some()
            && let Some(sums) = device_sums
            && !sums.add(&to, start, length)?
        {
            *device_sums = None;
        }
    }
    Ok(Summed {
        remote: target,
        sent: summed.then(|| Checksum::from_rows(total, rows)),
        arrived: None,
    })
}

/// The sums on the device, on a stream that follows the copies.
struct DeviceSums {
    summing: Summing,
    index: DeviceIndex,
    stream: Stream,
    copied: Event,
    /// Rows of each load that were summed, and the bytes that these are, if they are all of it.
    loads: Vec<(usize, Option<u64>)>,
    /// Rows of the load on its way.
    rows: usize,
}

impl DeviceSums {
    /// `None` where the device has no memory for sums: what arrives is asked about one by one then.
    fn new(
        loads: &[Load],
        device: Device,
        weights: &Tensor,
        stream: Stream,
    ) -> Result<Option<DeviceSums>, Error> {
        let rows = loads.iter().filter(|(_, summed)| *summed);
        let rows: usize = rows.map(|(source, _)| rows_of(&source.0)).sum();
        if rows == 0 {
            return Ok(None);
        }
        let index = DeviceIndex::try_from(device)?;
        let copied = Event::new(index)?;
        let _side = stream.enter()?;
        let summing = usable(Summing::new(rows, weights))?;
        Ok(summing.ok().map(|summing| DeviceSums {
            summing,
            index,
            stream,
            copied,
            loads: Vec::with_capacity(loads.len()),
            rows: 0,
        }))
    }

    /// A piece whose copy has been started on the current stream. Says whether the sums can go on.
    fn add(&mut self, bytes: &Tensor, start: i64, length: i64) -> Result<bool, Error> {
        self.copied.record(Stream::current(self.index)?)?;
        self.stream.wait_for(&self.copied)?;
        let added = {
            let _side = self.stream.enter()?;
            self.summing.add(bytes, start, length)
        };
        self.rows += (length as usize).div_ceil(ROW_BYTES);
        Ok(keep(self.stream, added)?.is_some())
    }

    /// No more pieces of this load come; `None` when it failed.
    fn end_load(&mut self, load: Option<&Summed<Tensor>>) {
        let summed = load.filter(|load| load.sent.is_some());
        let bytes = summed.map(|load| size_in_bytes(&load.remote));
        self.loads.push((std::mem::take(&mut self.rows), bytes));
    }

    /// The checksum of each load, where there is one, when all are known; then everything has arrived.
    fn read(self) -> Result<Option<Vec<Option<Checksum>>>, Error> {
        let read = {
            let _side = self.stream.enter()?;
            self.summing.read()
        };
        let Some(rows) = keep(self.stream, read)? else {
            return Ok(None);
        };
        let mut rows = rows.into_iter();
        let sums = self.loads.into_iter().map(|(count, bytes)| {
            let rows: Vec<RowSum> = rows.by_ref().take(count).collect();
            Some(Checksum::from_rows(bytes?, rows))
        });
        Ok(Some(sums.collect()))
    }
}

/// What came of a step of the sums. After one that failed nothing on the side stream may still read the tensors.
fn keep<T>(stream: Stream, outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match usable(outcome)? {
        Ok(value) => Ok(Some(value)),
        Err(_) => {
            stream.synchronize()?;
            Ok(None)
        }
    }
}
