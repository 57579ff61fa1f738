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

/// A contiguous tensor, and whether it is to be summed.
pub(super) type Load = (HostTensor, bool);

/// What became of each load: nothing but its own error, where libtorch can go on.
pub(super) type Copied = Vec<Result<ChecksummedCopy<Tensor>, Error>>;

/// Starts the copies, and waits for them where all could be summed on the device. `side` are the weights of a row
/// on the device, if it is believed to compute, and the stream to do that on.
///
/// # Errors
/// One that ends the context; others are those of single loads.
pub(super) fn copy_together(
    loads: &[Load],
    device: Device,
    side: Option<(Tensor, Stream)>,
) -> Result<Copied, Error> {
    let mut in_flight = InFlight::default();
    match in_flight.go(loads, device, side) {
        Ok(()) => Ok(in_flight.copied),
        Err(error) => {
            // Copies may be under way on one stream, and on another sums that read what they bring.
            let wait = || accelerator::synchronize(DeviceIndex::try_from(device)?);
            Err(drop_when_safe(in_flight, error, wait))
        }
    }
}

/// What is on the device before it is known to be complete.
#[derive(Default)]
struct InFlight {
    copied: Copied,
    device_sums: Option<DeviceSums>,
}

impl InFlight {
    fn go(
        &mut self,
        loads: &[Load],
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

/// Takes out an error after which nothing on the device may be used.
fn usable<T>(outcome: Result<T, Error>) -> Result<Result<T, Error>, Error> {
    match outcome {
        Err(error) if !error.context_is_usable() => Err(error),
        other => Ok(other),
    }
}

/// Part of a source, as bytes of it.
#[derive(Clone, Copy)]
struct Piece {
    start: i64,
    length: i64,
}

/// The smallest piece, the largest of ordinary memory, and that of pinned memory.
///
/// They grow: the first copy begins soon, and large tensors are not cut up for nothing. A copy from memory that is
/// not pinned is made by this core; so its pieces are still in the caches when they are copied, and what was read
/// for the sum need not come from memory again.
const PIECES: [i64; 3] = [
    16 * ROW_BYTES as i64,
    64 * ROW_BYTES as i64,
    512 * ROW_BYTES as i64,
];

/// The sums of sources, piece by piece: taken on other cores a little ahead of the copies, or here where those are
/// busy.
struct SumsAhead {
    /// Each source as bytes, and its pieces; none of those that are not summed.
    loads: Vec<(Tensor, Vec<Piece>)>,
    /// What other cores were asked for, and not yet asked about, in the order of the copies.
    offered: VecDeque<Offered>,
    /// The next piece to offer: its load, and its number there.
    next: (usize, usize),
}

/// A piece that another core was asked to sum. Once this is dropped, none reads it any more.
struct Offered {
    load: usize,
    piece: Piece,
    order: Arc<Order>,
    sum: Receiver<Checksum>,
}

/// The bytes of a piece, and where their sum goes. Whoever takes it out sums them: what stays in the queue of the
/// other cores afterwards holds no memory.
type Order = Mutex<Option<(HostTensor, Sender<Checksum>)>>;

fn take_out(order: &Order) -> Option<(HostTensor, Sender<Checksum>)> {
    order.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Offered {
    fn new(load: usize, piece: Piece, bytes: HostTensor) -> Offered {
        let (answer, sum) = channel();
        let order = Arc::new(Mutex::new(Some((bytes, answer))));
        let offered = Arc::clone(&order);
        rayon::spawn_fifo(move || {
            if let Some((bytes, answer)) = take_out(&offered) {
                let sum = Checksum::on_one_core(bytes.bytes());
                // Before the answer: whoever has that may free or write to the memory.
                drop(bytes);
                // The copy may have failed meanwhile, and nobody waits any more.
                let _ = answer.send(sum);
            }
        });
        Offered {
            load,
            piece,
            order,
            sum,
        }
    }

    /// The sum, taken here if no other core has begun.
    fn sum(self) -> Result<Checksum, Error> {
        let not_begun = take_out(&self.order).map(|(bytes, _)| bytes);
        match not_begun {
            Some(bytes) => Ok(Checksum::on_one_core(bytes.bytes())),
            None => self.sum.recv().map_err(|_| lost()),
        }
    }
}

impl Drop for Offered {
    /// Takes the order back, or waits for the core that is at it.
    fn drop(&mut self) {
        drop(take_out(&self.order));
        // Ends also without an answer, when whoever took the order has dropped its sender.
        let _ = self.sum.recv();
    }
}

fn lost() -> Error {
    Error::Torch("the sum of the source was lost".into())
}

impl SumsAhead {
    /// How many pieces are offered: as many as hide the moment that a core takes to wake up. More would leave the
    /// caches before they are copied.
    const AHEAD: usize = 3;

    fn new(loads: &[Load]) -> Result<SumsAhead, Error> {
        let [mut next, largest, largest_pinned] = PIECES;
        let mut cut = |(source, summed): &Load| -> Result<(Tensor, Vec<Piece>), Error> {
            let mut pieces = Vec::new();
            let total = size_in_bytes(&source.0) as i64;
            // Where nobody can tell, the smaller ones do no harm.
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

    /// The pieces of a load.
    fn pieces(&self, load: usize) -> Vec<Piece> {
        let (_, pieces) = &self.loads[load];
        pieces.clone()
    }

    /// The sum of a piece; they are asked for in their order, but those of a load that failed may be left out.
    fn take(&mut self, load: usize, piece: Piece) -> Result<Checksum, Error> {
        loop {
            while self.offered.len() <= Self::AHEAD && self.offer_next()? {}
            let offered = self.offered.pop_front().ok_or_else(lost)?;
            if (offered.load, offered.piece.start) == (load, piece.start) {
                return offered.sum();
            }
        }
    }

    /// Whether there was one.
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
        self.offered.push_back(Offered::new(load, piece, bytes));
        Ok(true)
    }

    fn bytes(&self, load: usize, piece: Piece) -> Result<HostTensor, Error> {
        let (bytes, _) = &self.loads[load];
        Ok(HostTensor(bytes.f_narrow(0, piece.start, piece.length)?))
    }
}

/// Starts the copy of one tensor and, if that is wanted, both its sums.
fn copy_one(
    load: usize,
    (HostTensor(source), summed): &Load,
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
        // The side stream may be reading it.
        sums.kept.push(target);
    }
    Ok(ChecksummedCopy {
        remote: started?,
        sent,
        arrived,
    })
}

/// Starts the copy of one tensor and, piece by piece, both its sums. Returns that of the source.
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

/// The sums on the device, on a stream that follows the copies.
struct DeviceSums {
    summing: Summing,
    index: DeviceIndex,
    stream: Stream,
    event: Event,
    /// Pieces that were copied, and not yet given to the side stream: one order to wait serves many small ones.
    copied: Vec<(Tensor, i64, i64)>,
    waiting: i64,
    /// Rows of each load that were summed, and the bytes that these are, if they are all of it.
    loads: Vec<(usize, Option<u64>)>,
    /// Rows of the load on its way.
    rows: usize,
    /// Copies that failed when some of their bytes were being summed already: kept until all sums are known.
    kept: Vec<Tensor>,
    /// A step failed, and the side stream could not even be waited for: there are no sums, but it may still read.
    has_failed: bool,
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

    /// A piece whose copy has been started on the current stream. Says whether the sums can go on.
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

    /// Lets the device sum what has been added, after its copies.
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

    /// No more pieces of this load come; `None` when it failed.
    fn end_load(&mut self, load: Option<&ChecksummedCopy<Tensor>>) {
        let summed = load.filter(|load| load.sent.is_some());
        let bytes = summed.map(|load| size_in_bytes(&load.remote));
        self.loads.push((std::mem::take(&mut self.rows), bytes));
    }

    /// The checksum of each load, where there is one, when all are known; then everything has arrived.
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

/// What came of a step of the sums, `None` when it failed: nothing on the side stream reads the tensors then.
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

    /// Two at a time would wait for each other's cores.
    static CORES: Mutex<()> = Mutex::new(());

    /// Keeps all other cores from what is offered until `work` is done.
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
            let offered = Offered::new(0, PIECE, bytes());
            let order = Arc::clone(&offered.order);
            let sum = offered.sum().unwrap();
            assert_eq!(sum, Checksum::of(bytes().bytes()));
            assert!(take_out(&order).is_none());
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
            assert!(take_out(&order).is_none());
        });
    }

    #[test]
    fn the_sum_is_that_of_the_piece_whoever_takes_it() {
        let whole = Checksum::of(bytes().bytes());
        for _ in 0..200 {
            assert_eq!(Offered::new(0, PIECE, bytes()).sum().unwrap(), whole);
        }
    }
}
