//! Block streaming: a frozen base that is larger than the device.
//!
//! The weights of each block lie in one flat buffer of host memory. A ring of slots
//! on the device, each as large as the largest block, holds the block in use and
//! the next ones on their way. What is where is decided in `ring`.
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
//! Not every block has to travel: those that fit beside the ring stay on the device
//! ([`Swapped`]).
//!
//! On unified memory a ring would be a second copy in the same RAM. There the host
//! buffers are mapped into the device instead, and nothing is copied; or the blocks
//! are in a file ([`BackingStore::Disk`]), read into a ring that the device sees where it
//! is. Never through a mapped file: copies from those hang on some APUs, and its
//! pages would be the second copy.

mod block_store;
mod ring;
mod slot_transport;
mod state;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tch::{Device, Kind, Tensor};
use torch_ext::{CheckpointOptions, Error, checkpoint_with, copy_into};

use self::block_store::{BlockStore, Origin};
use self::ring::Traversal;
use self::state::State;
use crate::offload::plan::leaves;
use crate::placer::{PlaceError, check_supported};
use crate::transfer::torch_transport::{TorchTransport, TransportOptions};
use crate::transfer::verify::Verify;
use platform::Bytes;

/// Weights begin at multiples of this in a flat buffer: what vector loads and
/// coalesced reads of a device like.
const ALIGNMENT: i64 = 256;

/// Which blocks are streamed. The others are on the device for good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Swapped {
    /// All of them.
    #[default]
    All,
    /// So many (`blocks_to_swap`), spread evenly, so that each has the time of the
    /// resident ones before it to arrive.
    Count(usize),
    /// Those with these numbers, as a [`Plan`](crate::offload::plan::Plan) has chosen them.
    Only(Vec<usize>),
}

/// Where streamed blocks are while they are not on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BackingStore {
    /// In host memory: pinned for a card of its own, and read by the device where it
    /// is on unified memory.
    #[default]
    Host,
    /// In a file of this folder that is made for the run and has no name, so that
    /// nothing is left of it. For memory that holds neither the blocks nor a copy.
    Disk {
        /// A folder on a disk; one in memory (`/dev/shm`) would free nothing.
        folder: PathBuf,
    },
    /// Some in such a file and the others in host memory, as a
    /// [`Plan`](crate::offload::plan::Plan) divides them where host memory holds only some.
    Divided {
        /// A folder on a disk.
        folder: PathBuf,
        /// The numbers, in this stream, of the blocks that come from the file.
        from_file: BTreeSet<usize>,
    },
}

impl BackingStore {
    /// The folder of the file, if there is one.
    fn folder(&self) -> Option<&Path> {
        match self {
            BackingStore::Host => None,
            BackingStore::Disk { folder } => Some(folder),
            BackingStore::Divided { from_file, .. } if from_file.is_empty() => None,
            BackingStore::Divided { folder, .. } => Some(folder),
        }
    }

    /// Whether the block of this number is kept in the file.
    fn is_in_file(&self, block: usize) -> bool {
        match self {
            BackingStore::Host => false,
            BackingStore::Disk { .. } => true,
            BackingStore::Divided { from_file, .. } => from_file.contains(&block),
        }
    }

    /// A block of the file that a stream of so many blocks does not have.
    fn absent_from(&self, blocks: usize) -> Option<usize> {
        match self {
            BackingStore::Divided { from_file, .. } => from_file.range(blocks..).next().copied(),
            BackingStore::Host | BackingStore::Disk { .. } => None,
        }
    }
}

/// How blocks are streamed.
#[derive(Clone, Debug)]
pub struct SwapOptions {
    /// Which blocks travel.
    pub streamed: Swapped,
    /// Where they come from.
    pub backing: BackingStore,
    /// Slots of the ring: two or more, so that copies and computation overlap. One is what a
    /// [`Plan`](crate::offload::plan::Plan) falls back to where two do not fit; nothing is fetched ahead then.
    pub slots: usize,
    /// Which arrivals are verified: when the block is used, so that those on their
    /// way are not held up.
    pub verify: Verify,
    /// What libtorch does not know about the device.
    pub transport: TransportOptions,
    /// Run a block again in the backward pass with the random generators as they
    /// were: needed where a block has dropout.
    pub preserve_generators: bool,
    /// Let what a block was given wait for the backward pass in host memory, as
    /// [`CheckpointOptions::offload`] says.
    pub offload_inputs: bool,
}

impl Default for SwapOptions {
    fn default() -> Self {
        Self {
            streamed: Swapped::All,
            backing: BackingStore::Host,
            slots: 2,
            verify: Verify::First,
            transport: TransportOptions::default(),
            preserve_generators: false,
            offload_inputs: false,
        }
    }
}

/// One block of a model, on the host: a name, and its named weights. Blocks that are tied, all
/// their weights the same memory, are kept once and are in one slot; weights that blocks share
/// only in part are kept with each of them, which a plan, counting each memory once, does not foresee.
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
pub struct SwapReport {
    /// Bytes of the blocks that stay on the device.
    pub resident_bytes: Bytes,
    /// Bytes of the ring on the device.
    pub ring_bytes: Bytes,
    /// Bytes of all streamed blocks in host memory.
    pub host_bytes: Bytes,
    /// Bytes of all streamed blocks in a file.
    pub disk_bytes: Bytes,
    /// Times that a streamed block was used.
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

impl SwapReport {
    /// Bytes that streaming holds on the device.
    pub fn device_bytes(&self) -> Bytes {
        self.resident_bytes + self.ring_bytes
    }
}

/// A frozen stack of blocks that lives on the host and visits the device.
///
/// Cheap to clone; clones share the ring.
#[derive(Clone)]
pub struct BlockSwapper {
    layouts: Arc<Vec<Layout>>,
    state: Arc<Mutex<State>>,
    checkpoint: CheckpointOptions,
}

/// Takes the blocks of a [`BlockSwapper`] one after the other, so that at most one of
/// them is in memory twice, whatever else is made between them.
pub struct SwapBuilder {
    options: SwapOptions,
    residencies: BlockStore,
    layouts: Vec<Layout>,
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

impl BlockSwapper {
    /// Packs the blocks into flat buffers, one after the other, so that at most one
    /// block is in memory twice, puts each where it stays, and allocates the ring.
    ///
    /// # Errors
    /// [`PlaceError`]: a weight that requires a gradient or is not on the CPU, no memory
    /// for a buffer, a resident block that does not arrive, or a folder that cannot be
    /// written to.
    pub fn new(
        device: Device,
        blocks: impl IntoIterator<Item = Block>,
        options: SwapOptions,
    ) -> Result<Self, PlaceError> {
        let blocks = blocks.into_iter();
        let travels = travels(&options.streamed, blocks.size_hint())?;
        let mut builder = SwapBuilder::new(device, options)?;
        for block in blocks {
            let travels = travels(builder.layouts.len());
            builder.push(block, travels)?;
        }
        builder.finish()
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
    pub fn report(&self) -> SwapReport {
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
        checkpoint_with(self.checkpoint, inputs, move |inputs| {
            let buffer = stream.lock().fetch(block, Traversal::Training)?;
            function(inputs, &stream.weights(block, buffer))
        })
    }

    /// Runs a block without gradients: `function` runs with their recording switched
    /// off if the block's memory will hold another one later. The blocks are expected
    /// in order, again and again.
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
        let recorded = torch_ext::gradients_are_recorded();
        let recorded = recorded && inputs.iter().any(|input| input.requires_grad());
        let overwritten = self.lock().is_overwritten(block);
        if recorded && overwritten {
            return Err(Error::InvalidArgument(format!(
                "block `{}` is streamed, and gradients are being recorded: its weights will be \
                 overwritten before backward needs them. Train it with gradient checkpointing, or \
                 evaluate it without gradients",
                self.layouts[block].name
            )));
        }
        let buffer = self.lock().fetch(block, Traversal::Evaluation)?;
        let weights = self.weights(block, buffer);
        if !overwritten {
            return function(&weights);
        }
        // An adapter that `function` captured would have autograd keep views of the slot, and
        // backward read another block's weights there: nothing notes that copies overwrite them.
        tch::no_grad(|| function(&weights))
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

impl fmt::Debug for BlockSwapper {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("BlockSwapper")
            .field("blocks", &self.len())
            .field("report", &self.report())
            .finish()
    }
}

impl SwapBuilder {
    /// A builder for blocks that all travel, whatever [`SwapOptions::streamed`] says:
    /// those that stay on the device need no stream.
    ///
    /// # Errors
    /// [`PlaceError`]: a device that is not there, or a folder that cannot be written to.
    pub fn new(device: Device, options: SwapOptions) -> Result<Self, PlaceError> {
        let transport = TorchTransport::new(device, options.transport.clone())?;
        Ok(Self {
            residencies: BlockStore::new(transport, &options)?,
            layouts: Vec::new(),
            options,
        })
    }

    /// Packs the next block into a flat buffer and puts that where it stays; the block's number.
    ///
    /// # Errors
    /// [`PlaceError`]: a weight that requires a gradient or is not on the CPU, no memory
    /// for the buffer, or no room in the file.
    pub fn add(&mut self, block: Block) -> Result<usize, PlaceError> {
        self.push(block, true)
    }

    fn push(&mut self, block: Block, travels: bool) -> Result<usize, PlaceError> {
        let (layout, buffer, origin) = pack(block)?;
        self.residencies.add(&layout, buffer, origin, travels)?;
        self.layouts.push(layout);
        Ok(self.layouts.len() - 1)
    }

    /// Allocates the ring.
    ///
    /// # Errors
    /// [`PlaceError`]: no block, no slot, no memory for the ring, or a block that is to be in the file
    /// ([`BackingStore::Divided`]) and was never added.
    pub fn finish(self) -> Result<BlockSwapper, PlaceError> {
        let what = match (self.layouts.is_empty(), self.options.slots) {
            (true, _) => Some("blocks"),
            (false, 0) => Some("slots"),
            _ => None,
        };
        if let Some(what) = what {
            return Err(Error::InvalidArgument(format!("there are no {what} to stream")).into());
        }
        let blocks = self.layouts.len();
        if let Some(absent) = self.options.backing.absent_from(blocks) {
            return Err(Error::InvalidArgument(format!(
                "block {absent} cannot be kept in a file: there are {blocks}"
            ))
            .into());
        }
        let state = State::new(self.residencies, &self.options)?;
        Ok(BlockSwapper {
            layouts: Arc::new(self.layouts),
            state: Arc::new(Mutex::new(state)),
            checkpoint: CheckpointOptions {
                preserve_generators: self.options.preserve_generators,
                offload: self.options.offload_inputs,
            },
        })
    }
}

/// Which of the blocks travel, as a question about a block's number.
fn travels(
    streamed: &Swapped,
    (least, most): (usize, Option<usize>),
) -> Result<impl Fn(usize) -> bool + use<>, Error> {
    let refuse = |message: String| Err(Error::InvalidArgument(message));
    let (count, only) = match streamed {
        Swapped::All => (least.max(1), None),
        Swapped::Only(blocks) => match blocks.iter().find(|&&block| Some(block) >= most) {
            Some(absent) if most.is_some() => {
                return refuse(format!(
                    "block {absent} cannot be streamed: there are {least}"
                ));
            }
            _ => (0, Some(blocks.clone())),
        },
        Swapped::Count(count) if most != Some(least) => {
            return refuse(format!(
                "to spread {count} streamed blocks evenly, the number of all blocks must be known: \
                 give an iterator that knows its length, or name the blocks"
            ));
        }
        Swapped::Count(count) if *count > least => {
            return refuse(format!(
                "`blocks_to_swap: {count}`: only {least} blocks can be streamed"
            ));
        }
        Swapped::Count(count) => (*count, None),
    };
    let all = matches!(streamed, Swapped::All);
    Ok(move |block: usize| match &only {
        Some(only) => only.contains(&block),
        None => all || leaves(block, count, least),
    })
}

/// Lays the weights of a block out in one buffer of host memory.
fn pack(block: Block) -> Result<(Layout, Tensor, Origin), PlaceError> {
    let mut entries = Vec::with_capacity(block.weights.len());
    let mut end = 0_i64;
    for (name, tensor) in &block.weights {
        if entries.iter().any(|entry: &Entry| entry.name == *name) {
            return Err(Error::InvalidArgument(format!(
                "block `{}` has two weights named `{name}`",
                block.name
            ))
            .into());
        }
        check_supported(&format!("{}.{name}", block.name), tensor)?;
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
    for (entry, (_, tensor)) in entries.iter().zip(&block.weights) {
        copy_into(&mut entry.view(&buffer)?, tensor, false)?;
    }
    let origin =
        |(_, tensor): &(String, Tensor)| (tensor.data_ptr() as usize, tensor.kind(), tensor.size());
    let origin = block.weights.iter().map(origin).collect();
    let layout = Layout {
        name: block.name,
        entries,
        bytes: end,
    };
    Ok((layout, buffer, origin))
}
