//! Block streaming: a frozen base that is larger than the device.
//!
//! The weights of each block lie in one flat buffer of host memory. A ring of slots
//! on the device, each as large as the largest block, holds the block in use and
//! the next ones on their way. What is where is decided in [`crate::ring`].
//!
//! ```text
//!   compute stream   block 0 ──────▶ block 1 ──────▶ block 2 ──▶
//!                          ╲ passed         ╲ passed
//!   copy stream      1 ─────▶ 2 into slot 0 ─▶ 3 into slot 1 ──▶
//!                     arrived╱
//! ```
//!
//! Two events per slot order it: the compute stream waits for *arrived* before it
//! reads a slot, the copy stream waits for *passed* before it overwrites one. On the
//! CPU the same steps happen in the same order, only at once.
//!
//! The base is frozen, so nothing travels back. Gradients need the weights again in
//! the backward pass, when the ring has moved on; therefore training goes through
//! gradient checkpointing, which fetches each block a second time, in reverse. A
//! block run while gradients are recorded without it is refused.
//!
//! On unified memory a ring would be a second copy in the same RAM. There the host
//! buffers are mapped into the device instead, and nothing is copied.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tch::{Device, Kind, Tensor};
use torch_ext::accelerator::{self, Event, Stream};
use torch_ext::{CheckpointOptions, Error, checkpoint_with, copy_into};

use crate::bytes::Bytes;
use crate::checksum::Checksum;
use crate::placer::PlaceError;
use crate::ring::{Ring, Walk};
use crate::rung::Rung;
use crate::torch_transport::{HostTensor, TorchTransport, TransportOptions};
use crate::transport::{Transport, TransportError};
use crate::verify::{Judge, Role, Verify};

/// Weights begin at multiples of this in a flat buffer: what vector loads and
/// coalesced reads of a device like.
const ALIGNMENT: i64 = 256;

/// How blocks are streamed.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    /// Slots of the ring, at least one; with two, copies and computation overlap.
    pub slots: usize,
    /// Which arrivals are verified. A verified arrival is waited for.
    pub verify: Verify,
    /// What libtorch does not know about the device.
    pub transport: TransportOptions,
    /// Run a block again in the backward pass with the random generators as they
    /// were: needed where a block has dropout.
    pub preserve_generators: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            slots: 2,
            verify: Verify::First,
            transport: TransportOptions::default(),
            preserve_generators: false,
        }
    }
}

/// One block of a model, on the host: a name, and its named weights.
#[derive(Debug)]
pub struct Block {
    /// As messages name it, such as `transformer.blocks.7`.
    pub name: String,
    /// Its weights; none requires a gradient.
    pub weights: Vec<(String, Tensor)>,
}

/// The weights of the block in use, on the device.
///
/// They are views of a slot that is overwritten later: do not keep them.
pub struct Weights<'a> {
    entries: &'a [Entry],
    buffer: Tensor,
}

impl Weights<'_> {
    /// The weight of this name (without the block's).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the weights that there are.
    pub fn get(&self, name: &str) -> Result<Tensor, Error> {
        let entry = self
            .entries
            .iter()
            .find(|entry| entry.name == name)
            .ok_or_else(|| {
                let names: Vec<&str> = self
                    .entries
                    .iter()
                    .map(|entry| entry.name.as_str())
                    .collect();
                Error::InvalidArgument(format!(
                    "the block has no weight `{name}`; it has {}",
                    names.join(", ")
                ))
            })?;
        entry.view(&self.buffer)
    }
}

/// What streaming did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamReport {
    /// Bytes that the ring holds on the device.
    pub device_bytes: Bytes,
    /// Bytes of all blocks on the host.
    pub host_bytes: Bytes,
    /// Blocks that were used.
    pub used: u64,
    /// Of these, blocks that nobody had fetched in advance.
    pub waited: u64,
    /// Copies to the device.
    pub copies: u64,
    /// Copies that were verified.
    pub verified: u64,
    /// Copies that arrived wrong and were repeated.
    pub repeated: u64,
}

/// A frozen stack of blocks that lives on the host and visits the device.
///
/// Cheap to clone; clones share the ring.
#[derive(Clone)]
pub struct BlockStream {
    layouts: Arc<Vec<Layout>>,
    state: Arc<Mutex<State>>,
    preserve_generators: bool,
}

/// Where the weights of a block lie in its buffer.
struct Layout {
    name: String,
    entries: Vec<Entry>,
    bytes: i64,
}

struct Entry {
    name: String,
    kind: Kind,
    size: Vec<i64>,
    offset: i64,
    bytes: i64,
}

impl Entry {
    fn view(&self, buffer: &Tensor) -> Result<Tensor, Error> {
        let bytes = buffer.f_narrow(0, self.offset, self.bytes)?;
        Ok(bytes
            .f_view_dtype(self.kind)?
            .f_view(self.size.as_slice())?)
    }
}

struct State {
    transport: TorchTransport,
    judge: Judge,
    ring: Ring,
    slots: Vec<Slot>,
    masters: Vec<Master>,
    copy_stream: Option<Stream>,
    report: StreamReport,
    /// Damages what arrived, in tests of the verification.
    #[cfg(test)]
    fault: Option<Box<dyn FnMut(&mut Tensor) + Send>>,
}

struct Slot {
    buffer: Tensor,
    /// The last copy into the slot, on the copy stream; `None` on the CPU.
    arrived: Option<Event>,
    passed: Option<Event>,
}

struct Master {
    buffer: Tensor,
    /// The same memory as the device sees it, on unified memory.
    mapped: Option<Tensor>,
    /// What its bytes sum to, once it was needed.
    sum: Option<Checksum>,
}

impl BlockStream {
    /// Packs the blocks into flat host buffers (pinned for an accelerator), one
    /// after the other, so that at most one block is in memory twice; and allocates
    /// the ring on the device.
    ///
    /// # Errors
    /// [`PlaceError`]: a weight that requires a gradient or is not on the CPU, or no
    /// memory for a buffer.
    pub fn new(
        device: Device,
        blocks: impl IntoIterator<Item = Block>,
        options: StreamOptions,
    ) -> Result<Self, PlaceError> {
        let mut transport = TorchTransport::new(device, options.transport.clone())?;
        let mut layouts = Vec::new();
        let mut masters = Vec::new();
        for block in blocks {
            let (layout, master) = pack(block, &mut transport)?;
            layouts.push(layout);
            masters.push(master);
        }
        if layouts.is_empty() || options.slots == 0 {
            let what = if layouts.is_empty() {
                "blocks"
            } else {
                "slots"
            };
            return Err(Error::InvalidArgument(format!("there are no {what} to stream")).into());
        }
        let ring = Ring::new(layouts.len(), options.slots);
        let largest = layouts.iter().map(|layout| layout.bytes).max().unwrap_or(0);
        let unified = masters.iter().all(|master| master.mapped.is_some());
        let slots = if unified { 0 } else { ring.slots() };
        let slots = (0..slots)
            .map(|_| Slot::new(largest, &transport))
            .collect::<Result<Vec<_>, _>>()?;
        let copy_stream = transport.index().map(Stream::new).transpose()?;
        let report = StreamReport {
            device_bytes: Bytes(slots.len() as u64 * largest as u64),
            host_bytes: layouts
                .iter()
                .map(|layout| Bytes(layout.bytes as u64))
                .sum(),
            ..StreamReport::default()
        };
        tracing::debug!(
            blocks = layouts.len(),
            slots = slots.len(),
            device_bytes = report.device_bytes.0,
            host_bytes = report.host_bytes.0,
            unified,
            "streaming blocks"
        );
        let judge = Judge::new(options.verify);
        let state = State {
            transport,
            judge,
            ring,
            slots,
            masters,
            copy_stream,
            report,
            #[cfg(test)]
            fault: None,
        };
        Ok(Self {
            layouts: Arc::new(layouts),
            state: Arc::new(Mutex::new(state)),
            preserve_generators: options.preserve_generators,
        })
    }

    /// How many blocks there are.
    pub fn len(&self) -> usize {
        self.layouts.len()
    }

    /// Whether there are none; never so.
    pub fn is_empty(&self) -> bool {
        self.layouts.is_empty()
    }

    /// What happened so far.
    pub fn report(&self) -> StreamReport {
        self.lock().report
    }

    /// Runs a block while training: `function` gets the inputs and the weights, and
    /// is run again in the backward pass (see [`torch_ext::checkpoint_with`]).
    /// Adapters that it captured receive gradients.
    ///
    /// # Errors
    /// What `function` returns; a copy that does not arrive.
    pub fn train<F>(
        &self,
        block: usize,
        inputs: &[&Tensor],
        function: F,
    ) -> Result<Vec<Tensor>, Error>
    where
        F: Fn(&[Tensor], &Weights<'_>) -> Result<Vec<Tensor>, Error> + Send + 'static,
    {
        self.check(block)?;
        let stream = self.clone();
        let options = CheckpointOptions {
            preserve_generators: self.preserve_generators,
        };
        checkpoint_with(options, inputs, move |inputs| {
            let buffer = stream
                .lock()
                .fetch(block, Walk::Training, &stream.layouts)?;
            function(inputs, &stream.weights(block, buffer))
        })
    }

    /// Runs a block without gradients. The blocks are expected in order, again and
    /// again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] while gradients are recorded for one of the inputs:
    /// the weights would be overwritten before backward needs them. What `function`
    /// returns; a copy that does not arrive.
    pub fn evaluate<R>(
        &self,
        block: usize,
        inputs: &[&Tensor],
        function: impl FnOnce(&Weights<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.check(block)?;
        if torch_ext::gradients_are_recorded() && inputs.iter().any(|input| input.requires_grad()) {
            return Err(Error::InvalidArgument(format!(
                "block `{}` is streamed, and gradients are being recorded: its weights will be \
                 overwritten before backward needs them. Train it with gradient checkpointing, or \
                 evaluate it without gradients",
                self.layouts[block].name
            )));
        }
        let buffer = self.lock().fetch(block, Walk::Evaluation, &self.layouts)?;
        function(&self.weights(block, buffer))
    }

    fn weights(&self, block: usize, buffer: Tensor) -> Weights<'_> {
        Weights {
            entries: &self.layouts[block].entries,
            buffer,
        }
    }

    fn check(&self, block: usize) -> Result<(), Error> {
        if block < self.len() {
            return Ok(());
        }
        let count = self.len();
        Err(Error::InvalidArgument(format!(
            "there is no block {block}: there are {count}"
        )))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every statement that can panic: none of them
        // leaves a slot claimed for a block that is not there.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn new(bytes: i64, transport: &TorchTransport) -> Result<Self, Error> {
        let buffer = Tensor::f_empty([bytes], (Kind::Uint8, transport.device()))?;
        let event = || transport.index().map(Event::new).transpose();
        Ok(Self {
            buffer,
            arrived: event()?,
            passed: event()?,
        })
    }
}

impl State {
    /// Makes the block available and starts fetching the next ones. The result is the
    /// device's buffer of the block, ordered after its arrival on the current stream.
    fn fetch(&mut self, block: usize, walk: Walk, layouts: &[Layout]) -> Result<Tensor, Error> {
        self.report.used += 1;
        if let Some(mapped) = &self.masters[block].mapped {
            return Ok(mapped.shallow_clone());
        }
        let step = self.ring.step(block, walk);
        self.report.waited += u64::from(step.load);
        let loads = step.load.then_some((step.slot, block));
        for (slot, block) in loads.into_iter().chain(step.prefetch) {
            if let Err(error) = self.copy(slot, block, &layouts[block]) {
                self.ring.forget(slot);
                return Err(error);
            }
        }
        let slot = &self.slots[step.slot];
        if let (Some(arrived), Some(index)) = (&slot.arrived, self.transport.index()) {
            Stream::current(index)?.wait_for(arrived)?;
        }
        Ok(slot.buffer.shallow_clone())
    }

    /// Starts the copy of a block into a slot, after everything that is queued now.
    fn copy(&mut self, slot: usize, block: usize, layout: &Layout) -> Result<(), Error> {
        let turn = self.judge.begin(Role::Weight);
        let verify = self
            .judge
            .wants(turn, &layout.name, Role::Weight, Rung::Direct);
        self.start_copy(slot, block)?;
        if !verify {
            return Ok(());
        }
        for may_repeat in [true, false] {
            self.report.verified += 1;
            let Some(damage) = self.damage(slot, block, layout)? else {
                self.judge.passed(&layout.name, Role::Weight, Rung::Direct);
                return Ok(());
            };
            self.judge.distrust();
            tracing::warn!(block = layout.name, %damage, "a block arrived wrong on the device");
            if !may_repeat {
                return Err(Error::Torch(format!(
                    "block `{}` arrives wrong on the device: {damage}",
                    layout.name
                )));
            }
            self.report.repeated += 1;
            self.start_copy(slot, block)?;
        }
        Ok(())
    }

    fn start_copy(&mut self, slot: usize, block: usize) -> Result<(), Error> {
        self.report.copies += 1;
        let (slot, master) = (&mut self.slots[slot], &self.masters[block].buffer);
        let mut target = slot.buffer.f_narrow(0, 0, master.size1()?)?;
        let streams = (self.copy_stream, self.transport.index());
        let (Some(copy_stream), Some(index)) = streams else {
            copy_into(&mut target, master, false)?;
            #[cfg(test)]
            if let Some(fault) = &mut self.fault {
                fault(&mut target);
            }
            return Ok(());
        };
        if let Some(passed) = &mut slot.passed {
            passed.record(Stream::current(index)?)?;
            copy_stream.wait_for(passed)?;
        }
        {
            let _stream = copy_stream.enter()?;
            copy_into(&mut target, master, true)?;
        }
        match &mut slot.arrived {
            Some(arrived) => arrived.record(copy_stream),
            None => copy_stream.synchronize(),
        }
    }

    /// How the slot differs from the block that should be there. Waits for the copy.
    fn damage(
        &mut self,
        slot: usize,
        block: usize,
        layout: &Layout,
    ) -> Result<Option<crate::checksum::Damage>, Error> {
        if let Some(stream) = self.copy_stream {
            stream.synchronize()?;
        }
        let master = &mut self.masters[block];
        let sent = match &master.sum {
            Some(sum) => sum.clone(),
            None => {
                let host = HostTensor::new(&master.buffer)?;
                let sum = self.transport.sum_host(&host).map_err(refused)?;
                master.sum.insert(sum).clone()
            }
        };
        let arrived = self.slots[slot].buffer.f_narrow(0, 0, layout.bytes)?;
        let sum = self.transport.sum_device(&arrived).map_err(refused)?;
        Ok(sum.and_then(|arrived| sent.damage(&arrived)))
    }
}

/// Lays the weights of a block out in one buffer of host memory.
fn pack(block: Block, transport: &mut TorchTransport) -> Result<(Layout, Master), PlaceError> {
    let mut entries = Vec::with_capacity(block.weights.len());
    let mut end = 0_i64;
    for (name, tensor) in &block.weights {
        if tensor.requires_grad() {
            return Err(Error::InvalidArgument(format!(
                "`{}.{name}` requires a gradient; only a frozen base can be streamed",
                block.name
            ))
            .into());
        }
        let bytes = (tensor.numel() * tensor.kind().elt_size_in_bytes()) as i64;
        let offset = end;
        end = (offset + bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        let entry = Entry {
            name: name.clone(),
            kind: tensor.kind(),
            size: tensor.size(),
            offset,
            bytes,
        };
        entries.push(entry);
    }
    // Zeros, because the gaps are copied and summed with the rest.
    let buffer = Tensor::f_zeros([end], (Kind::Uint8, Device::Cpu)).map_err(Error::from)?;
    let buffer = match transport.facts().pinned_memory {
        true => accelerator::pin_memory(&buffer)?,
        false => buffer,
    };
    for (entry, (_, tensor)) in entries.iter().zip(&block.weights) {
        copy_into(&mut entry.view(&buffer)?, tensor, false)?;
    }
    let facts = transport.facts();
    let mapped = match transport
        .index()
        .filter(|_| facts.unified_memory && facts.zero_copy)
    {
        Some(index) => Some(accelerator::map_pinned(&buffer, index)?),
        None => None,
    };
    let layout = Layout {
        name: block.name,
        entries,
        bytes: end,
    };
    Ok((
        layout,
        Master {
            buffer,
            mapped,
            sum: None,
        },
    ))
}

fn refused(error: TransportError) -> Error {
    let message = error.to_string();
    match error {
        TransportError::OutOfMemory { .. } => Error::OutOfMemory { message },
        TransportError::ContextLost { .. } | TransportError::TimedOut { .. } => {
            Error::DeviceLost { message }
        }
        TransportError::Refused { .. } => Error::Torch(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks whose weight is all ones, and a device that damages the arrivals
    /// for which `strikes` says so.
    fn faulty(
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
        let stream = faulty(Verify::Always, |arrival| arrival < 2);
        assert!(sum(&stream, 0).is_err());
        assert_eq!(sum(&stream, 0).unwrap(), 100.0, "fetched again, not reused");
    }

    #[test]
    fn without_verification_the_damage_goes_unseen() {
        let stream = faulty(Verify::Off, |_| true);
        assert_eq!(sum(&stream, 0).unwrap(), 99.0);
    }
}
