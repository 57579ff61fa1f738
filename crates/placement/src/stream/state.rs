//! The slots, what is in them, and the copies that fill them.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_ext::Error;
use torch_ext::accelerator::{self, Event, Stream};
use torch_ext::copy_into;

use super::home::{Home, Homes, Master, Read, Reader};
use super::{StreamOptions, StreamReport};
use crate::bytes::Bytes;
use crate::checksum::Checksum;
use crate::ring::{Ring, Walk};
use crate::rung::Rung;
use crate::torch_transport::{HostTensor, TorchTransport};
use crate::transport::{Operation, Pool, SyncScope, Transport, TransportError};
use crate::verify::{Judge, Role};

#[cfg(test)]
type Fault = Box<dyn FnMut(&mut Tensor) + Send>;

/// Everything that changes while blocks are streamed.
pub(super) struct State {
    transport: TorchTransport,
    judge: Judge,
    ring: Ring,
    slots: Vec<Slot>,
    masters: Vec<Master>,
    /// The blocks that travel, and each block's number among them; tied blocks have one.
    travelling: Vec<usize>,
    number_of: Vec<Option<usize>>,
    /// The block that was fetched last, and its slot.
    last: Option<(usize, usize)>,
    copy_stream: Option<Stream>,
    reader: Option<Reader>,
    deadline: Duration,
    /// Something may still write to a slot: nothing can be streamed any more.
    broken: Option<String>,
    pub(super) report: StreamReport,
    /// Damages what arrived, in tests of the verification.
    #[cfg(test)]
    fault: Option<Fault>,
}

/// Room for one block on the device.
struct Slot {
    buffer: Tensor,
    /// Host memory that a file is read into: the slot itself where the device sees it,
    /// else a buffer that is copied from.
    host: Option<Tensor>,
    /// Whether `host` is the slot itself.
    in_place: bool,
    /// The last copy into the slot, on the copy stream; `None` on the CPU.
    arrived: Option<Event>,
    /// The last use of the slot, on the compute stream.
    passed: Option<Event>,
    coming: Coming,
}

/// What is on its way into a slot.
enum Coming {
    /// Nothing: it is there, and was verified if it was to be.
    Nothing,
    /// A copy that was started; with the sum of what arrived, if that is known already.
    Copy(Option<Checksum>),
    /// A file that is being read.
    Read(Receiver<Read>),
}

impl Slot {
    fn new(bytes: i64, transport: &TorchTransport, from_file: bool) -> Result<Self, Error> {
        let on_device = || Tensor::f_empty([bytes], (Kind::Uint8, transport.device()));
        let pinned = || {
            let host = Tensor::f_empty([bytes], (Kind::Uint8, Device::Cpu))?;
            accelerator::pin_memory(&host)
        };
        let facts = transport.facts();
        let (buffer, host, in_place) = match transport.index() {
            None => {
                let buffer = on_device()?;
                let host = from_file.then(|| buffer.shallow_clone());
                (buffer, host, true)
            }
            Some(index) if from_file && facts.unified_memory && facts.zero_copy => {
                let host = pinned()?;
                (accelerator::map_pinned(&host, index)?, Some(host), true)
            }
            Some(_) => {
                let host = from_file.then(pinned).transpose()?;
                (on_device()?, host, false)
            }
        };
        Ok(Self {
            buffer,
            host,
            in_place,
            arrived: None,
            passed: None,
            coming: Coming::Nothing,
        })
    }
}

impl State {
    /// Allocates the ring on the device, if any block travels.
    pub(super) fn new(homes: Homes, options: &StreamOptions) -> Result<Self, Error> {
        let Homes {
            transport,
            masters,
            reader,
            resident,
            host,
            disk,
            ..
        } = homes;
        let travels = |master: &Master| matches!(master.home, Home::Host(_) | Home::File(_));
        let travelling: Vec<usize> = (0..masters.len())
            .filter(|&block| travels(&masters[block]))
            .collect();
        let number_of = (0..masters.len())
            .map(|block| first_of(&masters, block))
            .map(|block| travelling.iter().position(|&travels| travels == block))
            .collect();
        let ring = Ring::new(travelling.len(), options.slots);
        let sizes = travelling.iter().map(|&block| masters[block].bytes);
        let largest = sizes.max().unwrap_or(0);
        let slots: Vec<Slot> = (0..ring.slots())
            .map(|_| Slot::new(largest, &transport, reader.is_some()))
            .collect::<Result<_, _>>()?;
        let copy_stream = transport.index().map(Stream::new).transpose()?;
        let report = StreamReport {
            resident_bytes: resident,
            ring_bytes: Bytes(slots.len() as u64 * largest as u64),
            host_bytes: host,
            disk_bytes: disk,
            ..StreamReport::default()
        };
        tracing::debug!(
            blocks = masters.len(),
            travelling = travelling.len(),
            slots = slots.len(),
            resident = report.resident_bytes.0,
            ring = report.ring_bytes.0,
            host = report.host_bytes.0,
            disk = report.disk_bytes.0,
            "streaming blocks"
        );
        Ok(Self {
            transport,
            judge: Judge::new(options.verify),
            ring,
            slots,
            masters,
            travelling,
            number_of,
            last: None,
            copy_stream,
            reader,
            deadline: options.transport.deadline,
            broken: None,
            report,
            #[cfg(test)]
            fault: None,
        })
    }

    /// Whether the block's memory will hold another block later.
    pub(super) fn is_overwritten(&self, block: usize) -> bool {
        self.number_of[block].is_some()
    }

    /// Makes the block available and starts fetching the next ones. The result is the
    /// device's buffer of the block, ordered after its arrival on the current stream.
    pub(super) fn fetch(&mut self, block: usize, walk: Walk) -> Result<Tensor, Error> {
        let asked = block;
        let block = first_of(&self.masters, block);
        if let Home::Resident(there) = &self.masters[block].home {
            return Ok(there.shallow_clone());
        }
        if let Some(why) = &self.broken {
            return Err(Error::DeviceLost {
                message: why.clone(),
            });
        }
        let Some(number) = self.number_of[block] else {
            return Err(Error::Torch(format!("block {block} is nowhere")));
        };
        self.report.used += 1;
        // The next of tied blocks has the slot of the one before; the walk goes on behind them.
        if let Some((last, slot)) = self.last
            && last != asked
            && first_of(&self.masters, last) == block
        {
            self.last = Some((asked, slot));
            // Perhaps on another stream than the one before.
            self.order_after_arrival(slot)?;
            return Ok(self.slots[slot].buffer.shallow_clone());
        }
        self.last = None;
        let step = self.ring.step(number, walk);
        self.report.waited += u64::from(step.load);
        if step.load {
            self.start_or_forget(step.slot, block)?;
        }
        for (slot, number) in step.prefetch {
            self.start_or_forget(slot, self.travelling[number])?;
        }
        if let Err(error) = self.arrive(step.slot, block) {
            self.ring.forget(step.slot);
            return Err(error);
        }
        self.last = Some((asked, step.slot));
        Ok(self.slots[step.slot].buffer.shallow_clone())
    }

    fn start_or_forget(&mut self, slot: usize, block: usize) -> Result<(), Error> {
        self.start(slot, block)
            .inspect_err(|_| self.ring.forget(slot))
    }

    /// Starts bringing a block into a slot, after everything that is queued now.
    fn start(&mut self, slot: usize, block: usize) -> Result<(), Error> {
        self.finish_reading(slot)?;
        self.report.copies += 1;
        let bytes = self.masters[block].bytes;
        self.slots[slot].coming = match (&self.masters[block].home, &self.reader) {
            (Home::File(at), Some(reader)) => {
                let current = &mut self.slots[slot];
                let Some(host) = &current.host else {
                    return Err(Error::Torch("a slot has no memory to read into".into()));
                };
                let into = HostTensor::new(&host.f_narrow(0, 0, bytes)?)?;
                // The device reads the slot itself, or a copy of it that must have left.
                let after = match (current.in_place, self.transport.index()) {
                    (true, Some(index)) => {
                        let mut passed = match current.passed.take() {
                            Some(passed) => passed,
                            None => Event::new(index)?,
                        };
                        passed.record(Stream::current(index)?)?;
                        Some(passed)
                    }
                    _ => current.arrived.take(),
                };
                Coming::Read(reader.read(into, *at, after)?)
            }
            (Home::Host(master), _) => {
                let master = master.shallow_clone();
                Coming::Copy(self.copy(slot, block, &master)?)
            }
            _ => Coming::Nothing,
        };
        Ok(())
    }

    /// Waits for a file that is being read into the slot for a block that nobody asked for after all. Another
    /// read would queue behind it, but a copy from host memory would not.
    fn finish_reading(&mut self, slot: usize) -> Result<(), Error> {
        match std::mem::replace(&mut self.slots[slot].coming, Coming::Nothing) {
            Coming::Read(unwanted) => {
                let read = self.wait_for_file("a block that is not needed any more", &unwanted)?;
                let current = &mut self.slots[slot];
                match current.in_place {
                    true => current.passed = read.after,
                    false => current.arrived = read.after,
                }
            }
            Coming::Nothing | Coming::Copy(_) => {}
        }
        Ok(())
    }

    /// What came of a request, within the deadline.
    fn wait_for_file(&mut self, block: &str, result: &Receiver<Read>) -> Result<Read, Error> {
        result.recv_timeout(self.deadline).map_err(|error| {
            let why = match error {
                RecvTimeoutError::Timeout => {
                    format!("reading {block} did not end within {:?}", self.deadline)
                }
                RecvTimeoutError::Disconnected => "the thread that reads blocks is gone".into(),
            };
            // The thread may write to the slot as long as it lives.
            self.broken = Some(why.clone());
            Error::Torch(why)
        })
    }

    /// Copies host memory into a slot: at once on the CPU, else on the copy stream.
    fn copy(
        &mut self,
        slot: usize,
        block: usize,
        source: &Tensor,
    ) -> Result<Option<Checksum>, Error> {
        let bytes = self.masters[block].bytes;
        let mut target = self.slots[slot].buffer.f_narrow(0, 0, bytes)?;
        let source = source.f_narrow(0, 0, bytes)?;
        let (Some(copy_stream), Some(index)) = (self.copy_stream, self.transport.index()) else {
            return self.copy_on_the_cpu(&mut target, &source, block);
        };
        let event = |event: Option<Event>| event.map_or_else(|| Event::new(index), Ok);
        let mut passed = event(self.slots[slot].passed.take())?;
        let mut arrived = event(self.slots[slot].arrived.take())?;
        let compute = Stream::current(index)?;
        let started = self
            .transport
            .watched(Operation::Copy, Pool::Device, move || {
                passed.record(compute)?;
                copy_stream.wait_for(&passed)?;
                {
                    let _stream = copy_stream.enter()?;
                    copy_into(&mut target, &source, true)?;
                }
                arrived.record(copy_stream)?;
                Ok((passed, arrived))
            });
        let (passed, arrived) = self.settle(started)?;
        self.slots[slot].passed = Some(passed);
        self.slots[slot].arrived = Some(arrived);
        Ok(None)
    }

    fn copy_on_the_cpu(
        &mut self,
        target: &mut Tensor,
        source: &Tensor,
        block: usize,
    ) -> Result<Option<Checksum>, Error> {
        let sums = match self.is_verified(block) {
            true => Some(HostTensor::new(target)?.fill_from(&HostTensor::new(source)?)),
            false => {
                copy_into(target, source, false)?;
                None
            }
        };
        #[cfg(test)]
        if let Some(fault) = &mut self.fault {
            fault(target);
            let damaged = HostTensor::new(target)?;
            return Ok(sums.map(|_| Checksum::of(damaged.bytes())));
        }
        Ok(sums.map(|(sent, arrived)| {
            self.masters[block].sum.get_or_insert(sent);
            arrived
        }))
    }

    /// Waits for what is on its way into the slot, on the device or here, and verifies it.
    fn arrive(&mut self, slot: usize, block: usize) -> Result<(), Error> {
        for may_repeat in [true, false] {
            let coming = std::mem::replace(&mut self.slots[slot].coming, Coming::Nothing);
            let mut summed = None;
            match coming {
                Coming::Nothing => return self.order_after_arrival(slot),
                Coming::Copy(sum) => summed = sum,
                Coming::Read(result) => self.take_from_file(slot, block, &result)?,
            }
            self.order_after_arrival(slot)?;
            if !self.is_verified(block) {
                return Ok(());
            }
            self.report.verified += 1;
            let (sent, arrived) = (self.sum_of(block)?, self.sum_in(slot, block, summed)?);
            let name = &self.masters[block].name;
            let Some(damage) = sent.damage(&arrived) else {
                self.judge.passed(name, Role::Weight, Rung::Direct);
                return Ok(());
            };
            self.judge.distrust();
            tracing::warn!(block = name, %damage, "a block arrived wrong on the device");
            if !may_repeat {
                return Err(Error::Torch(format!(
                    "block `{name}` arrives wrong on the device: {damage}"
                )));
            }
            self.report.repeated += 1;
            self.start(slot, block)?;
        }
        Ok(())
    }

    /// Lets the compute stream wait for the last copy into the slot.
    fn order_after_arrival(&self, slot: usize) -> Result<(), Error> {
        if let (Some(arrived), Some(index)) = (&self.slots[slot].arrived, self.transport.index()) {
            Stream::current(index)?.wait_for(arrived)?;
        }
        Ok(())
    }

    fn take_from_file(
        &mut self,
        slot: usize,
        block: usize,
        result: &Receiver<Read>,
    ) -> Result<(), Error> {
        let name = format!("block `{}`", self.masters[block].name);
        let read = self.wait_for_file(&name, result)?;
        read.outcome.map_err(|error| {
            Error::Torch(format!("{name} cannot be read from its file: {error}"))
        })?;
        let current = &mut self.slots[slot];
        if current.in_place {
            current.passed = read.after;
            #[cfg(test)]
            if let Some(fault) = &mut self.fault {
                fault(&mut current.buffer);
            }
            return Ok(());
        }
        current.arrived = read.after;
        if let Some(host) = current.host.as_ref().map(Tensor::shallow_clone) {
            self.copy(slot, block, &host)?;
        }
        Ok(())
    }

    fn is_verified(&mut self, block: usize) -> bool {
        let name = &self.masters[block].name;
        let turn = self.judge.begin(name, Role::Weight);
        self.judge.wants(turn, name, Role::Weight, Rung::Direct)
    }

    /// What a block sums to.
    fn sum_of(&mut self, block: usize) -> Result<Checksum, Error> {
        let master = &mut self.masters[block];
        if let (None, Home::Host(buffer)) = (&master.sum, &master.home) {
            master.sum = Some(Checksum::of(HostTensor::new(buffer)?.bytes()));
        }
        let missing = || Error::Torch(format!("block `{}` was never summed", master.name));
        master.sum.clone().ok_or_else(missing)
    }

    /// What is in a slot; waits for it.
    fn sum_in(
        &mut self,
        slot: usize,
        block: usize,
        summed: Option<Checksum>,
    ) -> Result<Checksum, Error> {
        if let Some(sum) = summed {
            return Ok(sum);
        }
        let arrived = self.slots[slot]
            .buffer
            .f_narrow(0, 0, self.masters[block].bytes)?;
        // The compute stream waits for the copy, and so does the sum on it.
        let sum = self.transport.sum_device(&arrived);
        if let Some(sum) = self.settle(sum)? {
            return Ok(sum);
        }
        let copy = self.transport.read_back(&arrived);
        Ok(Checksum::of(self.settle(copy)?.bytes()))
    }

    /// An error of the transport in libtorch's words; what hangs or is lost ends the streaming.
    fn settle<T>(&mut self, outcome: Result<T, TransportError>) -> Result<T, Error> {
        let error = match outcome {
            Ok(value) => return Ok(value),
            Err(error) => Error::from(error),
        };
        if !error.context_is_usable() {
            self.broken = Some(error.to_string());
        }
        Err(error)
    }
}

/// The block itself, or the earlier one that has its weights.
fn first_of(masters: &[Master], block: usize) -> usize {
    match masters[block].home {
        Home::Of(first) => first,
        _ => block,
    }
}

impl Drop for State {
    /// A block may still be on its way into a slot, ordered on a stream that the slot's
    /// memory knows nothing of: it must not be given to somebody else before.
    fn drop(&mut self) {
        if self.transport.index().is_none() && self.reader.is_none() {
            return;
        }
        let mut quiet = self.broken.is_none();
        for slot in &mut self.slots {
            if let Coming::Read(result) = &slot.coming {
                quiet &= result.recv_timeout(self.deadline).is_ok();
            }
        }
        if let Err(error) = self.transport.synchronize(SyncScope::Device) {
            tracing::warn!(%error, "the last block on its way did not arrive");
            quiet = false;
        }
        if !quiet {
            let remotes = self.slots.drain(..).map(|slot| slot.buffer).collect();
            self.transport.abandon(remotes, Vec::new());
            std::mem::forget(std::mem::take(&mut self.masters));
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::super::{Block, BlockStream, Masters};
    use super::*;
    use crate::verify::Verify;

    /// Two blocks whose weight is all ones, and a device that damages the arrivals
    /// for which `strikes` says so.
    fn faulty(verify: Verify, strikes: impl FnMut(usize) -> bool + Send + 'static) -> BlockStream {
        faulty_from(Masters::Host, verify, strikes)
    }

    fn faulty_from(
        masters: Masters,
        verify: Verify,
        mut strikes: impl FnMut(usize) -> bool + Send + 'static,
    ) -> BlockStream {
        let block = |name: &str| Block {
            name: name.to_owned(),
            weights: vec![(
                "w".to_owned(),
                Tensor::ones([100], (Kind::Float, Device::Cpu)),
            )],
        };
        let options = StreamOptions {
            masters,
            verify,
            ..StreamOptions::default()
        };
        let stream = BlockStream::new(Device::Cpu, [block("a"), block("b")], options).unwrap();
        let mut arrivals = 0;
        stream.lock().fault = Some(Box::new(move |arrived| {
            if strikes(arrivals) {
                let _ = arrived.narrow(0, 8, 4).zero_();
            }
            arrivals += 1;
        }));
        stream
    }

    fn sum(stream: &BlockStream, block: usize) -> Result<f64, Error> {
        stream.evaluate(block, &[], |weights| {
            Ok(f64::try_from(weights.get("w")?.f_sum(Kind::Double)?)?)
        })
    }

    #[test]
    fn a_block_that_arrives_wrong_is_fetched_again() {
        let stream = faulty(Verify::First, |arrival| arrival == 0);
        assert_eq!(sum(&stream, 0).unwrap(), 100.0);
        assert_eq!(stream.report().repeated, 1);
    }

    #[test]
    fn a_block_that_is_read_wrong_is_read_again() {
        let folder = std::env::temp_dir();
        let disk = Masters::Disk { folder };
        let stream = faulty_from(disk.clone(), Verify::Always, |arrival| arrival == 0);
        assert_eq!(sum(&stream, 0).unwrap(), 100.0);
        assert_eq!(stream.report().repeated, 1);
        let stream = faulty_from(disk, Verify::Off, |_| true);
        assert_eq!(sum(&stream, 0).unwrap(), 99.0, "the fault strikes here too");
    }

    #[test]
    fn a_block_that_keeps_arriving_wrong_ends_the_run() {
        let stream = faulty(Verify::Always, |_| true);
        let error = sum(&stream, 0).unwrap_err().to_string();
        assert!(
            error.starts_with("block `a` arrives wrong on the device: wrong between"),
            "{error}"
        );
    }

    #[test]
    fn a_failed_block_is_not_taken_for_a_resident_one() {
        // The first block, the second on its way, and the first again.
        let stream = faulty(Verify::Always, |arrival| arrival < 3);
        assert!(sum(&stream, 0).is_err());
        assert_eq!(sum(&stream, 0).unwrap(), 100.0, "fetched again, not reused");
    }

    #[test]
    fn without_verification_the_damage_goes_unseen() {
        let stream = faulty(Verify::Off, |_| true);
        assert_eq!(sum(&stream, 0).unwrap(), 99.0);
    }
}
