//! Block swapping: a frozen base that is larger than the device.
//!
//! The weights of each block are packed into one flat buffer in host memory. A ring of slots on the device,
//! each as large as the largest block, holds the block in use and the next ones while they are copied in.
//! `ring` decides what is where.
//!
//! ```text
//!   compute stream   block 0 ──────▶ block 1 ──────▶ block 2 ──▶
//!                          ╲ passed         ╲ passed
//!   copy stream      1 ─────▶ 2 into slot 0 ─▶ 3 into slot 1 ──▶
//!                     arrived╱
//! ```
//!
//! Two events per slot order this: the compute stream waits for *arrived* before it reads a slot, and the
//! copy stream waits for *passed* before it overwrites one. On the CPU the same steps happen in the same
//! order, but synchronously.
//!
//! The base is frozen, so nothing is copied back. The backward pass needs the weights again when the ring has
//! moved on, so training uses gradient checkpointing, which copies each block in a second time, in reverse
//! order. Running a block without it while gradients are recorded is refused.
//!
//! Not every block has to be streamed: those that fit beside the ring stay on the device ([`Swapped`]).
//!
//! On unified memory a ring would be a second copy in the same RAM. There, the host buffers are mapped into
//! the device instead and nothing is copied; or the blocks are in a file ([`BackingStore::Disk`]) and read
//! into a ring that the device accesses in place. Never through a memory-mapped file: copies from those hang
//! on some APUs, and their pages would be the second copy.

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

/// Alignment of weights in a flat buffer, in bytes, for vector loads and coalesced reads.
const ALIGNMENT: i64 = 256;

/// Which blocks are streamed. The others stay on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Swapped {
    /// All of them.
    #[default]
    All,
    /// This many (`blocks_to_swap`), evenly spaced, so that each can be copied while the resident ones before
    /// it compute.
    Count(usize),
    /// Those with these indices, as chosen by a [`Plan`](crate::offload::plan::Plan).
    Only(Vec<usize>),
}

/// Where streamed blocks are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BackingStore {
    /// In host memory: pinned for a discrete card, and accessed in place by the device on unified memory.
    #[default]
    Host,
    /// In an unlinked temporary file in this folder, for machines whose memory can hold neither the blocks
    /// nor a copy.
    Disk {
        /// A folder on a disk; one in memory (`/dev/shm`) would free nothing.
        folder: PathBuf,
    },
    /// Some in such a file and the others in host memory, as divided by a
    /// [`Plan`](crate::offload::plan::Plan) if host memory can hold only some.
    Divided {
        /// A folder on a disk.
        folder: PathBuf,
        /// Indices, in this swapper, of the blocks in the file.
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

    /// Whether the block with this index is kept in the file.
    fn is_in_file(&self, block: usize) -> bool {
        match self {
            BackingStore::Host => false,
            BackingStore::Disk { .. } => true,
            BackingStore::Divided { from_file, .. } => from_file.contains(&block),
        }
    }

    /// A block assigned to the file that a swapper with `blocks` blocks does not have.
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
    /// Which blocks are streamed.
    pub streamed: Swapped,
    /// Where they are kept.
    pub backing: BackingStore,
    /// Slots of the ring: two or more, so that copies overlap with computation. A
    /// [`Plan`](crate::offload::plan::Plan) falls back to one if two do not fit; there is no prefetching
    /// then.
    pub slots: usize,
    /// Which copies are verified. This happens when a block is used, so that it does not delay copies in
    /// flight.
    pub verify: Verify,
    /// Properties of the device that libtorch does not know.
    pub transport: TransportOptions,
    /// Restore the random generators when a block is recomputed in the backward pass; needed for blocks with
    /// dropout.
    pub preserve_generators: bool,
    /// Keep the inputs of blocks in host memory until the backward pass, see [`CheckpointOptions::offload`].
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

/// One block of a model in host memory: a name and its named weights. Tied blocks, whose weights all share
/// storage, are kept once and occupy one slot. Weights that blocks share only partly are kept once per block;
/// a plan, which counts each storage once, does not account for that.
#[derive(Debug)]
pub struct Block {
    /// The name in messages, such as `transformer.blocks.7`.
    pub name: String,
    /// Its weights; none may require a gradient.
    pub weights: Vec<(String, Tensor)>,
}

/// The weights of the block in use, on the device.
///
/// They are views of a slot that will be overwritten: do not keep them.
pub struct Weights<'a> {
    entries: &'a [Entry],
    buffer: Tensor,
}

impl Weights<'_> {
    /// The weight with this name (without the block's).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], which lists the weights there are.
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

/// Statistics of block swapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SwapReport {
    /// Bytes of the blocks that stay on the device.
    pub resident_bytes: Bytes,
    /// Bytes of the ring on the device.
    pub ring_bytes: Bytes,
    /// Bytes of streamed blocks in host memory.
    pub host_bytes: Bytes,
    /// Bytes of streamed blocks in a file.
    pub disk_bytes: Bytes,
    /// Number of times a streamed block was used.
    pub used: u64,
    /// How many of these had not been prefetched.
    pub waited: u64,
    /// Copies to the device.
    pub copies: u64,
    /// Copies that were verified.
    pub verified: u64,
    /// Copies that arrived damaged and were repeated.
    pub repeated: u64,
}

impl SwapReport {
    /// Device memory used for block swapping.
    pub fn device_bytes(&self) -> Bytes {
        self.resident_bytes + self.ring_bytes
    }
}

/// A frozen stack of blocks that are kept on the host and copied to the device when used.
///
/// Cheap to clone; clones share the ring.
#[derive(Clone)]
pub struct BlockSwapper {
    layouts: Arc<Vec<Layout>>,
    state: Arc<Mutex<State>>,
    checkpoint: CheckpointOptions,
}

/// Adds the blocks of a [`BlockSwapper`] one after the other, so that at most one of them is in memory twice
/// at any time.
pub struct SwapBuilder {
    options: SwapOptions,
    residencies: BlockStore,
    layouts: Vec<Layout>,
}

/// Where the weights of a block are in its buffer.
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
    /// Packs the blocks into flat buffers, one after the other, so that at most one is in memory twice, moves
    /// each to where it is kept, and allocates the ring.
    ///
    /// # Errors
    /// [`PlaceError`] if a weight requires a gradient or is not on the CPU, a buffer cannot be allocated, a
    /// resident block does not arrive, or a folder is not writable.
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

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.layouts.len()
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.layouts.is_empty()
    }

    /// Statistics so far.
    pub fn report(&self) -> SwapReport {
        self.lock().report
    }

    /// Runs a block in training. `function` gets the inputs and the weights, and is called again in the
    /// backward pass (see [`torch_ext::checkpoint_with`]). Adapters that it captures receive gradients.
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

    /// Runs a block without gradients: if its slot will be overwritten, `function` runs under `no_grad`.
    /// Blocks should be run in order, repeatedly.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if gradients are recorded for one of the inputs, because the weights would
    /// be overwritten before the backward pass needs them. Those of `function`; or a copy does not arrive.
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
        // With an adapter captured by `function`, autograd would keep views of the slot, and the backward
        // pass would read another block's weights there without noticing.
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
        // The state is consistent after every statement that can panic: none leaves a slot assigned to a
        // block that is not there.
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
    /// A builder for blocks that are all streamed, whatever [`SwapOptions::streamed`] says.
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

    /// Packs the next block into a flat buffer and moves it to where it is kept; returns its index.
    ///
    /// # Errors
    /// [`PlaceError`] if a weight requires a gradient or is not on the CPU, or there is not enough memory or
    /// disk space.
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
    /// [`PlaceError`] if there is no block or no slot, the ring cannot be allocated, or a block assigned to
    /// the file ([`BackingStore::Divided`]) was never added.
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
                "block {absent} cannot be kept in a file: there are only {blocks} blocks"
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

/// A predicate for the indices of streamed blocks.
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
                    "block {absent} cannot be streamed: there are only {least} blocks"
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

/// Packs the weights of a block into one host buffer.
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
    // Zeroed, because the gaps are copied and checksummed too.
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
