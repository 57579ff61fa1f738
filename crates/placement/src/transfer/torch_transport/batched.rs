//! The direct strategy on an accelerator, for one or more tensors: copies, overlapped with the checksums of
//! both sides.
//!
//! ```text
//!   other cores      sum a ┬ sum b ┬ sum c ┬ …
//!   copies                 └ copy a └ copy b └ copy c …       each piece after its checksum
//!   side stream                       └ sum a, b, c, slab by slab ─▶ one copy back
//! ```
//!
//! The source is checksummed in pieces, each before its copy is started, so the device gets what was
//! checksummed, or a difference shows. Checksums on the device run on their own stream, so the next copy does
//! not wait for them.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tch::{Device, Tensor};
use torch_ext::accelerator::{self, DeviceIndex, Event, Stream};
use torch_ext::{Error, copy_into};

use super::HostTensor;
use super::copies::empty_on;
use super::deferred_drop::{drop_when_safe, filled, nothing_to_wait_for};
use super::elements::size_in_bytes;
use super::sums::{Summing, bytes_of, rows_of};
use crate::transfer::checksum::{Checksum, ROW_BYTES, RowSum};
use crate::transfer::transport::ChecksummedCopy;

/// A contiguous tensor, and whether to compute checksums.
pub(super) type CopyJob = (HostTensor, bool);

/// The result of each job: its own error at most, as long as libtorch remains usable.
pub(super) type Copied = Vec<Result<ChecksummedCopy<Tensor>, Error>>;

/// Starts the copies, and waits for them if all could be checksummed on the device. `side`: a row's weights
/// on the device, if its checksums can be trusted, and the stream to compute on.
///
/// # Errors
/// One that invalidates the context; others are reported per job.
pub(super) fn copy_batched(
    loads: &[CopyJob],
    device: Device,
    side: Option<(Tensor, Stream)>,
) -> Result<Copied, Error> {
    let mut in_flight = InFlight::default();
    match in_flight.go(loads, device, side) {
        Ok(()) => Ok(in_flight.copied),
        Err(error) => {
            // Copies may be in flight on one stream, and checksums that read their targets on another.
            let wait = || accelerator::synchronize(DeviceIndex::try_from(device)?);
            Err(drop_when_safe(in_flight, error, wait))
        }
    }
}

/// Device tensors that are not known to be complete.
#[derive(Default)]
struct InFlight {
    copied: Copied,
    device_sums: Option<DeviceSums>,
}

impl InFlight {
    fn go(
        &mut self,
        loads: &[CopyJob],
        device: Device,
        side: Option<(Tensor, Stream)>,
    ) -> Result<(), Error> {
        let mut sums_ahead = SumsAhead::new(loads)?;
        if let Some((weights, stream)) = side {
            self.device_sums = DeviceSums::new(loads, device, &weights, stream)?;
        }
        for (load, source) in loads.iter().enumerate() {
            let summed = copy_one(load, source, device, &mut sums_ahead, &mut self.device_sums);
            if let Some(sums) = &mut self.device_sums {
                sums.end_load(summed.as_ref().ok());
            }
            self.copied.push(usable(summed)?);
        }
        let Some(sums) = &mut self.device_sums else {
            return Ok(());
        };
        for (summed, arrived) in self.copied.iter_mut().zip(sums.read()?.unwrap_or_default()) {
            if let Ok(summed) = summed {
                summed.arrived = arrived;
            }
        }
        Ok(())
    }
}

/// Separates errors after which the device is unusable.
fn usable<T>(outcome: Result<T, Error>) -> Result<Result<T, Error>, Error> {
    match outcome {
        Err(error) if !error.context_is_usable() => Err(error),
        other => Ok(other),
    }
}

/// A range of a source, in bytes.
#[derive(Clone, Copy)]
struct Piece {
    start: i64,
    length: i64,
}

/// The smallest piece size, and the largest for pageable and for pinned memory.
///
/// Sizes grow, so that the first copy starts early and large tensors are not split needlessly. A copy from
/// pageable memory runs on this core; its pieces are small enough to be still in the caches when they are
/// copied, after they have been read for the checksum.
const PIECES: [i64; 3] = [
    16 * ROW_BYTES as i64,
    64 * ROW_BYTES as i64,
    512 * ROW_BYTES as i64,
];

/// Checksums of the sources, piece by piece: computed on other cores a little ahead of the copies, or here if
/// those are busy.
struct SumsAhead {
    /// Each source as bytes, with its pieces; no pieces if it gets no checksum.
    loads: Vec<(Tensor, Vec<Piece>)>,
    /// Pieces offered to other cores and not collected yet, in copy order.
    offered: VecDeque<OfferedSum>,
    /// The next piece to offer: job and index.
    next: (usize, usize),
}

/// A piece offered to another core. After this is dropped, none reads it any more.
struct OfferedSum {
    load: usize,
    piece: Piece,
    order: Arc<SumJob>,
    sum: Receiver<Result<Checksum, Error>>,
}

/// The bytes of a piece, and where to send the checksum. Whoever claims it computes the checksum; what then
/// remains in the other cores' queue holds no memory.
type SumJob = Mutex<Option<PendingSum>>;

/// The bytes to sum, and where to send the result.
type PendingSum = (HostTensor, Sender<Result<Checksum, Error>>);

fn claim(order: &SumJob) -> Option<PendingSum> {
    order.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl OfferedSum {
    fn new(load: usize, piece: Piece, bytes: HostTensor) -> OfferedSum {
        let (answer, sum) = channel();
        let order = Arc::new(Mutex::new(Some((bytes, answer))));
        let offered = Arc::clone(&order);
        rayon::spawn_fifo(move || {
            if let Some((bytes, answer)) = claim(&offered) {
                let sum = bytes.bytes().map(Checksum::on_one_core);
                // Before sending the result, after which the memory may be freed or written to.
                drop(bytes);
                // If the copy has failed meanwhile, nobody is waiting any more.
                let _ = answer.send(sum);
            }
        });
        OfferedSum {
            load,
            piece,
            order,
            sum,
        }
    }

    /// The checksum, computed here if no other core has claimed it.
    fn sum(self) -> Result<Checksum, Error> {
        let not_begun = claim(&self.order).map(|(bytes, _)| bytes);
        match not_begun {
            Some(bytes) => bytes.bytes().map(Checksum::on_one_core),
            None => self.sum.recv().unwrap_or_else(|_| Err(lost())),
        }
    }
}

impl Drop for OfferedSum {
    /// Claims the job back, or waits for the core that is computing it.
    fn drop(&mut self) {
        drop(claim(&self.order));
        // Also returns without a result, when the sender is dropped.
        let _ = self.sum.recv();
    }
}

fn lost() -> Error {
    Error::Torch("the checksum of the source was lost".into())
}

impl SumsAhead {
    /// Number of pieces to offer: enough to hide the wake-up latency of a core. More would be evicted from
    /// the caches before they are copied.
    const AHEAD: usize = 3;

    fn new(loads: &[CopyJob]) -> Result<SumsAhead, Error> {
        let [mut next, largest, largest_pinned] = PIECES;
        let mut cut = |(source, summed): &CopyJob| -> Result<(Tensor, Vec<Piece>), Error> {
            let mut pieces = Vec::new();
            let total = size_in_bytes(&source.0) as i64;
            // If this is unknown, the smaller size does no harm.
            let largest = match *summed && accelerator::is_pinned(&source.0).unwrap_or(false) {
                true => largest_pinned,
                false => largest,
            };
            let mut start = 0;
            while *summed && start < total {
                let length = next.min(total - start);
                next = (2 * next).min(largest);
                pieces.push(Piece { start, length });
                start += length;
            }
            Ok((bytes_of(&source.0)?, pieces))
        };
        Ok(SumsAhead {
            loads: loads.iter().map(&mut cut).collect::<Result<_, _>>()?,
            offered: VecDeque::new(),
            next: (0, 0),
        })
    }

    /// The pieces of a job.
    fn pieces(&self, load: usize) -> Vec<Piece> {
        let (_, pieces) = &self.loads[load];
        pieces.clone()
    }

    /// The checksum of a piece. Pieces are taken in order, but those of a failed job may be skipped.
    fn take(&mut self, load: usize, piece: Piece) -> Result<Checksum, Error> {
        loop {
            while self.offered.len() <= Self::AHEAD && self.offer_next()? {}
            let offered = self.offered.pop_front().ok_or_else(lost)?;
            if (offered.load, offered.piece.start) == (load, piece.start) {
                return offered.sum();
            }
        }
    }

    /// Offers the next piece; returns whether there was one.
    fn offer_next(&mut self) -> Result<bool, Error> {
        let (load, piece) = loop {
            let (load, number) = self.next;
            match self.loads.get(load).map(|(_, pieces)| pieces.get(number)) {
                None => return Ok(false),
                Some(None) => self.next = (load + 1, 0),
                Some(Some(piece)) => {
                    self.next = (load, number + 1);
                    break (load, *piece);
                }
            }
        };
        let bytes = self.bytes(load, piece)?;
        self.offered.push_back(OfferedSum::new(load, piece, bytes));
        Ok(true)
    }

    fn bytes(&self, load: usize, piece: Piece) -> Result<HostTensor, Error> {
        let (bytes, _) = &self.loads[load];
        Ok(HostTensor(bytes.f_narrow(0, piece.start, piece.length)?))
    }
}

/// Starts the copy of one tensor and, if requested, both checksums.
fn copy_one(
    load: usize,
    (HostTensor(source), summed): &CopyJob,
    device: Device,
    sums_ahead: &mut SumsAhead,
    device_sums: &mut Option<DeviceSums>,
) -> Result<ChecksummedCopy<Tensor>, Error> {
    let target = empty_on(source, device)?;
    let (arrived, mut sent) = (None, None);
    let started = filled(
        target.shallow_clone(),
        |target| match summed {
            true => {
                sent = Some(copy_with_checksum(
                    load,
                    source,
                    target,
                    sums_ahead,
                    device_sums,
                )?);
                Ok(())
            }
            false => copy_into(target, source, true),
        },
        nothing_to_wait_for,
    );
    if let (Err(_), Some(sums)) = (&started, device_sums) {
        // The side stream may still be reading it.
        sums.kept.push(target);
    }
    Ok(ChecksummedCopy {
        remote: started?,
        sent,
        arrived,
    })
}

/// Starts the copy of one tensor and, piece by piece, both checksums. Returns that of the source.
fn copy_with_checksum(
    load: usize,
    source: &Tensor,
    target: &Tensor,
    sums_ahead: &mut SumsAhead,
    device_sums: &mut Option<DeviceSums>,
) -> Result<Checksum, Error> {
    let (from, to) = (bytes_of(source)?, bytes_of(target)?);
    let total = size_in_bytes(source);
    let mut rows = Vec::with_capacity(rows_of(target));
    let [.., enough] = PIECES;
    let mut unsummed = 0;
    for piece in sums_ahead.pieces(load) {
        let Piece { start, length } = piece;
        rows.extend_from_slice(sums_ahead.take(load, piece)?.rows());
        copy_into(
            &mut to.f_narrow(0, start, length)?,
            &from.f_narrow(0, start, length)?,
            true,
        )?;
        let copied = start + length;
        if (copied - unsummed >= enough || copied == total as i64)
            && let Some(sums) = device_sums
        {
            if !sums.add(&to, unsummed, copied - unsummed)? {
                *device_sums = None;
            }
            unsummed = copied;
        }
    }
    Ok(Checksum::from_rows(total, rows))
}

/// Checksums on the device, on a stream that follows the copies.
struct DeviceSums {
    summing: Summing,
    index: DeviceIndex,
    stream: Stream,
    event: Event,
    /// Pieces that were copied but not yet passed to the side stream: one wait covers many small ones.
    copied: Vec<(Tensor, i64, i64)>,
    waiting: i64,
    /// The number of checksummed rows of each job, and its bytes if the rows cover all of it.
    loads: Vec<(usize, Option<u64>)>,
    /// Rows of the current job.
    rows: usize,
    /// Targets of failed copies that are already being checksummed: kept until all checksums are known.
    kept: Vec<Tensor>,
    /// A step failed, and not even the side stream could be synchronised: there are no checksums, but it may
    /// still read.
    has_failed: bool,
}

impl DeviceSums {
    /// `None` if the device lacks the memory: tensors are then verified one by one.
    fn new(
        loads: &[CopyJob],
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
        let event = Event::new(index)?;
        let _side = stream.enter()?;
        let summing = usable(Summing::new(rows, weights))?;
        Ok(summing.ok().map(|summing| DeviceSums {
            summing,
            index,
            stream,
            event,
            copied: Vec::new(),
            waiting: 0,
            loads: Vec::with_capacity(loads.len()),
            rows: 0,
            kept: Vec::new(),
            has_failed: false,
        }))
    }

    /// Adds a piece whose copy has been started on the current stream. Returns whether checksums can
    /// continue.
    fn add(&mut self, bytes: &Tensor, start: i64, length: i64) -> Result<bool, Error> {
        self.rows += (length as usize).div_ceil(ROW_BYTES);
        self.waiting += length;
        self.copied.push((bytes.shallow_clone(), start, length));
        let [.., enough] = PIECES;
        match self.waiting < enough || self.has_failed {
            true => Ok(true),
            false => self.begin(),
        }
    }

    /// Starts the checksums of what has been added, ordered after the copies.
    fn begin(&mut self) -> Result<bool, Error> {
        self.waiting = 0;
        let begun = self.order_sums();
        let begun = keep(self.stream, begun);
        self.has_failed = begun.is_err();
        Ok(begun?.is_some())
    }

    fn order_sums(&mut self) -> Result<(), Error> {
        self.event.record(Stream::current(self.index)?)?;
        self.stream.wait_for(&self.event)?;
        let _side = self.stream.enter()?;
        for (bytes, start, length) in &self.copied {
            self.summing.add(bytes, *start, *length)?;
        }
        self.copied.clear();
        Ok(())
    }

    /// Ends a job; `None` if it failed.
    fn end_load(&mut self, load: Option<&ChecksummedCopy<Tensor>>) {
        let summed = load.filter(|load| load.sent.is_some());
        let bytes = summed.map(|load| size_in_bytes(&load.remote));
        self.loads.push((std::mem::take(&mut self.rows), bytes));
    }

    /// The checksum of each job, if it has one, once all are known; everything has then arrived.
    fn read(&mut self) -> Result<Option<Vec<Option<Checksum>>>, Error> {
        if self.has_failed {
            self.stream.synchronize()?;
            return Ok(None);
        }
        let read = self.order_sums().and_then(|()| {
            let _side = self.stream.enter()?;
            self.summing.read()
        });
        let Some(rows) = keep(self.stream, read)? else {
            return Ok(None);
        };
        let mut rows = rows.into_iter();
        let sums = self.loads.iter().map(|(count, bytes)| {
            let rows: Vec<RowSum> = rows.by_ref().take(*count).collect();
            Some(Checksum::from_rows((*bytes)?, rows))
        });
        Ok(Some(sums.collect()))
    }
}

/// The result of a step, `None` if it failed: nothing on the side stream reads the tensors then.
fn keep<T>(stream: Stream, outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match usable(outcome)? {
        Ok(value) => Ok(Some(value)),
        Err(_) => {
            stream.synchronize()?;
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    const PIECE: Piece = Piece {
        start: 0,
        length: 5000,
    };

    fn bytes() -> HostTensor {
        let bytes: Vec<u8> = (0..PIECE.length).map(|at| (at % 251) as u8).collect();
        HostTensor(Tensor::from_slice(&bytes))
    }

    /// The tests must not run in parallel: they would wait for each other's cores.
    static CORES: Mutex<()> = Mutex::new(());

    /// Keeps all other cores busy until `work` is done.
    fn while_others_are_busy(work: impl FnOnce()) {
        let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
        let cores = rayon::current_num_threads();
        let [all_busy, done] = [(); 2].map(|()| Arc::new(Barrier::new(cores + 1)));
        for _ in 0..cores {
            let (all_busy, done) = (Arc::clone(&all_busy), Arc::clone(&done));
            rayon::spawn(move || {
                all_busy.wait();
                done.wait();
            });
        }
        all_busy.wait();
        work();
        done.wait();
    }

    #[test]
    fn a_piece_that_is_summed_here_is_not_kept_by_the_queue() {
        while_others_are_busy(|| {
            let offered = OfferedSum::new(0, PIECE, bytes());
            let order = Arc::clone(&offered.order);
            let sum = offered.sum().unwrap();
            assert_eq!(sum, Checksum::of(bytes().bytes().unwrap()));
            assert!(claim(&order).is_none());
        });
    }

    #[test]
    fn a_piece_that_nobody_asks_about_is_not_kept_by_the_queue() {
        while_others_are_busy(|| {
            let source = (bytes(), true);
            let mut ahead = SumsAhead::new(&[source]).unwrap();
            assert!(ahead.offer_next().unwrap());
            let order = Arc::clone(&ahead.offered[0].order);
            drop(ahead);
            assert!(claim(&order).is_none());
        });
    }

    #[test]
    fn the_sum_is_that_of_the_piece_whoever_takes_it() {
        let whole = Checksum::of(bytes().bytes().unwrap());
        for _ in 0..200 {
            assert_eq!(OfferedSum::new(0, PIECE, bytes()).sum().unwrap(), whole);
        }
    }
}
