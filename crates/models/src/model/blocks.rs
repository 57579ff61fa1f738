//! The blocks of a model: resident in memory, or streamed.
//!
//! A streamed block is taken apart when it is built: its frozen tensors go to a [`BlockSwapper`], and what
//! remains is a template that contains the adapters. For each use, the template is combined with the tensors
//! that the swapper has just copied in. The computation is the same either way, so losses are bit-identical.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use placement::swap::{BlockSwapper, SwapBuilder, SwapOptions, SwapReport, Weights};
use tch::{Device, Kind, Tensor};
use torch_ext::{CheckpointOptions, checkpoint_with};

use super::Builder;
use crate::Error;
use crate::tensor::{BaseMap, frozen_bytes, shared};

/// The purpose of a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// Inference: no dropout.
    Evaluate,
    /// Training.
    Train {
        /// Recompute each block's activations in the backward pass instead of keeping them.
        checkpoint: bool,
    },
}

/// Which blocks of a frozen base are streamed, and how.
#[derive(Debug, Clone)]
pub struct Streaming {
    /// Indices of the streamed blocks, from zero. A model with several lists of blocks counts through them, in the
    /// order in which they are built, which must be that of the forward pass.
    pub blocks: Vec<usize>,
    /// Where they are kept, and the number of device slots.
    pub options: SwapOptions,
}

/// A block that can be taken apart into its tensors and rebuilt with others.
pub trait Layer: Sized + Send + 'static {
    /// Input that all blocks share and that gets no gradient.
    type Shared: Send + 'static;

    /// A second handle to the same data.
    fn share(shared: &Self::Shared) -> Self::Shared;

    /// The residual stream (first of `inputs`) after this block.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    fn forward(
        &self,
        inputs: &[Tensor],
        shared: &Self::Shared,
        dropout: bool,
    ) -> Result<Tensor, Error>;

    /// All that goes on to the next block of [`Blocks::carry`]: the residual stream, and what else it hands on.
    ///
    /// # Errors
    /// Those of [`Layer::forward`].
    fn outputs(
        &self,
        inputs: &[Tensor],
        shared: &Self::Shared,
        dropout: bool,
    ) -> Result<Vec<Tensor>, Error> {
        Ok(vec![self.forward(inputs, shared, dropout)?])
    }

    /// The same layer on another base (see [`BaseMap`]).
    ///
    /// # Errors
    /// Those of `map`.
    fn with_base(&self, map: BaseMap<'_>) -> Result<Self, Error>;
}

/// A list of blocks, in order: each is resident, or streamed from host memory.
#[derive(Debug)]
pub struct Blocks<L> {
    list: Vec<Block<L>>,
    /// That of all lists of the model, once they are built; `None` if no block of this one is streamed.
    stream: Option<SharedSwapper>,
    /// Whether activation checkpoints are offloaded to host memory.
    offload: AtomicBool,
}

/// The swapper of all lists of a model; empty until the last one is built.
type SharedSwapper = Arc<OnceLock<BlockSwapper>>;

/// What is asked of a list of blocks, whatever they are made of.
pub trait BlockList {
    /// Whether to offload the activation checkpoints of resident blocks to host memory.
    fn offload_activations(&self, offload: bool);

    /// Statistics of streaming, if anything is streamed; it covers all lists of the model.
    fn report(&self) -> Option<SwapReport>;
}

impl<L: Layer> BlockList for Blocks<L> {
    fn offload_activations(&self, offload: bool) {
        self.offload.store(offload, Ordering::Relaxed);
    }

    fn report(&self) -> Option<SwapReport> {
        let swapper = self.stream.as_ref().and_then(|stream| stream.get());
        swapper.map(BlockSwapper::report)
    }
}

/// The streamed blocks of a model while it is built.
pub(super) struct Streamer {
    streaming: Streaming,
    /// `None` before the first streamed block.
    builder: Option<SwapBuilder>,
    swapper: SharedSwapper,
    /// Number of blocks of the lists so far.
    count: usize,
}

impl Streamer {
    pub(super) fn new(streaming: Streaming) -> Self {
        Self {
            streaming,
            builder: None,
            swapper: SharedSwapper::default(),
            count: 0,
        }
    }

    /// Packs a block; returns its index in the swapper.
    fn add(&mut self, device: Device, block: placement::swap::Block) -> Result<usize, Error> {
        let builder = match &mut self.builder {
            Some(builder) => builder,
            none => none.insert(SwapBuilder::new(device, self.streaming.options.clone())?),
        };
        Ok(builder.add(block)?)
    }

    /// Allocates the ring, when all lists are built.
    pub(super) fn finish(self) -> Result<(), Error> {
        if let Some(builder) = self.builder {
            let _ = self.swapper.set(builder.finish()?);
        }
        Ok(())
    }
}

#[derive(Debug)]
enum Block<L> {
    Resident(L),
    /// One that would be streamed, of fake tensors: its memory on the device is that of the ring, which is not counted here.
    Fake(L),
    Streamed {
        /// The layer without its base weights.
        template: L,
        /// Its index in the swapper.
        number: usize,
    },
}

impl<L: Layer> Blocks<L> {
    /// Builds `count` blocks one after the other, and streams those that `builder` selects, which become usable with
    /// [`Builder::finish_blocks`]. Their names are `prefix` and their index.
    ///
    /// # Errors
    /// Those of `build`; or there is not enough memory or disk space for the swapper.
    pub fn new(
        (prefix, count): (&str, usize),
        device: Device,
        builder: &mut Builder,
        build: impl Fn(usize, &mut Builder) -> Result<L, Error>,
    ) -> Result<Self, Error> {
        let mut list = Vec::with_capacity(count);
        let (mut stream, mut offload) = (None, false);
        for index in 0..count {
            let streamed = builder.streamer().is_some_and(|streamer| {
                let number = streamer.count;
                streamer.count += 1;
                offload = streamer.streaming.options.offload_inputs;
                streamer.streaming.blocks.contains(&number)
            });
            if !streamed || torch_ext::fake::is_on() {
                let layer = build(index, builder)?;
                list.push(match streamed {
                    true => Block::Fake(layer),
                    false => Block::Resident(layer),
                });
                continue;
            }
            let layer = builder.on_the_host(device, |builder| build(index, builder))?;
            let (template, weights) = detach_weights(&layer)?;
            if let Some(streamer) = builder.streamer() {
                let name = format!("{prefix}.{index}");
                let number = streamer.add(device, placement::swap::Block { name, weights })?;
                stream = Some(Arc::clone(&streamer.swapper));
                list.push(Block::Streamed { template, number });
            }
        }
        Ok(Self {
            list,
            stream,
            offload: offload.into(),
        })
    }

    /// A list of one block, which is never streamed and not counted among those that are.
    pub(crate) fn resident(layer: L) -> Self {
        Self {
            list: vec![Block::Resident(layer)],
            stream: None,
            offload: false.into(),
        }
    }

    /// Number of blocks.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// Runs `stream` through all blocks. Each also gets `others`, which may need gradients, and `shared`.
    /// Streamed blocks are always recomputed in the backward pass, whatever `pass` says, because their
    /// weights are gone by then.
    ///
    /// # Errors
    /// Those of the blocks; or a streamed block does not arrive.
    pub fn forward(
        &self,
        stream: Tensor,
        others: &[Tensor],
        shared: &L::Shared,
        pass: Pass,
    ) -> Result<Tensor, Error> {
        let others = |_| others.iter().map(Tensor::shallow_clone).collect();
        only(self.carry(vec![stream], &others, shared, pass)?)
    }

    /// The same for blocks that hand on more than the residual stream: `carried`, which begins with it, are inputs of the first, and
    /// the [`Layer::outputs`] of each block those of the next. Returns those of the last. `others` are given by the index of
    /// the block.
    ///
    /// # Errors
    /// As [`Blocks::forward`].
    pub fn carry(
        &self,
        mut carried: Vec<Tensor>,
        others: &dyn Fn(usize) -> Vec<Tensor>,
        shared: &L::Shared,
        pass: Pass,
    ) -> Result<Vec<Tensor>, Error> {
        for (index, block) in self.list.iter().enumerate() {
            let mut inputs = carried;
            inputs.extend(others(index));
            carried = match (block, pass) {
                (Block::Resident(layer), Pass::Train { checkpoint: true })
                | (Block::Fake(layer), Pass::Train { .. }) => {
                    self.checkpointed(layer, inputs, shared)?
                }
                (Block::Resident(layer) | Block::Fake(layer), _) => {
                    layer.outputs(&inputs, shared, pass != Pass::Evaluate)?
                }
                (Block::Streamed { template, number }, Pass::Train { .. }) => {
                    self.trained(template, *number, inputs, shared)?
                }
                (Block::Streamed { template, number }, Pass::Evaluate) => {
                    let run = |layer: L| layer.outputs(&inputs, shared, false);
                    self.evaluated(template, *number, &inputs[0], run)?
                }
            };
        }
        Ok(carried)
    }

    /// Runs the blocks for inference: `run` gets each block, its index and the residual stream before it.
    pub(crate) fn evaluate(
        &self,
        mut stream: Tensor,
        mut run: impl FnMut(&L, usize, &Tensor) -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
        for (index, block) in self.list.iter().enumerate() {
            stream = match block {
                Block::Resident(layer) | Block::Fake(layer) => run(layer, index, &stream)?,
                Block::Streamed { template, number } => {
                    let run = |layer: L| run(&layer, index, &stream);
                    self.evaluated(template, *number, &stream, run)?
                }
            };
        }
        Ok(stream)
    }

    /// Bytes that the blocks take on their device: the resident ones and the swapper's slots.
    pub(crate) fn bytes(&self) -> Result<u64, Error> {
        let mut sum = self.report().map_or(0, |report| report.device_bytes().0);
        self.for_each_resident(&mut |_, tensor| sum += frozen_bytes(tensor))?;
        Ok(sum)
    }

    /// Calls `see` with the index of the block and each frozen tensor of the resident blocks.
    pub(crate) fn for_each_resident(
        &self,
        see: &mut dyn FnMut(usize, &Tensor),
    ) -> Result<(), Error> {
        for (index, block) in self.list.iter().enumerate() {
            if let Block::Resident(layer) = block {
                layer.with_base(&mut |tensor| {
                    see(index, tensor);
                    shared(tensor)
                })?;
            }
        }
        Ok(())
    }

    /// The sizes and types of the tensors of block `index`, if it is resident.
    pub(crate) fn base_sizes(&self, index: usize) -> Result<Vec<(Vec<i64>, Kind)>, Error> {
        let mut sizes = Vec::new();
        if let Some(Block::Resident(layer)) = self.list.get(index) {
            layer.with_base(&mut |tensor| {
                sizes.push((tensor.size(), tensor.kind()));
                shared(tensor)
            })?;
        }
        Ok(sizes)
    }

    /// Runs a resident block and keeps only its input for the backward pass.
    fn checkpointed(
        &self,
        layer: &L,
        inputs: Vec<Tensor>,
        common: &L::Shared,
    ) -> Result<Vec<Tensor>, Error> {
        let inputs = reachable(inputs)?;
        let (layer, common) = (layer.with_base(&mut shared)?, L::share(common));
        let options = CheckpointOptions {
            offload: self.offload.load(Ordering::Relaxed),
            ..CheckpointOptions::default()
        };
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        Ok(checkpoint_with(options, &inputs, move |inputs| {
            let outputs = layer.outputs(inputs, &common, true);
            outputs.map_err(Error::into_torch)
        })?)
    }

    /// Runs a streamed block in training: its weights are copied in once now and once in the backward pass.
    fn trained(
        &self,
        template: &L,
        number: usize,
        inputs: Vec<Tensor>,
        common: &L::Shared,
    ) -> Result<Vec<Tensor>, Error> {
        let inputs = reachable(inputs)?;
        let (template, common) = (template.with_base(&mut shared)?, L::share(common));
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        Ok(self
            .source()?
            .train(number, &inputs, move |inputs, weights| {
                let outputs = attach_weights(&template, weights)
                    .and_then(|layer| layer.outputs(inputs, &common, true));
                outputs.map_err(Error::into_torch)
            })?)
    }

    /// Runs a streamed block on the tensors that have been copied in.
    fn evaluated<R>(
        &self,
        template: &L,
        number: usize,
        stream: &Tensor,
        run: impl FnOnce(L) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let forward = |weights: &Weights<'_>| {
            attach_weights(template, weights)
                .and_then(run)
                .map_err(Error::into_torch)
        };
        Ok(self.source()?.evaluate(number, &[stream], forward)?)
    }

    fn source(&self) -> Result<&BlockSwapper, Error> {
        let stream = self.stream.as_ref().and_then(|stream| stream.get());
        stream.ok_or_else(|| Error::Internal("a streamed block without a swapper".into()))
    }
}

/// Splits a layer into a template and its numbered frozen tensors.
fn detach_weights<L: Layer>(layer: &L) -> Result<(L, Vec<(String, Tensor)>), Error> {
    let mut weights = Vec::new();
    let template = layer.with_base(&mut |tensor| {
        weights.push((weights.len().to_string(), tensor.shallow_clone()));
        Ok(Tensor::f_empty([0], (Kind::Uint8, Device::Cpu))?)
    })?;
    Ok((template, weights))
}

/// Rebuilds a layer from a template and the tensors it was split into.
fn attach_weights<L: Layer>(template: &L, weights: &Weights<'_>) -> Result<L, Error> {
    let mut number = 0..;
    template.with_base(&mut |_| {
        let number: usize = number.next().unwrap_or_default();
        Ok(weights.get(&number.to_string())?)
    })
}

/// The first block's input comes from the embedding, which may be frozen, but the backward pass reaches a
/// checkpoint only through its input; so make it require a gradient.
fn reachable(mut inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Error> {
    if !inputs.iter().any(Tensor::requires_grad)
        && let Some(stream) = inputs.first_mut()
    {
        *stream = stream.f_detach()?.f_set_requires_grad(true)?;
    }
    Ok(inputs)
}

fn only(outputs: Vec<Tensor>) -> Result<Tensor, Error> {
    let output = outputs.into_iter().next();
    output.ok_or_else(|| Error::Internal("a block without output".into()))
}
