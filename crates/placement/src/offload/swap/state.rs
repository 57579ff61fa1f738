//! The slots, their contents, and the copies that fill them.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_ext::Error;
use torch_ext::accelerator::{self, Event, Stream};
use torch_ext::copy_into;

use super::block_store::{BlockResidency, BlockStore, Read, Reader, StoredBlock};
use super::ring::{Ring, Traversal};
use super::slot_transport::SlotTransport;
use super::{SwapOptions, SwapReport};
use crate::transfer::engine::{StartedCopy, TransferEngine};
use crate::transfer::policy::{MoveError, Request};
use crate::transfer::torch_transport::{HostTensor, TorchTransport};
use crate::transfer::transport::{
    ChecksummedCopy, Operation, Pool, SyncScope, Transport, TransportError,
};
use crate::transfer::verify::Role;
use platform::Bytes;

#[cfg(test)]
pub(super) type Fault = Box<dyn FnMut(&mut Tensor) + Send>;

/// All mutable state of block swapping.
pub(super) struct State {
    transport: TorchTransport,
    engine: TransferEngine,
    ring: Ring,
    slots: Vec<Slot>,
    blocks: Vec<StoredBlock>,
    /// The streamed blocks, and the index of each block among them; tied blocks share one.
    streamed: Vec<usize>,
    number_of: Vec<Option<usize>>,
    /// The block that was fetched last, and its slot.
    last: Option<(usize, usize)>,
    copy_stream: Option<Stream>,
    reader: Option<Reader>,
    deadline: Duration,
    /// Set when something may still write to a slot: nothing can be streamed any more.
    broken: Option<String>,
    pub(super) report: SwapReport,
    /// Damages copies, for tests of the verification.
    #[cfg(test)]
    fault: Option<Fault>,
}

/// Device memory for one block.
struct Slot {
    buffer: Tensor,
    /// Host memory that a file is read into: the slot itself if the device can access it in place, otherwise
    /// a staging buffer.
    host: Option<Tensor>,
    /// Whether `host` is the slot itself.
    in_place: bool,
    /// The last copy into the slot, on the copy stream; `None` on the CPU.
    arrived: Option<Event>,
    /// The last use of the slot, on the compute stream.
    passed: Option<Event>,
    coming: PendingCopy,
}

/// What is in flight to a slot.
enum PendingCopy {
    /// Nothing: the block is there, and verified if required.
    Nothing,
    /// A copy that has been started.
    Copy(StartedCopy<Tensor>),
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
            coming: PendingCopy::Nothing,
        })
    }
}

impl State {
    /// Allocates the ring on the device, if any block is streamed.
    pub(super) fn new(residencies: BlockStore, options: &SwapOptions) -> Result<Self, Error> {
        let BlockStore {
            transport,
            blocks,
            reader,
            resident,
            host,
            disk,
            engine,
            ..
        } = residencies;
        let travels = |stored: &StoredBlock| {
            matches!(
                stored.residency,
                BlockResidency::Host(_) | BlockResidency::File(_)
            )
        };
        let streamed: Vec<usize> = (0..blocks.len())
            .filter(|&block| travels(&blocks[block]))
            .collect();
        let number_of = (0..blocks.len())
            .map(|block| first_of(&blocks, block))
            .map(|block| streamed.iter().position(|&travels| travels == block))
            .collect();
        let ring = Ring::new(streamed.len(), options.slots);
        let sizes = streamed.iter().map(|&block| blocks[block].bytes);
        let largest = sizes.max().unwrap_or(0);
        let slots: Vec<Slot> = (0..ring.slots())
            .map(|_| Slot::new(largest, &transport, reader.is_some()))
            .collect::<Result<_, _>>()?;
        let copy_stream = transport.index().map(Stream::new).transpose()?;
        let report = SwapReport {
            resident_bytes: resident,
            ring_bytes: Bytes(slots.len() as u64 * largest as u64),
            host_bytes: host,
            disk_bytes: disk,
            ..SwapReport::default()
        };
        tracing::debug!(
            blocks = blocks.len(),
            streamed = streamed.len(),
            slots = slots.len(),
            resident = report.resident_bytes.0,
            ring = report.ring_bytes.0,
            host = report.host_bytes.0,
            disk = report.disk_bytes.0,
            "streaming blocks"
        );
        Ok(Self {
            transport,
            engine,
            ring,
            slots,
            blocks,
            streamed,
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

    /// Whether the block's memory will be overwritten with another block later.
    pub(super) fn is_overwritten(&self, block: usize) -> bool {
        self.number_of[block].is_some()
    }

    /// Makes the block available and starts prefetching the next ones. Returns the device buffer of the
    /// block, ordered after its arrival on the current stream.
    pub(super) fn fetch(&mut self, block: usize, traversal: Traversal) -> Result<Tensor, Error> {
        let asked = block;
        let block = first_of(&self.blocks, block);
        if let BlockResidency::Resident(there) = &self.blocks[block].residency {
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
        // A tied block uses the slot of the previous one; the traversal continues after it.
        if let Some((last, slot)) = self.last
            && last != asked
            && first_of(&self.blocks, last) == block
        {
            self.last = Some((asked, slot));
            // Possibly on a different stream than before.
            self.order_after_arrival(slot)?;
            return Ok(self.slots[slot].buffer.shallow_clone());
        }
        self.last = None;
        let step = self.ring.step(number, traversal);
        self.report.waited += u64::from(step.load);
        if step.load {
            self.start_or_forget(step.slot, block)?;
        }
        for (slot, number) in step.prefetch {
            self.start_or_forget(slot, self.streamed[number])?;
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

    /// Starts copying a block into a slot, after all work queued so far.
    fn start(&mut self, slot: usize, block: usize) -> Result<(), Error> {
        self.finish_reading(slot)?;
        self.report.copies += 1;
        let bytes = self.blocks[block].bytes;
        self.slots[slot].coming = match (&self.blocks[block].residency, &self.reader) {
            (BlockResidency::File(at), Some(reader)) => {
                let current = &mut self.slots[slot];
                let Some(host) = &current.host else {
                    return Err(Error::Torch(
                        "a slot has no host buffer to read into".into(),
                    ));
                };
                let into = HostTensor::new(&host.f_narrow(0, 0, bytes)?)?;
                // Either the device reads the slot itself, or the copy out of the buffer must have completed.
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
                PendingCopy::Read(reader.read(into, *at, after)?)
            }
            (BlockResidency::Host(stored), _) => {
                let stored = stored.shallow_clone();
                PendingCopy::Copy(self.copy(slot, block, &stored)?)
            }
            _ => PendingCopy::Nothing,
        };
        Ok(())
    }

    /// Waits for a file read into the slot whose block turned out not to be needed. Another read would queue
    /// behind it, but a copy from host memory would not.
    fn finish_reading(&mut self, slot: usize) -> Result<(), Error> {
        match std::mem::replace(&mut self.slots[slot].coming, PendingCopy::Nothing) {
            PendingCopy::Read(unwanted) => {
                let read = self.wait_for_file("a block that is not needed any more", &unwanted)?;
                let current = &mut self.slots[slot];
                match current.in_place {
                    true => current.passed = read.after,
                    false => current.arrived = read.after,
                }
            }
            PendingCopy::Nothing | PendingCopy::Copy(_) => {}
        }
        Ok(())
    }

    /// The result of a read request, within the deadline.
    fn wait_for_file(&mut self, block: &str, result: &Receiver<Read>) -> Result<Read, Error> {
        result.recv_timeout(self.deadline).map_err(|error| {
            let why = match error {
                RecvTimeoutError::Timeout => {
                    format!("reading {block} took longer than {:?}", self.deadline)
                }
                RecvTimeoutError::Disconnected => "the thread that reads blocks has exited".into(),
            };
            // The thread may still write to the slot.
            self.broken = Some(why.clone());
            Error::Torch(why)
        })
    }

    /// Starts a copy from host memory into a slot: synchronous on the CPU, otherwise on the copy stream.
    fn copy(
        &mut self,
        slot: usize,
        block: usize,
        source: &Tensor,
    ) -> Result<StartedCopy<Tensor>, Error> {
        let bytes = self.blocks[block].bytes;
        let mut target = self.slots[slot].buffer.f_narrow(0, 0, bytes)?;
        let source = source.f_narrow(0, 0, bytes)?;
        let (Some(copy_stream), Some(index)) = (self.copy_stream, self.transport.index()) else {
            return self.copy_on_the_cpu(target, &source, block);
        };
        let remote = target.shallow_clone();
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
        let copied = match started {
            Ok((passed, arrived)) => {
                self.slots[slot].passed = Some(passed);
                self.slots[slot].arrived = Some(arrived);
                Ok(arriving(remote))
            }
            // Without an event it is unknown when the copy, if there is one, has completed.
            Err(error @ (TransportError::Refused { .. } | TransportError::OutOfMemory { .. })) => {
                let waited = self.transport.synchronize(SyncScope::Device);
                waited.map_err(|error| self.failed(error))?;
                Err(error)
            }
            Err(error) => return Err(self.failed(error)),
        };
        Ok(StartedCopy {
            copied,
            waited: true,
        })
    }

    fn copy_on_the_cpu(
        &mut self,
        mut target: Tensor,
        source: &Tensor,
        block: usize,
    ) -> Result<StartedCopy<Tensor>, Error> {
        let verified = self.engine.verifies_weight(&self.blocks[block].name);
        let mut arrived = None;
        match verified {
            true => {
                let sums = HostTensor::new(&target)?.fill_from(&HostTensor::new(source)?)?;
                arrived = Some(sums.1);
            }
            false => copy_into(&mut target, source, false)?,
        }
        #[cfg(test)]
        if let Some(fault) = &mut self.fault {
            fault(&mut target);
            arrived = None;
        }
        Ok(StartedCopy {
            copied: Ok(ChecksummedCopy {
                arrived,
                ..arriving(target)
            }),
            waited: true,
        })
    }

    /// Orders the compute stream after what is in flight to the slot, or takes the block from its file, and
    /// lets the engine verify it. If it did not arrive, the engine continues with its other strategies.
    fn arrive(&mut self, slot: usize, block: usize) -> Result<(), Error> {
        let coming = std::mem::replace(&mut self.slots[slot].coming, PendingCopy::Nothing);
        let started = match coming {
            PendingCopy::Nothing => return self.order_after_arrival(slot),
            PendingCopy::Copy(started) => started,
            PendingCopy::Read(result) => self.take_from_file(slot, block, &result)?,
        };
        self.order_after_arrival(slot)?;
        let (stored, current) = (&self.blocks[block], &self.slots[slot]);
        let request = Request {
            name: &stored.name,
            role: Role::Weight,
            cast: None,
        };
        let file = match (&stored.residency, &self.reader) {
            (BlockResidency::File(at), Some(reader)) => Some((reader, *at)),
            _ => None,
        };
        let memory = match &stored.residency {
            BlockResidency::Host(memory) => Some(memory),
            _ => current.host.as_ref(),
        };
        let Some(memory) = memory else {
            return Err(Error::Torch("a block has no source".into()));
        };
        let source = HostTensor::new(&memory.f_narrow(0, 0, stored.bytes)?)?;
        let mut transport = SlotTransport {
            inner: &mut self.transport,
            slot: current.buffer.f_narrow(0, 0, stored.bytes)?,
            file,
            in_place: current.in_place && file.is_some(),
            sum: stored.sum.as_ref(),
            deadline: self.deadline,
            #[cfg(test)]
            fault: &mut self.fault,
        };
        let sum = stored.sum.clone();
        let (outcome, trace) = self
            .engine
            .finish(&mut transport, &source, &request, started, sum);
        let repeated = trace.tried().saturating_sub(1);
        self.report.copies += repeated;
        self.report.repeated += repeated;
        self.report.verified += trace.verified();
        match outcome {
            Ok(_) => Ok(()),
            Err(error) => {
                if !error.context_is_usable() {
                    self.broken = Some(error.to_string());
                }
                match (&error, trace.last_damage()) {
                    (MoveError::NotPlaced { .. }, Some(damage)) => Err(Error::Torch(format!(
                        "block `{}` arrives damaged on the device: {damage}\n{trace}",
                        request.name
                    ))),
                    _ => Err(error.into()),
                }
            }
        }
    }

    /// Makes the compute stream wait for the last copy into the slot.
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
    ) -> Result<StartedCopy<Tensor>, Error> {
        let name = format!("block `{}`", self.blocks[block].name);
        let read = self.wait_for_file(&name, result)?;
        let current = &mut self.slots[slot];
        match current.in_place {
            true => current.passed = read.after,
            false => current.arrived = read.after,
        }
        if let Err(error) = read.outcome {
            return Ok(StartedCopy {
                copied: Err(TransportError::Refused {
                    operation: Operation::Copy,
                    message: format!("{name} cannot be read from its file: {error}"),
                }),
                waited: true,
            });
        }
        if !current.in_place
            && let Some(host) = current.host.as_ref().map(Tensor::shallow_clone)
        {
            return self.copy(slot, block, &host);
        }
        #[cfg(test)]
        if let Some(fault) = &mut self.fault {
            fault(&mut current.buffer);
        }
        let remote = current.buffer.f_narrow(0, 0, self.blocks[block].bytes)?;
        Ok(StartedCopy {
            copied: Ok(arriving(remote)),
            waited: true,
        })
    }

    /// Converts a transport error; after a hang or a lost context, no more blocks are swapped.
    fn failed(&mut self, error: TransportError) -> Error {
        let error = Error::from(error);
        if !error.context_is_usable() {
            self.broken = Some(error.to_string());
        }
        error
    }
}

/// A copy without checksums.
fn arriving(remote: Tensor) -> ChecksummedCopy<Tensor> {
    ChecksummedCopy {
        remote,
        sent: None,
        arrived: None,
    }
}

/// The block itself, or the earlier one that it is tied to.
fn first_of(blocks: &[StoredBlock], block: usize) -> usize {
    match blocks[block].residency {
        BlockResidency::TiedTo(first) => first,
        _ => block,
    }
}

impl Drop for State {
    /// A block may still be in flight to a slot, on a stream that the slot's allocation is not recorded on,
    /// so its memory must not be reused before that completes.
    fn drop(&mut self) {
        if self.transport.index().is_none() && self.reader.is_none() {
            return;
        }
        let mut quiet = self.broken.is_none();
        for slot in &mut self.slots {
            if let PendingCopy::Read(result) = &slot.coming {
                quiet &= result.recv_timeout(self.deadline).is_ok();
            }
        }
        if let Err(error) = self.transport.synchronize(SyncScope::Device) {
            tracing::warn!(%error, "the last block in flight did not arrive");
            quiet = false;
        }
        if !quiet {
            let remotes = self.slots.drain(..).map(|slot| slot.buffer).collect();
            self.transport.abandon(remotes, Vec::new());
            std::mem::forget(std::mem::take(&mut self.blocks));
        }
    }
}

#[cfg(test)]
mod tests;
